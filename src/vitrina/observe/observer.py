"""Who watches a run besides the metrics: told of each step of it, on its own thread, and never asked."""

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
    """One of one run. It does no more than put aside what it is told: a run waits for nobody."""

    # Of the trace that the run's lines belong to, where somebody makes one.
    trace_id: str | None = None

    def planned(self, job: "Job", lap: Lap) -> None:
        """Everything is open, and it is known how the rows will move."""

    def batch_done(self, filled: Part, laps: Mapping[str, Lap]) -> None:
        """A batch is committed; `laps` has the stages of filling and writing it."""

    def published(self, lap: Lap) -> None:
        """A whole load is shown at once."""

    def retrying(self, attempt: int, error: str) -> None:
        """An error that may pass; the next try is `attempt`."""

    def ended(self, outcome: Outcome, counters: Counters) -> None:
        """The last word, whatever happened."""


# Who wants to watch the run of a claim.
Invitation = Callable[[Claim], Sequence[Onlooker]]


def nobody(claim: Claim) -> Sequence[Onlooker]:
    return ()
