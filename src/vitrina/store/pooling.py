"""A pooler between us and the server, such as pgbouncer: it must leave us a session of our own."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import conninfo
from psycopg.rows import DictRow

from vitrina import errors

TRANSACTION_MODE = "a pooler in transaction mode"

# What was proven once holds for as long as the process lives: who changes a pooler restarts its clients.
_proven: set[tuple[Any, ...]] = set()


def is_pooled(connection: psycopg.Connection[DictRow]) -> bool:
    """Tell whether a pooler is in between: it gives its clients a process id that is not the server's."""
    row = connection.execute("SELECT pg_catalog.pg_backend_pid() AS pid").fetchone()
    return bool(row and row["pid"] != connection.info.backend_pid)


def settle(connection: psycopg.Connection[DictRow]) -> None:
    """Refuse a pooler that shares sessions between clients. Apply the settings that any pooler does not pass on."""
    info = connection.info
    place = (info.host, info.port, info.dbname, info.user)
    if place not in _proven:
        _refuse_transaction_mode(connection)
        _proven.add(place)
    connection.execute(statement_of(info.get_parameters().get("options", "")))


def statement_of(options: str) -> str:
    """Turn session settings, as libpq's `options` has them, into one statement."""
    pairs = (setting.partition("=") for setting in _settings(options))
    calls = (f"pg_catalog.set_config({_quoted(name)}, {_quoted(value)}, false)" for name, _, value in pairs)
    return f"SELECT {', '.join(calls)}"


def _settings(options: str) -> Iterator[str]:
    for part in options.replace("\\\\", "\0").replace("\\ ", "\1").split(" "):
        if part and part != "-c":
            yield part.replace("\1", " ").replace("\0", "\\")


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _refuse_transaction_mode(connection: psycopg.Connection[DictRow]) -> None:
    """Refuse a pooler that shares sessions: what one client leaves in its session, another would find in its own."""
    ours = uuid4().hex
    connection.execute(_MARK, [ours])
    login = conninfo.make_conninfo(**connection.info.get_parameters(), password=connection.info.password)
    with psycopg.connect(login, autocommit=True) as other:
        other.execute(_MARK, [uuid4().hex])
        # More than once: the pooler may pass its sessions round.
        found = [connection.execute(_MARKED).fetchone() for _ in range(3)]
    if any(row is None or row["mark"] != ours for row in found):
        name = connection.info.dbname
        connection.close()
        raise errors.CannotConnect(
            f"the database {name} is behind {TRANSACTION_MODE}, which gives every transaction another session:"
            " locks, settings and notifications would be lost. Set pool_mode = session for it (pgbouncer), or connect"
            " to PostgreSQL itself"
        )


_MARK = "SELECT pg_catalog.set_config('vitrina.session', %s, false)"
_MARKED = "SELECT pg_catalog.current_setting('vitrina.session', true) AS mark"
