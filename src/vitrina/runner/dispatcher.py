"""From a request to a finished run: claiming, and sorting what went wrong into retry, failure, loss."""

import time

import psycopg
import structlog

from vitrina.errors import CannotConnect, ConfigError, Disconnected, LeaseLost, RequestError, RunError, TransientError
from vitrina.runner.control import RunControl, Stopping
from vitrina.runner.executor import PipelineExecutor
from vitrina.runner.metrics import RunMeter
from vitrina.settings import Settings
from vitrina.status import Status
from vitrina.store import database, leases
from vitrina.store.leases import Claim

# A server that cannot be reached is given this long to come back before the run fails.
OUTAGE_PATIENCE_SECONDS = 60.0


class PipelineDispatcher:
    """Performs one claim to its end. Everything that a run may raise is sorted here, and only here."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._executor = PipelineExecutor(settings)

    def work(self, claim: Claim, control: RunControl) -> None:
        """Run the claim, trying again where that may help; whatever happens is on record afterwards."""
        log = structlog.get_logger().bind(
            pipeline=claim.name, pipeline_id=str(claim.pipeline_id), run_id=str(claim.run_id), epoch=claim.epoch
        )
        log.info("run.started", trigger=claim.row["requested_trigger"], version=claim.version)
        started = time.monotonic()
        meter = RunMeter()
        try:
            status = self._try_until_done(claim, control, meter, log)
            log.info(
                "run.ended",
                status=status,
                rows=meter.counters.rows_read,
                rows_written=meter.counters.rows_written,
                duration_ms=round((time.monotonic() - started) * 1000),
            )
        except Stopping:
            log.info("run.given_back")
            self._give_back(claim)
        except LeaseLost as exc:
            log.warning("run.lease_lost", error=exc.message)
        except Disconnected as exc:
            log.warning("run.disconnected", error=exc.message)
            self._surrender(claim, control, log)
        except (RunError, RequestError, ConfigError, CannotConnect) as exc:
            log.error("run.failed", error_code=exc.code, error=exc.message, attempt=meter.attempt)
            self._fail(claim, meter, exc.code, exc.message)
        except Exception as exc:
            # A run ends here whatever happened to it; a bug in one pipeline must not stop the others.
            log.exception("run.crashed")
            self._fail(claim, meter, "internal", f"internal error: {type(exc).__name__}: {exc}")

    def _try_until_done(
        self, claim: Claim, control: RunControl, meter: RunMeter, log: structlog.stdlib.BoundLogger
    ) -> Status:
        unreachable_since: float | None = None
        while True:
            try:
                return self._executor.execute(claim, control, meter)
            except Disconnected:
                raise
            except CannotConnect as exc:
                unreachable_since = unreachable_since or time.monotonic()
                if time.monotonic() - unreachable_since > OUTAGE_PATIENCE_SECONDS:
                    raise
                wait, message = self._backoff(meter.attempt), exc.message
            except TransientError as exc:
                meter.attempts_without_progress += 1
                if meter.attempts_without_progress >= self._max_attempts(claim):
                    raise
                unreachable_since = None
                wait, message = self._backoff(meter.attempts_without_progress), exc.message
            log.warning("run.retrying", attempt=meter.attempt, wait_seconds=wait, error=message)
            meter.attempt += 1
            control.wait(wait)

    def _max_attempts(self, claim: Claim) -> int:
        own = claim.row["options"].get("max_attempts")
        return int(own) if own else self._settings.max_attempts

    def _backoff(self, tries: int) -> float:
        waits = self._settings.backoff_seconds
        return waits[min(tries, len(waits)) - 1]

    def _give_back(self, claim: Claim) -> None:
        with self._metastore() as connection:
            leases.give_back(connection, claim)

    def _surrender(self, claim: Claim, control: RunControl, log: structlog.stdlib.BoundLogger) -> None:
        """After a lost connection: give the lease back as soon as the metastore answers; else it expires by itself."""
        end = time.monotonic() + self._settings.lease_ttl_seconds
        while time.monotonic() < end:
            time.sleep(self._settings.backoff_seconds[0])
            try:
                self._give_back(claim)
            except (CannotConnect, psycopg.Error):
                continue
            return
        log.warning("run.left_to_recovery")

    def _fail(self, claim: Claim, meter: RunMeter, code: str, message: str) -> None:
        try:
            with self._metastore() as connection:
                meter.record(connection, claim)
                leases.fail_run(connection, claim, code, message)
        except (CannotConnect, psycopg.Error) as exc:
            # The lease will expire, and recovery will run it again.
            structlog.get_logger().warning("run.outcome_unrecorded", pipeline=claim.name, error=str(exc))

    def _metastore(self) -> database.Connection:
        return database.connect(self._settings.require_database_url(), "vitrina:dispatcher")
