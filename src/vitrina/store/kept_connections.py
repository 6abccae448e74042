"""Statements on `etl_connections`: databases whose URLs are kept here, sealed."""

from typing import Any

from vitrina.sealing import Sealed
from vitrina.store.database import Connection

Row = dict[str, Any]


def list_names(connection: Connection) -> list[str]:
    return [row["name"] for row in connection.execute("SELECT name FROM etl.etl_connections ORDER BY name")]


def list_all(connection: Connection) -> list[Row]:
    """Everything but what is sealed."""
    return connection.execute(
        "SELECT name, key_id, created_at, updated_at, updated_by FROM etl.etl_connections ORDER BY name"
    ).fetchall()


def list_sealed(connection: Connection) -> dict[str, Sealed]:
    rows = connection.execute("SELECT name, key_id, sealed FROM etl.etl_connections ORDER BY name")
    return {row["name"]: Sealed(row["key_id"], bytes(row["sealed"])) for row in rows}


def insert(connection: Connection, name: str, sealed: Sealed, *, by: str) -> bool:
    """False when the name is taken."""
    return bool(
        connection.execute(
            """
            INSERT INTO etl.etl_connections (name, key_id, sealed, updated_by) VALUES (%s, %s, %s, %s)
            ON CONFLICT (name) DO NOTHING
            """,
            [name, sealed.key_id, sealed.box, by],
        ).rowcount
    )


def replace(connection: Connection, name: str, sealed: Sealed, *, by: str) -> bool:
    """False when there is none of that name."""
    return bool(
        connection.execute(
            """
            UPDATE etl.etl_connections
            SET key_id = %s, sealed = %s, updated_at = clock_timestamp(), updated_by = %s WHERE name = %s
            """,
            [sealed.key_id, sealed.box, by, name],
        ).rowcount
    )


def seal_anew(connection: Connection, name: str, before: Sealed, after: Sealed) -> bool:
    """Under another key. False when somebody entered or removed it meanwhile."""
    return bool(
        connection.execute(
            "UPDATE etl.etl_connections SET key_id = %s, sealed = %s WHERE name = %s AND sealed = %s",
            [after.key_id, after.box, name, before.box],
        ).rowcount
    )


def delete(connection: Connection, name: str) -> bool:
    return bool(connection.execute("DELETE FROM etl.etl_connections WHERE name = %s", [name]).rowcount)


def list_users(connection: Connection, name: str) -> list[str]:
    """The pipelines that read from it or write to it."""
    rows = connection.execute(
        """
        SELECT name FROM etl.etl_pipelines
        WHERE lower(source_connection) = %(name)s OR lower(options ->> 'target_connection') = %(name)s ORDER BY name
        """,
        {"name": name},
    )
    return [row["name"] for row in rows]
