"""Request runs that are due by schedule. Any runner may do this at any time: each tick is one guarded UPDATE."""

from datetime import datetime

import psycopg
import structlog

from vitrina import failpoints, schedule
from vitrina.errors import InvalidField
from vitrina.sentences import say
from vitrina.store import database, migrate, schedules
from vitrina.store.database import Connection
from vitrina.store.schedules import Row

# One call handles at most PORTION * PORTIONS schedules; the next call handles the rest.
PORTION, PORTIONS = 100, 20


def fire_due(connection: Connection, *, now: datetime | None = None) -> int:
    """Request the runs that are due by the database's clock, or at `now`. Return their number."""
    fired = 0
    for _ in range(PORTIONS):
        found = schedules.list_due(connection, limit=PORTION, now=now)
        fired += sum(_fire(connection, due) for due in found)
        if len(found) < PORTION:
            break
    return fired


def _fire(connection: Connection, due: Row) -> bool:
    log = structlog.get_logger().bind(pipeline=due["name"], pipeline_id=str(due["id"]))
    try:
        next_run_at = schedule.next_after(
            due["schedule_interval"],
            due["now"],
            due=due["next_run_at"],
            offset=schedule.offset_of(str(due["id"]), due["jitter_seconds"]),
        )
        moved = schedules.fire(connection, due, next_run_at)
    except Exception as exc:
        # An invalid row must not keep the others from being fired.
        if isinstance(exc, psycopg.Error) and database.is_passing(exc):
            raise
        migrate.require_current(connection)
        reason = exc.message if isinstance(exc, InvalidField) else f"{type(exc).__name__}: {exc}"
        log.error("schedule.invalid", error=reason)
        schedules.set_aside(connection, due, say("attention.schedule", reason=reason))
        return False
    if moved and due["next_run_at"] is not None:
        failpoints.hit("schedule.fired")
        log.info("schedule.fired", next_run_at=next_run_at.isoformat())
        return True
    return False
