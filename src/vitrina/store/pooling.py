"""Detect a pooler in front of the server, such as pgbouncer, which must run in session mode."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import conninfo
from psycopg.rows import DictRow

from vitrina import errors

TRANSACTION_MODE = "a pooler in transaction mode"

# Proven for the lifetime of the process: an operator who changes a pooler restarts its clients.
_proven: set[tuple[Any, ...]] = set()


def is_pooled(connection: psycopg.Connection[DictRow]) -> bool:
    """Return whether there is a pooler, which reports a process id that is not the server's."""
    row = connection.execute("SELECT pg_catalog.pg_backend_pid() AS pid").fetchone()
    return bool(row and row["pid"] != connection.info.backend_pid)


def settle(connection: psycopg.Connection[DictRow]) -> None:
    """Refuse a pooler that shares sessions between clients. Apply the settings that poolers do not pass on."""
    info = connection.info
    place = (info.host, info.port, info.dbname, info.user)
    if place not in _proven:
        _refuse_transaction_mode(connection)
        _proven.add(place)
    connection.execute(statement_of(info.get_parameters().get("options", "")))


def statement_of(options: str) -> str:
    """Convert session settings, in the form of libpq's `options`, to one statement."""
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
        # Three times, because the pooler may rotate its sessions.
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
