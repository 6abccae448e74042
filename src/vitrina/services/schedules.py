"""Compute when a pipeline is due, as soon as its schedule is saved."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from vitrina import schedule
from vitrina.errors import InvalidField
from vitrina.services import versions
from vitrina.store import database, schedules
from vitrina.store.database import Connection


def moves_ticks(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Return whether two snapshots of a definition are due at different times."""
    changed = {change.path for change in versions.compare(before, after)}
    return bool(changed & {"schedule_interval", "enabled", "options.schedule_jitter_seconds"})


def next_times(connection: Connection, interval: str, *, count: int) -> list[datetime]:
    """List the first due times of a schedule that begins now."""
    due = [schedule.next_after(interval, database.now(connection))]
    while len(due) < count:
        due.append(schedule.next_after(interval, due[-1], due=due[-1]))
    return due


def renew(connection: Connection, pipeline_id: UUID) -> None:
    """Set the next due time now, not when a runner looks: the first one counts also while no runner is alive."""
    schedules.set_due_time(connection, pipeline_id, None)
    found = schedules.find_scheduled(connection, pipeline_id)
    if found is None:
        return
    offset = schedule.offset_of(str(pipeline_id), found["jitter_seconds"])
    try:
        due = schedule.next_after(found["schedule_interval"], found["now"], offset=offset)
    except InvalidField:
        return  # edited by hand: a runner reports the error
    schedules.set_due_time(connection, pipeline_id, due)
