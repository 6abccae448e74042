"""Keep the sessions that runs have finished with: a new one costs the server a process, a login and cold caches."""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import psycopg
from psycopg.pq import TransactionStatus

from vitrina.errors import CannotConnect
from vitrina.store import answer_limit, database
from vitrina.store.database import Connection
from vitrina.store.prepared import PreparingConnection, Statement, prepare_once

# Name of sessions that no run holds. Runs rename theirs, so ending the sessions of older runs spares these.
IDLE_NAME = "vitrina:kept"
# Older sessions are closed: their caches have grown, and their login may have been changed.
MAX_AGE_SECONDS = 600.0
# Removes what a run may have left. RESET ALL restores the settings of the login, including IDLE_NAME.
RESET = """
    CLOSE ALL; RESET SESSION AUTHORIZATION; RESET ROLE; UNLISTEN *; SELECT pg_catalog.pg_advisory_unlock_all();
    DISCARD TEMP; DISCARD SEQUENCES; RESET ALL
"""


@dataclass(frozen=True)
class Login:
    """Hold what a session was opened with; only a run that needs the same may reuse it."""

    url: str = field(repr=False)
    settings: frozenset[tuple[str, str]]


@dataclass
class _Session:
    connection: Connection
    opened_at: float
    # How long its server may take to answer while no run watches the session.
    answer_seconds: float
    idle_since: float = 0.0


class SessionPool:
    """Hold the sessions of one runner that no run holds now. Any thread may use it."""

    def __init__(self, *, most: int, idle_seconds: float) -> None:
        self._most = most
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._idle: dict[Login, list[_Session]] = {}
        self._taken: dict[int, tuple[Login, _Session]] = {}
        self._closed = False

    def connect(
        self, url: str, application_name: str, *, connect_timeout_seconds: int, settings: dict[str, str]
    ) -> Connection:
        """Return a kept session with these settings, or open one. Nothing of an earlier run is left in it."""
        login = Login(url, frozenset(settings.items()))
        while (found := self._take_idle(login)) is not None:
            if _rename(found, application_name):
                self._note_taken(login, found)
                return found.connection
        session = self._open(login, connect_timeout_seconds)
        with database.translated_connect(url):
            _settle(session, application_name)
        self._note_taken(login, session)
        return session.connection

    def _open(self, login: Login, connect_timeout_seconds: int) -> _Session:
        """Open a session. If the server refuses it, close the idle ones there: they count for its limits."""
        try:
            connection = _connect(login, connect_timeout_seconds)
        except CannotConnect:
            if not self._close_idle(_address(login)):
                raise
            connection = _connect(login, connect_timeout_seconds)
        return _Session(connection, time.monotonic(), connect_timeout_seconds)

    def give_back(self, connection: Connection, *, keep: bool) -> None:
        """Take back a session from a run. It is closed if its state is in doubt."""
        with self._lock:
            login, session = self._taken.pop(id(connection))
        keep = keep and self._idle_seconds > 0 and self._is_wanted(session)
        if not (keep and _is_at_rest(connection) and _reset(session)):
            _close(connection)
            return
        session.idle_since = time.monotonic()
        with self._lock:
            kept = not self._closed and self._count_idle() < self._most
            if kept:
                self._idle.setdefault(login, []).append(session)
        if not kept:
            _close(connection)

    def close_unused(self) -> None:
        """Close sessions that have been idle for too long. The runner calls this regularly."""
        now = time.monotonic()
        with self._lock:
            unused = list(self._pop_unused(now))
        for session in unused:
            _close(session.connection)

    def close(self) -> None:
        """Close every idle session, and from now on each one that is returned."""
        with self._lock:
            self._closed = True
        self._close_idle()

    def _close_idle(self, address: str | None = None) -> int:
        """Close every idle session, or those at one address. Return how many there were."""
        with self._lock:
            logins = [login for login in self._idle if address in (None, _address(login))]
            sessions = [session for login in logins for session in self._idle.pop(login)]
        for session in sessions:
            _close(session.connection)
        return len(sessions)

    def _take_idle(self, login: Login) -> _Session | None:
        """Take the most recently used session: its caches are the warmest."""
        self.close_unused()
        with self._lock:
            sessions = self._idle.get(login)
            return sessions.pop() if sessions else None

    def _note_taken(self, login: Login, session: _Session) -> None:
        with self._lock:
            self._taken[id(session.connection)] = (login, session)

    def _pop_unused(self, now: float) -> Iterator[_Session]:
        for login, sessions in list(self._idle.items()):
            used = [each for each in sessions if now - each.idle_since < self._idle_seconds and self._is_wanted(each)]
            yield from (each for each in sessions if each not in used)
            if used:
                self._idle[login] = used
            else:
                del self._idle[login]

    def _is_wanted(self, session: _Session) -> bool:
        return time.monotonic() - session.opened_at < MAX_AGE_SECONDS

    def _count_idle(self) -> int:
        return sum(map(len, self._idle.values()))


def _address(login: Login) -> str:
    return urlsplit(login.url).netloc.rpartition("@")[2]


def _connect(login: Login, connect_timeout_seconds: int) -> Connection:
    connection = database.connect(
        login.url,
        IDLE_NAME,
        connect_timeout_seconds=connect_timeout_seconds,
        settings=dict(login.settings),
        kind=PreparingConnection,
    )
    prepare_once(connection)
    return connection


def _rename(session: _Session, application_name: str) -> bool:
    """Assign an idle session to a run. Return False if it has ended in the meantime, or its server does not answer."""
    try:
        _settle(session, application_name)
    except psycopg.Error:
        _close(session.connection)
        return False
    return True


def _settle(session: _Session, application_name: str) -> None:
    """Apply what cannot be sent on connecting, and set the name of a run."""
    with answer_limit.cut_after(session.connection, session.answer_seconds):
        row = _SETTLE_AS.get_one(session.connection, [application_name[:63]])
        database.settled_as(session.connection, row)


_SETTLE_AS = Statement(
    f"{database.SETTLE} UNION ALL SELECT pg_catalog.set_config('application_name', %s, false)".encode()
)


def _reset(session: _Session) -> bool:
    connection = session.connection
    try:
        # What the driver says with BEGIN.
        connection.read_only = connection.isolation_level = connection.deferrable = None
        with answer_limit.cut_after(connection, session.answer_seconds):
            connection.execute(RESET)
    except psycopg.Error:
        return False
    return _is_at_rest(connection)


def _is_at_rest(connection: Connection) -> bool:
    return not connection.closed and connection.info.transaction_status == TransactionStatus.IDLE


def _close(connection: Connection) -> None:
    with suppress(psycopg.Error):  # it is closed either way
        connection.close()
