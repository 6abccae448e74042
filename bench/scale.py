"""Measure a large metastore: `python -m bench.scale` (50,000 pipelines, 5,000,000 runs; `--pipelines`, `--runs`).

CPU is that of the server's session and of the client process together, from the scheduler's own account.
"""

import argparse
import gzip
import http.client
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

from bench import scale_before as before
from bench.report import write_figures
from bench.servers import prepared
from tests.integration.api import api_process
from tests.support import multitude
from vitrina.observe.monitoring import MetastoreCollector, Rest
from vitrina.services import tokens
from vitrina.services.callers import Caller, Role
from vitrina.settings import Settings
from vitrina.store import database, leases, metrics, pipelines, runs, state
from vitrina.store.database import Connection
from vitrina.store.leases import Claim

MIGRATION = import_module("vitrina.store.migrations.versions.0016_scale")
INDEXES = "".join((MIGRATION.RUNS, MIGRATION.PIPELINES, MIGRATION.OTHERS))
SCRAPE_INTERVAL_SECONDS = 15

SERVER = {"autovacuum": "off", "max_wal_size": "8GB", "maintenance_work_mem": "512MB", "shared_buffers": "1GB"}


@dataclass(frozen=True)
class Cost:
    """Hold what one call costs, over several."""

    cpu_ms: float
    p50_ms: float
    p99_ms: float

    def __str__(self) -> str:
        return f"{self.cpu_ms:.2f} ms CPU, p50 {self.p50_ms:.1f}, p99 {self.p99_ms:.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipelines", type=int, default=50_000)
    parser.add_argument("--runs", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=100)
    wish = parser.parse_args()
    with prepared(SERVER) as (settings, directory):
        found: dict[str, object] = {"pipelines": wish.pipelines, "runs": wish.runs, "rounds": wish.rounds}
        found["seconds_to_fill_it"] = fill(settings, wish.pipelines, wish.runs)
        old = measure_statements(settings, BEFORE, rounds=max(5, wish.rounds // 20))
        found["seconds_to_build_the_indexes"] = build_indexes(settings)
        new = measure_statements(settings, AFTER, rounds=wish.rounds)
        for name in AFTER:
            found[f"{name}, before"] = str(old[name]) if name in old else "not there"
            found[name] = str(new[name])
        found |= measure_scrapes(settings, rounds=wish.rounds // 5)
        found |= measure_api(settings, directory, rounds=wish.rounds)
    write_figures("scale", "A large metastore", INTRO, found)


INTRO = (
    "The statements that were slow at this size, each with the one it replaced on a metastore without the indexes of"
    " migration 0016; then the API as its clients see it. CPU is per call, of the server's session and of the process"
    " that asks, together; times are those of the machine as it was (its load stands below)."
)


def fill(settings: Settings, many_pipelines: int, many_runs: int) -> float:
    started = time.perf_counter()
    with as_admin(settings) as admin:
        for name in re.findall(r"CREATE INDEX (\w+)", INDEXES):
            admin.execute(f"DROP INDEX etl.{name}".encode())
        # Built after the rows are inserted, which is several times faster.
        kept = admin.execute(
            "SELECT indexdef, indexname FROM pg_indexes WHERE schemaname = 'etl' AND tablename = 'etl_runs'"
            " AND indexname <> 'etl_runs_pkey'"
        ).fetchall()
        for index in kept:
            admin.execute(f"DROP INDEX etl.{index['indexname']}".encode())
        multitude.fill(admin, pipelines=many_pipelines, runs=many_runs)
        for index in kept:
            admin.execute(index["indexdef"].encode())
        admin.execute("VACUUM (ANALYZE)")
    return round(time.perf_counter() - started, 1)


def build_indexes(settings: Settings) -> float:
    """Build the indexes as the migration does."""
    with as_admin(settings) as admin:
        started = time.perf_counter()
        admin.execute(INDEXES.encode())
        took = time.perf_counter() - started
        admin.execute("VACUUM (ANALYZE)")
    return round(took, 1)


def as_admin(settings: Settings) -> Connection:
    assert settings.admin_url
    return database.connect(settings.admin_url.get_secret_value(), "bench")


Work = Callable[[Connection], object]
# Older than any row: the cost of a round that finds nothing to do, as almost all rounds do.
_DAYS = 3650


@cache
def _claimed(connection: Connection) -> Claim:
    row = connection.execute(
        "SELECT * FROM etl.etl_pipelines WHERE claim_id IS NOT NULL ORDER BY id LIMIT 1"
    ).fetchone()
    assert row
    return Claim(row["id"], row["name"], row["epoch"], row["claim_id"], uuid4(), row["version"], row)


def _discard(connection: Connection) -> object:
    return state.discard_loads_of_others(connection, _claimed(connection))


def _still_held(connection: Connection) -> object:
    return leases.still_held(connection, [_claimed(connection).claim_id, uuid4()])


def _runs_before(status: str) -> Work:
    values = {"pipeline": None, "status": [status], "after_at": None, "after_id": None, "limit": 101}
    return lambda connection: connection.execute(before.RUNS_BY_STATUS, values).fetchall()


BEFORE: dict[str, Work] = {
    "a look for old runs": lambda c: c.execute(before.PRUNE, {"days": _DAYS}),
    "which claims are still held": _still_held,
    "loads of others on a target": _discard,
    "who writes to a target": lambda c: c.execute(
        before.WRITERS_OF_A_TARGET, {"target": "analytics.mart_77"}
    ).fetchall(),
    "100 failed runs": _runs_before("FAILED"),
    "current runs": _runs_before("RUNNING"),
    "figures of a scrape": lambda c: c.execute(before.FIGURES).fetchall(),
}
AFTER: dict[str, Work] = {
    "a look for old runs": lambda c: runs.prune(c, older_than_days=_DAYS),
    "forgetting 1,000 old runs": lambda c: runs.prune(c, older_than_days=90, slices=1),
    "which claims are still held": _still_held,
    "loads of others on a target": _discard,
    "who writes to a target": lambda c: pipelines.list_on_target(c, "analytics.mart_77", None),
    "100 failed runs": lambda c: runs.list_page(c, status=["FAILED"], limit=101),
    "current runs": lambda c: runs.list_page(c, status=["RUNNING"], limit=101),
    "figures of a scrape": lambda c: (metrics.list_oldest(c, limit=500), metrics.count_statuses(c)),
}


def measure_statements(settings: Settings, works: dict[str, Work], *, rounds: int) -> dict[str, Cost]:
    with database.connect(settings.require_database_url(), "bench") as connection:
        pids = [connection.info.backend_pid, os.getpid()]
        return {name: measure(lambda work=work: work(connection), pids, rounds) for name, work in works.items()}  # type: ignore[misc]


def measure(work: Callable[[], object], pids: Sequence[int], rounds: int) -> Cost:
    work()  # warms caches and plans
    used, times = cpu_seconds(pids), []
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - started))
    times.sort()
    cpu = 1000 * (cpu_seconds(pids) - used) / rounds
    return Cost(cpu, times[len(times) // 2], times[int(0.99 * (len(times) - 1))])


def cpu_seconds(pids: Sequence[int]) -> float:
    """Return the CPU seconds of the processes, including all threads."""
    total = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError):  # a thread that has just ended
                total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def measure_scrapes(settings: Settings, *, rounds: int) -> dict[str, object]:
    """Measure a scrape that sums up the pipelines without their own label, and later ones that use the kept sum."""
    with database.connect(settings.require_database_url(), "bench") as connection:

        @contextmanager
        def connect() -> Iterator[Connection]:
            yield connection

        pids = [connection.info.backend_pid, os.getpid()]
        last = metrics.list_oldest(connection, limit=500)[-1]
        summing = measure(lambda: Rest().read(connection, last), pids, 5)
        collector = MetastoreCollector(connect, settings)
        kept = measure(lambda: list(collector.collect()), pids, rounds)
        seconds = collector.rest.kept_seconds
    share = summing.cpu_ms * min(SCRAPE_INTERVAL_SECONDS / seconds, 1) if seconds else summing.cpu_ms
    return {
        "figures read and computed, all others summed up before": str(kept),
        "summing up all others": str(summing),
        "seconds for which that is kept": round(seconds),
        "its share of a scrape every 15 s": f"{share:.1f} ms CPU",
    }


PATHS = {
    "GET /pipelines": "/api/v1/pipelines?limit=100",
    "GET /pipelines?status=": "/api/v1/pipelines?limit=100&status=FAILED",
    "GET /pipelines?name=": "/api/v1/pipelines?limit=100&name=_04999",
    "GET /runs": "/api/v1/runs?limit=100",
    "GET /runs?status=FAILED": "/api/v1/runs?limit=100&status=FAILED",
    "GET /runs?status=RUNNING": "/api/v1/runs?limit=100&status=RUNNING",
    "GET /pipelines/{id}/runs": "/api/v1/pipelines/pipeline_000077/runs?limit=100",
    "GET /overview, 200 lines": "/api/v1/overview?limit=200",
    "GET /graph, the first 500": "/api/v1/graph",
    "GET /home": "/api/v1/home",
    "GET /metrics": "/metrics",
}


def measure_api(settings: Settings, directory: Path, *, rounds: int) -> dict[str, object]:
    found: dict[str, object] = {}
    with as_admin(settings) as admin:
        _, secret = tokens.create(admin, Caller("setup", Role.ADMIN), name="bench", role=Role.VIEWER)
        with api_process(settings, directory) as (process, url):
            client = http.client.HTTPConnection(urlsplit(url).netloc)
            for name, path in PATHS.items():
                body = _get(client, path, secret)
                sessions = admin.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'vitrina:api'")
                pids = [process.pid, *(session["pid"] for session in sessions)]
                cost = measure(lambda path=path: _get(client, path, secret), pids, rounds)  # type: ignore[misc]
                found[name] = f"{cost}, {len(body) / 1000:.1f} kB"
    return found


def _get(client: http.client.HTTPConnection, path: str, secret: str) -> bytes:
    """Return the body as it was sent, after checking that it can be parsed."""
    client.request("GET", path, headers={"Authorization": f"Bearer {secret}", "Accept-Encoding": "gzip"})
    answer = client.getresponse()
    body = answer.read()
    assert answer.status == 200, body
    assert gzip.decompress(body) if answer.headers["content-encoding"] == "gzip" else body
    return body


if __name__ == "__main__":
    main()
