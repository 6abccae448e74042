"""`vitrina runner --once`: one pipeline is taken up and seen to its end, then the process leaves."""

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
    """What became of the one turn."""

    NOTHING_TO_DO = "nothing to do"
    SUCCESS = "success"
    FAILED = "failed"
    PAUSED = "paused"
    STOPPED = "stopped"


class OnceRunner(PipelineManager):
    """A runner with one slot and one turn: leases, heartbeats and recovery are those of every runner."""

    # A thread was left behind: the run has not come to its end.
    exit_code_left_behind = 1

    def __init__(self, settings: Settings, pipeline: str | None = None) -> None:
        """Run `pipeline`, requested unless it is already. Without one, run the pipeline that waits longest."""
        super().__init__(settings.model_copy(update={"concurrency": 1}))
        self._wanted = pipeline
        self._pipeline_id: UUID | None = None
        self._run_before: UUID | None = None
        self._ending: Ending | None = None
        self.message = "told to stop before the end: whoever comes next continues from the checkpoint"

    def run_once(self) -> Ending:
        try:
            self.run_forever()
        finally:
            self._workers.shutdown(wait=True)  # a run that has just ended rings once more
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
                        self._take_up(connection)
                    if self._pipeline_id is not None:
                        self._see_to_the_end(connection, self._pipeline_id)
            except (CannotConnect, psycopg.Error) as exc:
                if isinstance(exc, psycopg.Error) and not database.is_passing(exc):
                    raise
                self._log.warning("runner.metastore_lost", error=" ".join(str(exc).split()))
                self._await_wakeup()

    # --- the beginning -----------------------------------------------------------------------------------------------

    def _take_up(self, connection: Connection) -> None:
        self._recover(connection)
        if self._wanted is None:
            self._fire_schedules(connection)
            self._request_ready(connection)
            self._take_up_any(connection)
        else:
            self._take_up_wanted(connection, services.get(connection, self._wanted)["id"])

    def _take_up_any(self, connection: Connection) -> None:
        asked_at = clock()
        claim = self._claim_one(connection)
        if claim is None:
            self._ending, self.message = Ending.NOTHING_TO_DO, "no pipeline waits that could be run now"
            return
        self._pipeline_id = claim.pipeline_id
        self._start(claim, asked_at)

    def _take_up_wanted(self, connection: Connection, pipeline_id: UUID) -> None:
        if not self._await_silence(connection, pipeline_id):
            return
        asked_at = clock()
        # Asked for and taken in one transaction, so that no other runner comes between where nothing is in the way.
        with connection.transaction():
            row = services.get(connection, pipeline_id, lock=True)
            if row["mode"] == "live":
                raise Conflict(f"pipeline {row['name']} is live and never ends: start a runner without --once")
            if row["status"] == Status.PAUSED:
                raise Conflict(f"pipeline {row['name']} is PAUSED, and stays so until somebody resumes it")
            last = runs.find_current(connection, pipeline_id)
            self._run_before = last["id"] if last else None
            if row["status"] != Status.RUN_REQUESTED:
                services.request_run(connection, CALLER, pipeline_id, trigger=Trigger.API)
            claim = self._claim_one(connection, pipeline_id)
        self._pipeline_id = pipeline_id
        if claim:
            self._start(claim, asked_at)

    def _await_silence(self, connection: Connection, pipeline_id: UUID) -> bool:
        """Refuse a pipeline that another runner works on. Return False when we are to stop.

        A killed runner no longer extends its lease: wait for its end, at most as long as a lease lasts.
        """
        first = services.get(connection, pipeline_id)
        row = first
        while row["status"] in status.ACTIVE and row["claim_id"] is not None:
            if (row["claim_id"], row["lease_until"]) != (first["claim_id"], first["lease_until"]):
                raise Conflict(f"another runner works on pipeline {row['name']}: wait until it is done, then run it")
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

    # --- the end -----------------------------------------------------------------------------------------------------

    def _see_to_the_end(self, connection: Connection, pipeline_id: UUID) -> None:
        """Work until nothing more is requested of the pipeline.

        What a lost connection interrupts is taken up again. A run that continued an older load is followed by the one
        that was requested. If another runner takes it up, its outcome is ours.
        """
        while not self._shutdown.is_set():
            self._telemetry.mark_alive()
            migrate.require_current(connection)
            self._leave_cancelled(connection)
            self._recover(connection)
            if not self._claims:
                row = pipelines.find(connection, pipeline_id)
                if row is None:
                    raise NotFound(f"pipeline {pipeline_id} was deleted meanwhile")
                if row["status"] == Status.RUN_REQUESTED and row["enabled"]:
                    self._go_on(connection, pipeline_id)
                elif row["status"] not in status.ACTIVE:
                    self._note_ending(row, runs.find_current(connection, pipeline_id))
                    return
            self._sleep(connection)

    def _go_on(self, connection: Connection, pipeline_id: UUID) -> None:
        asked_at = clock()
        claim = self._claim_one(connection, pipeline_id)
        if claim:
            self._start(claim, asked_at)

    def _note_ending(self, row: Row, run: Row | None) -> None:
        name = row["name"]
        if run is None or run["id"] == self._run_before:
            self._ending, self.message = Ending.STOPPED, f"pipeline {name}: the request was taken back"
        elif run["status"] == RunStatus.SUCCESS:
            self._ending, self.message = Ending.SUCCESS, f"pipeline {name}: run {run['id']} succeeded"
        elif run["status"] == RunStatus.PAUSED or row["status"] == Status.PAUSED:
            self._ending, self.message = Ending.PAUSED, f"pipeline {name} was paused; `vitrina resume {name}` goes on"
        else:
            self._ending, self.message = Ending.FAILED, f"pipeline {name}: {run['error_message'] or run['status']}"
