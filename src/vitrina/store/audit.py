"""Query `etl_audit` and `etl_pipeline_versions`, which record who changed what in the transaction of the change."""

from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from vitrina.store.database import Connection
from vitrina.store.prepared import Statement

Row = dict[str, Any]


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
    written = [Jsonb(fields) if fields else None for fields in (before, after)]
    _RECORD.execute(connection, [who, action, target, *written, request_id])


_RECORD = Statement(
    b"INSERT INTO etl.etl_audit (who, action, object, before, after, request_id) VALUES (%s, %s, %s, %s, %s, %s)"
)


def list_page(
    connection: Connection,
    *,
    target: str | None = None,
    who: str | None = None,
    action: str | None = None,
    since: datetime | None = None,
    before_id: int | None = None,
    limit: int,
) -> list[Row]:
    """List entries of the audit log that match the filters, newest first."""
    return connection.execute(
        """
        SELECT * FROM etl.etl_audit
        WHERE (%(object)s::text IS NULL OR object = %(object)s)
          AND (%(who)s::text IS NULL OR who = %(who)s)
          AND (%(action)s::text IS NULL OR action = %(action)s)
          AND (%(since)s::timestamptz IS NULL OR at >= %(since)s)
          AND (%(before)s::bigint IS NULL OR id < %(before)s)
        ORDER BY id DESC LIMIT %(limit)s
        """,
        {"object": target, "who": who, "action": action, "since": since, "before": before_id, "limit": limit},
    ).fetchall()


def add_version(
    connection: Connection, pipeline_id: UUID, version: int, definition: dict[str, Any], *, who: str, summary: str
) -> None:
    _ADD_VERSION.execute(connection, [pipeline_id, version, Jsonb(definition), who, summary])


_ADD_VERSION = Statement(
    b"""
    INSERT INTO etl.etl_pipeline_versions (pipeline_id, version, definition, changed_by, change_summary)
    VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING
    """
)


def list_versions(
    connection: Connection, pipeline_id: UUID, *, limit: int, before_version: int | None = None
) -> list[Row]:
    """List saved versions of a pipeline, newest first."""
    return connection.execute(
        """
        SELECT * FROM etl.etl_pipeline_versions
        WHERE pipeline_id = %s AND (%s::integer IS NULL OR version < %s)
        ORDER BY version DESC LIMIT %s
        """,
        [pipeline_id, before_version, before_version, limit],
    ).fetchall()


def find_version(connection: Connection, pipeline_id: UUID, version: int) -> Row | None:
    return connection.execute(
        "SELECT * FROM etl.etl_pipeline_versions WHERE pipeline_id = %s AND version = %s", [pipeline_id, version]
    ).fetchone()
