"""Query what the first page of the console shows. Every query is bounded, however many pipelines there are.

Times are compared with now(): an index cannot be searched for a value of clock_timestamp(), which may change meanwhile.
"""

from typing import Any

from vitrina.store import database
from vitrina.store.database import Connection

Row = dict[str, Any]

# A scheduled run that is this late was missed: no runner checks schedules, or the pipeline was not idle.
OVERDUE_SECONDS = 120
# A pipeline that waits longer than this for a runner needs attention.
QUEUED_SECONDS = 300


def list_attention(connection: Connection, *, limit: int) -> list[Row]:
    """List pipelines that need attention, the newest of each kind first; `total` is the number of the kind."""
    return connection.execute(
        """
        WITH found AS (
            SELECT 'failed' AS kind, p.id, p.name, coalesce(p.failing_since, p.status_since) AS since,
                   NULL::bigint AS count, p.last_error AS message
            FROM etl.etl_pipelines p WHERE p.status = 'FAILED'
            UNION ALL
            SELECT 'overdue', p.id, p.name, p.next_run_at, NULL, NULL
            FROM etl.etl_pipelines p
            WHERE p.enabled AND p.status = 'IDLE' AND p.schedule_interval IS NOT NULL
              AND p.next_run_at < now() - make_interval(secs => %(overdue)s)
            UNION ALL
            SELECT 'differs', p.id, p.name, checked.finished_at, checked.remaining, NULL
            FROM (
                SELECT DISTINCT ON (q.pipeline_id) q.pipeline_id, q.finished_at,
                       CASE WHEN jsonb_typeof(q.result -> 'remaining') = 'number'
                            THEN (q.result ->> 'remaining')::numeric::bigint END AS remaining
                FROM etl.etl_requests q WHERE q.kind = 'reconcile' AND q.status = 'DONE'
                ORDER BY q.pipeline_id, q.created_at DESC
            ) checked JOIN etl.etl_pipelines p ON p.id = checked.pipeline_id
            WHERE checked.remaining > 0
            UNION ALL
            SELECT 'dead_letters', p.id, p.name, letters.first, letters.open, NULL
            FROM (SELECT pipeline_id, count(*) AS open, min(created_at) AS first FROM etl.etl_dead_letters
                  WHERE resolved_at IS NULL GROUP BY 1) letters
            JOIN etl.etl_pipelines p ON p.id = letters.pipeline_id
            UNION ALL
            SELECT 'held', p.id, p.name, NULL, NULL, NULL FROM etl.etl_pipelines p WHERE p.hold IS NOT NULL
            UNION ALL
            SELECT 'blocked', p.id, p.name, NULL, NULL,
                   CASE WHEN jsonb_typeof(p.needs_attention) = 'object'
                        THEN (SELECT string_agg(value, '; ') FROM jsonb_each_text(p.needs_attention)) END
            FROM etl.etl_pipelines p WHERE p.needs_attention <> '{}'
            UNION ALL
            SELECT 'queued', p.id, p.name, p.status_since, NULL, NULL
            FROM etl.etl_pipelines p
            WHERE p.enabled AND p.status = 'RUN_REQUESTED'
              AND p.status_since < now() - make_interval(secs => %(queued)s)
        ), numbered AS (
            SELECT *, count(*) OVER (PARTITION BY kind) AS total,
                   row_number() OVER (PARTITION BY kind ORDER BY since DESC NULLS LAST, name) AS place
            FROM found
        )
        SELECT kind, id AS pipeline_id, name AS pipeline, since, count, message, total FROM numbered
        WHERE place <= %(limit)s ORDER BY kind, place
        """,
        {"overdue": OVERDUE_SECONDS, "queued": QUEUED_SECONDS, "limit": limit},
    ).fetchall()


def list_activity(connection: Connection, *, hours: int, limit: int) -> list[Row]:
    """List the latest runs of these hours and those that are still running, newest first."""
    return connection.execute(
        """
        SELECT r.id, r.pipeline_id, p.name AS pipeline, r.status, r.trigger, r.started_at,
               extract(epoch FROM coalesce(r.finished_at, clock_timestamp()) - r.started_at)::float8 AS seconds
        FROM (
            (SELECT id, pipeline_id, status, trigger, started_at, finished_at FROM etl.etl_runs
             WHERE started_at > now() - make_interval(hours => %(hours)s)
             ORDER BY started_at DESC, id DESC LIMIT %(limit)s)
            UNION
            (SELECT id, pipeline_id, status, trigger, started_at, finished_at FROM etl.etl_runs
             WHERE status = 'RUNNING'
             ORDER BY started_at DESC, id DESC LIMIT %(limit)s)
        ) r JOIN etl.etl_pipelines p ON p.id = r.pipeline_id
        ORDER BY r.started_at DESC, r.id DESC
        """,
        {"hours": hours, "limit": limit},
    ).fetchall()


def list_upcoming(connection: Connection, *, limit: int) -> list[Row]:
    """List the next scheduled runs. Paused pipelines have none, nor have failed ones unless their options allow it."""
    return connection.execute(
        """
        SELECT id AS pipeline_id, name AS pipeline, next_run_at, schedule_interval
        FROM etl.etl_pipelines
        WHERE enabled AND schedule_interval IS NOT NULL AND next_run_at IS NOT NULL
          AND status NOT IN ('PAUSED', 'PAUSE_REQUESTED')
          AND (status <> 'FAILED' OR options @> '{"schedule_after_failure": true}')
        ORDER BY next_run_at, name LIMIT %s
        """,
        [limit],
    ).fetchall()


def totals(connection: Connection, *, stale_after_seconds: float) -> Row:
    return database.one(
        connection.execute(
            """
        SELECT clock_timestamp() AS at,
               (SELECT coalesce(jsonb_object_agg(status, n), '{}') FROM (
                    SELECT status, count(*) AS n FROM etl.etl_pipelines GROUP BY status) s) AS statuses,
               (SELECT count(*) FROM etl.etl_dead_letters WHERE resolved_at IS NULL) AS dead_letters,
               count(r.id) AS alive, coalesce(sum(r.capacity), 0)::int AS capacity,
               coalesce(sum(r.running), 0)::int AS running
        FROM etl.etl_runners r WHERE r.heartbeat_at > clock_timestamp() - make_interval(secs => %s)
        """,
            [stale_after_seconds],
        )
    )
