"""Measure what ten checks cost a load: `python -m bench.checks [--rows 300000] [--pairs 5] [--setting hard]`.

The same load with and without checks alternates, and the order changes from pair to pair. The CPU seconds of the runner
and of PostgreSQL are counted, which vary far less than wall time on a busy machine.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import psycopg

from bench.postgres import SETTINGS, bench
from bench.report import RESULTS, machine
from bench.scenarios import Bench
from bench.servers import parent, tree_cpu_seconds

WANTED_PERCENT = 15.0
QUERY = """
    SELECT id, title, 'movie' AS type, rating, (rating * 10)::int AS genre_id, genres, modified FROM content.films
"""
# Every kind of check that a whole load may have, and a second one of the most frequent kind.
TEN: list[dict[str, Any]] = [
    {"kind": "not_null", "column": "title"},
    {"kind": "not_null", "column": "modified"},
    {"kind": "accepted_values", "column": "type", "values": ["movie", "tv_show"]},
    {"kind": "relationship", "column": "genre_id", "to": "content.genres", "to_column": "id"},
    {"kind": "expression", "expression": "rating BETWEEN 0 AND 10"},
    {"kind": "unique", "columns": ["id"]},
    {"kind": "row_count", "min": 1, "last_runs": 10},
    {"kind": "changed_share", "max": 0.5},
    {"kind": "freshness", "column": "modified", "max_age": "3650d"},
    {"kind": "select", "query": "SELECT id FROM staged WHERE cardinality(genres) = 0"},
]
# By then, other threads have finished what a run left to them.
_SETTLE_SECONDS = 0.3


def main() -> None:
    arguments = parse()
    arguments.bindir, arguments.peers = None, []
    with bench(arguments, arguments.setting) as measured:
        _make_genres(measured)
        works = {name: WORKS[name] for name in arguments.only}
        lines = [_line(name, _pairs(measured, work, arguments.pairs)) for name, work in works.items()]
    _write(lines, arguments)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=WORKS, default=list(WORKS), metavar="WORK", help="; ".join(WORKS))
    parser.add_argument("--setting", choices=SETTINGS, default="friendly", help="of the servers and the data")
    parser.add_argument("--repeat", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, default=Path(gettempdir()) / "vitrina-bench")
    return parser.parse_args()


def _make_genres(measured: Bench) -> None:
    with measured.cinema.connect() as connection:
        connection.execute("CREATE TABLE content.genres AS SELECT i AS id FROM generate_series(0, 999) AS i")
        connection.execute("ALTER TABLE content.genres ADD PRIMARY KEY (id); GRANT SELECT ON content.genres TO PUBLIC")
        connection.execute("ANALYZE content.genres")


def _first(measured: Bench, name: str, checks: list[dict[str, Any]]) -> Callable[[], None]:
    """Load into a mart that does not exist yet."""

    def load() -> None:
        measured.cinema.drop(f"analytics.{name}")
        measured.platform.define(name, QUERY, target_key=["id"], checks=checks)
        measured.platform.run(name)

    return load


def _through_runner(measured: Bench, name: str, checks: list[dict[str, Any]]) -> Callable[[], None]:
    """Load rows through the runner, like those of another database and those of steps."""

    def load() -> None:
        measured.cinema.drop(f"analytics.{name}")
        route = {"batch_size": 50_000, "options": {"route": "arrow"}}
        measured.platform.define(name, QUERY, target_key=["id"], checks=checks, **route)
        measured.platform.run(name)

    return load


def _reload(measured: Bench, name: str, checks: list[dict[str, Any]]) -> Callable[[], None]:
    """Load when nothing has changed."""
    measured.platform.define(name, QUERY, target_key=["id"], checks=checks)
    measured.platform.run(name)
    return lambda: _run(measured, name)


def _changed(measured: Bench, name: str, checks: list[dict[str, Any]]) -> Callable[[], None]:
    """Load when a tenth of the rows has changed."""
    again = _reload(measured, name, checks)

    def load() -> None:
        with measured.cinema.connect() as connection:
            connection.execute(
                f"UPDATE analytics.{name} SET title = title || '.' WHERE left(id::text, 1) IN ('0', 'f')"
            )
        again()

    return load


def _run(measured: Bench, name: str) -> None:
    measured.platform.run(name)


WORKS = {
    "first load": _first,
    "first load through the runner": _through_runner,
    "reload, nothing changed": _reload,
    "reload, an eighth changed": _changed,
}


def _pairs(measured: Bench, work: Callable[..., Callable[[], None]], pairs: int) -> list[tuple[float, float]]:
    """Measure both alternately: seconds of CPU without checks, and with them."""
    plain, checked = work(measured, "plain", []), work(measured, "checked", TEN)
    plain(), checked()  # not counted: warm-up
    found: list[tuple[float, float]] = []
    for number in range(pairs):
        turns = [plain, checked] if number % 2 == 0 else [checked, plain]
        spent = {turn: _cpu_of(measured, turn) for turn in turns}
        found.append((spent[plain], spent[checked]))
    return found


def _cpu_of(measured: Bench, turn: Callable[[], None]) -> float:
    with psycopg.connect(measured.cinema.admin_url) as connection:
        server = parent(connection.info.backend_pid)
    process = measured.platform.process
    if process is None:
        raise RuntimeError("there is no runner")
    before = tree_cpu_seconds(server) + tree_cpu_seconds(process.pid)
    turn()
    time.sleep(_SETTLE_SECONDS)
    return tree_cpu_seconds(server) + tree_cpu_seconds(process.pid) - before


def _line(work: str, pairs: list[tuple[float, float]]) -> dict[str, Any]:
    percents = [100 * (checked / plain - 1) for plain, checked in pairs]
    line = {
        "work": work,
        "plain": round(statistics.median(plain for plain, _ in pairs), 2),
        "checked": round(statistics.median(checked for _, checked in pairs), 2),
        "percent": round(statistics.median(percents), 1),
        "pairs": [round(percent, 1) for percent in percents],
    }
    print(line, flush=True)
    return line


def _write(lines: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    name = "checks" if arguments.setting == "friendly" else f"checks_{arguments.setting}"
    about = {"machine": machine(), "rows": arguments.rows, "pairs": arguments.pairs}
    (RESULTS / f"{name}.json").write_text(json.dumps({**about, "lines": lines}, indent=2) + "\n")
    rows = [
        f"| {line['work']} | {line['plain']} | {line['checked']} | {line['percent']:+} % |"
        f" {'yes' if line['percent'] < WANTED_PERCENT else '**no**'} |"
        for line in lines
    ]
    text = (
        f"# What ten checks cost\n\nSeconds of CPU of the runner and of PostgreSQL, {arguments.rows:,} rows, medians of"
        f" {arguments.pairs} pairs that took turns; under {WANTED_PERCENT:g} % is wanted.\n\n"
        "| work | without | with ten checks | more | met |\n|---|---|---|---|---|\n" + "\n".join(rows) + "\n"
    )
    (RESULTS / f"{name}.md").write_text(text)


if __name__ == "__main__":
    main()
