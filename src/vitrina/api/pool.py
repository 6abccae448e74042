"""Pool the API's connections to the metastore: few, used briefly, and never waited for long."""

import select
import time

from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool

from vitrina.settings import Settings
from vitrina.store import database
from vitrina.store.database import Connection
from vitrina.store.prepared import PreparingConnection

Pool = ConnectionPool[Connection]

# Refuse a request that cannot be served soon, because its client is waiting.
_LIMITS = {"statement_timeout": "30s", "lock_timeout": "10s", "idle_in_transaction_session_timeout": "30s"}
# A firewall or proxy may drop an idle session without notice. A session idle for longer is checked with a query.
_TRUSTED_SECONDS = 30.0


class PooledConnection(PreparingConnection):
    """Represent a session that remembers when it was last found alive."""

    alive_at = 0.0


def make_pool(settings: Settings, *, max_connections: int = 16, timeout_seconds: float = 5.0) -> Pool:
    """Build a closed pool. When the metastore is away, requests fail with 503 and the process keeps running."""
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
    """Check a session that may have died in the pool. A server that ends one sends a message, so there is data to read.

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
