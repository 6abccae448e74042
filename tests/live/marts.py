"""A platform with live pipelines: real runner processes, an application that changes the source, marts that follow."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg

from tests.support.waiting import until
from vitrina.checks import reconcile
from vitrina.definition import Definition
from vitrina.services import pipelines as services
from vitrina.services.callers import Caller, Role
from vitrina.settings import Settings
from vitrina.status import Trigger
from vitrina.store import pipelines, runs
from vitrina.store.database import Connection

ROOT = Path(__file__).parents[2]
CALLER = Caller("tests", Role.ADMIN)
# Only bounds a hang.
PATIENCE_SECONDS = 180.0

SOURCE = """
CREATE TABLE content.studio (id int PRIMARY KEY, name text NOT NULL);
CREATE TABLE content.film (id int PRIMARY KEY, title text NOT NULL, studio_id int);
CREATE TABLE content.rating (id int PRIMARY KEY, film_id int NOT NULL, score int NOT NULL);
CREATE INDEX ON content.film (studio_id);
CREATE INDEX ON content.rating (film_id);
CREATE TABLE content.account (id int PRIMARY KEY, balance int NOT NULL);
ALTER TABLE content.film REPLICA IDENTITY FULL;
ALTER TABLE content.rating REPLICA IDENTITY FULL;
INSERT INTO content.studio SELECT n, 'studio ' || n FROM generate_series(1, 5) n;
INSERT INTO content.film SELECT n, 'film ' || n, n % 5 + 1 FROM generate_series(1, 50) n;
INSERT INTO content.rating SELECT n, n % 50 + 1, n % 10 FROM generate_series(1, 400) n;
INSERT INTO content.account SELECT n, 100 FROM generate_series(1, 200) n;
GRANT SELECT ON ALL TABLES IN SCHEMA content TO vitrina_reader;
"""
FILMS = """
SELECT f.id, f.title, s.name AS studio, coalesce(r.votes, 0) AS votes, coalesce(r.total, 0) AS total
FROM content.film f
JOIN content.studio s ON s.id = f.studio_id
LEFT JOIN (SELECT film_id, count(*) AS votes, sum(score) AS total FROM content.rating GROUP BY film_id) r
    ON r.film_id = f.id
"""
ACCOUNTS = "SELECT id, balance FROM content.account"


@dataclass
class Marts:
    """One metastore, one source in the same database, runners that are killed by their tests."""

    settings: Settings
    admin: Connection
    metastore: Connection
    directory: Path
    mutants: tuple[str, ...] = ()
    runners: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    # In the runners' environment.
    more: dict[str, str] = field(default_factory=dict)

    def sql(self, statement: str) -> list[dict[str, Any]]:
        cursor = self.admin.execute(statement)
        return cursor.fetchall() if cursor.description else []

    # --- pipelines -------------------------------------------------------------------------------------------------

    def live(self, name: str, query: str = FILMS, **fields: Any) -> UUID:
        fields = {"target_table": f"analytics.{name}", "target_key": ["id"], "mode": "live", **fields}
        read = {} if "tasks" in fields else {"source_query": query}
        definition = Definition.model_validate({"name": name, **read, **fields})
        made = pipelines.insert(self.metastore, definition, pipeline_id=None, managed_by=None)
        self.request(name)
        return made

    def request(self, name: str, accepts: Sequence[str] = ()) -> None:
        row = pipelines.find(self.metastore, name)
        assert row is not None
        assert pipelines.request_run(self.metastore, row["id"], trigger=Trigger.API, accepts=accepts)

    def change(self, name: str, **fields: Any) -> None:
        services.change(self.metastore, self.settings, CALLER, name, fields)

    def row(self, name: str) -> dict[str, Any]:
        row = pipelines.find(self.metastore, name)
        assert row is not None
        return row

    def run(self, name: str) -> dict[str, Any]:
        found = runs.find_current(self.metastore, self.row(name)["id"])
        assert found is not None
        return found

    def count_runs(self, name: str) -> int:
        [row] = self.sql(f"SELECT count(*) AS n FROM etl.etl_runs WHERE pipeline_id = '{self.row(name)['id']}'")
        return int(row["n"])

    def place(self, name: str) -> dict[str, Any] | None:
        [*found] = self.sql(
            f"SELECT identity -> 'live' AS place FROM etl.etl_state WHERE pipeline_id = '{self.row(name)['id']}'"
        )
        return found[0]["place"] if found else None

    # --- what it comes to ------------------------------------------------------------------------------------------

    def await_true(self, what: str, true: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
        try:
            until(lambda: self._is_well() and true(), seconds=seconds)
        except AssertionError as exc:
            raise AssertionError(f"{what}: {exc}; {self.told()}") from None

    def _is_well(self) -> bool:
        """Refuse to wait for what will not come: a pipeline that failed waits for a person."""
        failed = self.sql("SELECT name, last_error FROM etl.etl_pipelines WHERE status = 'FAILED'")
        assert not failed, failed
        return True

    def await_failed(self, name: str, why: str = "") -> None:
        until(lambda: self.row(name)["status"] == "FAILED", seconds=PATIENCE_SECONDS)
        assert why in self.row(name)["last_error"]

    def await_following(self, *names: str) -> None:
        for name in names:
            self.await_true(f"{name} follows", partial(self.is_following, name))

    def is_following(self, name: str) -> bool:
        row = self.row(name)
        return bool(row["status"] == "RUNNING" and self.run(name)["metrics"].get("following"))

    def await_equal(self, name: str, query: str = FILMS, seconds: float = PATIENCE_SECONDS) -> None:
        self.await_true(f"{name} equals its query", lambda: not self.differences(name, query), seconds)

    def settle(self, name: str) -> None:
        """Wait until the follower says that it has passed everything that was committed before."""
        [end] = self.sql("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::int8 AS lsn")
        self.await_true(f"{name} passes {end['lsn']}", lambda: (self.place(name) or {"lsn": 0})["lsn"] >= end["lsn"])

    def differences(self, name: str, query: str = FILMS) -> list[dict[str, Any]]:
        return self.sql(
            f"(({query}) EXCEPT ALL TABLE analytics.{name}) UNION ALL (TABLE analytics.{name} EXCEPT ALL ({query}))"
        )

    def told(self) -> str:
        """Give the last lines of every runner, for the reader of a failed test."""
        logs = sorted(self.directory.glob("runner-*.log"))
        return "\n".join(f"{log.name}: " + "\n".join(log.read_text().splitlines()[-12:]) for log in logs)

    def slots(self) -> list[dict[str, Any]]:
        return self.sql("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()")

    def reconcile(self, name: str) -> dict[str, Any]:
        request = {"pipeline_id": self.row(name)["id"], "runner_id": uuid4(), "payload": {}}
        return reconcile.reconcile(request, self.metastore, self.settings, _no_hold)

    # --- processes -------------------------------------------------------------------------------------------------

    def start_runner(self) -> "subprocess.Popen[bytes]":
        log = self.directory / f"runner-{len(self.runners)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.live.live_runner", str(self.directory), *self.mutants],
                env=os.environ | self.environment(),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.runners.append(process)
        return process

    def environment(self) -> dict[str, str]:
        assert self.settings.reader_url
        assert self.settings.admin_url
        return {
            "VITRINA_DATABASE_URL": self.settings.require_database_url(),
            "VITRINA_READER_URL": self.settings.reader_url.get_secret_value(),
            "VITRINA_FEED_URL": self.settings.admin_url.get_secret_value(),
            "VITRINA_LEASE_TTL_SECONDS": "5",
            "VITRINA_POLL_SECONDS": "1",
            "VITRINA_BACKOFF_SECONDS": "0.1,0.1,0.1",
            **self.more,
        }

    def kill(self, process: "subprocess.Popen[bytes]") -> None:
        process.kill()
        process.wait(timeout=PATIENCE_SECONDS)

    def stop(self) -> None:
        for process in self.runners:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.send_signal(signal.SIGCONT)  # a test may have stopped it
        end = time.monotonic() + PATIENCE_SECONDS
        for process in self.runners:
            process.wait(timeout=max(1.0, end - time.monotonic()))

    def plan(self, failpoint: str) -> None:
        """Let the next runner that comes by fail there, such as `batch.fenced:kill:1`."""
        (self.directory / failpoint).touch()

    def drop_feeds(self) -> None:
        """Remove slots that a test left, so that the server's next test has room."""
        slots = "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = current_database()"
        for row in self.sql(slots):
            if row["active_pid"]:
                self.sql(f"SELECT pg_terminate_backend({row['active_pid']})")
            until(partial(self._dropped, row["slot_name"]), seconds=PATIENCE_SECONDS)

    def _dropped(self, slot: str) -> bool:
        try:
            self.sql(f"SELECT pg_drop_replication_slot('{slot}')")
        except psycopg.Error:
            return not self.sql(f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{slot}'")
        return True


def _no_hold(*_: Any) -> Any:
    raise AssertionError("nothing is repaired here")
