"""Lend PostgreSQL sessions to one run: named after its claim, ended with its lease, and reused by later runs.

How many a run may open is in `store/session_limits.py`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

import psycopg

from vitrina.ports.connector import Context
from vitrina.settings import DEFAULT_CONNECTION, Settings
from vitrina.store import named_sessions
from vitrina.store.database import Connection
from vitrina.store.session_pool import SessionPool


class RunSessions:
    """Lend sessions to the parts of one run. Without a pool each is opened, and closed when it is returned."""

    def __init__(self, settings: Settings, session_name: str, context: Context, pool: SessionPool | None) -> None:
        self._settings = settings
        self._name = session_name
        self._context = context
        self._pool = pool

    @contextmanager
    def lend(
        self, url: str, name: str | None, session: Mapping[str, str], *, may_be_kept: Callable[[], bool] = lambda: True
    ) -> Iterator[Connection]:
        """Lend a session on the named connection. It is kept if nothing went wrong and `may_be_kept` allows it."""
        pool = self._pool_of(name)
        connection = named_sessions.connect(self._settings, url, name, self._name, session, pool=pool)
        self._context.guard(connection)
        keep = False
        try:
            yield connection
            keep = may_be_kept()
        finally:
            # Release it from the lease first: a lease that is over must not end the session of another run.
            keep = self._context.let_go(connection) and keep
            if pool:
                pool.give_back(connection, keep=keep)
            else:
                with suppress(psycopg.Error):  # it is closed either way
                    connection.close()

    def _pool_of(self, name: str | None) -> SessionPool | None:
        """Return no pool for a limited connection: its idle sessions would not be counted."""
        return None if (name or DEFAULT_CONNECTION).lower() in self._settings.max_connections else self._pool
