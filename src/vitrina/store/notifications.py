"""Query `etl_notifications`: messages to be sent. Triggers write them in the transaction of the status change.

Each receiver has separate attempts and deadlines, in `etl_deliveries`.
"""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from psycopg import sql

from vitrina.store import pruning
from vitrina.store.database import Connection

Row = dict[str, Any]


def claim_due(connection: Connection, channel: str, *, lease_seconds: float, limit: int) -> list[Row]:
    """Claim messages that are due for this receiver; while the lease lasts, no other runner sends them there."""
    return connection.execute(
        sql.SQL(
            """
            WITH due AS (
                SELECT n.id FROM etl.etl_notifications n
                JOIN etl.etl_pipelines p ON p.id = n.pipeline_id
                LEFT JOIN etl.etl_deliveries d ON d.notification_id = n.id AND d.channel = %(channel)s
                WHERE n.done_at IS NULL AND {wanted} AND NOT %(channel)s = ANY(n.delivered) AND d.ended_at IS NULL
                  AND coalesce(d.next_try_at, n.next_try_at) <= clock_timestamp()
                ORDER BY coalesce(d.next_try_at, n.next_try_at) LIMIT %(limit)s
            ), taken AS (
                INSERT INTO etl.etl_deliveries AS d (notification_id, channel, attempts, next_try_at)
                SELECT id, %(channel)s, 1, clock_timestamp() + make_interval(secs => %(lease)s) FROM due
                -- Another runner may have been quicker: what it took is no longer due.
                ON CONFLICT (notification_id, channel) DO UPDATE
                SET attempts = d.attempts + 1, next_try_at = excluded.next_try_at
                WHERE d.ended_at IS NULL AND d.next_try_at <= clock_timestamp()
                RETURNING d.notification_id, d.attempts
            )
            SELECT n.*, t.attempts AS tries, clock_timestamp() AS taken_at, p.name AS pipeline, p.labels,
                   r.error_code, coalesce(r.error_message, n.payload ->> 'error') AS error
            FROM taken t
            JOIN etl.etl_notifications n ON n.id = t.notification_id
            JOIN etl.etl_pipelines p ON p.id = n.pipeline_id
            LEFT JOIN etl.etl_runs r ON r.id = n.run_id
            ORDER BY n.created_at
            """
        ).format(wanted=_WANTED),
        {"channel": channel, "lease": lease_seconds, "limit": limit},
    ).fetchall()


# A pipeline may restrict the kinds of messages; an invalid value, edited by hand, means all.
_WANTED = sql.SQL("(jsonb_typeof(p.options -> 'notify') IS DISTINCT FROM 'array' OR p.options -> 'notify' ? n.kind)")


def tell_failed(connection: Connection, pipeline_id: UUID, run_id: UUID, error: str) -> None:
    """Queue a message about a failed run whose pipeline goes on.

    A trigger does this for pipelines that become FAILED.
    """
    connection.execute(
        """
        INSERT INTO etl.etl_notifications (kind, pipeline_id, run_id, payload)
        VALUES ('failed', %s, %s, jsonb_build_object('error', %s::text))
        """,
        [pipeline_id, run_id, error],
    )


def mark_delivered(connection: Connection, notification_id: UUID, channel: str) -> None:
    with connection.transaction():
        connection.execute(
            "UPDATE etl.etl_notifications SET delivered = array_append(delivered, %s) WHERE id = %s",
            [channel, notification_id],
        )
        connection.execute(
            """
            UPDATE etl.etl_deliveries SET ended_at = clock_timestamp(), last_error = NULL
            WHERE notification_id = %s AND channel = %s
            """,
            [notification_id, channel],
        )


def give_up(connection: Connection, notification_id: UUID, channel: str, *, error: str) -> None:
    """Stop trying this receiver; the others are tried as before."""
    connection.execute(
        """
        UPDATE etl.etl_deliveries SET ended_at = clock_timestamp(), last_error = %s
        WHERE notification_id = %s AND channel = %s
        """,
        [error, notification_id, channel],
    )


def postpone(connection: Connection, notification_id: UUID, channel: str, *, seconds: float, error: str) -> None:
    connection.execute(
        """
        UPDATE etl.etl_deliveries SET next_try_at = clock_timestamp() + make_interval(secs => %s), last_error = %s
        WHERE notification_id = %s AND channel = %s
        """,
        [seconds, error, notification_id, channel],
    )


def put_back(connection: Connection, notification_id: UUID, channel: str) -> None:
    """Return a message to the queue as if it had not been claimed, because it was not tried."""
    connection.execute(
        """
        UPDATE etl.etl_deliveries SET next_try_at = clock_timestamp(), attempts = greatest(attempts - 1, 0)
        WHERE notification_id = %s AND channel = %s
        """,
        [notification_id, channel],
    )


def conclude(connection: Connection, channels: Sequence[str]) -> int:
    """Close the messages that no receiver waits for any more.

    Record the errors of the others. Return the number closed.
    """
    with connection.transaction():
        connection.execute(
            """
            UPDATE etl.etl_notifications n SET last_error = told.error, attempts = told.attempts
            FROM (SELECT m.id, max(d.attempts) AS attempts,
                         string_agg(d.channel || ': ' || d.last_error, '; ' ORDER BY d.channel) AS error
                  FROM etl.etl_notifications m JOIN etl.etl_deliveries d ON d.notification_id = m.id
                  WHERE m.done_at IS NULL GROUP BY m.id) told
            WHERE n.id = told.id AND (n.last_error, n.attempts) IS DISTINCT FROM (told.error, told.attempts)
            """
        )
        return connection.execute(
            sql.SQL(
                """
                UPDATE etl.etl_notifications n SET done_at = clock_timestamp()
                FROM etl.etl_pipelines p
                WHERE p.id = n.pipeline_id AND n.done_at IS NULL AND n.next_try_at <= clock_timestamp()
                  -- A runner with other receivers than ours may be about to try it there.
                  AND NOT EXISTS (SELECT FROM etl.etl_deliveries d WHERE d.notification_id = n.id
                                  AND d.ended_at IS NULL AND d.next_try_at > clock_timestamp())
                  AND (NOT {wanted} OR NOT EXISTS (
                        SELECT FROM unnest(%(channels)s::text[]) AS c (name)
                        WHERE NOT c.name = ANY(n.delivered)
                          AND NOT EXISTS (SELECT FROM etl.etl_deliveries d WHERE d.notification_id = n.id
                                          AND d.channel = c.name AND d.ended_at IS NOT NULL)))
                """
            ).format(wanted=_WANTED),
            {"channels": list(channels)},
        ).rowcount


def list_of_pipeline(connection: Connection, pipeline_id: UUID, kinds: Sequence[str] = ()) -> list[Row]:
    """List notifications of a pipeline, oldest first."""
    return connection.execute(
        """
        SELECT * FROM etl.etl_notifications
        WHERE pipeline_id = %s AND (%s = '{}' OR kind = ANY(%s)) ORDER BY created_at
        """,
        [pipeline_id, list(kinds), list(kinds)],
    ).fetchall()


def list_newest(connection: Connection, pipeline_id: UUID, *, limit: int) -> list[Row]:
    """List notifications of a pipeline, newest first, with the error of the run that they are about."""
    return connection.execute(
        """
        SELECT n.id, n.kind, n.created_at AS at, n.run_id, n.delivered, n.last_error AS delivery_error,
               coalesce(r.error_message, n.payload ->> 'error') AS error,
               (n.payload ->> 'failing_since')::timestamptz AS failing_since,
               (n.payload ->> 'differences')::bigint AS differences, n.payload -> 'checks' AS checks
        FROM etl.etl_notifications n LEFT JOIN etl.etl_runs r ON r.id = n.run_id
        WHERE n.pipeline_id = %s ORDER BY n.created_at DESC LIMIT %s
        """,
        [pipeline_id, limit],
    ).fetchall()


def list_latest(connection: Connection, *, limit: int) -> list[Row]:
    """List notifications of all pipelines, newest first."""
    return connection.execute(
        """
        SELECT n.id, n.kind, n.created_at AS at, n.run_id, n.delivered, n.last_error AS delivery_error,
               coalesce(r.error_message, n.payload ->> 'error') AS error, p.name AS pipeline,
               (n.payload ->> 'failing_since')::timestamptz AS failing_since,
               (n.payload ->> 'differences')::bigint AS differences, n.payload -> 'checks' AS checks
        FROM etl.etl_notifications n
        JOIN etl.etl_pipelines p ON p.id = n.pipeline_id
        LEFT JOIN etl.etl_runs r ON r.id = n.run_id
        ORDER BY n.created_at DESC LIMIT %s
        """,
        [limit],
    ).fetchall()


def prune(connection: Connection, *, older_than_days: int) -> int:
    return pruning.delete(
        connection, "etl_notifications", "r.done_at < now() - make_interval(days => %s)", [older_than_days]
    )
