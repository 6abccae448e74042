"""Define every status of pipelines and runs, and every transition between two of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    IDLE = "IDLE"
    RUN_REQUESTED = "RUN_REQUESTED"
    RUNNING = "RUNNING"
    PAUSE_REQUESTED = "PAUSE_REQUESTED"
    PAUSED = "PAUSED"
    FAILED = "FAILED"


class RunStatus(StrEnum):
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    PAUSED = "PAUSED"
    CANCELLED = "CANCELLED"


class Trigger(StrEnum):
    MANUAL = "manual"
    SCHEDULE = "schedule"
    API = "api"
    RECOVERY = "recovery"
    FOLLOW_UP = "follow-up"
    RUN_AFTER = "run-after"


class Actor(StrEnum):
    API = "api"
    SCHEDULER = "scheduler"
    RUNNER = "runner"


@dataclass(frozen=True)
class Move:
    """Represent one transition of the status machine; `name` is the function in `store` that performs it."""

    name: str
    source: Status
    target: Status
    actor: Actor
    reason: str


def _moves(name: str, sources: tuple[Status, ...], target: Status, actor: Actor, reason: str) -> list[Move]:
    return [Move(name, source, target, actor, reason) for source in sources]


_S = Status

# The whole status machine. Each move is one guarded UPDATE with the old status in its WHERE.
MOVES: tuple[Move, ...] = (
    *_moves("request_run", (_S.IDLE, _S.PAUSED, _S.FAILED), _S.RUN_REQUESTED, Actor.API, "a person requested a run"),
    *_moves("request_backfill", (_S.IDLE, _S.FAILED), _S.RUN_REQUESTED, Actor.API, "a person requested a backfill"),
    *_moves("resume", (_S.PAUSED,), _S.RUN_REQUESTED, Actor.API, "a person requested a resume"),
    *_moves("fire_schedule", (_S.IDLE, _S.FAILED), _S.RUN_REQUESTED, Actor.SCHEDULER, "the schedule is due"),
    *_moves(
        "request_ready",
        (_S.IDLE, _S.FAILED),
        _S.RUN_REQUESTED,
        Actor.RUNNER,
        "every pipeline that it runs after has succeeded",
    ),
    *_moves("claim_next", (_S.RUN_REQUESTED,), _S.RUNNING, Actor.RUNNER, "a runner took the lease"),
    *_moves("set_aside", (_S.RUN_REQUESTED,), _S.FAILED, Actor.RUNNER, "its row cannot be handled"),
    *_moves("claim_idle", (_S.IDLE,), _S.RUNNING, Actor.RUNNER, "a runner took the lease to repair the target"),
    *_moves("claim_idle", (_S.PAUSED,), _S.PAUSE_REQUESTED, Actor.RUNNER, "the same; it will be PAUSED again"),
    *_moves(
        "claim_followed",
        (_S.RUN_REQUESTED,),
        _S.RUNNING,
        Actor.RUNNER,
        "a runner took the lease of a live pipeline between two batches, to repair the target",
    ),
    *_moves(
        "request_pause",
        (_S.IDLE, _S.RUN_REQUESTED, _S.RUNNING),
        _S.PAUSE_REQUESTED,
        Actor.API,
        "a person requested a pause",
    ),
    *_moves("conclude_run", (_S.RUNNING,), _S.IDLE, Actor.RUNNER, "end of data"),
    *_moves("conclude_run", (_S.RUNNING,), _S.RUN_REQUESTED, Actor.RUNNER, "a run was requested during this one"),
    *_moves(
        "conclude_run", (_S.PAUSE_REQUESTED,), _S.PAUSED, Actor.RUNNER, "batch boundary or end of data, then pause"
    ),
    *_moves("begin_again", (_S.RUNNING,), _S.RUN_REQUESTED, Actor.RUNNER, "a live pipeline starts its next run"),
    *_moves("begin_again", (_S.RUNNING,), _S.IDLE, Actor.RUNNER, "a live pipeline was disabled"),
    *_moves("begin_again", (_S.PAUSE_REQUESTED,), _S.PAUSED, Actor.RUNNER, "a live pipeline is pausing"),
    *_moves("fail_run", (_S.RUNNING, _S.PAUSE_REQUESTED), _S.FAILED, Actor.RUNNER, "error after retries"),
    *_moves("fail_run", (_S.RUNNING,), _S.IDLE, Actor.RUNNER, "a backfill failed; the schedule continues"),
    *_moves("fail_run", (_S.RUNNING,), _S.RUN_REQUESTED, Actor.RUNNER, "the same; a run was requested as well"),
    *_moves("fail_run", (_S.PAUSE_REQUESTED,), _S.PAUSED, Actor.RUNNER, "a backfill failed while pausing"),
    *_moves("pause_unclaimed", (_S.PAUSE_REQUESTED,), _S.PAUSED, Actor.RUNNER, "no runner was running it"),
    *_moves("give_back", (_S.RUNNING,), _S.RUN_REQUESTED, Actor.RUNNER, "the runner is shutting down"),
    *_moves(
        "give_back", (_S.RUNNING, _S.PAUSE_REQUESTED), _S.PAUSED, Actor.RUNNER, "shutting down, disabled or pausing"
    ),
    *_moves("surrender", (_S.RUNNING,), _S.RUN_REQUESTED, Actor.RUNNER, "the runner lost a connection"),
    *_moves("surrender", (_S.RUNNING, _S.PAUSE_REQUESTED), _S.PAUSED, Actor.RUNNER, "lost a connection, paused"),
    *_moves("surrender", (_S.RUNNING,), _S.IDLE, Actor.RUNNER, "a backfill lost too many connections"),
    *_moves("surrender", (_S.RUNNING,), _S.FAILED, Actor.RUNNER, "too many losses without progress"),
    *_moves("recover_expired", (_S.RUNNING,), _S.RUN_REQUESTED, Actor.RUNNER, "the lease expired"),
    *_moves("recover_expired", (_S.RUNNING, _S.PAUSE_REQUESTED), _S.PAUSED, Actor.RUNNER, "the lease expired, paused"),
    *_moves("recover_expired", (_S.RUNNING,), _S.IDLE, Actor.RUNNER, "the lease of a repair or a backfill expired"),
    *_moves("recover_expired", (_S.RUNNING,), _S.FAILED, Actor.RUNNER, "too many losses without progress"),
    *_moves("disable", (_S.RUN_REQUESTED,), _S.IDLE, Actor.API, "disabled before a runner took it"),
    *_moves("cancel", (_S.RUN_REQUESTED,), _S.IDLE, Actor.API, "the request was withdrawn"),
    *_moves("cancel_run", (_S.RUNNING,), _S.IDLE, Actor.API, "a person ended the run"),
    *_moves("cancel_run", (_S.PAUSE_REQUESTED,), _S.PAUSED, Actor.API, "a person ended the run while it was pausing"),
)


def is_followed(row: Mapping[str, Any]) -> bool:
    """Return whether a live pipeline is being followed or waits for that; its run can stop between two batches."""
    return row["mode"] == "live" and row["status"] in (Status.RUNNING, Status.RUN_REQUESTED)


def may_be_repaired(row: Mapping[str, Any]) -> bool:
    """Return whether the lease of a pipeline can be taken to correct single rows of its target."""
    return can_move("claim_idle", row["status"]) or is_followed(row)


def can_move(name: str, source: Status) -> bool:
    """Return whether the move called `name` may start from `source`."""
    return any(move.name == name and move.source == source for move in MOVES)


def sources_of(name: str) -> list[Status]:
    """List the statuses from which the move called `name` may start, for its WHERE."""
    return [status for status in Status if can_move(name, status)]


# A runner holds these: target, mode, cursor and query may not change during its run.
ACTIVE = (Status.RUNNING, Status.PAUSE_REQUESTED)
