"""Observers of a run (traces, lineage). They are notified on the run's thread and must not block it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitrina.ports.batch import Lap, Part
from vitrina.store.leases import Claim
from vitrina.store.runs import Counters

if TYPE_CHECKING:
    from vitrina.loads.job import Job


@dataclass(frozen=True)
class Outcome:
    """How a run ended: SUCCESS, PAUSED, CANCELLED, LOST or FAILED, the last with code and message."""

    status: str
    code: str | None = None
    message: str | None = None


class Onlooker:
    """Observe one run. An observer only stores what it is told, because the run does not wait for it."""

    # Of the trace that the run's lines belong to, where somebody makes one.
    trace_id: str | None = None

    def planned(self, job: "Job", lap: Lap) -> None:
        """Handle the plan: everything is open, and it is known how the rows will move."""

    def batch_done(self, filled: Part, laps: Mapping[str, Lap]) -> None:
        """Handle a committed batch; `laps` has the stages of filling and writing it."""

    def published(self, lap: Lap) -> None:
        """Handle the publication of a whole load."""

    def retrying(self, attempt: int, error: str) -> None:
        """Handle an error that may pass; the next try is `attempt`."""

    def ended(self, outcome: Outcome, counters: Counters) -> None:
        """Handle the end, whatever happened. Nothing follows it."""


# Who wants to watch the run of a claim.
Invitation = Callable[[Claim], Sequence[Onlooker]]


def nobody(claim: Claim) -> Sequence[Onlooker]:
    return ()
