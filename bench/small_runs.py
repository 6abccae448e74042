"""Measure what a run over 300 rows costs: `python -m bench.small_runs` (`--runs 40`, `--pairs 9`, `--statements`).

One runner keeps its sessions, the other opens new ones for each run; they alternate on one PostgreSQL. The CPU of the
runner and of the server with all its processes is counted. With kept sessions, on a server that logs statements and has
`fsync` on, the statements of a run, the commits that write, and the flushes of the log to disk are counted too; flushes
less those of the same time at rest. `--statements` prints the statements of one run of each kind instead.
"""

import argparse
import re
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bench.report import write_figures
from bench.servers import cpu_seconds, prepared
from tests.support.processes import runner_process
from tests.support.waiting import until
from vitrina.definition import Definition
from vitrina.settings import Settings
from vitrina.status import Trigger
from vitrina.store import database, pipelines
from vitrina.store.database import Connection

ROWS = 300
SOURCE = f"""
    CREATE SCHEMA IF NOT EXISTS content; GRANT USAGE ON SCHEMA content TO vitrina_reader;
    CREATE TABLE content.small
        (id integer PRIMARY KEY, name text NOT NULL, updated_at timestamptz NOT NULL DEFAULT now());
    INSERT INTO content.small SELECT n, 'film ' || n FROM generate_series(1, {ROWS}) n;
    GRANT SELECT ON content.small TO vitrina_reader;
"""
QUERY = "SELECT id, name, updated_at FROM content.small"
PIPELINES = {
    "full": {"mode": "full"},
    "incremental": {"mode": "incremental", "incremental_key": "updated_at"},
}
KEPT = {"new sessions": "0", "kept sessions": "60"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--statements", action="store_true")
    wish = parser.parse_args()
    logged = {"log_min_duration_statement": "0"} if wish.statements else {}
    with prepared({"shared_buffers": "256MB", **logged}) as (settings, directory), open_sessions(settings) as sessions:
        define(sessions)
        if wish.statements:
            show_statements(sessions, settings, directory)
        else:
            write(measure(sessions, settings, directory, wish.runs, wish.pairs), count(), wish.runs)


@dataclass(frozen=True)
class Sessions:
    """Hold sessions of the application, and of a superuser."""

    metastore: Connection
    admin: Connection


@contextmanager
def open_sessions(settings: Settings) -> Iterator[Sessions]:
    assert settings.admin_url
    with (
        database.connect(settings.require_database_url(), "bench") as metastore,
        database.connect(settings.admin_url.get_secret_value(), "bench") as admin,
    ):
        yield Sessions(metastore, admin)


def define(sessions: Sessions) -> None:
    sessions.admin.execute(SOURCE.encode())
    for name, fields in PIPELINES.items():
        made = {
            "name": name,
            "source_query": QUERY,
            "target_table": f"analytics.{name}",
            "target_key": ["id"],
            **fields,
        }
        pipelines.insert(sessions.metastore, Definition.model_validate(made), pipeline_id=None, managed_by=None)


def run(sessions: Sessions, name: str) -> None:
    """Change ten rows, request a run, and wait for its end."""
    sessions.admin.execute(
        "UPDATE content.small SET name = name || '.', updated_at = now() WHERE id IN"
        " (SELECT 1 + (random() * 299)::int FROM generate_series(1, 10))"
    )
    row = pipelines.find(sessions.metastore, name)
    assert row is not None
    before = _ended(sessions, name)
    assert pipelines.request_run(sessions.metastore, row["id"], trigger=Trigger.API)
    until(lambda: _ended(sessions, name) > before)


def _ended(sessions: Sessions, name: str) -> int:
    row = sessions.metastore.execute(
        """
        SELECT count(*) FILTER (WHERE r.status = 'SUCCESS') AS done,
               count(*) FILTER (WHERE r.status = 'FAILED') AS failed
        FROM etl.etl_runs r JOIN etl.etl_pipelines p ON p.id = r.pipeline_id WHERE p.name = %s
        """,
        [name],
    ).fetchone()
    assert row is not None
    assert not row["failed"], f"a run of {name} failed"
    return int(row["done"])


@dataclass
class Cost:
    """Hold the cost of one run, in milliseconds of CPU."""

    runner: float
    postgres: float

    @property
    def cpu(self) -> float:
        return self.runner + self.postgres


class Counted(NamedTuple):
    """Hold what one run sends, and how often it waits for the disk."""

    statements: int
    commits: int
    flushes: float


Costs = dict[tuple[str, str], list[Cost]]


def measure(sessions: Sessions, settings: Settings, directory: Path, runs: int, pairs: int) -> Costs:
    found: Costs = {(kind, kept): [] for kind in PIPELINES for kept in KEPT}
    for pair in range(pairs):
        for kept in sorted(KEPT, reverse=bool(pair % 2)):
            with runner_process(settings, directory, VITRINA_KEEP_SESSIONS_SECONDS=KEPT[kept]) as process:
                for kind in PIPELINES:
                    run(sessions, kind)  # imports, and the mart of the first one
                    found[kind, kept].append(_cost(sessions, process.pid, kind, runs))
    return found


def _cost(sessions: Sessions, runner: int, kind: str, runs: int) -> Cost:
    postmaster = _postmaster(sessions)
    own = [connection.info.backend_pid for connection in (sessions.metastore, sessions.admin)]

    def used() -> tuple[float, float]:
        # Excludes the statements of the benchmark itself.
        return cpu_seconds(runner), _tree(postmaster) - sum(map(cpu_seconds, own))

    before = used()
    for _ in range(runs):
        run(sessions, kind)
    time.sleep(0.5)  # ended backends are counted once the postmaster has noticed
    after = used()
    runner_s, postgres_s = (late - early for early, late in zip(before, after, strict=True))
    return Cost(1000 * runner_s / runs, 1000 * postgres_s / runs)


def _postmaster(sessions: Sessions) -> int:
    row = database.one(sessions.admin.execute("SELECT pg_read_file('postmaster.pid') AS file"))
    return int(str(row["file"]).split()[0])


def _tree(postmaster: int) -> float:
    """Return the CPU of the server and its children, including ended ones."""
    children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
    return _with_ended(postmaster) + sum(_quietly(cpu_seconds, int(child)) for child in children)


def _with_ended(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return cpu_seconds(pid) + (int(fields[13]) + int(fields[14])) / 100


def _quietly(read: Callable[[int], float], pid: int) -> float:
    try:
        return read(pid)
    except FileNotFoundError:  # it has just ended, and counts with the postmaster from now on
        return 0.0


def write(found: Costs, counted: dict[str, Counted], runs: int) -> None:
    figures: dict[str, object] = {"rows": ROWS, "runs": runs}
    for kind in PIPELINES:
        for kept in KEPT:
            costs = found[kind, kept]
            figures[f"{kind}, {kept}, CPU ms"] = round(statistics.median(cost.cpu for cost in costs), 1)
            figures[f"{kind}, {kept}, of it PostgreSQL"] = round(statistics.median(cost.postgres for cost in costs), 1)
        pairs = zip(found[kind, "new sessions"], found[kind, "kept sessions"], strict=True)
        for name, count in counted[kind]._asdict().items():
            figures[f"{kind}, kept sessions, {name}"] = count
        figures[f"{kind}, times less CPU"] = round(statistics.median(new.cpu / kept.cpu for new, kept in pairs), 2)
    write_figures("small_runs", "Small runs", "A run over 300 rows of which ten have changed.", figures)


def show_statements(sessions: Sessions, settings: Settings, directory: Path) -> None:
    row = database.one(sessions.admin.execute("SHOW data_directory"))
    log = Path(str(row["data_directory"])).parents[1]
    with runner_process(settings, directory):
        for kind in PIPELINES:
            run(sessions, kind)
            run(sessions, kind)
            time.sleep(1)
            sizes = {path: path.stat().st_size for path in log.rglob("*.log")}
            run(sessions, kind)
            time.sleep(1)
            for path, size in sizes.items():
                print(f"=== {kind}")
                print(path.read_text()[size:])


# Time, process, login and application of an entry, and what was executed.
_ENTRY = re.compile(
    r"^\S+ \S+ UTC \[(\d+)\] \S+ (\S*) ?LOG:  duration: [\d.]+ ms  (?:statement|execute \S+): +(.*(?:\n\t.*)*)", re.M
)
_WRITES = re.compile(r"\b(INSERT|UPDATE|DELETE|MERGE|CREATE|DROP|TRUNCATE)\b")
_COMMENTS = re.compile(r"--.*")
# Not part of a run: they execute at their own times.
_OTHERS = ("bench", "vitrina:lookout", "vitrina:heartbeat")
# A tick of the runner may fall into a run; the minimum of this many runs has none.
_LOGGED_RUNS = 9
_FLUSHED_RUNS = 40
_REPORTED_SECONDS = 11.0


def count() -> dict[str, Counted]:
    """Count the statements, commits that write, and flushes of a run of each kind in a runner that has done some."""
    counted: dict[str, Counted] = {}
    logged = {"shared_buffers": "256MB", "log_min_duration_statement": "0", "fsync": "on"}
    with prepared(logged) as (settings, directory), open_sessions(settings) as sessions:
        define(sessions)
        row = database.one(sessions.admin.execute("SHOW data_directory"))
        log = next(Path(str(row["data_directory"])).parents[1].rglob("*.log"))
        with runner_process(settings, directory):
            for kind in PIPELINES:
                found = [_counted(_logged(log, sessions, kind)) for _ in range(2 * _LOGGED_RUNS)]
                counted[kind] = Counted(*min(found[_LOGGED_RUNS:]), count_flushes(sessions, kind, _FLUSHED_RUNS))
    return counted


def count_flushes(sessions: Sessions, kind: str, runs: int) -> float:
    """Count the flushes of a run, less those of the same time at rest."""
    for own in (sessions.metastore, sessions.admin):
        own.execute("SET synchronous_commit = off")  # the benchmark's own commits wait for no flush
    begin, began = _flushes(sessions), time.monotonic()
    for _ in range(runs):
        run(sessions, kind)
    middle, ended = _flushes(sessions), time.monotonic()
    at_rest = (_flushes(sessions) - middle) / (time.monotonic() - ended)
    return round((middle - begin - at_rest * (ended - began)) / runs, 1)


def _flushes(sessions: Sessions) -> int:
    """Return the flushes of all sessions so far, when they have reported them. Idle ones do so after ten seconds."""
    time.sleep(_REPORTED_SECONDS)
    row = database.one(
        sessions.admin.execute(
            """
            SELECT coalesce(sum(fsyncs), 0)::bigint AS n FROM pg_stat_io
            WHERE object = 'wal' AND backend_type = 'client backend'
            """
        )
    )
    return int(row["n"])


def _logged(log: Path, sessions: Sessions, kind: str) -> str:
    time.sleep(0.1)  # the previous run may not have logged everything yet
    begin = log.stat().st_size
    run(sessions, kind)
    time.sleep(0.1)
    return log.read_bytes()[begin:].decode(errors="replace")


def _counted(text: str) -> tuple[int, int]:
    statements = commits = 0
    writing: dict[str, bool] = {}
    for process, application, logged in _ENTRY.findall(text):
        statement = _COMMENTS.sub("", logged)
        if application in _OTHERS:
            continue
        statements += 1
        if statement.startswith("BEGIN"):
            writing[process] = False
        elif statement.startswith(("COMMIT", "ROLLBACK")):
            commits += writing.pop(process, False) and statement.startswith("COMMIT")
        elif _WRITES.search(statement) and not statement.startswith("SET "):
            if process in writing:
                writing[process] = True
            elif application != "vitrina:manager":  # its periodic UPDATEs usually match no row
                commits += 1
    return statements, commits


if __name__ == "__main__":
    main()
