"""Give a source or target access to its run: lease, waits, telemetry."""

from typing import Any

import structlog

from vitrina.errors import FatalError
from vitrina.loads.control import RunControl
from vitrina.observe.run_meter import RunMeter
from vitrina.ports.batch import Endable
from vitrina.status import Status, Trigger
from vitrina.store import leases
from vitrina.store.database import Connection
from vitrina.store.leases import Claim
from vitrina.store.session_pool import SessionPool


class RunContext:
    """Connect the source and target of one run with the runner. The run sets `metastore` once it is open."""

    def __init__(
        self,
        claim: Claim,
        control: RunControl,
        meter: RunMeter,
        log: structlog.stdlib.BoundLogger,
        pool: SessionPool | None = None,
    ) -> None:
        # Lends the run's sessions and keeps them afterwards.
        self.pool = pool
        self._claim = claim
        self._control = control
        self._meter = meter
        self._log = log
        self.metastore: Connection | None = None
        # Why the run is waiting; set by the thread that sends.
        self.waits_because: str | None = None
        # True while a paused pipeline is repaired, which continues and leaves it paused.
        self.ignores_pause = False

    @property
    def recovers(self) -> bool:
        return bool(self._claim.row["requested_trigger"] == Trigger.RECOVERY)

    def check(self) -> None:
        self._control.check()

    def require_held(self) -> None:
        self._control.require_lease()
        leases.require_held(self._session, self._claim)

    def wait(self, seconds: float, *, may_pause: bool = False) -> None:
        obeys = may_pause and not self.ignores_pause
        self._control.wait(seconds, self._is_pause_asked if obeys else lambda: False)

    def tell(self, reason: str | None) -> None:
        if reason:
            self._log.warning("search.waiting", reason=reason)
        self.waits_because = reason

    def show(self) -> None:
        """Record in the run's row what it waits for, while it is still waiting."""
        reason = self.waits_because
        if reason != self._meter.counters.metrics.get("waiting"):
            self._meter.note("waiting", reason)
            self._meter.record(self._session, self._claim)

    def guard(self, session: Any) -> None:
        self._control.guard(session)

    def let_go(self, session: Any) -> bool:
        return self._control.let_go(session)

    def attach(self, workers: Endable) -> None:
        self._control.attach(workers)

    def log(self, level: str, event: str, **values: Any) -> None:
        getattr(self._log, level)(event, **values)

    def _is_pause_asked(self) -> bool:
        return leases.find_status(self._session, self._claim) is Status.PAUSE_REQUESTED

    @property
    def _session(self) -> Connection:
        if self.metastore is None:
            raise FatalError("the run is not open yet")
        return self.metastore


class NoContext:
    """Replace the context for an inspection without a claim: waits are refused, and nothing has to be ended."""

    recovers = False

    def check(self) -> None:
        """Do nothing: without a claim nothing can be lost."""

    def require_held(self) -> None:
        raise FatalError("nothing may be written without a claim")

    def wait(self, seconds: float, *, may_pause: bool = False) -> None:
        raise FatalError("an inspection must not wait")

    def tell(self, reason: str | None) -> None:
        """Do nothing: there is no run to update."""

    def show(self) -> None:
        """Do nothing: there is no run to update."""

    pool = None

    def guard(self, session: Any) -> None:
        """Do nothing: the session ends with the inspection."""

    def let_go(self, session: Any) -> bool:
        return False

    def attach(self, workers: Endable) -> None:
        """Do nothing: the workers end with the inspection."""

    def log(self, level: str, event: str, **values: Any) -> None:
        """Do nothing: an inspection logs nothing."""
