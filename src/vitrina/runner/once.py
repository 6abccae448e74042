"""Run one pipeline to its end, then exit: `vitrina runner --once`."""

from enum import StrEnum
from typing import Any
from uuid import UUID

import psycopg

from vitrina import status
from vitrina.errors import CannotConnect, Conflict, NotFound
from vitrina.loads.control import clock
from vitrina.runner.manager import PipelineManager
from vitrina.services import pipelines as services
from vitrina.services.callers import Caller, Role
from vitrina.settings import Settings
from vitrina.status import RunStatus, Status, Trigger
from vitrina.store import database, leases, migrate, pipelines, runs
from vitrina.store.database import Connection
from vitrina.store.leases import Claim

Row = dict[str, Any]

CALLER = Caller("runner --once", Role.OPERATOR)


class Ending(StrEnum):
    """Represent how the one run ended."""

    NOTHING_TO_DO = "nothing to do"
    SUCCESS = "success"
    FAILED = "failed"
    PAUSED = "paused"
    STOPPED = "stopped"


class OnceRunner(PipelineManager):
    """Run one pipeline once, with the same leases, heartbeats and recovery as any other runner."""

    # Used when a thread had to be left running: the run has not finished.
    exit_code_left_behind = 1

    def __init__(self, settings: Settings, pipeline: str | None = None) -> None:
        """Run `pipeline`, requesting it if necessary. Without it, run the pipeline that has waited longest."""
        super().__init__(settings.model_copy(update={"concurrency": 1}))
        self._wanted = pipeline
        self._pipeline_id: UUID | None = None
        self._run_before: UUID | None = None
        self._ending: Ending | None = None
        self.message = "told to stop before the end: the next run continues from the checkpoint"

    def run_once(self) -> Ending:
        try:
            self.run_forever()
        finally:
            self._workers.shutdown(wait=True)  # a run that has just ended writes to the wake-up socket once more
            self._wakeup_recv.close()
            self._wakeup_send.close()
        return self._ending or Ending.STOPPED

    def _work_until_shutdown(self) -> None:
        while not self._shutdown.is_set() and self._ending is None:
            self._telemetry.mark_alive()
            try:
                with self._metastore("manager") as connection:
                    connection.execute("LISTEN vitrina_wake")
                    if self._pipeline_id is None:
                        self._begin(connection)
                    if self._pipeline_id is not None:
                        self._run_to_completion(connection, self._pipeline_id)
            except (CannotConnect, psycopg.Error) as exc:
                if isinstance(exc, psycopg.Error) and not database.is_passing(exc):
                    raise
                self._log.warning("runner.metastore_lost", error=" ".join(str(exc).split()))
                self._await_wakeup()

    def _begin(self, connection: Connection) -> None:
        self._recover(connection)
        if self._wanted is None:
            self._fire_schedules(connection)
            self._request_ready(connection)
            self._begin_any(connection)
        else:
            self._begin_named(connection, services.get(connection, self._wanted)["id"])

    def _begin_any(self, connection: Connection) -> None:
        asked_at = clock()
        claim = self._claim_one(connection)
        if claim is None:
            self._ending, self.message = Ending.NOTHING_TO_DO, "no requested pipeline can be run now"
            return
        self._pipeline_id = claim.pipeline_id
        self._start(claim, asked_at)

    def _begin_named(self, connection: Connection, pipeline_id: UUID) -> None:
        if not self._wait_until_unclaimed(connection, pipeline_id):
            return
        asked_at = clock()
        # Request and claim in one transaction, so that no other runner can claim it in between.
        with connection.transaction():
            row = services.get(connection, pipeline_id, lock=True)
            if row["mode"] == "live":
                raise Conflict(f"pipeline {row['name']} is live and never ends: start a runner without --once")
            if row["status"] == Status.PAUSED:
                raise Conflict(
                    f"pipeline {row['name']} is PAUSED: resume it first, with `vitrina resume {row['name']}`"
                )
            last = runs.find_current(connection, pipeline_id)
            self._run_before = last["id"] if last else None
            if row["status"] != Status.RUN_REQUESTED:
                services.request_run(connection, CALLER, pipeline_id, trigger=Trigger.API)
            claim = self._claim_one(connection, pipeline_id)
        self._pipeline_id = pipeline_id
        if claim:
            self._start(claim, asked_at)

    def _wait_until_unclaimed(self, connection: Connection, pipeline_id: UUID) -> bool:
        """Refuse a pipeline that another runner is running. Return False when the process is told to stop.

        A killed runner no longer extends its lease, so wait until it expires.
        """
        first = services.get(connection, pipeline_id)
        row = first
        while row["status"] in status.ACTIVE and row["claim_id"] is not None:
            if (row["claim_id"], row["lease_until"]) != (first["claim_id"], first["lease_until"]):
                raise Conflict(f"another runner is running pipeline {row['name']}: wait until it has finished")
            self._sleep(connection)
            if self._shutdown.is_set():
                return False
            self._recover(connection)
            row = services.get(connection, pipeline_id)
        return True

    def _claim_one(self, connection: Connection, pipeline_id: UUID | None = None) -> Claim | None:
        return leases.claim_next(
            connection,
            self.runner_id,
            self._settings.lease_ttl_seconds,
            only=pipeline_id,
            per_source=self._settings.source_concurrency,
            max_connections=self._settings.max_connections,
            covers=self._covers,
            follows=False,
        )

    def _run_to_completion(self, connection: Connection, pipeline_id: UUID) -> None:
        """Run until nothing more is requested of the pipeline.

        A run that a lost connection interrupted is resumed. A run that continued an older load is followed by the
        requested one. If another runner claims the pipeline, report the outcome of its run.
        """
        while not self._shutdown.is_set():
            self._telemetry.mark_alive()
            migrate.require_current(connection)
            self._leave_cancelled(connection)
            self._recover(connection)
            if not self._claims:
                row = pipelines.find(connection, pipeline_id)
                if row is None:
                    raise NotFound(f"pipeline {pipeline_id} was deleted")
                if row["status"] == Status.RUN_REQUESTED and row["enabled"]:
                    self._claim_again(connection, pipeline_id)
                elif row["status"] not in status.ACTIVE:
                    self._note_ending(row, runs.find_current(connection, pipeline_id))
                    return
            self._sleep(connection)

    def _claim_again(self, connection: Connection, pipeline_id: UUID) -> None:
        asked_at = clock()
        claim = self._claim_one(connection, pipeline_id)
        if claim:
            self._start(claim, asked_at)

    def _note_ending(self, row: Row, run: Row | None) -> None:
        name = row["name"]
        if run is None or run["id"] == self._run_before:
            self._ending, self.message = Ending.STOPPED, f"pipeline {name}: the request was cancelled"
        elif run["status"] == RunStatus.SUCCESS:
            self._ending, self.message = Ending.SUCCESS, f"pipeline {name}: run {run['id']} succeeded"
        elif run["status"] == RunStatus.PAUSED or row["status"] == Status.PAUSED:
            self._ending, self.message = (
                Ending.PAUSED,
                f"pipeline {name} was paused; `vitrina resume {name}` continues it",
            )
        else:
            self._ending, self.message = Ending.FAILED, f"pipeline {name}: {run['error_message'] or run['status']}"
