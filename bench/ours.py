"""Run Vitrina in the benchmarks: a real metastore, a real runner in a separate process, requested runs."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from vitrina.definition import Definition
from vitrina.settings import Settings
from vitrina.status import Trigger
from vitrina.store import database, pipelines, requests, runs

# A status is asked for at least this often, in case its event was missed.
_LOOK_SECONDS = 1.0


@dataclass
class Platform:
    """Hold a runner process, and request runs from it."""

    settings: Settings
    environment: dict[str, str]
    process: subprocess.Popen[bytes] | None = field(default=None)
    log: Path | None = None

    def start(self, log: Path) -> None:
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "vitrina.cli", "runner"],
                env=os.environ | self.environment,
                stdout=output,
                stderr=output,
            )

        self._await_registration()

    def _await_registration(self) -> None:
        with self.connect() as connection:
            while not connection.execute("SELECT 1 FROM etl.etl_runners").fetchone():
                time.sleep(0.05)

    def restart(self) -> None:
        """Start a new process with fresh memory."""
        assert self.log is not None
        self.stop()
        with self.connect() as connection:
            connection.execute("DELETE FROM etl.etl_runners")
        self.start(self.log)

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=60)

    @cached_property
    def _session(self) -> database.Connection:
        """Keep one session for all requests, as a client of the API keeps its connection, and hear of events in it."""
        session = self.connect()
        session.execute("LISTEN vitrina_events")
        return session

    def connect(self) -> database.Connection:
        return database.connect(self.settings.require_database_url(), "vitrina:bench")

    def define(self, name: str, query: str | None, **fields: Any) -> None:
        """Define a pipeline from scratch, without the state of an earlier one."""
        definition = Definition.model_validate(
            {"name": name, "source_query": query, "target_table": f"analytics.{name}", **fields}
        )
        with self._session.transaction():
            self._session.execute("DELETE FROM etl.etl_pipelines WHERE name = %s", [name])
            pipelines.insert(self._session, definition, pipeline_id=None, managed_by=None)

    def rewind(self, name: str, cursor: str) -> None:
        with self.connect() as connection:
            connection.execute(
                "UPDATE etl.etl_state SET safe_upto = %s WHERE pipeline_id ="
                " (SELECT id FROM etl.etl_pipelines WHERE name = %s)",
                [cursor, name],
            )

    def run(self, name: str) -> dict[str, Any]:
        """Request a run and wait for its end; any result but SUCCESS stops the benchmark."""
        session = self._session
        row = pipelines.find(session, name)
        assert row is not None
        pipelines.request_run(session, row["id"], trigger=Trigger.MANUAL)
        while _status(session, row["id"]) in ("RUN_REQUESTED", "RUNNING"):
            # Events instead of polling, which would cost CPU of the server that is measured.
            list(session.notifies(timeout=_LOOK_SECONDS, stop_after=1))
        run = runs.find_current(session, row["id"])
        assert run is not None
        if run["status"] != "SUCCESS":
            raise RuntimeError(f"{name}: {run['status']}: {run['error_message']}")
        return run

    def reconcile(self, name: str, **wish: Any) -> dict[str, Any]:
        """Request a comparison and wait for the report."""
        with self.connect() as connection:
            row = pipelines.find(connection, name)
            assert row is not None
            request_id = requests.insert(connection, "reconcile", row["id"], wish, "bench")
            while True:
                asked = requests.find(connection, request_id)
                assert asked is not None
                if asked["status"] == "DONE":
                    report: dict[str, Any] = asked["result"]
                    return report
                if asked["status"] == "FAILED":
                    raise RuntimeError(f"{name}: {asked['error']}")
                time.sleep(0.01)

    def forget_peak_memory(self) -> None:
        assert self.process is not None
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def peak_memory_mb(self) -> float:
        """Return the runner's peak memory since the last reset."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024


def _status(connection: database.Connection, pipeline_id: object) -> str:
    """Read only the status: the whole row with its tasks costs the server several times as much."""
    found = connection.execute("SELECT status FROM etl.etl_pipelines WHERE id = %s", [pipeline_id])
    return str(database.one(found)["status"])
