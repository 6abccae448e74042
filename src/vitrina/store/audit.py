"""Statements on `etl_audit` and `etl_pipeline_versions`: who changed what, in the transaction of the change."""

from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from vitrina.store.database import Connection


def record(
    connection: Connection,
    *,
    who: str,
    action: str,
    target: str,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    request_id: str | None = None,
) -> None:
    connection.execute(
        "INSERT INTO etl.etl_audit (who, action, object, before, after, request_id) VALUES (%s, %s, %s, %s, %s, %s)",
        [who, action, target, Jsonb(before) if before else None, Jsonb(after) if after else None, request_id],
    )


def list_page(connection: Connection, *, target: str | None, before_id: int | None, limit: int) -> list[dict[str, Any]]:
    return connection.execute(
        """
        SELECT * FROM etl.etl_audit
        WHERE (%(object)s::text IS NULL OR object = %(object)s) AND (%(before)s::bigint IS NULL OR id < %(before)s)
        ORDER BY id DESC LIMIT %(limit)s
        """,
        {"object": target, "before": before_id, "limit": limit},
    ).fetchall()


def add_version(
    connection: Connection, pipeline_id: UUID, version: int, definition: dict[str, Any], *, who: str, summary: str
) -> None:
    connection.execute(
        """
        INSERT INTO etl.etl_pipeline_versions (pipeline_id, version, definition, changed_by, change_summary)
        VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING
        """,
        [pipeline_id, version, Jsonb(definition), who, summary],
    )


def list_versions(connection: Connection, pipeline_id: UUID) -> list[dict[str, Any]]:
    return connection.execute(
        "SELECT * FROM etl.etl_pipeline_versions WHERE pipeline_id = %s ORDER BY version DESC", [pipeline_id]
    ).fetchall()
