"""Find the run that answers a request, which need not be the pipeline's latest run."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from vitrina.status import RunStatus

if TYPE_CHECKING:
    from vitrina.schemas import Run

Asked = Literal["run", "backfill", "resume"]


def find_answer(runs: "Sequence[Run]", requested_at: datetime, asked: Asked) -> "Run | None":
    """Find the run that answers the request, or the run that continued it, among the runs since, oldest first."""
    # Repairs and replays correct some rows, so they do not answer the request of a run.
    found = [run for run in runs if not run.metrics.keys() & {"repair", "replay"}]
    place = _place_of_answer(found, requested_at, asked)
    if place is None:
        return None
    while was_broken_off(found[place]) and place + 1 < len(found):
        place += 1
    return found[place]


def _place_of_answer(runs: "Sequence[Run]", requested_at: datetime, asked: Asked) -> int | None:
    if asked == "resume":
        return 0 if runs else None
    exact = (place for place, run in enumerate(runs) if run.answers_request == requested_at)
    # A second request during a run replaces the first: the run that answers the later request has read everything.
    later = (
        place
        for place, run in enumerate(runs)
        if run.answers_request and run.answers_request > requested_at and not run.backfill and asked == "run"
    )
    return next(exact, next(later, None))


def was_broken_off(run: "Run") -> bool:
    """Return whether the next run does the work of this one.

    Its runner was lost or stopped, its target was taken, or it was paused.
    """
    return run.status == RunStatus.PAUSED or run.error_code in ("lease_lost", "runner_stopped", "target_taken")
