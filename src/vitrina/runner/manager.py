"""The life of a runner process: start-up checks, recovery, wake-ups, heartbeats, schedule, drain."""

import os
import random
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import FrameType
from typing import Any
from uuid import UUID, uuid4

import psycopg
import structlog

import vitrina
from vitrina import schedule
from vitrina.errors import CannotConnect, InvalidField
from vitrina.runner import requests as runner_requests
from vitrina.runner.control import RunControl
from vitrina.runner.dispatcher import PipelineDispatcher
from vitrina.settings import Settings
from vitrina.store import database, events, leases, migrate, pipelines, requests, runners, runs
from vitrina.store.database import Connection
from vitrina.store.leases import Claim

_HOUSEKEEPING_SECONDS = 60.0
# A runner that has been silent for this many leases is forgotten.
_FORGET_AFTER_LEASES = 120


class PipelineManager:
    """Runs until told to stop. Only infrastructure errors reach it; they are waited out."""

    def __init__(self, settings: Settings) -> None:
        self.runner_id: UUID = uuid4()
        self._settings = settings
        self._dispatcher = PipelineDispatcher(settings)
        self._log = structlog.get_logger().bind(runner_id=str(self.runner_id))
        self._shutdown = threading.Event()
        self._stopped = threading.Event()
        self._claims: dict[UUID, RunControl] = {}
        self._claims_lock = threading.Lock()
        self._workers = ThreadPoolExecutor(settings.concurrency, thread_name_prefix="run")
        self._slots = threading.Semaphore(settings.concurrency)
        self._desk = threading.Semaphore(1)
        self._desk_worker = ThreadPoolExecutor(1, thread_name_prefix="request")
        self._last_housekeeping = 0.0

    def run_forever(self) -> None:
        """Work until SIGTERM or SIGINT: the first drains, the second leaves at once."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_signal)
            signal.signal(signal.SIGINT, self._on_signal)
        self._check_start()
        heartbeat = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        heartbeat.start()
        self._log.info("runner.started", concurrency=self._settings.concurrency, version=vitrina.__version__)
        try:
            self._work_until_shutdown()
        finally:
            self._drain(heartbeat)

    def stop(self) -> None:
        """Ask for a drain; `run_forever` returns when the batches at work are done."""
        self._shutdown.set()

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self._shutdown.is_set():
            os._exit(128 + number)
        self.stop()

    def _check_start(self) -> None:
        with self._metastore("start") as connection:
            migrate.require_current(connection)
            database.reader_url(self._settings, None)
            self._register(connection)
            self._recover(connection)

    # --- the loop ------------------------------------------------------------------------------------------------

    def _work_until_shutdown(self) -> None:
        while not self._shutdown.is_set():
            try:
                with self._metastore("manager") as connection:
                    connection.execute("LISTEN vitrina_wake")
                    while not self._shutdown.is_set():
                        self._tick(connection)
                        self._sleep(connection)
            except (CannotConnect, psycopg.OperationalError) as exc:
                self._log.warning("runner.metastore_lost", error=" ".join(str(exc).split()))
                self._shutdown.wait(self._settings.poll_seconds)

    def _tick(self, connection: Connection) -> None:
        """One look around: recover, schedule, claim, perform requests."""
        self._recover(connection)
        self._fire_schedules(connection)
        while not self._shutdown.is_set() and self._slots.acquire(blocking=False):
            claim = leases.claim_next(connection, self.runner_id, self._settings.lease_ttl_seconds)
            if claim is None:
                self._slots.release()
                break
            self._start(claim)
        self._perform_requests(connection)
        if time.monotonic() - self._last_housekeeping > _HOUSEKEEPING_SECONDS:
            self._last_housekeeping = time.monotonic()
            self._clean_up(connection)

    def _sleep(self, connection: Connection) -> None:
        """Until somebody asks for something, or the poll interval is over."""
        for _ in connection.notifies(timeout=self._settings.poll_seconds, stop_after=1):
            pass

    def _start(self, claim: Claim) -> None:
        control = RunControl(self._settings.lease_ttl_seconds, self._shutdown)
        with self._claims_lock:
            self._claims[claim.claim_id] = control
        self._workers.submit(self._work, claim, control)

    def _work(self, claim: Claim, control: RunControl) -> None:
        try:
            self._dispatcher.work(claim, control)
        finally:
            with self._claims_lock:
                self._claims.pop(claim.claim_id, None)
            self._slots.release()
            self._wake()

    def _wake(self) -> None:
        """A slot is free: look for work now rather than at the next poll."""
        try:
            with self._metastore("wake") as connection:
                connection.execute("NOTIFY vitrina_wake")
        except (CannotConnect, psycopg.Error):
            pass  # the poll finds it

    def _recover(self, connection: Connection) -> None:
        recovered = leases.recover_expired(
            connection, ttl_seconds=self._settings.lease_ttl_seconds, max_attempts=self._settings.max_attempts
        )
        for row in recovered:
            self._log.warning(
                "pipeline.recovered",
                pipeline=row["name"],
                pipeline_id=str(row["id"]),
                status=row["status"],
                epoch=row["epoch"],
                lost_runner=str(row["runner_id"]),
            )

    def _fire_schedules(self, connection: Connection) -> None:
        for due in pipelines.list_due(connection):
            try:
                next_run_at = schedule.next_after(due["schedule_interval"], due["now"])
            except InvalidField as exc:
                self._log.error("schedule.invalid", pipeline=due["name"], error=exc.message)
                continue
            jitter = float(due["options"].get("schedule_jitter_seconds", 0))
            next_run_at += timedelta(seconds=random.uniform(0, jitter))  # noqa: S311 - spreading load, not a secret
            if pipelines.fire_schedule(connection, due, next_run_at) and due["next_run_at"] is not None:
                self._log.info("schedule.fired", pipeline=due["name"], next_run_at=next_run_at.isoformat())

    def _perform_requests(self, connection: Connection) -> None:
        """Previews and validations: one at a time, beside the runs and out of the way of claims."""
        if not self._desk.acquire(blocking=False):
            return
        request = requests.claim_next(connection, self.runner_id, self._settings.lease_ttl_seconds)
        if request is None:
            self._desk.release()
            return
        self._desk_worker.submit(self._perform, request)

    def _perform(self, request: dict[str, Any]) -> None:
        try:
            with self._metastore("request") as connection:
                result, error = runner_requests.perform(request, connection, self._settings)
                requests.finish(connection, request["id"], result=result, error=error)
        except (CannotConnect, psycopg.Error) as exc:
            self._log.warning("request.unfinished", request_id=str(request["id"]), error=" ".join(str(exc).split()))
        finally:
            self._desk.release()
            self._wake()

    def _clean_up(self, connection: Connection) -> None:
        runs.prune(connection, older_than_days=self._settings.runs_retention_days)
        events.prune(connection, older_than_hours=self._settings.events_retention_hours)
        runners.forget_stale(connection, older_than_seconds=self._settings.lease_ttl_seconds * _FORGET_AFTER_LEASES)

    # --- heartbeat -------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        """On its own connection and thread: a long merge must not look like a dead runner."""
        interval = self._settings.lease_ttl_seconds / 3
        while not self._stopped.wait(interval):
            try:
                with self._metastore("heartbeat") as connection:
                    while True:
                        self._beat_once(connection)
                        if self._stopped.wait(interval):
                            return
            except (CannotConnect, psycopg.Error) as exc:
                # Each run watches its own deadline; what we cannot confirm, it will not commit.
                self._log.warning("heartbeat.failed", error=" ".join(str(exc).split()))

    def _beat_once(self, connection: Connection) -> None:
        with self._claims_lock:
            claims = dict(self._claims)
        confirmed = leases.extend(connection, list(claims), self._settings.lease_ttl_seconds)
        for claim_id, control in claims.items():
            if claim_id in confirmed:
                control.extended()
            elif self._is_ours(claim_id):
                control.lose()
        self._register(connection)

    def _is_ours(self, claim_id: UUID) -> bool:
        """A run that ended between two beats is not lost, just done."""
        with self._claims_lock:
            return claim_id in self._claims

    def _register(self, connection: Connection) -> None:
        runners.heartbeat(
            connection,
            self.runner_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=vitrina.__version__,
            capacity=self._settings.concurrency,
            running=len(self._claims),
            transforms=[],
        )

    # --- the end ---------------------------------------------------------------------------------------------------

    def _drain(self, heartbeat: threading.Thread) -> None:
        """Batches at work finish or are dropped, leases are given back, then the runner signs off."""
        self._log.info("runner.draining", running=len(self._claims))
        self._workers.shutdown(wait=True)
        self._desk_worker.shutdown(wait=True)
        self._stopped.set()
        heartbeat.join(timeout=5)
        try:
            with self._metastore("leave") as connection:
                runners.remove(connection, self.runner_id)
        except (CannotConnect, psycopg.Error) as exc:
            self._log.warning("runner.not_signed_off", error=" ".join(str(exc).split()))
        self._log.info("runner.stopped")

    def _metastore(self, purpose: str) -> Connection:
        return database.connect(
            self._settings.require_database_url(),
            f"vitrina:{purpose}",
            connect_timeout_seconds=self._settings.connect_timeout_seconds,
        )
