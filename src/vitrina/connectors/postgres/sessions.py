"""Sessions on sources and targets, opened under the name that a pipeline's author knows them by."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import structlog
from psycopg.sql import Identifier

from vitrina.connectors.postgres import catalog
from vitrina.connectors.postgres.source import SqlReader
from vitrina.definition import Definition
from vitrina.errors import CannotConnect, ConfigError
from vitrina.sentences import say
from vitrina.settings import DEFAULT_CONNECTION, Settings
from vitrina.store import database, pooling
from vitrina.store.database import Connection

# Somebody waits for a preview, or for names to complete.
WAITED_FOR_SECONDS = 30.0
_WAITED_FOR_LIMITS = {
    "lock_timeout": "5000",
    "idle_in_transaction_session_timeout": "60000",
}

# The driver's words, cut down to what tells no address, login or database.
_REASONS = (
    ("authentication failed", "its login was refused"),
    ("no pg_hba.conf entry", "its login was refused"),
    ("does not exist", "its login or database does not exist"),
    ("Connection refused", "nothing listens there"),
    ("timeout", "it did not answer in time"),
    ("too many", "it has no connections left"),
    ("could not translate host name", "its host name is unknown"),
    ("starting up", "it is starting up"),
    ("shutting down", "it is shutting down"),
)


def connect(
    settings: Settings, url: str, name: str | None, application_name: str, session: Mapping[str, str]
) -> Connection:
    """A session on the named connection. Authors see its errors, so they say which it is, not where it is."""
    with _named(name):
        return database.connect(
            url,
            application_name,
            connect_timeout_seconds=settings.connect_timeout_seconds,
            settings=dict(session),
        )


def find_timezone(settings: Settings, url: str, name: str | None, application_name: str) -> str:
    """The zone in which sessions of the named connection write times, unless they say otherwise."""
    with _named(name):
        return database.find_timezone(url, application_name, connect_timeout_seconds=settings.connect_timeout_seconds)


@contextmanager
def _named(name: str | None) -> Iterator[None]:
    try:
        yield
    except CannotConnect as exc:
        called = name or DEFAULT_CONNECTION
        structlog.get_logger().warning("connection.failed", connection=called, error=exc.message)
        if pooling.TRANSACTION_MODE in exc.message:  # trying again would not help
            raise ConfigError(
                f"the connection {called!r} is behind {pooling.TRANSACTION_MODE}; it needs session mode"
            ) from None
        why = next((words for said, words in _REASONS if said in exc.message), "the runner's log says why")
        raise CannotConnect(say("run.cannot_connect", connection=called, why=why)) from None


def preview_reader(definition: Definition, settings: Settings) -> AbstractContextManager[SqlReader]:
    """The reader of somebody who looks at a pipeline's rows without running it."""
    # Beside a source of another kind, the default database answers the queries of steps that look things up.
    name = definition.source_connection if definition.reads_postgres else DEFAULT_CONNECTION
    return waited_for(name, settings, f"vitrina:preview:{definition.name}")


@contextmanager
def waited_for(source_connection: str | None, settings: Settings, name: str) -> Iterator[SqlReader]:
    """A reader on the named connection for somebody who waits for the answer."""
    url = database.reader_url(settings, source_connection)
    seconds = min(WAITED_FOR_SECONDS, settings.statement_timeout_on(source_connection))
    session = _WAITED_FOR_LIMITS | {"statement_timeout": str(int(seconds * 1000))} | database.READ_ONLY
    with with_extensions(
        settings, lambda more: connect(settings, url, source_connection, name, session | dict(more))
    ) as connection:
        yield SqlReader(connection, url, name)


def with_extensions(settings: Settings, connected: Callable[[Mapping[str, str]], Connection]) -> Connection:
    """A reader's session in which operators and types of trusted extensions are found, wherever they were installed.

    Only schemas in which PUBLIC may create nothing enter the search_path: anybody else could put a function there that
    fits a call better than the one that was meant. Settings come with the login, so that nothing resets them.
    """
    connection = connected({})
    schemas = catalog.schemas_of_extensions(connection, settings.extensions) if settings.extensions else []
    if not schemas:
        return connection
    connection.close()
    return connected({"search_path": ", ".join(Identifier(schema).as_string(None) for schema in schemas)})
