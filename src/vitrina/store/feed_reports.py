"""Report on feeds for users and monitoring: owner, lag, retained changes, and who holds them."""

from typing import Any
from uuid import UUID

from vitrina.store import feed_segments
from vitrina.store.database import Connection

# The owner measures every few seconds. Older measurements are not reported as current.
_FRESH_SECONDS = 15.0


def list_all(connection: Connection) -> list[dict[str, Any]]:
    """List every feed with its followers, by the name of its connection."""
    rows = connection.execute(
        """
        SELECT f.id, coalesce(f.connection, 'default') AS connection, f.database, f.slot, f.publication, f.runner_id,
               f.claim_id IS NOT NULL AND f.lease_until > clock_timestamp() AS is_owned,
               (SELECT r.host FROM etl.etl_runners r WHERE r.id = f.runner_id) AS host,
               f.problem, f.problem_since, f.stored_changes, f.stored_commit_at, f.measured_at, f.created_at,
               (f.figures ->> 'lag_seconds')::float8
               + greatest(0, extract(epoch FROM clock_timestamp() - f.measured_at)::float8 - %(fresh)s) AS lag_seconds,
               (f.figures ->> 'behind_bytes')::bigint AS behind_bytes,
               (f.figures ->> 'retained_bytes')::bigint AS retained_bytes,
               (f.figures ->> 'keep_bytes')::bigint AS keep_bytes, f.figures ->> 'wal_status' AS wal_status,
               (SELECT count(*) FROM etl.etl_feed_segments s WHERE s.feed_id = f.id) AS segments,
               (SELECT coalesce(sum(s.changes), 0)::bigint FROM etl.etl_feed_segments s
                WHERE s.feed_id = f.id) AS kept_changes
        FROM etl.etl_feeds f ORDER BY 2, f.id
        """,
        {"fresh": _FRESH_SECONDS},
    ).fetchall()
    return [{**row, "followers": list_followers(connection, row["id"])} for row in rows]


def list_followers(connection: Connection, feed_id: UUID) -> list[dict[str, Any]]:
    """List the pipelines that follow, with the number of changes that each has not passed."""
    rows = connection.execute(
        """
        SELECT p.id AS pipeline_id, p.name AS pipeline, w.ready_upto IS NOT NULL AS is_ready, w.must_reload, w.problem,
               w.passed_upto, w.registered_at, ARRAY(SELECT jsonb_object_keys(w.tables) ORDER BY 1) AS tables
        FROM etl.etl_feed_followers w JOIN etl.etl_pipelines p ON p.id = w.pipeline_id
        WHERE w.feed_id = %s ORDER BY p.name
        """,
        [feed_id],
    ).fetchall()
    return [{**row, "backlog_changes": _backlog(connection, feed_id, row)} for row in rows]


def _backlog(connection: Connection, feed_id: UUID, row: dict[str, Any]) -> int | None:
    """Count what a follower has not passed, or return None if changes are not kept for it."""
    holds = row["is_ready"] and row["must_reload"] is None
    return feed_segments.count_after(connection, feed_id, row["passed_upto"]) if holds else None
