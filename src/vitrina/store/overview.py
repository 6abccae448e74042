"""Query the list of pipelines with their latest runs, in one statement."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from psycopg import sql

from vitrina.store.database import Connection

Row = dict[str, Any]

RECENT_RUNS = 10


def list_page(connection: Connection, *, only: Sequence[UUID], after_name: str | None, limit: int) -> list[Row]:
    """List pipelines by name, after `after_name`; `only` narrows the list to these pipelines."""
    # A condition that may be NULL would keep the plan from using an index.
    wanted = [sql.SQL("p.id = ANY(%(only)s)")] if only else []
    wanted += [sql.SQL("p.name > %(after)s")] if after_name is not None else []
    return connection.execute(
        sql.SQL(
            """
            SELECT p.id, p.name, p.description, p.type, p.mode, p.source_connection, p.target_table, p.enabled,
                   p.schedule_interval, p.next_run_at, p.status, p.status_since, p.version, p.managed_by, p.labels,
                   p.last_error, p.hold IS NOT NULL AS is_held, coalesce(recent.runs, '[]') AS recent,
                   coalesce(recent.last_success_at, older.last_success_at) AS last_success_at,
                   letters.open AS dead_letters
            FROM etl.etl_pipelines p
            LEFT JOIN LATERAL (
                SELECT json_agg(json_build_object(
                           'id', r.id, 'status', r.status, 'started_at', r.started_at, 'rows_written', r.rows_written,
                           'seconds', round(extract(epoch FROM coalesce(r.finished_at, now()) - r.started_at), 2)
                       ) ORDER BY r.started_at, r.id) AS runs,
                       max(r.finished_at) FILTER (WHERE r.status = 'SUCCESS') AS last_success_at
                FROM (
                    -- Repairs and replays correct some rows: they are no loads, and the mart gets no fresher by them.
                    SELECT * FROM etl.etl_runs
                    WHERE pipeline_id = p.id AND NOT metrics ?| '{{repair,replay}}'
                    ORDER BY started_at DESC, id DESC LIMIT %(recent)s
                ) r
            ) recent ON true
            LEFT JOIN LATERAL (
                SELECT r.finished_at AS last_success_at FROM etl.etl_runs r
                WHERE r.pipeline_id = p.id AND r.status = 'SUCCESS' AND recent.last_success_at IS NULL
                  AND NOT r.metrics ?| '{{repair,replay}}'
                ORDER BY r.started_at DESC LIMIT 1
            ) older ON true
            LEFT JOIN LATERAL (
                SELECT count(*) AS open FROM etl.etl_dead_letters d WHERE d.pipeline_id = p.id AND d.resolved_at IS NULL
            ) letters ON true
            WHERE {wanted}
            ORDER BY p.name
            LIMIT %(limit)s
            """
        ).format(wanted=sql.SQL(" AND ").join(wanted or [sql.SQL("true")])),
        {"recent": RECENT_RUNS, "only": list(only), "after": after_name, "limit": limit},
    ).fetchall()
