"""Manage a runner process: start-up checks, recovery, wake-ups, heartbeats, schedules, drain."""

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any
from uuid import UUID, uuid4

import psycopg
import structlog

import vitrina
from vitrina import failpoints
from vitrina.errors import CannotConnect, OtherVersion
from vitrina.loads import local_pool, steps
from vitrina.loads.control import RunControl, clock
from vitrina.observe.telemetry import Telemetry
from vitrina.ports import registry
from vitrina.runner import housekeeping, scheduler
from vitrina.runner import requests as runner_requests
from vitrina.runner.dispatcher import PipelineDispatcher
from vitrina.runner.feeds import FeedKeeper
from vitrina.runner.watchdog import SILENCE_SECONDS, SessionWatchdog, silence_limit
from vitrina.settings import Settings
from vitrina.status import Status
from vitrina.store import coverage, database, leases, migrate, recovery, requests, run_after, runners, session_limits
from vitrina.store.database import Connection
from vitrina.store.leases import Claim, Waiting
from vitrina.store.session_pool import SessionPool
from vitrina.transforms import forking
from vitrina.unsealing import Keyring

# How long a running batch or publish may take after the runner is told to stop; then it is dropped.
DRAIN_SECONDS = 8.0
# How long threads may take to release dropped work. The process exits without those that take longer.
LEAVE_SECONDS = 8.0
# Sessions that most runs hold at once: metastore, source, target, and one more for each of the last two.
_KEPT_SESSIONS_PER_RUN = 5


class PipelineManager:
    """Run pipelines until told to stop. Only infrastructure errors reach this class; it waits until they are over."""

    exit_code_left_behind = 0

    def __init__(self, settings: Settings) -> None:
        self.runner_id: UUID = uuid4()
        self._settings = settings
        self._telemetry = Telemetry(settings, self.runner_id)
        self._pool = SessionPool(
            most=_KEPT_SESSIONS_PER_RUN * settings.concurrency, idle_seconds=settings.keep_sessions_seconds
        )
        self._dispatcher = PipelineDispatcher(
            settings, self._telemetry.instruments, self._telemetry.observers, self._pool
        )
        self._log = structlog.get_logger().bind(runner_id=str(self.runner_id))
        self._transforms: list[dict[str, Any]] = []
        self._connectors: list[dict[str, Any]] = []
        self._covers: list[str] = []
        self._sealing_keys = Keyring(settings.secret_keys).public_keys if settings.secret_keys else []
        self._shutdown = threading.Event()
        self._stopped = threading.Event()
        self._claims: dict[UUID, RunControl] = {}
        self._requests: set[UUID] = set()
        self._claims_lock = threading.Lock()
        self._waiting: set[tuple[str, str]] = set()
        # How many runs waited at the last look and were not claimed since. The first look has not happened yet.
        self._unclaimed = 1
        self._workers = ThreadPoolExecutor(settings.concurrency, thread_name_prefix="run")
        self._slots = threading.Semaphore(settings.concurrency)
        # Live pipelines run for days, so they do not take slots of VITRINA_CONCURRENCY.
        self._followers = ThreadPoolExecutor(settings.followers, thread_name_prefix="follow")
        self._follower_slots = threading.Semaphore(settings.followers)
        self._following: set[UUID] = set()
        self._request_slot = threading.Semaphore(1)
        self._request_worker = ThreadPoolExecutor(1, thread_name_prefix="request")
        self._housekeeper = housekeeping.Housekeeper(settings)
        self._next_look = 0.0
        self._watchdog = SessionWatchdog(self._current_runs)
        self._feeds = FeedKeeper(settings, self.runner_id, self._watchdog)
        # Threads and signal handlers wake the loop by writing a byte, which needs no database session.
        self._wakeup_recv, self._wakeup_send = socket.socketpair()
        self._wakeup_send.setblocking(False)

    def run_forever(self) -> None:
        """Run until SIGTERM or SIGINT. The first signal drains the runner, the second exits immediately."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_signal)
            signal.signal(signal.SIGINT, self._on_signal)
        self._check_start()
        heartbeat = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        heartbeat.start()
        self._watchdog.start()
        self._telemetry.start()
        forking.templates.keep()
        local_pool.templates.keep()
        self._log.info("runner.started", concurrency=self._settings.concurrency, version=vitrina.__version__)
        try:
            self._work_until_shutdown()
        except OtherVersion as exc:
            # Log the error before the drain, which may end the process with threads still running.
            self._log.error("runner.other_version", error=exc.message)
            raise
        finally:
            self._drain(heartbeat)

    def stop(self) -> None:
        """Request a drain; `run_forever` returns when the current batches are done."""
        self._shutdown.set()
        self._wake()

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self._shutdown.is_set():
            os._exit(128 + number)
        self.stop()

    def _check_start(self) -> None:
        self._transforms = steps.describe(self._settings)
        self._connectors = [each.describe() for each in registry.installed().connectors.values()]
        self._covers = coverage.covered(registry.installed().connectors.values(), self._transforms)
        for refused in registry.installed().refused:
            self._log.warning(
                "connector.refused", connector=refused.entry, package=refused.package, error=refused.reason
            )
        with self._metastore("start") as connection:
            migrate.require_current(connection)
            database.reader_url(self._settings, None)
            self._register(connection)
            recovered = self._recover(connection)
        self._log.info("recovery.done", pipelines=recovered)

    # --- loop -----------------------------------------------------------------------------------------------------

    def _work_until_shutdown(self) -> None:
        while not self._shutdown.is_set():
            self._telemetry.mark_alive()
            try:
                with self._metastore("manager", settings=self._limits) as connection:
                    connection.execute("LISTEN vitrina_wake")
                    while not self._shutdown.is_set():
                        self._tick(connection)
                        self._sleep(connection)
            except (CannotConnect, psycopg.Error) as exc:
                self._log.warning("runner.metastore_lost", error=" ".join(str(exc).split()))
                self._await_wakeup()

    def _tick(self, connection: Connection) -> None:
        """Handle requests immediately, and everything else once per poll interval however often the runner is woken."""
        self._telemetry.mark_alive()
        # Refuses a metastore that was migrated since: the work belongs to a runner of the new version then.
        waiting = self._look(connection)
        self._telemetry.instruments.running.set(self._runs_held)
        self._do(self._leave_cancelled, connection)
        self._claim_requested(connection, waiting)
        if clock() >= self._next_look:
            self._next_look = clock() + self._settings.poll_seconds
            self._look_for_work(connection)
        if waiting.requests:
            self._do(self._perform_requests, connection)

    def _look_for_work(self, connection: Connection) -> None:
        """Handle what no notification announces: expired leases, due schedules, rows that were locked, old rows."""
        regular = (self._recover, self._fire_schedules, self._request_ready, self._feeds.look)
        for part in regular:
            self._do(part, connection)
        self._claim_requested(connection, self._look(connection))
        self._housekeeper.look(self._shutdown)
        self._pool.close_unused()

    def _look(self, connection: Connection) -> Waiting:
        """Return what waits for a runner. A tick cannot claim more runs than it has slots, so no more are counted."""
        return leases.look(connection, count_to=self._settings.concurrency + self._settings.followers + 1)

    def _do(self, part: Callable[[Connection], object], connection: Connection) -> None:
        """Run one part of a tick. If a row makes it fail, the other parts still run."""
        try:
            part(connection)
        except psycopg.Error as exc:
            if connection.closed or database.is_passing(exc):
                raise
            self._log.exception("runner.part_failed", part=part.__name__)
        except OtherVersion:
            raise
        except Exception:  # noqa: BLE001 - one bad pipeline must not stop the runner of many
            self._log.exception("runner.part_failed", part=part.__name__)

    def _fire_schedules(self, connection: Connection) -> int:
        return scheduler.fire_due(connection)

    def _request_ready(self, connection: Connection) -> int:
        """Request pipelines whose row was locked when their last upstream ended, and those enabled since."""
        return run_after.request_ready(connection)

    def _sleep(self, connection: Connection) -> None:
        """Wait until a request arrives, a slot is free, or the poll interval is over."""
        if list(connection.notifies(timeout=0)):
            return  # a request arrived during the tick
        self._await_wakeup(connection.fileno())
        # Discard the notifications that ended the wait, before the tick that answers them. Discarded after it, they
        # could be of requests that the tick did not see; kept, they would cause a second tick.
        list(connection.notifies(timeout=0))

    def _await_wakeup(self, *others: int) -> None:
        """Wait without `_shutdown.wait`, on whose lock a signal handler in this thread would deadlock."""
        left = self._next_look - clock()
        seconds = left if left > 0 else self._settings.poll_seconds
        ready, _, _ = select.select([self._wakeup_recv.fileno(), *others], [], [], seconds)
        if self._wakeup_recv.fileno() in ready:
            self._wakeup_recv.recv(4096)

    def _claim_requested(self, connection: Connection, waiting: Waiting) -> None:
        """Claim what is requested. While nothing is, this costs one query and no transaction."""
        # Set before a slot is tried: a run that ends meanwhile reads it after it has released its slot.
        self._unclaimed = waiting.runs
        if not waiting.runs:
            self._waiting = set()
        for part in (self._claim, self._claim_live):
            if self._unclaimed:
                self._do(part, connection)

    def _claim(self, connection: Connection) -> None:
        self._fill(connection, self._slots, follows=False)

    def _claim_live(self, connection: Connection) -> None:
        self._fill(connection, self._follower_slots, follows=True)

    def _fill(self, connection: Connection, slots: threading.Semaphore, *, follows: bool) -> None:
        while not self._shutdown.is_set() and slots.acquire(blocking=False):
            asked_at = clock()
            try:
                claim = leases.claim_next(
                    connection,
                    self.runner_id,
                    self._settings.lease_ttl_seconds,
                    per_source=self._settings.source_concurrency,
                    max_connections=self._settings.max_connections,
                    covers=self._covers,
                    follows=follows,
                )
            except BaseException:
                slots.release()
                raise
            if claim is None:
                slots.release()
                self._log_waiting(connection)
                return
            failpoints.hit("claim.taken")
            self._start(claim, asked_at, follows=follows)
            # A run that was requested since the look has sent a notification.
            self._unclaimed -= 1
            if not self._unclaimed:
                return

    def _log_waiting(self, connection: Connection) -> None:
        """Log why a pipeline is not claimed although a slot is free, once for each wait."""
        limits = self._settings.max_connections
        found = session_limits.list_waiting(connection, limits) if limits else []
        waiting = {tuple(row.values()) for row in found}
        for pipeline, full in sorted(waiting - self._waiting):
            self._log.info("pipeline.waiting", pipeline=pipeline, connection=full, max_connections=limits[full])
        self._waiting = waiting

    def _leave_cancelled(self, connection: Connection) -> None:
        """Abandon voided claims now instead of at the next heartbeat, and pass on requests to pause."""
        with self._claims_lock:
            claims = dict(self._claims)
        if claims:
            held = leases.still_held(connection, list(claims))
            for claim_id, control in claims.items():
                if claim_id not in held:
                    control.lose()
                else:
                    control.pause_asked = held[claim_id] is Status.PAUSE_REQUESTED

    def _start(self, claim: Claim, claimed_at: float, *, follows: bool = False) -> None:
        control = RunControl(self._settings.lease_ttl_seconds, self._shutdown, claimed_at=claimed_at)
        with self._claims_lock:
            self._claims[claim.claim_id] = control
            if follows:
                self._following.add(claim.claim_id)
        (self._followers if follows else self._workers).submit(self._work, claim, control)

    def _work(self, claim: Claim, control: RunControl) -> None:
        try:
            self._dispatcher.work(claim, control)
        except BaseException:
            # Nothing reads this thread's result. The lease expires, and recovery takes over.
            self._log.exception("run.abandoned", pipeline=claim.name)
            raise
        finally:
            with self._claims_lock:
                self._claims.pop(claim.claim_id, None)
                follows = claim.claim_id in self._following
                self._following.discard(claim.claim_id)
            (self._follower_slots if follows else self._slots).release()
            self._telemetry.instruments.running.set(self._runs_held)
            # A request that arrives later sends a notification.
            if self._unclaimed:
                self._wake()

    def _wake(self) -> None:
        """Wake the loop to look for work before the next poll."""
        with suppress(BlockingIOError):  # already woken
            self._wakeup_send.send(b"!")

    @property
    def _runs_held(self) -> int:
        """Count the runs that take a slot of VITRINA_CONCURRENCY."""
        with self._claims_lock:
            return len(self._claims.keys() - self._following)

    def _current_runs(self) -> list[RunControl]:
        with self._claims_lock:
            return list(self._claims.values())

    def _recover(self, connection: Connection) -> int:
        recovered = recovery.recover_expired(connection, max_attempts=self._settings.max_attempts)
        for row in recovered:
            self._telemetry.took_over(row["name"])
            self._log.warning(
                "pipeline.recovered",
                pipeline=row["name"],
                pipeline_id=str(row["id"]),
                status=row["status"],
                epoch=row["epoch"],
                lost_runner=str(row["runner_id"]),
            )
        return len(recovered) + recovery.pause_unclaimed(connection)

    # --- requests -------------------------------------------------------------------------------------------------

    def _perform_requests(self, connection: Connection) -> None:
        """Perform one request at a time, next to the runs and without delaying claims."""
        if self._shutdown.is_set() or not self._request_slot.acquire(blocking=False):
            return
        try:
            request = requests.claim_next(
                connection, self.runner_id, self._settings.lease_ttl_seconds, covers=self._covers
            )
        except BaseException:
            self._request_slot.release()
            raise
        if request is None:
            self._request_slot.release()
            return
        with self._claims_lock:
            self._requests.add(request["id"])
        self._request_worker.submit(self._perform, request)

    def _perform(self, request: dict[str, Any]) -> None:
        try:
            with self._metastore("request", silence_limit(self._settings.statement_timeout_seconds)) as connection:
                result, error = runner_requests.perform(request, connection, self._settings, self._hold)
                requests.finish(connection, request["id"], self.runner_id, result=result, error=error)
                if request["kind"] == "plan":
                    name = runner_requests.pipeline_of(request, connection)
                    self._telemetry.instruments.planned(result, name)
        except (CannotConnect, psycopg.Error) as exc:
            self._log.warning("request.unfinished", request_id=str(request["id"]), error=" ".join(str(exc).split()))
        finally:
            with self._claims_lock:
                self._requests.discard(request["id"])
            self._request_slot.release()
            self._wake()

    @contextmanager
    def _hold(self, claim: Claim, claimed_at: float) -> Iterator[RunControl]:
        """Keep a lease that a request took; the heartbeat extends it like that of a run."""
        control = RunControl(self._settings.lease_ttl_seconds, self._shutdown, claimed_at=claimed_at)
        with self._claims_lock:
            self._claims[claim.claim_id] = control
        try:
            yield control
        finally:
            control.release()
            with self._claims_lock:
                self._claims.pop(claim.claim_id, None)

    # --- heartbeat ------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Extend leases on a separate connection and thread: a long merge must not look like a dead runner."""
        interval = self._settings.lease_ttl_seconds / 3
        while not self._stopped.wait(interval):
            try:
                with self._metastore("heartbeat", interval) as connection:
                    while True:
                        self._beat_once(connection)
                        if self._stopped.wait(interval):
                            return
            except (CannotConnect, psycopg.Error) as exc:
                # Each run checks its own deadline, and does not commit without a confirmed lease.
                self._log.warning("heartbeat.failed", error=" ".join(str(exc).split()))
            except Exception:  # noqa: BLE001 - without a heartbeat every lease is lost, so keep trying
                self._log.exception("heartbeat.crashed")

    def _beat_once(self, connection: Connection) -> None:
        with self._claims_lock:
            claims, asked_for = dict(self._claims), list(self._requests)
        if claims:
            asked_at = clock()
            answer = leases.extend(connection, list(claims), self._settings.lease_ttl_seconds)
            for claim_id, control in claims.items():
                if claim_id in answer.extended:
                    control.extended(asked_at)
                elif claim_id not in answer.held:
                    control.lose()  # or its run has just ended and does not check any more
        if asked_for:
            requests.extend(connection, asked_for, self.runner_id, self._settings.lease_ttl_seconds)
        self._feeds.beat(connection)
        self._register(connection)

    def _register(self, connection: Connection) -> None:
        runners.heartbeat(
            connection,
            self.runner_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=vitrina.__version__,
            capacity=self._settings.concurrency,
            running=self._runs_held,
            transforms=self._transforms,
            sealing_keys=self._sealing_keys,
            connectors=self._connectors,
            covers=self._covers,
        )

    # --- drain ----------------------------------------------------------------------------------------------------

    def _drain(self, heartbeat: threading.Thread) -> None:
        """Finish or drop the current batches, release the leases, then remove the runner from the list."""
        self._log.info("runner.draining", running=len(self._claims))
        self._shutdown.set()
        self._watchdog.drain(DRAIN_SECONDS)
        self._workers.shutdown(wait=False)
        self._followers.shutdown(wait=False)
        self._request_worker.shutdown(wait=False, cancel_futures=True)
        end = time.monotonic() + DRAIN_SECONDS + LEAVE_SECONDS
        while self._claims and time.monotonic() < end:
            time.sleep(0.02)
        self._feeds.stop()
        self._stopped.set()
        heartbeat.join(timeout=5)
        try:
            with self._metastore("leave") as connection:
                runners.remove(connection, self.runner_id)
        except (CannotConnect, psycopg.Error) as exc:
            self._log.warning("runner.not_signed_off", error=" ".join(str(exc).split()))
        self._pool.close()
        self._watchdog.stop()
        self._log.info("runner.stopped", left_behind=len(self._claims))
        self._telemetry.stop()
        forking.templates.close()
        local_pool.templates.close()
        if self._claims or self._requests:
            # A thread that waits for a server which never answers would keep the process alive forever.
            os._exit(self.exit_code_left_behind)

    @property
    def _limits(self) -> dict[str, str]:
        """Release row locks when the leases end; a session stuck in a claim would block its pipeline for others.

        Plan each statement once: planning the search for a claim takes five times as long as executing it.
        """
        timeout = str(int(self._settings.lease_ttl_seconds * 1000))
        return {"idle_in_transaction_session_timeout": timeout, "plan_cache_mode": "force_generic_plan"}

    @contextmanager
    def _metastore(
        self, purpose: str, silence_limit_seconds: float = SILENCE_SECONDS, *, settings: dict[str, str] | None = None
    ) -> Iterator[Connection]:
        with (
            database.connect(
                self._settings.require_database_url(),
                f"vitrina:{purpose}",
                connect_timeout_seconds=self._settings.connect_timeout_seconds,
                settings=settings,
            ) as connection,
            self._watchdog.watch(connection, silence_limit_seconds),
        ):
            database.read_json_cut(connection)
            yield connection
