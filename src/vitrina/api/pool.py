"""Pool the API's connections to the metastore: few, used briefly, and never waited for long."""

import select
import time

import psycopg
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool

from vitrina.settings import Settings
from vitrina.store import database
from vitrina.store.database import Connection
from vitrina.store.prepared import PreparingConnection

# Refuse a request that cannot be served soon, because its client is waiting.
_LIMITS = {"statement_timeout": "30s", "lock_timeout": "10s", "idle_in_transaction_session_timeout": "30s"}
# A firewall or proxy may drop an idle session without notice. A session idle for longer is checked with a query.
_TRUSTED_SECONDS = 30.0


class PooledConnection(PreparingConnection):
    """Represent a session that remembers when it was last found alive."""

    alive_at = 0.0


class Pool(ConnectionPool[PooledConnection]):
    """Hand out sessions that were found alive. Dead ones are replaced at once.

    The pool's own `check` sleeps after each dead session, longer each time. After a restart of the metastore all
    sessions are dead, and requests would wait until they fail.
    """

    def getconn(self, timeout: float | None = None) -> PooledConnection:
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while True:
            connection = super().getconn(deadline - time.monotonic())
            try:
                _check(connection)
            except psycopg.Error:
                connection.close()
                self.putconn(connection)
            else:
                return connection


def make_pool(settings: Settings, *, max_connections: int = 16, timeout_seconds: float = 5.0) -> Pool:
    """Build a closed pool. When the metastore is away, requests fail with 503 and the process keeps running."""
    session = database.SESSION | _LIMITS
    options = database.options_of(session)
    return Pool(
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
        configure=_configure,
        open=False,
        name="vitrina-api",
    )


def _check(connection: PooledConnection) -> None:
    """Check a session that may have died in the pool. A server that ends one sends a message, so there is data to read.

    Nothing else is sent unasked, so a quiet session that was in use a moment ago is used without a query. Querying each
    one would take as long as the work it is needed for.
    """
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
