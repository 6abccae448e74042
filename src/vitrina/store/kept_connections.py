"""Query `etl_connections`, which stores sealed connection URLs."""

from typing import Any

import psycopg
from psycopg import conninfo

from vitrina import dsn
from vitrina.ports import registry
from vitrina.sealing import Sealed
from vitrina.sentences import say
from vitrina.store.database import Connection

Row = dict[str, Any]


def problem(url: str) -> str | None:
    """Return why a URL that a user sends is refused, as reported by the connector that opens it."""
    connector = registry.of_url(url) if "://" in url and url.isprintable() else None
    if connector is None and "://" in url and not url.lower().startswith(("postgresql://", "postgres://")):
        known = sorted(scheme for each in registry.installed().connectors.values() for scheme in each.schemes)
        return say("connection.url_kind", why=dsn.NOT_VALID, known=", ".join(known))
    if connector is None or connector.name == registry.POSTGRES:
        return postgres_problem(url)
    judge = connector.kept_url_problem or connector.url_problem
    return judge(url) if judge else None


def postgres_problem(url: str) -> str | None:
    """Return why a URL that a caller sends is refused, as libpq reads it, without repeating any of its values.

    A stored URL must contain everything, so that libpq takes nothing from the runner's environment instead.
    """
    if not url.startswith(("postgresql://", "postgres://")) or not url.isprintable():
        return dsn.NOT_VALID
    try:
        parts = {name: str(value) for name, value in conninfo.conninfo_to_dict(url).items()}
    except psycopg.ProgrammingError:
        return dsn.NOT_VALID
    refused = sorted(parts.keys() - dsn.ALLOWED)
    if refused:
        return say("connection.url_session", settings=", ".join(refused))
    refused = sorted(parts.keys() & dsn.OF_THE_MACHINE)
    if refused:
        return say("connection.url_files", settings=", ".join(refused))
    if "@" in parts.get("host", ""):
        return say("connection.url_at")
    if any(host.startswith("/") for host in parts.get("host", "").split(",")):
        return say("connection.url_host")
    lacking = [name for name in ("host", "user", "password", "dbname") if not parts.get(name)]
    if not lacking and not all(parts["host"].split(",")):
        lacking = ["host"]  # an empty one of several is a socket
    return say("connection.url_lacks", part=lacking[0]) if lacking else None


def list_names(connection: Connection) -> list[str]:
    return [row["name"] for row in connection.execute("SELECT name FROM etl.etl_connections ORDER BY name")]


def list_all(connection: Connection) -> list[Row]:
    """List the stored connections, without their sealed URLs."""
    return connection.execute(
        "SELECT name, key_id, scheme, created_at, updated_at, updated_by FROM etl.etl_connections ORDER BY name"
    ).fetchall()


def find_scheme(connection: Connection, name: str) -> str | None:
    row = connection.execute("SELECT scheme FROM etl.etl_connections WHERE name = %s", [name]).fetchone()
    return row["scheme"] if row else None


def list_sealed(connection: Connection) -> dict[str, Sealed]:
    rows = connection.execute("SELECT name, key_id, sealed FROM etl.etl_connections ORDER BY name")
    return {row["name"]: Sealed(row["key_id"], bytes(row["sealed"])) for row in rows}


def insert(connection: Connection, name: str, sealed: Sealed, *, by: str, scheme: str = "postgresql") -> bool:
    """Insert a connection. Return False if the name is taken."""
    return bool(
        connection.execute(
            """
            INSERT INTO etl.etl_connections (name, key_id, sealed, updated_by, scheme) VALUES (%s, %s, %s, %s, %s)
            ON CONFLICT (name) DO NOTHING
            """,
            [name, sealed.key_id, sealed.box, by, scheme],
        ).rowcount
    )


def replace(connection: Connection, name: str, sealed: Sealed, *, by: str, scheme: str = "postgresql") -> bool:
    """Replace a connection. Return False if there is none of that name."""
    return bool(
        connection.execute(
            """
            UPDATE etl.etl_connections
            SET key_id = %s, sealed = %s, updated_at = clock_timestamp(), updated_by = %s, scheme = %s WHERE name = %s
            """,
            [sealed.key_id, sealed.box, by, scheme, name],
        ).rowcount
    )


def reseal(connection: Connection, name: str, before: Sealed, after: Sealed) -> bool:
    """Store the URL sealed under another key. Return False if the connection was changed or removed meanwhile."""
    return bool(
        connection.execute(
            "UPDATE etl.etl_connections SET key_id = %s, sealed = %s WHERE name = %s AND sealed = %s",
            [after.key_id, after.box, name, before.box],
        ).rowcount
    )


def lock(connection: Connection, name: str) -> bool:
    """Lock a connection until the transaction ends: no other session changes it or saves a pipeline that names it.

    Return False if there is none.
    """
    return bool(connection.execute("SELECT FROM etl.etl_connections WHERE name = %s FOR UPDATE", [name]).rowcount)


def hold(connection: Connection, name: str) -> bool:
    """Keep a connection from being removed until the transaction ends: a pipeline is about to name it.

    Return False if there is none.
    """
    return bool(connection.execute("SELECT FROM etl.etl_connections WHERE name = %s FOR KEY SHARE", [name]).rowcount)


def delete(connection: Connection, name: str) -> bool:
    return bool(connection.execute("DELETE FROM etl.etl_connections WHERE name = %s", [name]).rowcount)


def list_users(connection: Connection) -> dict[str, list[str]]:
    """List the pipelines that read from a connection or write to it, by the connection's name."""
    rows = connection.execute(
        """
        SELECT used.connection, array_agg(DISTINCT p.name::text ORDER BY p.name::text) AS pipelines
        FROM etl.etl_pipelines p,
             LATERAL (VALUES (lower(p.source_connection)),
                             (lower(coalesce(p.options ->> 'target_connection', 'default')))) AS used (connection)
        GROUP BY 1
        """
    )
    return {row["connection"]: row["pipelines"] for row in rows}
