"""Limit how long a server may leave a short exchange unanswered, before a run and its watchdog know the session."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg


@contextmanager
def cut_after(connection: psycopg.Connection[Any], seconds: float) -> Iterator[None]:
    """Cut the connection if the block takes longer; the statement in it then fails as after any lost connection.

    The kernel does not notice a peer that acknowledges packets and never replies, such as a firewall that has lost its
    server.
    """
    # A duplicate descriptor: the connection's number may be reused by the time the timer fires.
    with socket.socket(fileno=os.dup(connection.fileno())) as sock:
        timer = threading.Timer(seconds, _shut_down, [sock])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _shut_down(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
