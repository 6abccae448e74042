"""Open the replication connection: start a logical slot, return transactions in pieces, confirm what was stored."""

import select
import time
from struct import Struct

import psycopg
from psycopg import conninfo, pq
from psycopg.pq import abc

from vitrina.connectors.postgres.pgoutput import Begin, Commit, Decoder
from vitrina.errors import CannotConnect, Disconnected, FatalError, FeedLost, TransientError
from vitrina.ports.live import Change, FeedNames, Transaction
from vitrina.settings import Settings
from vitrina.store import database

# Changes in one piece of a transaction: the most that is held in memory at a time.
PIECE = 2_000
# By default the source disconnects a silent receiver after a minute. Ours sets its own timeout, and replies more often.
_SENDER_TIMEOUT = "30s"
_REPLY_SECONDS = 5.0

_KEEPALIVE = Struct("!xqq?")
_STATUS = Struct("!cqqqq?")


class Replication:
    """Implement `Feed` over `START_REPLICATION`. Only one thread may use it."""

    def __init__(self, url: str, names: FeedNames, settings: Settings, decoder: Decoder) -> None:
        self._names = names
        self._decoder = decoder
        self._connection = _connect(url, names, settings)
        self._confirmed = 0
        self._after = 0
        self._position = 0
        self._replied_at = 0.0
        self._begun: Begin | None = None
        self._skips = False
        self._changes: list[Change] = []

    @property
    def position(self) -> int:
        return self._position

    def start(self, after: int) -> None:
        self._after = self._position = self._confirmed = after
        command = (
            f"START_REPLICATION SLOT {self._names.slot} LOGICAL {lsn_text(after)}"
            f" (proto_version '1', publication_names '\"{self._names.publication}\"')"
        )
        result = self._connection.exec_(command.encode())
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise _failure(f"cannot start the slot {self._names.slot}", result)
        self._connection.nonblocking = 1

    def receive(self, seconds: float, wake: int | None = None) -> Transaction | None:
        end = time.monotonic() + seconds
        while True:
            left = end - time.monotonic()
            message = self._next_message(max(0.0, left), wake)
            if message is None:
                return None
            given = self._take(message)
            if given is not None:
                return given

    def confirm(self, upto: int) -> None:
        self._confirmed = max(self._confirmed, upto)
        self._reply()

    def refresh(self) -> None:
        self._decoder.refresh()

    def close(self) -> None:
        self._connection.finish()

    # --- messages ------------------------------------------------------------------------------------------------

    def _next_message(self, seconds: float, wake: int | None) -> bytes | None:
        self._reply_if_due()
        size, data = self._connection.get_copy_data(1)
        if size == 0:
            self._wait(seconds, wake)
            self._connection.consume_input()
            size, data = self._connection.get_copy_data(1)
        if size == 0:
            return None
        if size < 0:
            raise _failure(f"the source ended the slot {self._names.slot}", self._connection.get_result())
        return bytes(data)

    def _wait(self, seconds: float, wake: int | None) -> None:
        """Wait until a message arrives, but not too long to reply: the source would end the connection."""
        others = [] if wake is None else [wake]
        select.select([self._connection.socket, *others], [], [], min(seconds, _REPLY_SECONDS))

    def _take(self, message: bytes) -> Transaction | None:
        if message[0:1] == b"w":
            return self._take_data(message[25:])
        if message[0:1] == b"k":
            upto, _, wants_reply = _KEEPALIVE.unpack_from(message)
            if self._begun is None:
                self._position = max(self._position, upto)
            if wants_reply:
                self._reply()
            return None
        raise FatalError(f"the source sent {message[0:1]!r} in a stream of changes")

    def _take_data(self, payload: bytes) -> Transaction | None:
        decoded = self._decoder.decode(payload)
        if isinstance(decoded, list):
            if not self._skips:
                self._changes += decoded
            return self._piece() if len(self._changes) >= PIECE else None
        if isinstance(decoded, Begin):
            # After a restart the source may send changes again that were stored but not confirmed.
            self._begun, self._skips = decoded, decoded.lsn <= self._after
        elif isinstance(decoded, Commit):
            return self._end(decoded)
        return None

    def _piece(self) -> Transaction:
        changes, self._changes = self._changes, []
        begun = self._begun or Begin(0, 0)
        return Transaction(begun.lsn, begun.xid, changes, last=False)

    def _end(self, commit: Commit) -> Transaction | None:
        last = self._piece()._replace(last=True, upto=commit.upto, committed_at=commit.committed_at)
        self._begun = None
        self._position = max(self._position, commit.upto)
        return None if self._skips else last

    # --- replies -------------------------------------------------------------------------------------------------

    def _reply_if_due(self) -> None:
        if time.monotonic() - self._replied_at >= _REPLY_SECONDS:
            self._reply()

    def _reply(self) -> None:
        """Report up to which position everything is stored; the source may discard its log up to there."""
        self._replied_at = time.monotonic()
        status = _STATUS.pack(b"r", self._confirmed, self._confirmed, self._confirmed, 0, False)
        self._connection.put_copy_data(status)
        self._connection.flush()


def _connect(url: str, names: FeedNames, settings: Settings) -> abc.PGconn:
    """Connect to the walsender of one database, with the session settings that determine how values are written."""
    parameters = {
        **database.TRANSPORT,
        "connect_timeout": settings.connect_timeout_seconds,
        "application_name": names.session,
        "replication": "database",
        "options": database.options_of({**database.SESSION, "wal_sender_timeout": _SENDER_TIMEOUT}),
    }
    with database.translated_connect(url):
        connection = pq.PGconn.connect(conninfo.make_conninfo(url, **parameters).encode())
    if connection.status != pq.ConnStatus.OK:
        said = " ".join(connection.error_message.decode(errors="replace").split())
        connection.finish()
        raise CannotConnect(f"cannot connect to {database.describe(url)}: {database.reason(Exception(said), url)}")
    return connection


# The publication was dropped, even if it was recreated; or the slot's log is no longer available.
_LOST_STATES = (psycopg.errors.UndefinedObject.sqlstate, psycopg.errors.ObjectNotInPrerequisiteState.sqlstate)


def _failure(what: str, result: abc.PGresult | None) -> TransientError:
    said = " ".join(result.error_message.decode(errors="replace").split()) if result else "the connection is closed"
    state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode() if result else ""
    return FeedLost(f"{what}: {said}") if state in _LOST_STATES else Disconnected(f"{what}: {said}")


def lsn_text(lsn: int) -> str:
    """Write a log position as PostgreSQL does."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
