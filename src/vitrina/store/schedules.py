"""Query due times: find due pipelines, fire them, and set aside invalid schedules."""

from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg import sql

from vitrina import status
from vitrina.store.database import Connection

Row = dict[str, Any]

# An invalid schedule is checked again after this time, because an operator may have corrected it by hand.
LOOK_AGAIN_SECONDS = 600


def list_due(connection: Connection, *, limit: int = 100, now: datetime | None = None) -> list[Row]:
    """List scheduled pipelines that are due or have no due time yet.

    `next_run_at` is None for those without a valid one; `seen` is the value in the row, whatever it is.
    """
    return connection.execute(
        sql.SQL(
            """
            (SELECT {columns} FROM etl.etl_pipelines p
             WHERE next_run_at IS NOT NULL AND next_run_at <= coalesce(%(now)s::timestamptz, now()) AND {may_fire}
             ORDER BY next_run_at LIMIT %(limit)s)
            UNION ALL
            (SELECT {columns} FROM etl.etl_pipelines p
             WHERE next_run_at IS NULL AND {may_fire} LIMIT %(limit)s)
            """
        ).format(columns=_DUE_COLUMNS, may_fire=_MAY_FIRE),
        {"limit": limit, "now": now},
    ).fetchall()


# Compared, not cast or computed with: an invalid value that was edited by hand must not stop all schedules.
_MAY_FIRE = sql.SQL(
    """
    enabled AND schedule_interval IS NOT NULL
    AND (status = 'IDLE' OR status = 'FAILED' AND options -> 'schedule_after_failure' = 'true'
         -- Of a live pipeline a schedule asks for full loads.
         OR status = 'RUNNING' AND mode = 'live')
    """
)
_JITTER_SECONDS = sql.SQL(
    """
    CASE WHEN jsonb_typeof(p.options -> 'schedule_jitter_seconds') = 'number'
         THEN least(greatest((p.options ->> 'schedule_jitter_seconds')::numeric, 0), 86400)::float8 ELSE 0 END
    """
)
_DUE_COLUMNS = sql.SQL(
    """
    p.id, p.name, p.status, p.schedule_interval, {jitter} AS jitter_seconds,
    CASE WHEN p.next_run_at BETWEEN '1970-01-01Z' AND '9000-01-01Z' AND NOT p.needs_attention ? 'schedule'
         THEN p.next_run_at END AS next_run_at,
    p.next_run_at::text AS seen, coalesce(%(now)s::timestamptz, clock_timestamp()) AS now
    """
).format(jitter=_JITTER_SECONDS)


def fire(connection: Connection, due: Row, next_run_at: datetime) -> bool:
    """Request the scheduled run, unless another runner did so first: guarded by every value that was read.

    For a new schedule, and for one that was corrected, only the due time is set.
    """
    return bool(
        connection.execute(
            """
            UPDATE etl.etl_pipelines
            SET status = CASE WHEN %(fires)s AND status = ANY(%(from)s) THEN 'RUN_REQUESTED' ELSE status END,
                run_requested_at = CASE WHEN %(fires)s THEN clock_timestamp() ELSE run_requested_at END,
                requested_trigger = CASE WHEN %(fires)s THEN 'schedule' ELSE requested_trigger END,
                requested_reason = CASE WHEN NOT %(fires)s THEN requested_reason END,
                requested_trace = CASE WHEN NOT %(fires)s THEN requested_trace END,
                requested_range = CASE WHEN NOT %(fires)s THEN requested_range END,
                range_requested_at = CASE WHEN NOT %(fires)s THEN range_requested_at END,
                attempts = CASE WHEN %(fires)s THEN 0 ELSE attempts END,
                needs_attention = needs_attention - 'schedule',
                next_run_at = %(next)s
            WHERE id = %(id)s AND enabled AND next_run_at::text IS NOT DISTINCT FROM %(seen)s
              AND schedule_interval = %(schedule)s AND status = %(status)s
              AND (status = ANY(%(from)s) OR status = 'RUNNING' AND mode = 'live')
            """,
            {
                "id": due["id"],
                "fires": due["next_run_at"] is not None,
                "seen": due["seen"],
                "next": next_run_at,
                "schedule": due["schedule_interval"],
                "status": due["status"],
                "from": list(status.sources_of("fire_schedule")),
            },
        ).rowcount
    )


def set_aside(connection: Connection, due: Row, reason: str) -> None:
    """Set an invalid schedule aside and record the reason, so that the others need not wait for it."""
    connection.execute(
        """
        UPDATE etl.etl_pipelines
        SET needs_attention = needs_attention || jsonb_build_object('schedule', left(%(reason)s, 1000)),
            next_run_at = %(now)s::timestamptz + make_interval(secs => %(wait)s)
        WHERE id = %(id)s AND next_run_at::text IS NOT DISTINCT FROM %(seen)s
        """,
        {"id": due["id"], "seen": due["seen"], "reason": reason, "now": due["now"], "wait": LOOK_AGAIN_SECONDS},
    )


def find_scheduled(connection: Connection, pipeline_id: UUID) -> Row | None:
    """Find what a due time is computed from, or return None for a pipeline without a schedule or a disabled one."""
    return connection.execute(
        sql.SQL(
            "SELECT {} FROM etl.etl_pipelines p WHERE p.id = %(id)s AND p.enabled AND p.schedule_interval IS NOT NULL"
        ).format(_DUE_COLUMNS),
        {"id": pipeline_id, "now": None},
    ).fetchone()


def set_due_time(connection: Connection, pipeline_id: UUID, next_run_at: datetime | None) -> None:
    """Set the due time after the schedule changed. With None, the next runner computes it."""
    connection.execute(
        "UPDATE etl.etl_pipelines SET next_run_at = %s, needs_attention = needs_attention - 'schedule' WHERE id = %s",
        [next_run_at, pipeline_id],
    )
