"""Share one session of a runner for telemetry: log lines of runs, notifications and metrics use it in turn."""

import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg

from vitrina.errors import CannotConnect
from vitrina.settings import Settings
from vitrina.store import database, sessions
from vitrina.store.database import Connection

# A monitoring server waits ten seconds for a scrape, so an unavailable metastore must be reported before that.
CONNECT_SECONDS = 3
STATEMENT_SECONDS = 4
PATIENCE_SECONDS = 6.0
CLOSE_SECONDS = 1.0


class SharedSession:
    """Keep one session open, because logging in costs both sides twenty times as much as one use.

    One caller at a time uses it, for milliseconds. A caller that waits too long cuts off the one before it, so that a
    server that never answers cannot block everything permanently.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._session: Connection | None = None
        self._taken = threading.Lock()

    @contextmanager
    def turn(self) -> Iterator[Connection]:
        """Lend the session.

        Raise `CannotConnect` or the driver's error if the metastore is unavailable; the next call reconnects.
        """
        if not self._taken.acquire(timeout=PATIENCE_SECONDS):
            self._cut()
            raise CannotConnect(f"the metastore has not answered for {PATIENCE_SECONDS:g} s")
        try:
            yield self._opened()
        except psycopg.Error:
            self._leave()
            raise
        finally:
            self._taken.release()

    def close(self) -> None:
        if self._taken.acquire(timeout=CLOSE_SECONDS):
            self._leave()
            self._taken.release()
        else:
            self._cut()

    def _opened(self) -> Connection:
        if self._session and _is_over(self._session):
            self._leave()
        if self._session is None:
            session = database.connect(
                self._settings.require_database_url(),
                "vitrina:lookout",
                connect_timeout_seconds=CONNECT_SECONDS,
                settings={"statement_timeout": str(STATEMENT_SECONDS * 1000), "lock_timeout": "2000"},
            )
            database.read_json_cut(session)
            self._session = session
        return self._session

    def _leave(self) -> None:
        session, self._session = self._session, None
        if session:
            with suppress(psycopg.Error):
                session.close()

    def _cut(self) -> None:
        session = self._session
        if session:
            sessions.cut(session)


def _is_over(session: Connection) -> bool:
    """Return whether the server closed the session; it sends nothing else to an idle session."""
    if session.closed:
        return True
    line = select.poll()
    line.register(session.fileno(), select.POLLIN)
    return bool(line.poll(0))
