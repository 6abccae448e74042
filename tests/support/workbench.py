"""Create sources, define pipelines and run them to their end in the test's process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid4

import pytest

from vitrina import failpoints
from vitrina.checks import delete_scan, reconcile
from vitrina.definition import Definition
from vitrina.loads import full, replay
from vitrina.loads.control import RunControl
from vitrina.ports.checkpoint import Checkpoint
from vitrina.runner import requests
from vitrina.runner.dispatcher import PipelineDispatcher
from vitrina.settings import Settings
from vitrina.status import Trigger
from vitrina.store import database, leases, pipelines, recovery, runs, state
from vitrina.store.leases import Claim
from vitrina.store.session_pool import SessionPool

# There is no heartbeat in tests, and a busy machine may be slow.
NO_HEARTBEAT_SECONDS = 3600.0


@dataclass
class Workbench:
    """Represent one database with everything in it. `admin` may do anything; pipelines run under their own rights."""

    settings: Settings
    admin: database.Connection
    metastore: database.Connection
    # As in a runner: what one run leaves in a session, the next one finds.
    pool: SessionPool = field(default_factory=lambda: SessionPool(most=20, idle_seconds=60.0))

    def sql(self, statement: str) -> list[dict[str, Any]]:
        """Run statements as the superuser. Return the rows of the last one, if it has any."""
        cursor = self.admin.execute(statement)
        return cursor.fetchall() if cursor.description else []

    def source(self, statements: str) -> None:
        """Create source tables, readable like those of a migrated database."""
        self.sql(statements)
        self.sql("GRANT SELECT ON ALL TABLES IN SCHEMA content, ugc TO vitrina_reader")

    def pipeline(self, name: str, query: str, **fields: Any) -> UUID:
        fields = {"target_table": f"analytics.{name}", **fields}
        definition = Definition.model_validate({"name": name, "source_query": query, **fields})
        return pipelines.insert(self.metastore, definition, pipeline_id=None, managed_by=None)

    def change(self, name: str, **fields: Any) -> None:
        row = pipelines.find(self.metastore, name)
        assert row is not None
        definition = pipelines.definition_of(row)
        changed = Definition.model_validate(definition.model_dump() | fields)
        assert pipelines.update(self.metastore, row["id"], changed, version=row["version"])

    def run(self, name: str, **asked: Any) -> dict[str, Any]:
        """Request a run, execute it here, and return its row of etl_runs."""
        self.request(name, **asked)
        claim = self.claim()
        self.perform(claim)
        return self.last_run(name)

    def run_interrupted(self, name: str, batches: int = 10) -> dict[str, Any]:
        """Run with interruptions: every attempt ends after one more batch, so that runs resume from every batch."""
        self.settings = self.settings.model_copy(update={"backoff_seconds": (0.01,)})
        failpoints.configure(",".join(f"batch.committed:error:{count}" for count in range(1, batches)))
        try:
            # Every batch is committed before the load is published, also in a load that would be read again.
            with patch.object(full, "READ_AGAIN_SECONDS", 0.0):
                return self.run(name)
        finally:
            failpoints.configure("")

    def lose_a_runner(self, at: str) -> None:
        """Claim what was requested, and lose the runner at a failpoint, such as `batch.committed:crash:2`."""
        failpoints.configure(at)
        try:
            with pytest.raises(failpoints.Crashed):
                self.perform(self.claim())
        finally:
            failpoints.configure("")

    def recover(self, *, max_attempts: int = 5) -> None:
        """Recover after the lost runner's lease has expired."""
        self.sql("UPDATE etl.etl_pipelines SET lease_until = 'epoch' WHERE claim_id IS NOT NULL")
        assert recovery.recover_expired(self.metastore, max_attempts=max_attempts)

    def request(self, name: str, **asked: Any) -> None:
        row = pipelines.find(self.metastore, name)
        assert row is not None, name
        accepts = asked.pop("accepts", ())
        if asked:
            assert pipelines.request_backfill(self.metastore, row["id"], asked, trigger=Trigger.API, accepts=accepts)
        else:
            assert pipelines.request_run(self.metastore, row["id"], trigger=Trigger.API, accepts=accepts)

    def claim(self) -> Claim:
        claim = self.claim_or_none()
        assert claim is not None, "no run was requested"
        return claim

    def claim_or_none(self) -> Claim | None:
        return leases.claim_next(self.metastore, uuid4(), self.settings.lease_ttl_seconds)

    def perform(self, claim: Claim) -> None:
        control = RunControl(NO_HEARTBEAT_SECONDS, threading.Event())
        PipelineDispatcher(self.settings, pool=self.pool).work(claim, control)

    def reconcile(self, name: str, **wish: Any) -> dict[str, Any]:
        """Compare the mart with its source in this process, as a runner would. Return the report."""
        row = pipelines.find(self.metastore, name)
        assert row is not None
        request = {"pipeline_id": row["id"], "runner_id": uuid4(), "payload": wish}
        return reconcile.reconcile(request, self.metastore, self.settings, _hold, confirm_after_seconds=0.05)

    def plan(self, name: str, **fields: Any) -> dict[str, Any]:
        """Plan the pipeline with these fields in place of its own, in this process. Return the plan."""
        row = pipelines.find(self.metastore, name)
        saved = pipelines.definition_of(row).model_dump(mode="json") if row else {"name": name}
        payload = {"definition": Definition.model_validate(saved | fields).model_dump(mode="json")}
        request = {"id": uuid4(), "pipeline_id": None, "payload": payload, "requested_by": "tests"}
        return requests.make_plan(request, self.metastore, self.settings)

    def profile(self, name: str) -> dict[str, Any]:
        """Profile the target in this process, as a runner would. Return the profile."""
        row = pipelines.find(self.metastore, name)
        assert row is not None
        return requests.profile_target({"pipeline_id": row["id"]}, self.metastore, self.settings)

    def scan_deletes(self, name: str, *, confirm_after_seconds: float = 0.05) -> dict[str, Any]:
        """Delete rows that left the source, in this process, as a runner would when a scan is due.

        Return the report.
        """
        row = pipelines.find(self.metastore, name)
        assert row is not None
        request = {"pipeline_id": row["id"], "runner_id": uuid4(), "payload": {}}
        return delete_scan.scan(
            request, self.metastore, self.settings, _hold, confirm_after_seconds=confirm_after_seconds
        )

    def replay(self, name: str, *letters: int) -> dict[str, Any]:
        """Replay dead letters in this process, as a runner would. Return the report."""
        row = pipelines.find(self.metastore, name)
        assert row is not None
        payload = {"letters": list(letters)} if letters else {}
        request = {"pipeline_id": row["id"], "runner_id": uuid4(), "payload": payload}
        return replay.replay(request, self.metastore, self.settings, _hold)

    def last_run(self, name: str) -> dict[str, Any]:
        row = pipelines.find(self.metastore, name)
        assert row is not None
        found = runs.find_current(self.metastore, row["id"])
        assert found is not None
        return found

    def status(self, name: str) -> str:
        row = pipelines.find(self.metastore, name)
        assert row is not None
        return str(row["status"])

    def checkpoint(self, name: str) -> Checkpoint:
        row = pipelines.find(self.metastore, name)
        assert row is not None
        return state.peek(self.metastore, row["id"])

    def now(self) -> datetime:
        [row] = self.sql("SELECT clock_timestamp() AS now")
        now: datetime = row["now"]
        return now

    def differences(self, query: str, target: str, columns: str = "*") -> int:
        """Count rows that only one of the two has, in SQL, with duplicates."""
        [row] = self.sql(
            f"""
            WITH source AS ({query}), s AS (SELECT {columns} FROM source), t AS (SELECT {columns} FROM {target})
            SELECT (SELECT count(*) FROM (TABLE s EXCEPT ALL TABLE t) lacking)
                 + (SELECT count(*) FROM (TABLE t EXCEPT ALL TABLE s) surplus) AS rows
            """
        )
        return int(row["rows"])


@contextmanager
def _hold(claim: Claim, claimed_at: float) -> Iterator[RunControl]:
    """Hold a lease without a heartbeat: tests end before it does."""
    control = RunControl(NO_HEARTBEAT_SECONDS, threading.Event(), claimed_at=claimed_at)
    try:
        yield control
    finally:
        control.release()
