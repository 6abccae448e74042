"""Statements on `etl_notifications`: messages that wait to be sent. Triggers write them, with the move they tell of."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from vitrina.store.database import Connection

Row = dict[str, Any]


def claim_due(
    connection: Connection,
    *,
    lease_seconds: float,
    limit: int = 20,
    channels: Sequence[str] = (),
    free: Sequence[str] = (),
) -> list[Row]:
    """Take due messages that a `free` one of the channels has not sent, or all have; while the lease lasts, no other
    runner sends them."""
    return connection.execute(
        """
        WITH due AS (
            SELECT id FROM etl.etl_notifications
            WHERE done_at IS NULL AND next_try_at <= clock_timestamp()
              AND (NOT delivered @> %(free)s::text[] OR delivered @> %(channels)s::text[])
            ORDER BY next_try_at LIMIT %(limit)s
            FOR UPDATE SKIP LOCKED
        ), taken AS (
            UPDATE etl.etl_notifications n
            SET attempts = n.attempts + 1, next_try_at = clock_timestamp() + make_interval(secs => %(lease)s)
            FROM due WHERE n.id = due.id
            RETURNING n.*
        )
        SELECT t.*, clock_timestamp() AS taken_at, p.name AS pipeline, p.options, p.labels, p.status, r.error_code,
               coalesce(r.error_message, t.payload ->> 'error') AS error
        FROM taken t
        JOIN etl.etl_pipelines p ON p.id = t.pipeline_id
        LEFT JOIN etl.etl_runs r ON r.id = t.run_id
        ORDER BY t.created_at
        """,
        {"channels": list(channels), "free": list(free), "lease": lease_seconds, "limit": limit},
    ).fetchall()


def tell_failed(connection: Connection, pipeline_id: UUID, run_id: UUID, error: str) -> None:
    """Of a run whose pipeline goes on; what becomes FAILED is told by a trigger."""
    connection.execute(
        """
        INSERT INTO etl.etl_notifications (kind, pipeline_id, run_id, payload)
        VALUES ('failed', %s, %s, jsonb_build_object('error', %s::text))
        """,
        [pipeline_id, run_id, error],
    )


def mark_delivered(connection: Connection, notification_id: UUID, channel: str) -> None:
    connection.execute(
        "UPDATE etl.etl_notifications SET delivered = array_append(delivered, %s) WHERE id = %s",
        [channel, notification_id],
    )


def mark_done(connection: Connection, notification_id: UUID, *, error: str | None = None) -> None:
    connection.execute(
        "UPDATE etl.etl_notifications SET done_at = clock_timestamp(), last_error = %s WHERE id = %s",
        [error, notification_id],
    )


def postpone(connection: Connection, notification_id: UUID, *, seconds: float, error: str) -> None:
    connection.execute(
        """
        UPDATE etl.etl_notifications
        SET next_try_at = clock_timestamp() + make_interval(secs => %s), last_error = %s WHERE id = %s
        """,
        [seconds, error, notification_id],
    )


def put_back(connection: Connection, notification_id: UUID) -> None:
    """As if it had not been taken: not every channel could try it."""
    connection.execute(
        """
        UPDATE etl.etl_notifications SET next_try_at = clock_timestamp(), attempts = greatest(attempts - 1, 0)
        WHERE id = %s
        """,
        [notification_id],
    )


def list_of_pipeline(connection: Connection, pipeline_id: UUID, kinds: Sequence[str] = ()) -> list[Row]:
    """Oldest first."""
    return connection.execute(
        """
        SELECT * FROM etl.etl_notifications
        WHERE pipeline_id = %s AND (%s = '{}' OR kind = ANY(%s)) ORDER BY created_at
        """,
        [pipeline_id, list(kinds), list(kinds)],
    ).fetchall()


def list_newest(connection: Connection, pipeline_id: UUID, *, limit: int) -> list[Row]:
    """Newest first, with the error of the run that they are about."""
    return connection.execute(
        """
        SELECT n.id, n.kind, n.created_at AS at, n.run_id, n.delivered, n.last_error AS delivery_error,
               coalesce(r.error_message, n.payload ->> 'error') AS error,
               (n.payload ->> 'failing_since')::timestamptz AS failing_since,
               (n.payload ->> 'differences')::bigint AS differences
        FROM etl.etl_notifications n LEFT JOIN etl.etl_runs r ON r.id = n.run_id
        WHERE n.pipeline_id = %s ORDER BY n.created_at DESC LIMIT %s
        """,
        [pipeline_id, limit],
    ).fetchall()


def prune(connection: Connection, *, older_than_days: int) -> int:
    return connection.execute(
        "DELETE FROM etl.etl_notifications WHERE done_at < now() - make_interval(days => %s)", [older_than_days]
    ).rowcount
