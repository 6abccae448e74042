"""Sessions of runs on a server: ending those of older epochs, and cutting one of our own that no longer answers."""

import os
import socket
from contextlib import suppress

import psycopg

from vitrina.store.database import Connection
from vitrina.store.leases import Claim


def end_older(connection: Connection, claim: Claim) -> int:
    """Whatever older epochs of this pipeline still have open under our login can only be in the way.

    Never a newer one: a runner that was stopped and woke up must not end the sessions of its successor.
    """
    return connection.execute(
        """
        SELECT pg_catalog.pg_terminate_backend(a.pid)
        FROM pg_catalog.pg_stat_activity a
        WHERE a.usename = current_user AND a.pid <> pg_catalog.pg_backend_pid()
          AND a.application_name LIKE %(ours)s
          AND CASE WHEN split_part(a.application_name, ':', 3) ~ '^[0-9]{1,18}$'
                   THEN split_part(a.application_name, ':', 3)::bigint < %(epoch)s END
        """,
        {"ours": f"vitrina:{claim.pipeline_id}:%", "epoch": claim.epoch},
    ).rowcount


def cut(connection: Connection) -> None:
    """Break a connection from another thread: whoever waits for it is woken with an error, at once."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)


class Line:
    """A handle by which a connection can be cut even while its owner is closing it.

    It keeps a descriptor of its own: the connection's number may be given to another file at any time.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._socket: socket.socket | None = socket.socket(fileno=os.dup(connection.fileno()))

    @property
    def is_busy(self) -> bool:
        """A statement was sent and its answer is not complete."""
        return self.connection.pgconn.transaction_status == psycopg.pq.TransactionStatus.ACTIVE

    def cut(self) -> None:
        line = self._socket
        with suppress(OSError):
            if line is not None:
                line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        line, self._socket = self._socket, None
        if line is not None:
            line.close()
