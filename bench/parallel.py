"""Compare a load in ranges of the key with the same load by one process: `python -m bench.parallel --rows 1000000`.

A row step, a copy into another database, and a key of which 90 % is in a hundredth of its values. The loads of a pair
alternate; CPU is that of the server and of this process with its descendants. Wall times are meaningful only on a
machine that does nothing else, so each line has the load average. `--growth 10000000` also compares the time per row of
that many rows with that of `--rows`. Writes results/parallel.json and results/parallel.md; `--name other` writes other
files.
"""

import argparse
import json
import os
import statistics
import threading
import time
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import psycopg
from pydantic import SecretStr

from bench import servers
from bench.report import RESULTS, machine
from vitrina.definition import Definition
from vitrina.loads import local_pool
from vitrina.loads.control import RunControl
from vitrina.runner.dispatcher import PipelineDispatcher
from vitrina.settings import Settings
from vitrina.status import Trigger
from vitrina.store import database, leases, pipelines, runs, target_schema
from vitrina.store.session_pool import SessionPool
from vitrina.transforms import forking

WORKERS = 2
FEW = 2_000
# Of half the CPU that one stream takes, and of all of it.
MOST_OF_IDEAL = 1.2
MOST_CPU = 1.1
# Of the time of even ranges, where 90 % of the rows have 1 % of the keys; of the time of a row, where there are many.
MOST_OF_EVEN = 1.5
MOST_OF_FEW = 1.1
ROW_STEP = {"order_index": 1, "task_type": "PYTHON", "body": "bench_upper_rows"}
HEAVIER_STEP = {"order_index": 1, "task_type": "PYTHON", "body": "bench_parse_rows"}
ARROW_STEP = {"order_index": 1, "task_type": "PYTHON", "body": "bench_upper"}


@dataclass(frozen=True)
class Case:
    """Hold a load that is measured."""

    name: str
    table: str
    step: dict[str, Any] | None = None
    elsewhere: bool = False
    options: dict[str, Any] = field(default_factory=dict)


CASES = (
    Case("row step", "films", ROW_STEP),
    Case("row step, skewed", "skewed", ROW_STEP),
    Case("arrow step", "films", ARROW_STEP),
    Case("heavier row step", "films", HEAVIER_STEP),
    Case("copy", "films", elsewhere=True),
    Case("copy in order", "films", elsewhere=True, options={"checkpoint_rows": 100_000}),
)


def main() -> None:
    arguments = _parser().parse_args()
    rows, pairs = arguments.rows, arguments.pairs
    chosen = [case for case in CASES if not arguments.cases or case.name in arguments.cases]
    lines: list[dict[str, Any]] = []
    growth: dict[str, Any] | None = None
    with servers.prepared({"shared_buffers": "512MB", "max_wal_size": "8GB"}) as (prepared, _):
        settings = _with_other_database(prepared)
        with psycopg.connect(admin_url(settings), autocommit=True) as admin:
            admin.execute("CREATE SCHEMA IF NOT EXISTS content")
            admin.execute("GRANT USAGE ON SCHEMA content TO vitrina_reader")
            _fill(admin, rows)
            # As in a runner: workers are forked from a process that is kept.
            forking.templates.keep()
            local_pool.templates.keep()
            imports = _first_loads(settings, admin)
            print(json.dumps({"imports": imports}), flush=True)
            for case in chosen:
                lines.append(_measure(settings, admin, case, rows, pairs))
                print(json.dumps(lines[-1]), flush=True)
                _write(lines, arguments, imports, growth)
            if arguments.growth:
                growth = _grow(settings, admin, rows, arguments.growth)
                print(json.dumps({"growth": growth}), flush=True)
            forking.templates.close()
            local_pool.templates.close()
    _write(lines, arguments, imports, growth)


def _first_loads(settings: Settings, admin: "psycopg.Connection[Any]") -> float:
    """Load a few rows both ways, as a runner imports once what its workers are forked from.

    Return the time of ranges.
    """
    case = Case("first", "few", ROW_STEP, options={"checkpoint_rows": FEW // 4})
    _load(settings, admin, case, 1, FEW)
    _, several, _ = _load(settings, admin, case, WORKERS, FEW)
    _, again, _ = _load(settings, admin, case, WORKERS, FEW)
    return round(several - again, 2)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--pairs", type=int, default=1)
    parser.add_argument("--cases", nargs="*", choices=[case.name for case in CASES], default=[])
    parser.add_argument("--growth", type=int, help="rows of a table that is loaded in ranges as well")
    parser.add_argument("--name", default="parallel")
    return parser


def admin_url(settings: Settings) -> str:
    assert settings.admin_url is not None
    return settings.admin_url.get_secret_value()


def _with_other_database(settings: Settings) -> Settings:
    with psycopg.connect(admin_url(settings), autocommit=True) as admin:
        admin.execute("CREATE DATABASE marts")
    url = psycopg.conninfo.make_conninfo(admin_url(settings), dbname="marts")
    with database.connect(url, "bench") as other:
        other.execute("CREATE SCHEMA analytics")
        target_schema.prepare(other)
    return settings.model_copy(update={"connections": {"marts": SecretStr(url)}, "transforms": "bench.steps"})


def _fill(admin: "psycopg.Connection[Any]", rows: int) -> None:
    for name, key, count in (
        ("few", "i", FEW),
        ("films", "i", rows),
        ("skewed", f"CASE WHEN i % 10 = 0 THEN i * 1000 ELSE {rows}::bigint * 500 + i END", rows),
    ):
        make_table(admin, name, key, count)


def make_table(admin: "psycopg.Connection[Any]", name: str, key: str, count: int) -> None:
    shape = "id bigint PRIMARY KEY, title text, rating numeric(3, 1), votes int, modified timestamptz"
    values = "'Film ' || i, (i % 100) / 10.0, i % 1000, now()"
    admin.execute(f"CREATE TABLE content.{name} ({shape})")
    admin.execute(f"INSERT INTO content.{name} SELECT {key}, {values} FROM generate_series(1, {count}) AS i")
    admin.execute(f"VACUUM ANALYZE content.{name}")
    admin.execute(f"GRANT SELECT ON content.{name} TO vitrina_reader")
    admin.execute("CHECKPOINT")


def _grow(settings: Settings, admin: "psycopg.Connection[Any]", rows: int, many: int) -> dict[str, Any]:
    """Load a row step of few rows, of many, and of few again, in ranges: what a million rows take."""
    make_table(admin, "many", "i", many)
    found: list[dict[str, Any]] = []
    for table, count in (("films", rows), ("many", many), ("films", rows)):
        seconds, cpu, paging = _load(settings, admin, Case("growth", table, ROW_STEP), WORKERS, count)
        each = {"seconds": round(seconds * 1e6 / count, 2), "cpu_seconds": round(cpu * 1e6 / count, 2)}
        found.append({"rows": count, "paging": paging, **each, "load_average": load_average()})
    before, grown, after = found
    ratios = {name: round(2 * grown[name] / (before[name] + after[name]), 2) for name in ("seconds", "cpu_seconds")}
    return {"of_a_million": found, "ratio": ratios}


def load_average() -> float:
    return round(os.getloadavg()[0], 1)


def _measure(settings: Settings, admin: "psycopg.Connection[Any]", case: Case, rows: int, pairs: int) -> dict[str, Any]:
    taken: dict[int, list[tuple[float, float]]] = {1: [], WORKERS: []}
    paging = {}
    for _ in range(pairs):
        for workers, found in taken.items():
            seconds, cpu, paging[workers] = _load(settings, admin, case, workers, rows)
            found.append((seconds, cpu))
    figures = {
        str(workers): {
            "seconds": round(statistics.median(wall for wall, _ in found), 2),
            "cpu_seconds": round(statistics.median(cpu for _, cpu in found), 2),
            "paging": paging[workers],
        }
        for workers, found in taken.items()
    }
    alone, several = figures["1"], figures[str(WORKERS)]
    ratios = {name: round(several[name] / alone[name], 2) for name in ("seconds", "cpu_seconds")}
    of_ideal = round(several["seconds"] / (alone["cpu_seconds"] / WORKERS), 2)
    of_all = [[round(cpu, 2) for _, cpu in found] for found in taken.values()]
    told = {"cpu_of_each": of_all, "load_average": load_average()}
    return {"case": case.name, "by": figures, "ratio": ratios, "of_ideal": of_ideal, **told}


def _load(
    settings: Settings, admin: "psycopg.Connection[Any]", case: Case, workers: int, rows: int
) -> tuple[float, float, str]:
    return load(settings, admin, case, {"parallel": workers}, rows)


def load(
    settings: Settings,
    admin: "psycopg.Connection[Any]",
    case: Case,
    more: dict[str, Any],
    rows: int,
    *,
    cluster: int | None = None,
) -> tuple[float, float, str]:
    """Load all rows of a case, and return seconds, seconds of CPU, and how it was read.

    The CPU of `cluster`, a child of this process, and its descendants does not count.
    """
    name = f"{case.table}_{uuid4().hex[:8]}"
    query = f"SELECT id, title, rating, votes, modified FROM content.{case.table}"
    tasks = [{"order_index": 0, "task_type": "SQL", "body": query}, case.step] if case.step else None
    options = case.options | more | ({"target_connection": "marts"} if case.elsewhere else {})
    source = {"tasks": tasks} if tasks else {"source_query": query}
    definition = Definition.model_validate(
        {"name": name, "target_table": f"analytics.{name}", "target_key": ["id"], "options": options, **source}
    )
    with database.connect(settings.require_database_url(), "bench") as metastore:
        pipeline_id = pipelines.insert(metastore, definition, pipeline_id=None, managed_by=None)
        pipelines.request_run(metastore, pipeline_id, trigger=Trigger.API)
        claim = leases.claim_next(metastore, uuid4(), settings.lease_ttl_seconds)
        assert claim is not None
        pool = SessionPool(most=20, idle_seconds=60.0)
        before, began = _cpu(admin, cluster), time.monotonic()
        PipelineDispatcher(settings, pool=pool).work(claim, RunControl(3600.0, threading.Event()))
        seconds, cpu = time.monotonic() - began, _cpu(admin, cluster) - before
        pool.close()
        run = runs.find_current(metastore, pipeline_id)
        assert run is not None
        assert (run["status"], run["rows_read"]) == ("SUCCESS", rows), run["error_message"]
        return seconds, cpu, str(run["metrics"]["paging"])


def _write(
    lines: list[dict[str, Any]], arguments: argparse.Namespace, imports: float, growth: dict[str, Any] | None
) -> None:
    about = {
        "machine": machine(),
        "rows": arguments.rows,
        "pairs": arguments.pairs,
        "workers": WORKERS,
        "imports": imports,
        "skew": _skew(lines),
        "growth": growth,
    }
    (RESULTS / f"{arguments.name}.json").write_text(json.dumps({**about, "lines": lines}, indent=2) + "\n")
    text = (
        f"# One load by {WORKERS} processes\n\nSeconds, and seconds of CPU of both databases and the runner with its"
        f" processes; {arguments.rows:,} rows, medians of {arguments.pairs} pairs. Wanted of row steps: at most"
        f" {MOST_OF_IDEAL} times half of the CPU of one stream, and {MOST_CPU} times its CPU."
        f" The first load in ranges of a runner takes {imports} s of CPU more, for imports.\n\n"
        "| load | one stream | CPU | in ranges | CPU | CPU, times | time, of the ideal | load average | met |\n"
        "|---|---|---|---|---|---|---|---|---|\n"
    )
    text += "".join(map(_row, lines))
    if skew := about["skew"]:
        text += (
            f"\n90 % of the rows in 1 % of the keys, against even keys, both in ranges: {skew['cpu_seconds']} times the"
            f" CPU, {skew['seconds']} times the time (wanted: {MOST_OF_EVEN}).\n"
        )
    if growth:
        few, many, again = growth["of_a_million"]
        text += (
            f"\nA million rows of {many['rows']:,} against one of {few['rows']:,}, a row step in ranges:"
            f" {growth['ratio']['cpu_seconds']} times the CPU, {growth['ratio']['seconds']} times the time (wanted:"
            f" {MOST_OF_FEW}; {many['cpu_seconds']} s against {few['cpu_seconds']} s and {again['cpu_seconds']} s).\n"
        )
    (RESULTS / f"{arguments.name}.md").write_text(text)


def _skew(lines: list[dict[str, Any]]) -> dict[str, float] | None:
    """Compare a skewed key with an even one, where both were measured."""
    found = {line["case"]: line["by"][str(WORKERS)] for line in lines}
    if not {"row step", "row step, skewed"} <= found.keys():
        return None
    even, skewed = found["row step"], found["row step, skewed"]
    return {name: round(skewed[name] / even[name], 2) for name in ("seconds", "cpu_seconds")}


def _row(line: dict[str, Any]) -> str:
    alone, several = line["by"]["1"], line["by"][str(WORKERS)]
    met = line["of_ideal"] <= MOST_OF_IDEAL and line["ratio"]["cpu_seconds"] <= MOST_CPU
    told = "yes" if met else "**no**"
    if several["paging"] != "key ranges":
        told = "not cut"
    return (
        f"| {line['case']} | {alone['seconds']} | {alone['cpu_seconds']} | {several['seconds']} |"
        f" {several['cpu_seconds']} | {line['ratio']['cpu_seconds']} | {line['of_ideal']} |"
        f" {line['load_average']} | {told} |\n"
    )


def _cpu(admin: "psycopg.Connection[Any]", cluster: int | None) -> float:
    server = servers.parent(admin.info.backend_pid)
    return servers.tree_cpu_seconds(server) + servers.tree_cpu_seconds(os.getpid(), without=cluster)


if __name__ == "__main__":
    main()
