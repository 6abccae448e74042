"""Kill runners: pipelines over one source, real runner processes, and a record of every row ever applied.

Each mart has a column that the mart itself increments and the source returns as 0. So a staged row always differs,
every application of a row is a write, and a trigger can record it: which row and version, in which load or pass, by
which epoch. A row that is applied twice in one load is detected, although applying it again would change nothing.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import vitrina
from tests.chaos import steps
from vitrina.definition import Definition
from vitrina.settings import Settings
from vitrina.status import Trigger
from vitrina.store import database, pipelines

ROOT = Path(__file__).parents[2]
ROWS = 400
FULL = "SELECT id, version, 0 AS applied FROM content.item"
INCREMENTAL = "SELECT id, version, 0 AS applied, updated_at FROM content.item"
CURSOR = {"mode": "incremental", "incremental_key": "updated_at", "incremental_id_key": "id"}

KINDS: dict[str, dict[str, Any]] = {
    # Most rows of a mart may leave between two of its runs, because in the long version its turn comes late.
    "full_once": {"source_query": FULL, "options": {"allow_shrink": True}},
    "full_pages": {"source_query": FULL, "options": {"checkpoint_rows": 100, "allow_shrink": True}},
    "full_arrow": {"source_query": FULL, "batch_size": 100, "options": {"route": "arrow", "allow_shrink": True}},
    "full_copy": {
        "source_query": FULL,
        "batch_size": 100,
        "options": {"route": "copy", "checkpoint_rows": 100, "allow_shrink": True},
    },
    "inc_pages": {"source_query": INCREMENTAL, "batch_size": 100, **CURSOR, "options": {"cursor_clock": "database"}},
    "inc_arrow": {
        "source_query": INCREMENTAL,
        "batch_size": 100,
        **CURSOR,
        "options": {"cursor_clock": "database", "route": "arrow"},
    },
    "inc_copy": {
        "source_query": INCREMENTAL,
        "batch_size": 100,
        **CURSOR,
        "options": {"cursor_clock": "database", "route": "copy"},
    },
}

# One step in Arrow and one row by row, which drops rows and the cursor: after them a batch differs from what was read.
STEPS = [
    {"order_index": 1, "task_type": "PYTHON", "body": "deduplicate", "params": {"by": ["id"]}},
    {"order_index": 2, "task_type": "PYTHON", "body": "arena_drop"},
]
STEPPED = {
    f"{kind}_steps": {
        **KINDS[f"{kind}_arrow"],
        "source_query": None,
        "tasks": [{"order_index": 0, "task_type": "SQL", "body": query}, *STEPS],
    }
    for kind, query in (("full", FULL), ("inc", INCREMENTAL))
}
KINDS |= STEPPED

SOURCE = """
CREATE TABLE content.item (
    id int PRIMARY KEY, version int NOT NULL, updated_at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE INDEX ON content.item (updated_at, id);
GRANT SELECT ON content.item TO vitrina_reader;
"""

# The checkpoint row next to the data tells the load or pass, and its claim. An open transaction may let two passes read
# up to the same moment, so passes that have ended are counted.
AUDIT = """
CREATE SCHEMA audit;
CREATE TABLE audit.ended (pipeline_id uuid);
CREATE FUNCTION audit.count_pass() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO audit.ended VALUES (NEW.pipeline_id);
    RETURN NULL;
END $$;
CREATE TRIGGER count_pass AFTER UPDATE ON etl.etl_state FOR EACH ROW
    WHEN (OLD.held_upto LIKE '{"upto"%' AND NEW.held_upto IS NULL) EXECUTE FUNCTION audit.count_pass();
CREATE TRIGGER count_pass AFTER UPDATE ON etl_stage.ledger FOR EACH ROW
    WHEN (OLD.held_upto LIKE '{"upto"%' AND NEW.held_upto IS NULL) EXECUTE FUNCTION audit.count_pass();
CREATE TABLE audit.applied (
    seq bigserial PRIMARY KEY, pipeline text, id int, version int, load text, session_epoch text, epoch bigint);
CREATE FUNCTION audit.put_on_record() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    NEW.applied := CASE TG_OP WHEN 'INSERT' THEN 1 ELSE OLD.applied + 1 END;
    INSERT INTO audit.applied (pipeline, id, version, load, session_epoch, epoch)
    SELECT TG_TABLE_NAME, NEW.id, NEW.version,
           coalesce(s.stage, s.held_upto) || '#' || (SELECT count(*) FROM etl.etl_runs r
                                                     WHERE r.pipeline_id = s.pipeline_id AND r.status = 'SUCCESS')
           || '/' || (SELECT count(*) FROM audit.ended e WHERE e.pipeline_id = s.pipeline_id),
           split_part(current_setting('application_name'), ':', 3),
           CASE WHEN p.id IS NULL THEN s.epoch WHEN p.claim_id IS NOT NULL THEN p.epoch END
    FROM (TABLE etl.etl_state UNION ALL TABLE etl_stage.ledger) s LEFT JOIN etl.etl_pipelines p ON p.id = s.pipeline_id
    WHERE s.pipeline_id = TG_ARGV[0]::uuid;
    PERFORM pg_sleep(TG_ARGV[1]::float8);
    RETURN NEW;
END $$;
"""

MART = """
CREATE TABLE analytics.{name} (id int PRIMARY KEY, version int, applied int);
ALTER TABLE analytics.{name} OWNER TO vitrina_app;
CREATE TRIGGER put_on_record BEFORE INSERT OR UPDATE ON analytics.{name}
    FOR EACH ROW EXECUTE FUNCTION audit.put_on_record('{id}', '{seconds_per_row}');
"""


# One of these is always the last event of a run.
ENDS_OF_A_RUN = ("run.ended", "run.given_back", "run.lease_lost", "run.disconnected", "run.failed", "run.crashed")
# Only bounds a hang: on a busy machine everything takes longer.
PATIENCE_SECONDS = 120.0


class Stuck(AssertionError):
    """Report that not everything came to rest in time."""


@dataclass
class Runner:
    """Hold one process and its log."""

    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def is_stopped(self) -> bool:
        try:
            stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        except FileNotFoundError:
            return False
        return stat.rpartition(")")[2].split()[0] == "T"

    def events(self) -> list[dict[str, Any]]:
        whole, _, _ = self.log.read_text(errors="replace").rpartition("\n")  # the last line may still be incomplete
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]

    @property
    def runs_ended(self) -> int:
        """Count how often it logged the end of a run."""
        return sum(event["event"] in ENDS_OF_A_RUN for event in self.events())


@dataclass
class Arena:
    """Hold one database and its runners. Call `prepare` first; leaving the `with` ends every process."""

    settings: Settings
    directory: Path
    remote: Settings | None = None  # the database that holds the marts, if it is not the metastore's
    mutants: Sequence[str] = ()
    lease_seconds: float = 1.0
    environment: dict[str, str] = field(default_factory=dict)
    runners: list[Runner] = field(default_factory=list)
    ended: list[Runner] = field(default_factory=list)
    ids: dict[str, UUID] = field(default_factory=dict)
    versions: int = 1

    def __enter__(self) -> "Arena":
        self.reconnect()
        self.plans.mkdir(parents=True, exist_ok=True)
        return self

    def reconnect(self) -> None:
        """Reconnect after a crash of the server."""
        self._disconnect()
        self.admin = _connect(self.settings)
        self.marts = _connect(self.remote) if self.remote else self.admin

    def _disconnect(self) -> None:
        for name in ("admin", "marts"):
            if name in vars(self):
                vars(self)[name].close()

    def __exit__(self, *_: object) -> None:
        for runner in self.runners:
            runner.process.kill()
        for runner in self.runners:
            runner.process.wait()
        self._disconnect()

    @property
    def plans(self) -> Path:
        return self.directory / "plans"

    def prepare(self, kinds: Sequence[str], *, seconds_per_row: float = 0, **fields: Any) -> None:
        self._make_source()
        self.marts.execute(AUDIT)
        for kind in kinds:
            self._define(kind, {"target_table": f"analytics.{kind}", **KINDS[kind], **fields})
            self._on_marts(MART.format(name=kind, id=self.ids[kind], seconds_per_row=seconds_per_row))

    def prepare_index(self, kind: str, target: str) -> None:
        """Create a pipeline that keeps a search index up to date. The test has to check the index itself."""
        query = "SELECT id, version, updated_at FROM content.item"
        fields = KINDS["inc_pages"] | {"source_query": query, "target_table": target, "target_key": ["id"]}
        self.prepare_pipeline(kind, fields)

    def prepare_pipeline(self, kind: str, fields: dict[str, Any]) -> None:
        """Create a pipeline with fields of the test, over the same source."""
        if not self.ids:
            self._make_source()
        self._define(kind, fields)

    def _make_source(self) -> None:
        self.sql(SOURCE)
        self.sql(f"INSERT INTO content.item SELECT i, 1 FROM generate_series(1, {ROWS}) AS i")
        self.sql("ANALYZE content.item")

    def _define(self, kind: str, fields: dict[str, Any]) -> None:
        definition = Definition.model_validate({"name": kind, **fields})
        self.ids[kind] = pipelines.insert(self.admin, definition, pipeline_id=None, managed_by=None)

    def change_source(self) -> None:
        """Give every row a new version, delete a few and insert a few."""
        self.versions += 1
        first = ROWS + self.versions * 10
        self.sql(
            f"""
            UPDATE content.item SET version = version + 1, updated_at = clock_timestamp();
            DELETE FROM content.item WHERE id IN (SELECT id FROM content.item ORDER BY id LIMIT 3);
            INSERT INTO content.item SELECT i, 1 FROM generate_series({first}, {first + 2}) AS i
            """
        )

    def sql(self, statement: str) -> list[dict[str, Any]]:
        cursor = self.admin.execute(statement)
        return cursor.fetchall() if cursor.description else []

    def _on_marts(self, statement: str) -> list[dict[str, Any]]:
        cursor = self.marts.execute(statement)
        return cursor.fetchall() if cursor.description else []

    def start_runner(self) -> Runner:
        log = self.directory / f"runner-{len(self.runners) + len(self.ended)}.log"
        arguments = [sys.executable, "-m", "tests.chaos.chaos_runner", str(self.plans)]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*arguments, *self.mutants],
                env=os.environ | self._runner_environment(),
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        runner = Runner(process, log)
        self.runners.append(runner)
        return runner

    def start_runners(self, count: int) -> None:
        for _ in range(count):
            self.start_runner()
        self.await_true(lambda: self._registered() >= count, PATIENCE_SECONDS, f"{count} runners registered")

    def _registered(self) -> int:
        return int(self.sql("SELECT count(*) AS n FROM etl.etl_runners")[0]["n"])

    def _runner_environment(self) -> dict[str, str]:
        assert self.settings.database_url is not None
        assert self.settings.reader_url is not None
        return {
            "PYTHONPATH": f"{ROOT}:{Path(vitrina.__file__).parents[1]}",
            "VITRINA_DATABASE_URL": self.settings.database_url.get_secret_value(),
            "VITRINA_READER_URL": self.settings.reader_url.get_secret_value(),
            "VITRINA_LEASE_TTL_SECONDS": str(self.lease_seconds),
            "VITRINA_POLL_SECONDS": "0.2",
            "VITRINA_BACKOFF_SECONDS": "0.1,0.2",
            "VITRINA_MAX_ATTEMPTS": "5",
            "VITRINA_CONNECT_TIMEOUT_SECONDS": "3",
            "VITRINA_LOG_FORMAT": "json",
            "VITRINA_TRANSFORMS": "tests.chaos.steps",
            **self.environment,
        }

    def replace_dead(self) -> None:
        for runner in [r for r in self.runners if r.process.poll() is not None]:
            self.runners.remove(runner)
            self.ended.append(runner)
            self.start_runner()

    def mutate(self, *mutants: str) -> None:
        """Replace the runners by new ones without the protections."""
        self.mutants = mutants
        for runner in self.runners:
            runner.process.kill()
            runner.process.wait()
        self.replace_dead()

    def dismiss(self, runner: Runner) -> None:
        runner.process.kill()
        runner.process.wait()
        self.runners.remove(runner)
        self.ended.append(runner)

    def arm(self, point: str, action: str, count: int = 1) -> None:
        (self.plans / "fired").unlink(missing_ok=True)
        (self.plans / f"{point}:{action}:{count}").touch()

    def hold(self, kind: str, point: str, count: int = 1) -> None:
        """Start a run and stop the clock when it reaches the point; `let_go` continues it."""
        self.arm(point, "hold", count)
        self.request(kind)
        self.await_true(lambda: self.fired, PATIENCE_SECONDS, f"{kind} reached {point}")

    def let_go(self) -> None:
        (self.plans / "go").touch()

    def disarm(self) -> None:
        for plan in self.plans.glob("[!.]*"):  # a file with a dot is still being written and belongs to its writer
            plan.unlink(missing_ok=True)

    @property
    def fired(self) -> bool:
        return (self.plans / "fired").exists()

    @property
    def victim(self) -> int:
        """Return the process that reached the failpoint."""
        return int((self.plans / "fired").read_text())

    def wake_stopped(self) -> None:
        """Continue stopped runners until each has found out the state of its run, so that late actions are done."""
        stopped = [(runner, runner.runs_ended) for runner in self.runners if runner.is_stopped]
        for runner, _ in stopped:
            os.kill(runner.process.pid, signal.SIGCONT)
        for runner, ended in stopped:
            self.await_true(lambda r=runner, n=ended: r.runs_ended > n, PATIENCE_SECONDS, "a late runner's last word")

    def expire_leases(self) -> None:
        """Expire the leases of dead runners, so that tests need not wait for that."""
        self.sql("UPDATE etl.etl_pipelines SET lease_until = clock_timestamp() WHERE claim_id IS NOT NULL")

    def has_fired(self, kind: str) -> bool:
        return self.fired

    def strike(self, kind: str, point: str, action: str, count: int = 1, *, patience: float = PATIENCE_SECONDS) -> None:
        """Inject one fault into one run, then wait until everything has come to rest."""
        self.change_source()
        self.arm(point, action, count)
        self.request(kind)
        self.await_true(lambda: self.has_fired(kind), patience, f"{kind} reached {point}")
        if action == "stop":
            epoch = self.epoch(kind)
            self.await_true(lambda: any(r.is_stopped for r in self.runners), patience, "a runner stopped")
            self.await_true(
                lambda: self.epoch(kind) > epoch or self.status(kind) in ("IDLE", "FAILED"), patience, "a takeover"
            )
            time.sleep(0 if self.status(kind) == "RUNNING" else self.lease_seconds)
            self.wake_stopped()
        self.await_quiet(patience)
        self.disarm()

    def request(self, *kinds: str) -> None:
        for kind in kinds:
            assert pipelines.request_run(self.admin, self.ids[kind], trigger=Trigger.API), kind

    def status(self, kind: str) -> str:
        return str(self._row(kind)["status"])

    def epoch(self, kind: str) -> int:
        return int(self._row(kind)["epoch"])

    def _row(self, kind: str) -> dict[str, Any]:
        row = pipelines.find(self.admin, self.ids[kind])
        assert row is not None
        return row

    def await_quiet(self, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until every pipeline is at rest; replace runners that died, as a supervisor would."""
        self.await_true(self._is_quiet, seconds, "everything IDLE")

    def _is_quiet(self) -> bool:
        self.replace_dead()
        found = self.sql("SELECT count(*) AS n FROM etl.etl_pipelines WHERE status IN ('IDLE', 'PAUSED', 'FAILED')")
        return int(found[0]["n"]) == len(self.ids)

    def await_true(self, condition: Any, seconds: float, what: str) -> None:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise Stuck(f"not after {seconds:.0f} s: {what}; {self._situation()}")
            time.sleep(0.02)

    def _situation(self) -> str:
        found = self.sql(
            "SELECT name, status, attempts, last_error, lease_until - clock_timestamp() AS lease, run_requested_at"
            " FROM etl.etl_pipelines ORDER BY name"
        )
        last_words = [runner.log.read_text(errors="replace").splitlines()[-2:] for runner in self.runners]
        return f"{found}; runners said {last_words}"

    def violations(self, *kinds: str) -> list[str]:
        """List everything that is wrong; `kinds` are those that have run since the source changed, all by default."""
        return [*self._lost(kinds or tuple(self.ids)), *self._doubled(), *self._late(), *self._loose_ends()]

    def _lost(self, kinds: Sequence[str]) -> Iterator[str]:
        for kind in kinds:
            if self.status(kind) != "IDLE":
                yield f"{kind} ended {self.status(kind)}: {self._row(kind)['last_error']}"
            source = self._versions(self.sql("SELECT id, version FROM content.item"))
            if kind in STEPPED:
                source = {key: version for key, version in source.items() if not steps.drops(key)}
            mart = self._versions(self._on_marts(f"SELECT id, version FROM analytics.{kind}"))
            wrong = {
                "missing": len(source.keys() - mart.keys()),
                "stale": sum(mart[key] != source[key] for key in source.keys() & mart.keys()),
                # An incremental pipeline does not notice that a row left.
                "surplus": 0 if kind.startswith("inc") else len(mart.keys() - source.keys()),
            }
            if any(wrong.values()):
                yield f"{kind}: {wrong}"

    def _versions(self, rows: list[dict[str, Any]]) -> dict[int, int]:
        return {row["id"]: row["version"] for row in rows}

    def _doubled(self) -> Iterator[str]:
        for row in self._on_marts(
            """
            SELECT pipeline, load, count(*) AS rows FROM (
                SELECT pipeline, load FROM audit.applied GROUP BY pipeline, load, id, version HAVING count(*) > 1) twice
            GROUP BY 1, 2
            """
        ):
            yield f"{row['pipeline']}: {row['rows']} rows applied more than once in {row['load']}"
        for row in self._on_marts(
            """
            SELECT pipeline, count(*) AS rows FROM (
                SELECT pipeline, version < lag(version) OVER (PARTITION BY pipeline, id ORDER BY seq) AS backwards
                FROM audit.applied) a WHERE backwards GROUP BY 1
            """
        ):
            yield f"{row['pipeline']}: {row['rows']} rows went back to an older version"

    def _late(self) -> Iterator[str]:
        for row in self._on_marts(
            """
            SELECT pipeline, count(*) AS rows FROM audit.applied
            WHERE session_epoch IS DISTINCT FROM epoch::text GROUP BY 1
            """
        ):
            yield f"{row['pipeline']}: {row['rows']} rows written by a runner that no longer held the lease"

    def _loose_ends(self) -> Iterator[str]:
        for row in self.sql(
            """
            SELECT 'a run is still RUNNING' AS what FROM etl.etl_runs WHERE status = 'RUNNING'
            UNION ALL SELECT name || ' still has a lease' FROM etl.etl_pipelines
            WHERE claim_id IS NOT NULL OR holds_target IS NOT NULL OR lease_until IS NOT NULL
            """
        ):
            yield row["what"]

    def takeovers(self) -> int:
        """Count how often a run was taken away from its runner."""
        return int(self.sql("SELECT count(*) AS n FROM etl.etl_runs WHERE error_code = 'lease_lost'")[0]["n"])

    def said(self) -> Counter[str]:
        """Count the events of all runners, including ended ones, by name."""
        return Counter(event["event"] for runner in [*self.ended, *self.runners] for event in runner.events())


def _connect(settings: Settings) -> database.Connection:
    assert settings.admin_url is not None
    return database.connect(settings.admin_url.get_secret_value(), "vitrina:arena")
