"""One load in ranges of the key against the same load by one process: `python -m bench.parallel [ROWS] [PAIRS]`.

A row step, a copy into another database, and a key of which 90 % is in a hundredth of its values. Each pair is taken in
turns; CPU is that of the server and of this process with everything below it. Wall times are worth something on a
machine that does nothing else.
"""

import json
import os
import statistics
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import psycopg
from pydantic import SecretStr

from bench import servers
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
ROW_STEP = {"order_index": 1, "task_type": "PYTHON", "body": "bench_upper_rows"}
HEAVIER_STEP = {"order_index": 1, "task_type": "PYTHON", "body": "bench_parse_rows"}
ARROW_STEP = {"order_index": 1, "task_type": "PYTHON", "body": "bench_upper"}


@dataclass(frozen=True)
class Case:
    """A load that is measured."""

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
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    pairs = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    chosen = [case for case in CASES if len(sys.argv) <= 3 or case.name in sys.argv[3:]]
    with servers.prepared({"shared_buffers": "512MB", "max_wal_size": "8GB"}) as (prepared, _):
        settings = _with_other_database(prepared)
        with psycopg.connect(_admin_url(settings), autocommit=True) as admin:
            admin.execute("CREATE SCHEMA IF NOT EXISTS content")
            admin.execute("GRANT USAGE ON SCHEMA content TO vitrina_reader")
            _fill(admin, rows)
            # As in a runner: workers are forked from a process that is kept.
            forking.templates.keep()
            local_pool.templates.keep()
            for case in chosen:
                _measure(settings, admin, case, rows, pairs)
            forking.templates.close()
            local_pool.templates.close()


def _admin_url(settings: Settings) -> str:
    assert settings.admin_url is not None
    return settings.admin_url.get_secret_value()


def _with_other_database(settings: Settings) -> Settings:
    with psycopg.connect(_admin_url(settings), autocommit=True) as admin:
        admin.execute("CREATE DATABASE marts")
    url = psycopg.conninfo.make_conninfo(_admin_url(settings), dbname="marts")
    with database.connect(url, "bench") as other:
        other.execute("CREATE SCHEMA analytics")
        target_schema.prepare(other)
    return settings.model_copy(update={"connections": {"marts": SecretStr(url)}, "transforms": "bench.steps"})


def _fill(admin: "psycopg.Connection[Any]", rows: int) -> None:
    shape = "id bigint PRIMARY KEY, title text, rating numeric(3, 1), votes int, modified timestamptz"
    values = "'Film ' || i, (i % 100) / 10.0, i % 1000, now()"
    for name, key in (
        ("films", "i"),
        ("skewed", f"CASE WHEN i % 10 = 0 THEN i * 1000 ELSE {rows}::bigint * 500 + i END"),
    ):
        admin.execute(f"CREATE TABLE content.{name} ({shape})")
        admin.execute(f"INSERT INTO content.{name} SELECT {key}, {values} FROM generate_series(1, {rows}) AS i")
        admin.execute(f"VACUUM ANALYZE content.{name}")
    admin.execute("GRANT SELECT ON ALL TABLES IN SCHEMA content TO vitrina_reader")
    admin.execute("CHECKPOINT")


def _measure(settings: Settings, admin: "psycopg.Connection[Any]", case: Case, rows: int, pairs: int) -> None:
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
    told = {"case": case.name, "rows": rows, "pairs": pairs, "by": figures, "ratio": ratios, "of_ideal": of_ideal}
    print(json.dumps(told), flush=True)


def _load(
    settings: Settings, admin: "psycopg.Connection[Any]", case: Case, workers: int, rows: int
) -> tuple[float, float, str]:
    name = f"{case.table}_{uuid4().hex[:8]}"
    query = f"SELECT id, title, rating, votes, modified FROM content.{case.table}"
    tasks = [{"order_index": 0, "task_type": "SQL", "body": query}, case.step] if case.step else None
    options = case.options | {"parallel": workers} | ({"target_connection": "marts"} if case.elsewhere else {})
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
        before, began = _cpu(admin), time.monotonic()
        PipelineDispatcher(settings, pool=pool).work(claim, RunControl(3600.0, threading.Event()))
        seconds, cpu = time.monotonic() - began, _cpu(admin) - before
        pool.close()
        run = runs.find_current(metastore, pipeline_id)
        assert run is not None
        assert (run["status"], run["rows_read"]) == ("SUCCESS", rows), run["error_message"]
        return seconds, cpu, str(run["metrics"]["paging"])


def _cpu(admin: "psycopg.Connection[Any]") -> float:
    server = servers.parent(admin.info.backend_pid)
    return servers.tree_cpu_seconds(server) + servers.tree_cpu_seconds(os.getpid())


if __name__ == "__main__":
    main()
