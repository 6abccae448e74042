"""How time and memory grow with the number of rows: the same load at ten thousand rows and at ten million."""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.cinema import COLUMNS
from bench.report import timed
from bench.scenarios import Bench

TABLE = "content.growth"
QUERY = f"SELECT {COLUMNS} FROM {TABLE}"
# Above this many rows one turn tells enough.
REPEATED_ROWS = 2_000_000


@dataclass(frozen=True)
class Size:
    """One route at one size: the median time, and the most memory that the runner held in the last turn."""

    route: str
    rows: int
    seconds: float
    peak_memory_mb: float

    @property
    def microseconds_per_row(self) -> float:
        return 1e6 * self.seconds / self.rows


def measure(bench: Bench, sizes: list[int]) -> Iterator[Size]:
    def within() -> None:
        bench.cinema.drop("analytics.growth")
        bench.platform.define("growth", QUERY, target_key=["id"])
        bench.platform.run("growth")

    def between() -> None:
        bench.load_elsewhere("growth_remote", QUERY)

    if sizes:
        bench.platform.restart()
    for rows in sizes:
        bench.cinema.make_films(TABLE, rows)
        yield _size(bench, "within one database", rows, within)
        yield _size(bench, "to another database", rows, between)
        bench.cinema.drop("analytics.growth")
        bench.remote.drop("analytics.growth_remote")


def _size(bench: Bench, route: str, rows: int, load: Callable[[], None]) -> Size:
    seconds = []
    for _ in range(bench.repeat if rows <= REPEATED_ROWS else 1):
        bench.platform.forget_peak_memory()
        seconds.append(timed(load))
    return Size(route, rows, statistics.median(seconds), bench.platform.peak_memory_mb())
