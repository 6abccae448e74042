"""What monitoring asks of the metastore: one row for each pipeline and a few totals, by the database's clock."""

from typing import Any

from vitrina.store import database
from vitrina.store.database import Connection

Row = dict[str, Any]


def list_pipelines(connection: Connection) -> list[Row]:
    """Oldest first, so that a new pipeline does not take an old one's place where only some can be shown."""
    return connection.execute(
        """
        SELECT p.name, p.status, p.enabled, p.mode, p.options,
               extract(epoch FROM clock_timestamp())::float8 AS now,
               extract(epoch FROM p.status_since)::float8 AS status_since,
               extract(epoch FROM p.failing_since)::float8 AS failing_since,
               s.safe_upto, p.hold,
               -- A mart is as fresh as the oldest of what it is built on.
               extract(epoch FROM least(done.started_at, done.data_as_of))::float8 AS success_started,
               extract(epoch FROM done.finished_at)::float8 AS success_finished,
               extract(epoch FROM clock_timestamp() - work.updated_at)::float8 AS progress_age,
               failed.error_code,
               coalesce(letters.open, 0) AS dead_letters,
               CASE WHEN jsonb_typeof(checked.result -> 'remaining') = 'number'
                    THEN (checked.result ->> 'remaining')::float8
                    WHEN jsonb_typeof(checked.result -> 'differences') = 'number'
                    THEN (checked.result ->> 'differences')::float8 END AS drift_rows
        FROM etl.etl_pipelines p
        LEFT JOIN etl.etl_state s ON s.pipeline_id = p.id
        LEFT JOIN LATERAL (SELECT started_at, finished_at, data_as_of FROM etl.etl_runs
                           -- Repairs and replays correct some rows: what the mart knows of its source gets no younger.
                           WHERE pipeline_id = p.id AND status = 'SUCCESS' AND NOT metrics ?| '{repair,replay}'
                           ORDER BY finished_at DESC LIMIT 1) done ON true
        LEFT JOIN LATERAL (SELECT updated_at FROM etl.etl_runs
                           WHERE pipeline_id = p.id AND status = 'RUNNING'
                             AND p.status IN ('RUNNING', 'PAUSE_REQUESTED')
                           ORDER BY started_at DESC LIMIT 1) work ON true
        LEFT JOIN LATERAL (SELECT error_code FROM etl.etl_runs
                           WHERE pipeline_id = p.id AND p.status = 'FAILED'
                           ORDER BY started_at DESC, id DESC LIMIT 1) failed ON true
        LEFT JOIN LATERAL (SELECT result FROM etl.etl_requests
                           WHERE pipeline_id = p.id AND kind = 'reconcile' AND status = 'DONE'
                           ORDER BY created_at DESC LIMIT 1) checked ON true
        LEFT JOIN (SELECT pipeline_id, count(*) AS open FROM etl.etl_dead_letters
                   WHERE resolved_at IS NULL GROUP BY 1) letters ON letters.pipeline_id = p.id
        ORDER BY p.created_at, p.id
        """
    ).fetchall()


def totals(connection: Connection, *, stale_after_seconds: float) -> Row:
    return database.one(
        connection.execute(
            """
        SELECT (SELECT count(*) FROM etl.etl_runners
                WHERE heartbeat_at > clock_timestamp() - make_interval(secs => %s)) AS runners_alive,
               (SELECT coalesce(extract(epoch FROM clock_timestamp() - min(status_since)), 0)::float8
                FROM etl.etl_pipelines WHERE status = 'RUN_REQUESTED' AND enabled) AS queue_oldest,
               (SELECT count(*) FROM etl.etl_notifications WHERE done_at IS NULL) AS notifications_waiting
        """,
            [stale_after_seconds],
        )
    )
