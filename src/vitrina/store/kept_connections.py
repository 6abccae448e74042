"""Statements on `etl_connections`: places whose URLs are kept here, sealed."""

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
    """Say why a URL that a user sends is not kept, in the words of the connector that opens it."""
    connector = registry.of_url(url) if "://" in url and url.isprintable() else None
    if connector is None and "://" in url and not url.lower().startswith(("postgresql://", "postgres://")):
        known = sorted(scheme for each in registry.installed().connectors.values() for scheme in each.schemes)
        return say("connection.url_kind", why=dsn.NOT_VALID, known=", ".join(known))
    if connector is None or connector.name == registry.POSTGRES:
        return postgres_problem(url)
    judge = connector.kept_url_problem or connector.url_problem
    return judge(url) if judge else None


def postgres_problem(url: str) -> str | None:
    """Why a URL that somebody sends us is not kept, in libpq's own reading of it; nothing of its values is repeated.

    It says everything itself, so that nothing of the runner's surroundings takes its place.
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
    """Everything but what is sealed."""
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
    """False when the name is taken."""
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
    """False when there is none of that name."""
    return bool(
        connection.execute(
            """
            UPDATE etl.etl_connections
            SET key_id = %s, sealed = %s, updated_at = clock_timestamp(), updated_by = %s, scheme = %s WHERE name = %s
            """,
            [sealed.key_id, sealed.box, by, scheme, name],
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


def lock(connection: Connection, name: str) -> bool:
    """Until the end of the transaction nobody changes it, or saves a pipeline that names it. False: there is none."""
    return bool(connection.execute("SELECT FROM etl.etl_connections WHERE name = %s FOR UPDATE", [name]).rowcount)


def hold(connection: Connection, name: str) -> bool:
    """Until the end of the transaction it is not removed: a pipeline is about to name it. False: there is none."""
    return bool(connection.execute("SELECT FROM etl.etl_connections WHERE name = %s FOR KEY SHARE", [name]).rowcount)


def delete(connection: Connection, name: str) -> bool:
    return bool(connection.execute("DELETE FROM etl.etl_connections WHERE name = %s", [name]).rowcount)


def list_users(connection: Connection) -> dict[str, list[str]]:
    """The pipelines that read from a connection or write to it, by its name."""
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
