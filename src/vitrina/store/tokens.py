"""Query `etl_api_tokens`: hashes of API tokens."""

from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg import sql

from vitrina.store import database
from vitrina.store.database import Connection
from vitrina.store.prepared import Statement

Row = dict[str, Any]

# Everything except the hash.
_COLUMNS = sql.SQL("id, name, role, created_at, expires_at, last_used_at, revoked_at")


def insert(connection: Connection, *, name: str, role: str, token_hash: bytes, expires_at: datetime | None) -> Row:
    return database.one(
        connection.execute(
            sql.SQL(
                """
            INSERT INTO etl.etl_api_tokens (name, role, token_hash, expires_at) VALUES (%s, %s, %s, %s)
            RETURNING {}
            """
            ).format(_COLUMNS),
            [name, role, token_hash, expires_at],
        )
    )


def find_by_hash(connection: Connection, token_hash: bytes) -> Row | None:
    """Find a token with `usable`: neither revoked nor expired, by the database's clock."""
    return _FIND_BY_HASH.fetch_one(connection, [token_hash])


_FIND_BY_HASH = Statement(
    b"""
    SELECT id, name, role, token_hash,
           revoked_at IS NULL AND (expires_at IS NULL OR expires_at > clock_timestamp()) AS usable,
           last_used_at IS NULL OR last_used_at < clock_timestamp() - interval '1 minute' AS unseen
    FROM etl.etl_api_tokens WHERE token_hash = %s
    """
)


def touch(connection: Connection, token_id: UUID) -> None:
    """Record the last use to the minute: a write for every request would cost more than the request."""
    connection.execute(
        """
        UPDATE etl.etl_api_tokens SET last_used_at = clock_timestamp()
        WHERE id = %s AND (last_used_at IS NULL OR last_used_at < clock_timestamp() - interval '1 minute')
        """,
        [token_id],
    )


def list_all(connection: Connection) -> list[Row]:
    return connection.execute(
        sql.SQL("SELECT {} FROM etl.etl_api_tokens ORDER BY created_at, id").format(_COLUMNS)
    ).fetchall()


def revoke(connection: Connection, name: str) -> Row | None:
    """Revoke a token; a second time changes nothing. Return None if there is none."""
    return connection.execute(
        sql.SQL(
            """
            UPDATE etl.etl_api_tokens SET revoked_at = coalesce(revoked_at, clock_timestamp()) WHERE name = %s
            RETURNING {}
            """
        ).format(_COLUMNS),
        [name],
    ).fetchone()
