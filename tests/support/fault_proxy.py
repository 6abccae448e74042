"""Run a TCP proxy on loopback that misbehaves on request, for any protocol including that of Postgres."""

import contextlib
import re
import socket
import struct
import threading
import time
from collections.abc import Callable
from types import TracebackType

CHUNK_BYTES = 64 * 1024

# Statements that Vitrina prepares in a session: their names in Parse, with the text, and in Bind, without.
_PREPARED = re.compile(rb"(vitrina_\d+)\0([^\0]+)\0")
_EXECUTED = re.compile(rb"\0(vitrina_\d+)\0")


class Fault:
    """Decide how the proxy treats traffic. Each method returns what to pass on, or None to reset the connection."""

    def accepts(self) -> bool:
        return True

    def to_server(self, data: bytes, link: "Link") -> bytes | None:
        return data

    def to_client(self, data: bytes, link: "Link") -> bytes | None:
        return data


class Refuse(Fault):
    """Refuse new clients, as if no server were listening; open connections continue."""

    def accepts(self) -> bool:
        return False


class BlackHole(Fault):
    """Accept bytes on old and new connections and never return any, until the proxy is healed."""

    def to_server(self, data: bytes, link: "Link") -> bytes | None:
        return b""

    def to_client(self, data: bytes, link: "Link") -> bytes | None:
        return b""


class Slow(Fault):
    """Delay every piece of a reply."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def to_client(self, data: bytes, link: "Link") -> bytes | None:
        time.sleep(self._seconds)
        return data


class ResetAfter(Fault):
    """Reset each connection after a number of bytes of replies."""

    def __init__(self, reply_bytes: int) -> None:
        self._reply_bytes = reply_bytes

    def to_client(self, data: bytes, link: "Link") -> bytes | None:
        return None if link.bytes_to_client + len(data) > self._reply_bytes else data


class CutReply(Fault):
    """Pass a request that `matches` to the server, then break the client's connection before the reply."""

    def __init__(self, matches: Callable[[bytes], bool], times: int = 1) -> None:
        self._matches = matches
        self._left = times
        self._armed: set[Link] = set()
        self._lock = threading.Lock()

    @property
    def happened(self) -> bool:
        return self._left == 0 and not self._armed

    def to_server(self, data: bytes, link: "Link") -> bytes | None:
        with self._lock:
            if self._left and self._matches(data):
                self._left -= 1
                self._armed.add(link)
        return data

    def to_client(self, data: bytes, link: "Link") -> bytes | None:
        with self._lock:
            if link not in self._armed:
                return data
            self._armed.discard(link)
            return None


class Link:
    """Represent one client's connection through the proxy."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.bytes_to_client = 0
        self._prepared: dict[bytes, bytes] = {}

    def learn(self, data: bytes) -> None:
        """Remember the texts of statements that the client prepares."""
        if b"vitrina_" in data:
            self._prepared.update(_PREPARED.findall(data))

    def executes(self, data: bytes, text: bytes) -> bool:
        """Return whether the client sends a statement that contains the text, or executes one prepared before."""
        return text in data or any(text in self._prepared.get(name, b"") for name in _EXECUTED.findall(data))

    def reset(self) -> None:
        """Close both sides immediately; the client sees a reset rather than an orderly end."""
        for side in (self.client, self.server):
            with contextlib.suppress(OSError):
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            # Wakes a thread that is blocked in recv on it; close alone does not.
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
            side.close()


class TcpFaultProxy:
    """Proxy a server on loopback; `fault` decides what happens to traffic from now on.

    with TcpFaultProxy(server_port) as proxy:
        proxy.fault = CutReply(lambda data: b"COMMIT" in data)
    """

    def __init__(self, server_port: int) -> None:
        self.fault = Fault()
        self._server_port = server_port
        self._links: set[Link] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> "TcpFaultProxy":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A thread blocked in accept keeps a merely closed socket alive.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.reset_all()

    def heal(self) -> None:
        self.fault = Fault()

    def reset_all(self) -> None:
        """Break every open connection now."""
        with self._lock:
            links, self._links = self._links, set()
        for link in links:
            link.reset()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if not self.fault.accepts():
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._server_port), timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            self._connect(Link(client, server))

    def _connect(self, link: Link) -> None:
        with self._lock:
            self._links.add(link)
        for pump in (self._pump_to_server, self._pump_to_client):
            threading.Thread(target=pump, args=(link,), daemon=True).start()

    def _pump_to_server(self, link: Link) -> None:
        def passed(data: bytes) -> bytes | None:
            link.learn(data)
            return self.fault.to_server(data, link)

        self._pump(link, link.client, link.server, passed)

    def _pump_to_client(self, link: Link) -> None:
        def passed(data: bytes) -> bytes | None:
            kept = self.fault.to_client(data, link)
            link.bytes_to_client += len(kept or b"")
            return kept

        self._pump(link, link.server, link.client, passed)

    def _pump(
        self, link: Link, source: socket.socket, sink: socket.socket, passed: Callable[[bytes], bytes | None]
    ) -> None:
        try:
            while data := source.recv(CHUNK_BYTES):
                kept = passed(data)
                if kept is None:
                    break
                sink.sendall(kept)
            else:
                with contextlib.suppress(OSError):
                    sink.shutdown(socket.SHUT_WR)  # the other direction may still send
                return
        except OSError:
            pass  # the other side has disconnected
        with self._lock:
            self._links.discard(link)
        link.reset()
