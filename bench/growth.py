"""Measure how time and memory grow with the number of rows: the same load of ten thousand and of ten million rows."""

import statistics
from collections.abc import Callable, Iterator

from bench import references
from bench.cinema import COLUMNS
from bench.report import Size, timed
from bench.scenarios import Bench

TABLE = "content.growth"
QUERY = f"SELECT {COLUMNS} FROM {TABLE}"
# Above this many rows one turn is enough.
REPEATED_ROWS = 2_000_000


def measure(bench: Bench, sizes: list[int]) -> Iterator[Size]:
    def within() -> None:
        bench.cinema.drop("analytics.growth")
        bench.platform.define("growth", QUERY, target_key=["id"])
        bench.platform.run("growth")

    def between() -> None:
        bench.load_elsewhere("growth_remote", QUERY)

    def within_by_hand() -> None:
        references.fresh_table(bench.cinema, QUERY)

    def between_by_hand() -> None:
        references.copy_across(bench.cinema, bench.remote.admin_url, QUERY)

    if sizes:
        bench.platform.restart()
    for rows in sizes:
        bench.cinema.make_films(TABLE, rows)
        yield _size(bench, "within one database", rows, within, within_by_hand)
        yield _size(bench, "to another database", rows, between, between_by_hand)
        bench.cinema.drop("analytics.growth", "analytics.reference")
        bench.remote.drop("analytics.growth_remote", "analytics.reference")


def _size(bench: Bench, route: str, rows: int, load: Callable[[], None], by_hand: Callable[[], None]) -> Size:
    ours, theirs = [], []
    for _ in range(bench.repeat if rows <= REPEATED_ROWS else 1):
        theirs.append(timed(by_hand))
        bench.platform.forget_peak_memory()
        ours.append(timed(load))
    return Size(route, rows, statistics.median(ours), statistics.median(theirs), bench.platform.peak_memory_mb())
