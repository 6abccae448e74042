"""The API's connections to the metastore: few, short-lived in use, and never waiting for long."""

from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool

from vitrina.settings import Settings
from vitrina.store import database
from vitrina.store.database import Connection

Pool = ConnectionPool[Connection]

# A request that cannot be served soon is better refused: its client is waiting.
_LIMITS = {"statement_timeout": "30s", "lock_timeout": "10s", "idle_in_transaction_session_timeout": "30s"}


def make_pool(settings: Settings, *, max_connections: int = 16, timeout_seconds: float = 5.0) -> Pool:
    """Not open yet. A metastore that is away makes requests fail with 503, not the process."""
    session = database.SESSION | _LIMITS
    options = database.options_of(session)
    return ConnectionPool(
        settings.require_database_url(),
        connection_class=Connection,
        kwargs={
            "autocommit": True,
            "row_factory": dict_row,
            "connect_timeout": settings.connect_timeout_seconds,
            "application_name": "vitrina:api",
            "options": options,
            **database.TRANSPORT,
        },
        min_size=1,
        max_size=max_connections,
        timeout=timeout_seconds,
        # A connection may have died while it lay in the pool: the server was restarted.
        check=ConnectionPool.check_connection,
        configure=_configure,
        open=False,
        name="vitrina-api",
    )


def _configure(connection: Connection) -> None:
    database.settle(connection)
    database.read_json_cut(connection)
    database.read_any_time(connection)
