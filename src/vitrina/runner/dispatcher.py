"""Execute a claimed run to its end, and classify what goes wrong as retry, failure or loss."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import psycopg
import structlog

from vitrina.errors import (
    CannotConnect,
    ConfigError,
    Disconnected,
    LeaseLost,
    OtherVersion,
    RequestError,
    RunError,
    TargetTaken,
    TransientError,
    VitrinaError,
)
from vitrina.loads.control import Paused, RunControl, Stopping
from vitrina.observe import logs, tracing
from vitrina.observe.observer import ObserverFactory, RunObserver, RunOutcome, no_observers
from vitrina.observe.prometheus import Instruments, RunTally
from vitrina.observe.run_meter import RunMeter
from vitrina.runner.executor import PipelineExecutor
from vitrina.sentences import say
from vitrina.settings import Settings
from vitrina.status import Status
from vitrina.store import database, leases, migrate, recovery, state
from vitrina.store.leases import Claim
from vitrina.store.session_pool import SessionPool

# How long a server may stay unreachable before the run fails.
OUTAGE_PATIENCE_SECONDS = 60.0


class PipelineDispatcher:
    """Execute one claim to its end. This is the only place that handles what a run may raise."""

    def __init__(
        self,
        settings: Settings,
        instruments: Instruments | None = None,
        observers: ObserverFactory = no_observers,
        pool: SessionPool | None = None,
    ) -> None:
        self._settings = settings
        self._instruments = instruments or Instruments()
        self._observers = observers
        self._executor = PipelineExecutor(settings, pool)

    def work(self, claim: Claim, control: RunControl) -> None:
        """Run the claim, retrying where that may help, and record how it ended."""
        names = {"pipeline": claim.name, "pipeline_id": str(claim.pipeline_id), "run_id": str(claim.run_id)}
        observers = self._observers(claim)
        trace_id = _trace_id(claim, observers)
        with structlog.contextvars.bound_contextvars(
            **names, epoch=claim.epoch, **({"trace_id": trace_id} if trace_id else {})
        ):
            meter = RunMeter(RunTally(self._instruments, claim.name), observers)
            self._work(claim, control, meter, structlog.get_logger())

    def _work(self, claim: Claim, control: RunControl, meter: RunMeter, log: structlog.stdlib.BoundLogger) -> None:
        log.info("run.started", trigger=claim.row["requested_trigger"], version=claim.version)
        _log_status_change(Status.RUN_REQUESTED, Status.RUNNING)
        started = time.monotonic()
        outcome = RunOutcome("FAILED")
        try:
            status = self._try_until_done(claim, control, meter, log)
            outcome = RunOutcome("PAUSED" if status is Status.PAUSED else "SUCCESS")
            _log_status_change(Status.RUNNING, status)
            log.info(
                "run.ended",
                status=status,
                rows=meter.counters.rows_read,
                rows_written=meter.counters.rows_written,
                duration_ms=round((time.monotonic() - started) * 1000),
            )
        except Stopping:
            outcome = RunOutcome("CANCELLED")
            log.info("run.given_back")
            self._record_outcome(lambda connection: leases.give_back(connection, claim), control, log)
        except TargetTaken as exc:
            # The reason is recorded, so the next claim waits until the target is free.
            outcome = RunOutcome("CANCELLED")
            reason = (exc.code, exc.message)
            log.info("run.target_taken", error=exc.message)
            self._record_outcome(lambda connection: leases.give_back(connection, claim, *reason), control, log)
        except LeaseLost as exc:
            outcome = RunOutcome("LOST", exc.code, exc.message)
            meter.tally.lost_lease()
            log.warning("run.lease_lost", error=exc.message)
        except Disconnected as exc:
            outcome = RunOutcome("LOST", exc.code, exc.message)
            meter.tally.failed(exc.code)
            log.warning("run.disconnected", error=exc.message, sqlstate=database.sqlstate_of(exc))
            self._surrender(claim, control, exc.message, log)
        except (RunError, RequestError, ConfigError, CannotConnect) as exc:
            outcome = RunOutcome("FAILED", exc.code, exc.message)
            meter.tally.failed(exc.code)
            log.error(
                "run.failed",
                error_code=exc.code,
                error=exc.message,
                sqlstate=database.sqlstate_of(exc),
                attempt=meter.attempt,
                rows=meter.counters.rows_read,
                duration_ms=round((time.monotonic() - started) * 1000),
            )
            discards = isinstance(exc, RunError) and exc.discards_load
            self._record_outcome(_failing(claim, meter, exc.code, exc.message, discards_load=discards), control, log)
        except Exception as exc:
            # End the run here whatever the error is; a bug in one pipeline must not stop the others.
            message = say("run.internal", kind=type(exc).__name__, message=logs.masked(str(exc), self._settings))
            outcome = RunOutcome("FAILED", "internal", message)
            meter.tally.failed("internal")
            log.exception("run.crashed", attempt=meter.attempt)
            self._record_outcome(_failing(claim, meter, "internal", message), control, log)
        finally:
            control.release()
            meter.ended(outcome)

    def _try_until_done(
        self, claim: Claim, control: RunControl, meter: RunMeter, log: structlog.stdlib.BoundLogger
    ) -> Status:
        unreachable_since: float | None = None
        while True:
            try:
                return self._try_once(claim, control, meter)
            except Disconnected:
                raise
            except CannotConnect as exc:
                if unreachable_since is None or meter.progressed_at > unreachable_since:
                    unreachable_since = time.monotonic()  # another outage: the system was there in between
                if time.monotonic() - unreachable_since > OUTAGE_PATIENCE_SECONDS and not claim.is_live:
                    raise
                wait, message, state = self._backoff(meter.attempt), exc.message, None
            except TransientError as exc:
                meter.attempts_without_progress += 1
                if meter.attempts_without_progress >= self._max_attempts(claim):
                    raise
                unreachable_since = None
                wait, message = self._backoff(meter.attempts_without_progress), exc.message
                state = database.sqlstate_of(exc)
            log.warning("run.retrying", attempt=meter.attempt, wait_seconds=wait, error=message, sqlstate=state)
            meter.retrying(message)
            try:
                with self._pause_asked(claim, control, meter) as pause_asked:
                    control.wait(wait, pause_asked)
            except Paused:
                return self._pause(claim, control, meter)

    def _try_once(self, claim: Claim, control: RunControl, meter: RunMeter) -> Status:
        try:
            with (
                structlog.contextvars.bound_contextvars(attempt=meter.attempt),
                database.translated(f"running {claim.name}"),
                self._without_secrets(),
            ):
                return self._executor.execute(claim, control, meter)
        except (Stopping, LeaseLost):
            raise
        except RunError:
            # Sessions are cut when the lease ends or the runner stops. Errors from then do not count against the run.
            control.check()
            raise
        finally:
            control.release()

    @contextmanager
    def _without_secrets(self) -> Iterator[None]:
        """Mask secrets in errors: a driver may quote a URL, and any user may read why a run failed."""
        try:
            yield
        except VitrinaError as exc:
            exc.message = logs.masked(exc.message, self._settings)
            raise

    def _max_attempts(self, claim: Claim) -> int:
        options = claim.row["options"]
        own = options.get("max_attempts") if isinstance(options, dict) else None
        return own if isinstance(own, int) and own > 0 else self._settings.max_attempts

    def _backoff(self, tries: int) -> float:
        waits = self._settings.backoff_seconds
        return waits[min(tries, len(waits)) - 1]

    @contextmanager
    def _pause_asked(self, claim: Claim, control: RunControl, meter: RunMeter) -> Iterator[Callable[[], bool]]:
        """Record in the metastore why the run waits, and yield a function that checks for a pause request.

        While the metastore is unreachable, no pause can have been requested.
        """
        try:
            connection = self._metastore(control)
        except CannotConnect:
            yield lambda: False
            return

        def asked() -> bool:
            with suppress(psycopg.OperationalError):
                return leases.find_status(connection, claim) is Status.PAUSE_REQUESTED
            return False

        with connection:
            with suppress(psycopg.OperationalError):
                meter.record(connection, claim)
            yield asked

    def _pause(self, claim: Claim, control: RunControl, meter: RunMeter) -> Status:
        with self._metastore(control) as connection, database.translated("pausing"):
            meter.record(connection, claim)
            return leases.conclude_run(connection, claim, boundary=True)

    def _surrender(self, claim: Claim, control: RunControl, reason: str, log: structlog.stdlib.BoundLogger) -> None:
        """Give up the claim. The next claim continues from the checkpoint, even if the reply to a COMMIT was lost."""
        # Wait longer after each loss, so that a connection that flaps for a few seconds does not use up all attempts.
        wait = min(2 * self._backoff(claim.row["attempts"]), self._settings.lease_ttl_seconds / 3)
        with suppress(RunError):
            control.wait(wait)
        self._record_outcome(
            lambda connection: recovery.surrender(
                connection,
                claim,
                max_attempts=self._settings.max_attempts,
                reason=say("run.connection_lost", reason=reason),
            ),
            control,
            log,
        )

    def _record_outcome(
        self, action: Callable[[database.Connection], object], control: RunControl, log: structlog.stdlib.BoundLogger
    ) -> None:
        """Retry recording the outcome while the lease lasts. Once it has expired, recovery records it instead."""
        while True:
            try:
                with self._metastore(control) as connection:
                    action(connection)
                    return
            except (CannotConnect, psycopg.Error) as exc:
                log.warning("run.outcome_unrecorded", error=" ".join(str(exc).split()))
                if not isinstance(exc, CannotConnect | psycopg.OperationalError) or control.lease_is_over:
                    return
            time.sleep(min(self._settings.backoff_seconds[0], self._settings.lease_ttl_seconds / 3))

    def _metastore(self, control: RunControl) -> database.Connection:
        return control.guard(
            database.connect(
                self._settings.require_database_url(),
                "vitrina:dispatcher",
                connect_timeout_seconds=self._settings.connect_timeout_seconds,
                settings={"statement_timeout": "10000", "lock_timeout": "10000"},
            )
        )


def _trace_id(claim: Claim, observers: Sequence[RunObserver]) -> str | None:
    """Find the trace ID of a run, which may come from the caller who requested it."""
    made = (observer.trace_id for observer in observers if observer.trace_id)
    return next(made, None) or tracing.trace_id_of(claim.row.get("traceparent"))


def _failing(
    claim: Claim, meter: RunMeter, code: str, message: str, *, discards_load: bool = False
) -> Callable[[database.Connection], None]:
    def fail(connection: database.Connection) -> None:
        try:
            migrate.require_current(connection)
        except OtherVersion as exc:
            # The error says nothing about the run. A runner of the metastore's version will continue it.
            leases.give_back(connection, claim, message=exc.message)
            return
        meter.no_longer_waiting()
        meter.record(connection, claim)
        with connection.transaction():
            failed = leases.fail_run(connection, claim, code, message)
            if failed and discards_load:
                state.discard_load(connection, claim)
        if failed:
            _log_status_change(Status.RUNNING, Status.FAILED)

    return fail


def _log_status_change(source: Status, target: Status) -> None:
    structlog.get_logger().info("status.moved", source=str(source), target=str(target))
