"""Which run answers a request, and how it ended: judged from what the API says, without any I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

Json = Mapping[str, Any]

SUCCESS, FAILED, CANCELLED, PAUSED = "SUCCESS", "FAILED", "CANCELLED", "PAUSED"
PAUSING = ("PAUSED", "PAUSE_REQUESTED")
_AT_WORK = ("RUN_REQUESTED", "RUNNING", *PAUSING)
# Its runner went away, and another one continues.
_INTERRUPTED = ("lease_lost", "runner_stopped")
COUNTERS = ("rows_read", "rows_written", "rows_deleted", "rows_rejected", "batches", "duration_seconds")


@dataclass(frozen=True)
class Answer:
    """What is known about a request: `run` is the latest one for it, `over` says that nothing more comes."""

    over: bool
    run: Json | None
    words: str

    @property
    def status(self) -> str | None:
        """How it ended; None while it goes on. A request that was taken back is CANCELLED."""
        if not self.over:
            return None
        return str(self.run["status"]) if self.run else CANCELLED

    @property
    def ended_badly(self) -> bool:
        return self.status in (FAILED, CANCELLED, PAUSED)


def moment(text: str) -> datetime:
    """Python before 3.11 does not read a Z."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def looks_over(status: Json, requested_at: str) -> bool:
    """Whether the runs since the request have to be looked at; while it waits or works, the status says enough."""
    run = status.get("run")
    if run is None or moment(run["started_at"]) < moment(requested_at):
        return status["status"] not in _AT_WORK
    return bool(run["status"] != "RUNNING")


def judge(status: Json, runs: Sequence[Json], requested_at: str, *, backfill: bool = False) -> Answer:
    """Judge a request from the pipeline's status and, asked for after it, the runs since the request, oldest first.

    Runs that were interrupted or paused are continued by the next one; one with the trigger `follow-up` says that the
    run before it was no answer, because it continued something older. Repairs and replays answer nobody, nor does a
    backfill those who asked for a run.
    """
    name = status["pipeline"]
    goes_on = status["status"] in _AT_WORK
    waits = not backfill and _waits(status, requested_at)
    counted = [run for run in runs if _loads(run) and bool(run.get("backfill")) == backfill]
    for run, following in zip(counted, [*counted[1:], None]):  # noqa: B905 - as long as each other
        if run["status"] == "RUNNING":
            return Answer(over=False, run=run, words=f"run {run['id']} of {name} is at work")
        if following is None and goes_on and (_continues(run) or waits):
            return Answer(over=False, run=run, words=f"pipeline {name} is {status['status']}; another run follows")
        if following is None or not (_continues(run) or following["trigger"] == "follow-up"):
            return Answer(over=True, run=run, words=_ending(run))
    if goes_on:
        return Answer(over=False, run=None, words=f"pipeline {name} is {status['status']}")
    words = f"pipeline {name} is {status['status']}: the run asked for at {requested_at} was taken back or never began"
    if status.get("last_error"):
        words += f"; its last error: {status['last_error']['message']}"
    return Answer(over=True, run=None, words=words)


def counters(run: Json) -> dict[str, Any]:
    """What goes into XCom: small, plain JSON."""
    told = {name: run.get(name) for name in (*COUNTERS, "status", "pipeline", "started_at", "finished_at")}
    return {"run_id": run["id"], **told, "cursor_from": run.get("cursor_from"), "cursor_to": run.get("cursor_to")}


def _loads(run: Json) -> bool:
    return not {"repair", "replay"} & set(run.get("metrics") or {})


def _continues(run: Json) -> bool:
    return run["status"] == PAUSED or run.get("error_code") in _INTERRUPTED


def _waits(status: Json, requested_at: str) -> bool:
    """The request is still on record, so what ended was no answer to it."""
    pending = status.get("run_requested_at")
    return pending is not None and moment(pending) <= moment(requested_at)


def _ending(run: Json) -> str:
    words = f"run {run['id']} of pipeline {run['pipeline']} ended {run['status']}"
    if run.get("error_message"):
        words += f" ({run.get('error_code')}): {run['error_message']}"
    if run.get("next_step"):
        words += f". Next: {run['next_step']}"
    return words
