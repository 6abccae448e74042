"""Compare a plan of a million rows with a reload in which nothing changed.

    python -m bench.plans [--rows 1000000] [--repeat 3]

Also checked: the plan counts what the next run reports, and the mart's counters, file and size do not change.
"""

import argparse
import time
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from bench.cinema import FILMS
from bench.postgres import bench
from bench.report import Line, write
from bench.scenarios import Bench
from vitrina.store import pipelines, requests

# A plan costs at most 1.3 reloads.
WANTED = 1 / 1.3
STATE = """
SELECT pg_relation_filenode(c.oid) AS file, pg_total_relation_size(c.oid) AS size, s.n_tup_ins, s.n_tup_upd, s.n_tup_del
FROM pg_class c JOIN pg_stat_all_tables s ON s.relid = c.oid WHERE c.oid = 'analytics.films'::regclass
"""


def main() -> None:
    arguments = parse()
    arguments.only, arguments.peers, arguments.bindir = ["plans"], [], None
    with bench(arguments) as measured:
        measured.platform.define("films", FILMS, target_key=["id"])
        measured.platform.run("films")
        before = _state(measured)
        lines = [_same(measured)]
        counted = _changed(measured, before)
    write("plans", lines, {"rows": arguments.rows, "a tenth changed": counted})


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--home", type=Path, default=Path(gettempdir()) / "vitrina-bench")
    return parser.parse_args()


def _same(measured: Bench) -> Line:
    def ours() -> None:
        rows = plan(measured, "films")["rows"]
        if rows["added"] or rows["changed"] or rows["removed"]:
            raise RuntimeError(f"nothing changed, and the plan says {rows}")

    return measured.compare("plan, nothing changed", "a reload", WANTED, ours, lambda: measured.platform.run("films"))


def _changed(measured: Bench, before: tuple[Any, ...]) -> str:
    with measured.cinema.connect() as connection:
        connection.execute("UPDATE content.films SET title = title || '.' WHERE left(id::text, 1) IN ('0', '1')")
    started = time.monotonic()
    rows = plan(measured, "films")["rows"]
    seconds = time.monotonic() - started
    if _state(measured) != before:
        raise RuntimeError("the plan has written to the mart")
    measured.platform.run("films")
    with measured.platform.connect() as connection:
        row = connection.execute("SELECT metrics FROM etl.etl_runs ORDER BY started_at DESC LIMIT 1").fetchone()
    if row is None or row["metrics"]["updated"] != rows["changed"]:
        raise RuntimeError(f"the plan counted {rows}, the run {row}")
    return f"{rows['changed']} rows, planned in {seconds:.1f} s"


def _state(measured: Bench) -> tuple[Any, ...]:
    with measured.cinema.connect() as connection:
        row = connection.execute(STATE).fetchone()
    if row is None:
        raise RuntimeError("there is no mart")
    return row


def plan(measured: Bench, name: str) -> dict[str, Any]:
    """Request a plan from the runner and wait for it."""
    with measured.platform.connect() as connection:
        row = pipelines.find(connection, name)
        if row is None:
            raise RuntimeError(f"there is no pipeline {name}")
        request_id = requests.insert(connection, "plan", row["id"], {}, "bench")
        while True:
            asked = requests.find(connection, request_id)
            if asked and asked["status"] == "DONE":
                made: dict[str, Any] = asked["result"]
                return made
            if asked is None or asked["status"] == "FAILED":
                raise RuntimeError(f"{name}: {asked and asked['error']}")
            time.sleep(0.01)


if __name__ == "__main__":
    main()
