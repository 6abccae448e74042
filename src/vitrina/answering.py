"""Which run answers a request: another one may be the pipeline's latest when somebody looks."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from vitrina.schemas import Run
from vitrina.status import RunStatus

Asked = Literal["run", "backfill", "resume"]


def find_answer(runs: Sequence[Run], requested_at: datetime, asked: Asked) -> Run | None:
    """Find the run that answers the request, or that went on with its work, among the runs since, oldest first."""
    # Repairs and replays correct some rows, and nobody who asked for a run is answered by one.
    found = [run for run in runs if not run.metrics.keys() & {"repair", "replay"}]
    place = _place_of_answer(found, requested_at, asked)
    if place is None:
        return None
    while was_broken_off(found[place]) and place + 1 < len(found):
        place += 1
    return found[place]


def _place_of_answer(runs: Sequence[Run], requested_at: datetime, asked: Asked) -> int | None:
    if asked == "resume":
        return 0 if runs else None
    exact = (place for place, run in enumerate(runs) if run.answers_request == requested_at)
    # Who asks again while a run works replaces the wish before it: what answers the later one has read all.
    later = (
        place
        for place, run in enumerate(runs)
        if run.answers_request and run.answers_request > requested_at and not run.backfill and asked == "run"
    )
    return next(exact, next(later, None))


def was_broken_off(run: Run) -> bool:
    """Tell whether the next run does what this one was to do.

    Its runner was lost or stopped, its target was taken, or it was paused.
    """
    return run.status == RunStatus.PAUSED or run.error_code in ("lease_lost", "runner_stopped", "target_taken")
