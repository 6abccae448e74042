"""Reserve loopback ports, for a server that is about to start or where no server answers."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_port() -> Iterator[int]:
    """Reserve a port. Connections to it are refused, and a server that is given it may listen on it.

    The port is bound, but not listened on. Servers set SO_REUSEADDR, so they can share it.
    """
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        yield keeper.getsockname()[1]
