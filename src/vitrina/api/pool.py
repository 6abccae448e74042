"""The API's connections to the metastore: few, short-lived in use, and never waiting for long."""

import select
import time

from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool

from vitrina.settings import Settings
from vitrina.store import database
from vitrina.store.database import Connection
from vitrina.store.prepared import PreparingConnection

Pool = ConnectionPool[Connection]

# A request that cannot be served soon is better refused: its client is waiting.
_LIMITS = {"statement_timeout": "30s", "lock_timeout": "10s", "idle_in_transaction_session_timeout": "30s"}
# What lay longer may have been forgotten by something in between, which tells nobody: asking finds out.
_TRUSTED_SECONDS = 30.0


class PooledConnection(PreparingConnection):
    """A session that remembers when it was last found alive."""

    alive_at = 0.0


def make_pool(settings: Settings, *, max_connections: int = 16, timeout_seconds: float = 5.0) -> Pool:
    """Make a pool that is not open yet. When the metastore is away, requests fail with 503 and the process goes on."""
    session = database.SESSION | _LIMITS
    options = database.options_of(session)
    return ConnectionPool(
        settings.require_database_url(),
        connection_class=PooledConnection,
        kwargs={
            "autocommit": True,
            "row_factory": dict_row,
            "connect_timeout": settings.connect_timeout_seconds,
            "application_name": "vitrina:api",
            "options": options,
            "prepare_threshold": None,  # `Statement` prepares what is worth it
            **database.TRANSPORT,
        },
        min_size=1,
        max_size=max_connections,
        timeout=timeout_seconds,
        check=_check,
        configure=_configure,
        open=False,
        name="vitrina-api",
    )


def _check(connection: Connection) -> None:
    """Check a session that may have died in the pool. A server that ends one says so: there is something to read.

    Nothing else is sent unasked, so a quiet session that was in use a moment ago is used without a query. Querying each
    one would take as long as the work it is needed for.
    """
    if not isinstance(connection, PooledConnection):
        raise TypeError(f"{connection} is not of this pool")
    now = time.monotonic()
    if now - connection.alive_at > _TRUSTED_SECONDS or _has_news(connection):
        ConnectionPool.check_connection(connection)
    connection.alive_at = now


def _has_news(connection: Connection) -> bool:
    news = select.poll()
    news.register(connection.pgconn.socket, select.POLLIN)
    return bool(news.poll(0))


def _configure(connection: Connection) -> None:
    database.settle(connection)
    database.read_json_cut(connection)
    database.read_any_time(connection)
