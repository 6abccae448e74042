"""End sessions of older epochs on a server, and cut a session that no longer answers."""

import os
import socket
import threading
from contextlib import suppress

import psycopg

from vitrina.store.database import Connection
from vitrina.store.leases import Claim
from vitrina.store.prepared import Statement


def end_older(connection: Connection, claim: Claim) -> int:
    """End the sessions that older epochs of this pipeline still have open under our login: they could only block us.

    Never end a newer one: a runner that was suspended and resumed must not end the sessions of its successor.
    """
    return _END_OLDER.execute(connection, {"ours": f"vitrina:{claim.pipeline_id}:%", "epoch": claim.epoch})


_END_OLDER = Statement(
    b"""
    SELECT pg_catalog.pg_terminate_backend(a.pid)
    FROM pg_catalog.pg_stat_activity a
    WHERE a.usename = current_user AND a.pid <> pg_catalog.pg_backend_pid()
      AND a.application_name LIKE %(ours)s
      AND CASE WHEN split_part(a.application_name, ':', 3) ~ '^[0-9]{1,18}$'
               THEN split_part(a.application_name, ':', 3)::bigint < %(epoch)s END
    """
)


def cut(connection: Connection) -> None:
    """Break a connection from another thread; the thread that waits for it gets an error immediately."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as sock:
        sock.shutdown(socket.SHUT_RDWR)


class SessionHandle:
    """Cancel or cut a connection, even while its owner is closing it.

    It holds a duplicate descriptor, because the connection's number may be reused for another file at any time. Once
    closed, it has no effect: the connection may serve another run by then.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._socket: socket.socket | None = socket.socket(fileno=os.dup(connection.fileno()))
        self._lock = threading.Lock()
        self._was_disturbed = False

    @property
    def is_busy(self) -> bool:
        """Return whether a statement was sent whose answer is not complete."""
        return self.connection.pgconn.transaction_status == psycopg.pq.TransactionStatus.ACTIVE

    def cancel(self, timeout_seconds: float) -> None:
        """Ask the server to cancel the running statement. The watchdog cuts a connection that stays busy."""
        with self._lock:
            if self._socket is None or not self.is_busy:
                return
            self._was_disturbed = True
            with suppress(psycopg.Error):
                self.connection.cancel_safe(timeout=timeout_seconds)

    def cut(self) -> None:
        # Without the lock: a thread that waits for a server which accepts no cancel has to be woken.
        self._was_disturbed = True
        sock = self._socket
        with suppress(OSError):
            if sock is not None:
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> bool:
        """Release the connection.

        Return False if it was cancelled or cut, so that nothing more should be sent on it.
        """
        with self._lock:
            sock, self._socket = self._socket, None
        if sock is not None:
            sock.close()
        return not self._was_disturbed
