"""Statements on `etl_requests`: what the API asks of a runner because it needs a source or a sink."""

from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from vitrina.store.database import Connection

Row = dict[str, Any]


def insert(
    connection: Connection, kind: str, pipeline_id: UUID | None, payload: dict[str, Any], requested_by: str
) -> UUID:
    row = connection.execute(
        "INSERT INTO etl.etl_requests (kind, pipeline_id, payload, requested_by) VALUES (%s, %s, %s, %s) RETURNING id",
        [kind, pipeline_id, Jsonb(payload), requested_by],
    ).fetchone()
    assert row is not None
    request_id: UUID = row["id"]
    return request_id


def find(connection: Connection, request_id: UUID) -> Row | None:
    return connection.execute("SELECT * FROM etl.etl_requests WHERE id = %s", [request_id]).fetchone()


def find_latest(connection: Connection, pipeline_id: UUID, kind: str) -> Row | None:
    return connection.execute(
        "SELECT * FROM etl.etl_requests WHERE pipeline_id = %s AND kind = %s ORDER BY created_at DESC LIMIT 1",
        [pipeline_id, kind],
    ).fetchone()


def claim_next(connection: Connection, runner_id: UUID, ttl_seconds: float) -> Row | None:
    """Take the oldest request, or one whose runner fell silent."""
    return connection.execute(
        """
        UPDATE etl.etl_requests
        SET status = 'WORKING', runner_id = %(runner)s,
            lease_until = clock_timestamp() + make_interval(secs => %(ttl)s)
        WHERE id = (
            SELECT id FROM etl.etl_requests
            WHERE status = 'QUEUED' OR (status = 'WORKING' AND lease_until < clock_timestamp())
            ORDER BY created_at LIMIT 1 FOR UPDATE SKIP LOCKED)
        RETURNING *
        """,
        {"runner": runner_id, "ttl": ttl_seconds},
    ).fetchone()


def finish(
    connection: Connection, request_id: UUID, *, result: dict[str, Any] | None, error: dict[str, Any] | None
) -> None:
    connection.execute(
        """
        UPDATE etl.etl_requests
        SET status = CASE WHEN %(error)s::jsonb IS NULL THEN 'DONE' ELSE 'FAILED' END,
            result = %(result)s, error = %(error)s, finished_at = clock_timestamp(), lease_until = NULL
        WHERE id = %(id)s
        """,
        {
            "id": request_id,
            "result": Jsonb(result) if result is not None else None,
            "error": Jsonb(error) if error is not None else None,
        },
    )
