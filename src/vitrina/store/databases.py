"""Find which connection names lead to one database: by what its server reports, then by a proof."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from secrets import randbits
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg import sql

from vitrina.errors import CannotConnect, ConfigError
from vitrina.settings import DEFAULT_CONNECTION
from vitrina.store.database import Connection
from vitrina.store.prepared import Statement

# Opens a session on a connection by its name.
Reach = Callable[[str], AbstractContextManager[Connection]]

# The database that a pipeline `p` writes to, by its representative name. A connection that was never inspected
# represents itself, so that nothing changes for those who hold it when it is.
OF_PIPELINE = sql.SQL(
    """
    coalesce((SELECT d.database FROM etl.etl_databases d WHERE d.connection = lower(p.options ->> 'target_connection')),
             lower(p.options ->> 'target_connection'), 'default')
    """
)


@dataclass(frozen=True)
class Seen:
    """Hold what a database reports about itself.

    A restored copy reports the same, except for the server's start time.
    """

    identity: str
    started_at: datetime


def look(connection: Connection) -> Seen | None:
    """Read the identity of a session's database. Return None if PUBLIC lacks the right; then only names are known.

    It does not change during a session, so each session is queried once.
    """
    known = _seen.get(connection) or _look(connection)
    if known is not None:
        _seen[connection] = known
    return known


_seen: "WeakKeyDictionary[Connection, Seen]" = WeakKeyDictionary()


def _look(connection: Connection) -> Seen | None:
    try:
        row = _LOOK.fetch_one(connection, [])
    except psycopg.errors.InsufficientPrivilege:
        return None
    assert row is not None
    return Seen(**row)


_LOOK = Statement(
    b"""
    SELECT s.system_identifier || '/' || d.oid AS identity,
           pg_catalog.pg_postmaster_start_time() AS started_at
    FROM pg_catalog.pg_control_system() s, pg_catalog.pg_database d
    WHERE d.datname = pg_catalog.current_database()
    """
)


def recognise(metastore: Connection, name: str, connection: Connection, reach: Reach) -> str:
    """Record which database a connection leads to, and return its representative name."""
    seen = look(connection)
    if name == DEFAULT_CONNECTION or seen is None:
        return name
    known = _find(metastore, name)
    if known and known["identity"] == seen.identity and known["started_at"] == seen.started_at:
        return str(known["database"])
    database, proven = _find_same(metastore, name, connection, seen, reach)
    _record(metastore, name, database, seen, proven=proven)
    return database


def recognise_place(metastore: Connection, name: str, identity: str, *, is_default: bool) -> str:
    """Record which place of another system a connection leads to, and return its representative name.

    A place reports the same identity under every name, so there is nothing to prove.
    """
    twin = metastore.execute(
        "SELECT database FROM etl.etl_databases WHERE identity = %s AND connection <> %s ORDER BY connection LIMIT 1",
        [identity, name],
    ).fetchone()
    database = DEFAULT_CONNECTION if is_default else str(twin["database"]) if twin else name
    _record(metastore, name, database, Seen(identity, datetime.fromtimestamp(0, UTC)), proven=True)
    return database


def resolve(metastore: Connection, name: str | None) -> str:
    """Return the representative name of a connection's database, as far as it is known."""
    known = _find(metastore, (name or DEFAULT_CONNECTION).lower())
    return str(known["database"]) if known else (name or DEFAULT_CONNECTION).lower()


def are_one(first: Connection, second: Connection) -> bool:
    """Return whether two sessions are in one database, by checking if a lock of one is visible to the other."""
    key = randbits(63)
    take = "SELECT pg_catalog.pg_try_advisory_xact_lock(%s) AS taken"
    with first.transaction():
        first.execute(take, [key])
        with second.transaction():
            row = second.execute(take, [key]).fetchone()
            return not (row and row["taken"])


def _find_same(metastore: Connection, name: str, connection: Connection, seen: Seen, reach: Reach) -> tuple[str, bool]:
    """Find the representative name of the same database, and whether that was proven."""
    own = look(metastore)
    if own and own.identity == seen.identity and are_one(connection, metastore):
        return DEFAULT_CONNECTION, True
    twins = metastore.execute(
        "SELECT connection, database FROM etl.etl_databases WHERE identity = %s AND connection <> %s ORDER BY 1",
        [seen.identity, name],
    ).fetchall()
    unproven: str | None = None
    for twin in twins:
        try:
            with reach(twin["connection"]) as other:
                if are_one(connection, other):
                    return str(twin["database"]), True
        except (CannotConnect, ConfigError, psycopg.OperationalError):
            # It may be the same database. Until that is decided, its writers wait for each other.
            unproven = unproven or str(twin["database"])
    return (unproven, False) if unproven else (name, True)


def _find(metastore: Connection, name: str) -> dict[str, Any] | None:
    return metastore.execute("SELECT * FROM etl.etl_databases WHERE connection = %s", [name]).fetchone()


def _record(metastore: Connection, name: str, database: str, seen: Seen, *, proven: bool) -> None:
    with metastore.transaction():
        metastore.execute(
            """
            INSERT INTO etl.etl_databases (connection, database, identity, started_at) VALUES (%s, %s, %s, %s)
            ON CONFLICT (connection) DO UPDATE
            SET database = excluded.database, identity = excluded.identity, started_at = excluded.started_at,
                seen_at = clock_timestamp()
            """,
            [name, database, seen.identity, seen.started_at if proven else None],
        )
        # Other names were found to be the database that this name used to lead to; they are checked again.
        metastore.execute(
            """
            UPDATE etl.etl_databases SET started_at = NULL
            WHERE database = %s AND connection <> %s AND identity <> %s
            """,
            [name, name, seen.identity],
        )
