"""Open sessions under the connection names that authors of pipelines use."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import structlog

from vitrina.errors import CannotConnect, ConfigError
from vitrina.sentences import say
from vitrina.settings import DEFAULT_CONNECTION, Settings
from vitrina.store import database, pooling
from vitrina.store.database import Connection
from vitrina.store.session_pool import SessionPool

# Phrases of the driver's messages that reveal no address, login or database.
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
    settings: Settings,
    url: str,
    name: str | None,
    application_name: str,
    session: Mapping[str, str],
    *,
    pool: SessionPool | None = None,
) -> Connection:
    """Open a session on the named connection. Authors see its errors, which contain its name and not its address."""
    with _named(name):
        return (pool.connect if pool else database.connect)(
            url,
            application_name,
            connect_timeout_seconds=settings.connect_timeout_seconds,
            settings=dict(session),
        )


def find_timezone(settings: Settings, url: str, name: str | None, application_name: str) -> str:
    """Find the time zone in which sessions of the named connection write times by default."""
    with _named(name):
        return database.find_timezone(url, application_name, connect_timeout_seconds=settings.connect_timeout_seconds)


@contextmanager
def _named(name: str | None) -> Iterator[None]:
    try:
        yield
    except CannotConnect as exc:
        called = name or DEFAULT_CONNECTION
        structlog.get_logger().warning("connection.failed", connection=called, error=exc.message)
        if pooling.TRANSACTION_MODE in exc.message:  # a retry would not help
            raise ConfigError(
                f"the connection {called!r} is behind {pooling.TRANSACTION_MODE}; it needs session mode"
            ) from None
        why = next((words for said, words in _REASONS if said in exc.message), "the runner's log says why")
        raise CannotConnect(say("run.cannot_connect", connection=called, why=why)) from None
