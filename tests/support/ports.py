"""Ports of loopback: for a server that is about to start, or where nobody answers."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_port() -> Iterator[int]:
    """A port that the system gives to nobody else meanwhile. Who connects is refused, who is told to may listen.

    Bound, but not listened on: servers ask for SO_REUSEADDR, and so may share it with us.
    """
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        yield keeper.getsockname()[1]
