"""Define observers of a run (traces, lineage). They are notified on the run's thread and must not block it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from vitrina.definition import Definition
from vitrina.inside.queries import Reader
from vitrina.ports.batch import Part, Timing
from vitrina.ports.schema import Column
from vitrina.ports.source import Description
from vitrina.settings import Settings
from vitrina.sqlguard import CheckedQuery
from vitrina.store.leases import Claim
from vitrina.store.runs import Counters


@dataclass(frozen=True)
class RunOutcome:
    """Hold how a run ended: SUCCESS, PAUSED, CANCELLED, LOST or FAILED, the last with code and message."""

    status: str
    code: str | None = None
    message: str | None = None


class PlannedRoute(Protocol):
    """Describe how the rows will be moved, and the guarantee."""

    @property
    def route(self) -> str: ...
    @property
    def paging(self) -> str: ...
    @property
    def guarantee(self) -> str | None: ...
    def as_dict(self) -> dict[str, Any]: ...


class PlannedRun(Protocol):
    """Describe a planned run; `vitrina.loads.job.Job` implements it."""

    @property
    def definition(self) -> Definition: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def plan(self) -> PlannedRoute: ...
    @property
    def described(self) -> Description: ...
    @property
    def output(self) -> Sequence[Column]: ...
    # None: no query is read.
    @property
    def judged(self) -> CheckedQuery | None: ...
    @property
    def reader(self) -> Reader: ...


class RunObserver:
    """Observe one run. An observer only stores what it receives, because the run must not wait for it."""

    # The trace that the run's log lines belong to, if there is one.
    trace_id: str | None = None

    def planned(self, job: PlannedRun, timing: Timing) -> None:
        """Handle the plan. Everything is open, and it is decided how the rows will be moved."""

    def batch_done(self, filled: Part, timings: Mapping[str, Timing]) -> None:
        """Handle a committed batch; `timings` has the stages of filling and writing it."""

    def published(self, timing: Timing) -> None:
        """Handle the publication of a whole load."""

    def retrying(self, attempt: int, error: str) -> None:
        """Handle a transient error; the next try is `attempt`."""

    def ended(self, outcome: RunOutcome, counters: Counters) -> None:
        """Handle the end of the run. No other call follows."""


# Returns the observers of the run of a claim.
ObserverFactory = Callable[[Claim], Sequence[RunObserver]]


def no_observers(claim: Claim) -> Sequence[RunObserver]:
    return ()
