"""Decide which run answers a request, and how it ended, from answers of the API and without I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

Json = Mapping[str, Any]

SUCCESS, FAILED, CANCELLED, PAUSED = "SUCCESS", "FAILED", "CANCELLED", "PAUSED"
PAUSING = ("PAUSED", "PAUSE_REQUESTED")
_AT_WORK = ("RUN_REQUESTED", "RUNNING", *PAUSING)
COUNTERS = ("rows_read", "rows_written", "rows_deleted", "rows_rejected", "batches", "duration_seconds")


@dataclass(frozen=True)
class Answer:
    """Hold what is known about a request: `run` is the latest one for it, `over` means that no other follows."""

    over: bool
    run: Json | None
    words: str

    @property
    def status(self) -> str | None:
        """Return how it ended, or None while it continues. A withdrawn request is CANCELLED."""
        if not self.over:
            return None
        return str(self.run["status"]) if self.run else CANCELLED

    @property
    def ended_badly(self) -> bool:
        return self.status in (FAILED, CANCELLED, PAUSED)


def moment(text: str) -> datetime:
    """Parse a time. Python before 3.11 does not accept a Z."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def looks_over(status: Json, requested_at: str) -> bool:
    """Return whether the runs since the request are needed; while it waits or runs, the status is enough."""
    run = status.get("run")
    if run is None or moment(run["started_at"]) < moment(requested_at):
        return status["status"] not in _AT_WORK
    return not (run["status"] == "RUNNING" and answers(run, requested_at))


def began_after(requested_at: str, status: Json | None) -> bool:
    """Return whether the latest run in a status started after the request, which is then older than the status."""
    run = status.get("run") if status else None
    return run is not None and moment(run["started_at"]) >= moment(requested_at)


def judge(
    status: Json, runs: Sequence[Json], requested_at: str, *, backfill: bool = False, asked: bool = True
) -> Answer:
    """Evaluate a request from the pipeline's status and the runs since, read after the status and oldest first.

    A run that was interrupted or paused is continued by the next one. Repairs and replays answer no request. Without
    `asked`, the first run since then counts.
    """
    name = status["pipeline"]
    goes_on = status["status"] in _AT_WORK
    loads = [run for run in runs if not {"repair", "replay"} & set(run.get("metrics") or {})]
    place = _place_of_answer(loads, requested_at, backfill) if asked else _place_of_first(loads, backfill)
    if place is None and goes_on:
        return Answer(over=False, run=None, words=f"pipeline {name} is {status['status']}")
    if place is None and (not loads or not asked):
        return Answer(over=True, run=None, words=_never_began(status, requested_at))
    # No other run will come, so the last one is the result.
    place = len(loads) - 1 if place is None else place
    while _is_continued(loads[place]) and place + 1 < len(loads):
        place += 1
    run = loads[place]
    if run["status"] == "RUNNING":
        return Answer(over=False, run=run, words=f"run {run['id']} of {name} is running")
    if goes_on and _is_continued(run):
        return Answer(over=False, run=run, words=f"pipeline {name} is {status['status']}; another run follows")
    return Answer(over=True, run=run, words=_ending(run))


def counters(run: Json) -> dict[str, Any]:
    """Build the XCom value: small, plain JSON."""
    told = {name: run.get(name) for name in (*COUNTERS, "status", "pipeline", "started_at", "finished_at")}
    return {"run_id": run["id"], **told, "cursor_from": run.get("cursor_from"), "cursor_to": run.get("cursor_to")}


def _place_of_answer(runs: Sequence[Json], requested_at: str, backfill: bool) -> int | None:
    for place, run in enumerate(runs):
        if answers(run, requested_at):
            return place
    # A second request during a run replaces the first: the run that answers the later request has read everything.
    for place, run in enumerate(runs):
        later = run.get("answers_request")
        if later and moment(later) > moment(requested_at) and not backfill and not run.get("backfill"):
            return place
    return None


def _place_of_first(runs: Sequence[Json], backfill: bool) -> int | None:
    return next((place for place, run in enumerate(runs) if bool(run.get("backfill")) == backfill), None)


def answers(run: Json, requested_at: str) -> bool:
    """Return whether the run answers this request."""
    answered = run.get("answers_request")
    return answered is not None and moment(answered) == moment(requested_at)


def _is_continued(run: Json) -> bool:
    """Return whether the next run continues this one: its runner was lost, its target was taken, or it was paused."""
    return run["status"] == PAUSED or run.get("error_code") in ("lease_lost", "runner_stopped", "target_taken")


def _never_began(status: Json, requested_at: str) -> str:
    words = (
        f"pipeline {status['pipeline']} is {status['status']}: the run requested at {requested_at} was withdrawn or"
        " never started"
    )
    return words + (f"; its last error: {status['last_error']['message']}" if status.get("last_error") else "")


def _ending(run: Json) -> str:
    words = f"run {run['id']} of pipeline {run['pipeline']} ended {run['status']}"
    if run.get("error_message"):
        words += f" ({run.get('error_code')}): {run['error_message']}"
    if run.get("next_step"):
        words += f". Next: {run['next_step']}"
    return words
