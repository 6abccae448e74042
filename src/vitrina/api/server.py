"""Configure how the application is served: the options of uvicorn and of its socket, and the limit on connections."""

import asyncio
import re
import resource
import socket
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from vitrina.settings import Settings

# Longer than a load balancer keeps an idle connection: the side that closes first must not be this one, or a
# request that is on its way meets a closed connection.
_KEEP_ALIVE_SECONDS = 75
# Event streams never end by themselves, so a stop must not wait for their clients.
_STOP_SECONDS = 3
# From the connection, or the first byte of a further request, to the end of its headers.
HEADER_SECONDS = 10.0
# Limit of an address with its headers, and of anything between two parts of a body: the parser itself has no limit.
MAX_HEAD_BYTES = 64 * 1024
# The parser refuses methods that are not registered, so it reads another in their place. It is left alone with those
# that it knows well, and with the first word of HTTP/2.
_METHOD = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+(?= )")
_READ_AS_THEY_ARE = frozenset(b"CONNECT DELETE GET HEAD OPTIONS PATCH POST PRI PUT TRACE".split())
_READ_INSTEAD = b"PROPFIND"


def make_server(
    app: ASGIApp, listener: socket.socket, *, settings: Settings | None = None, access_log: bool = False
) -> uvicorn.Server:
    """Make a server, which `server.run(sockets=[listener])` runs."""
    # An answer goes out in two parts. asyncio sets this only on sockets that were made with the protocol's number;
    # without it the second part waits 40 ms for the first one to be acknowledged.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    settings = settings or Settings()
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=_protocol(max_connections(settings)),
            loop="uvloop",
            lifespan="on",  # a failure there must not be mistaken for an application without a lifespan
            log_config=None,
            access_log=access_log,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_STOP_SECONDS,
            # uvicorn would trust any process of this machine.
            proxy_headers=bool(settings.trusted_proxies),
            forwarded_allow_ips=settings.trusted_proxies or None,
        )
    )


def max_connections(settings: Settings) -> int:
    """Limit connections to half of the descriptors that the process may open: the metastore needs some too."""
    may_open, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return settings.api_max_connections if may_open < 0 else max(8, min(settings.api_max_connections, may_open // 2))


def _protocol(most: int) -> type[HttpToolsProtocol]:
    class Bounded(BoundedProtocol):
        most_connections = most

    return Bounded


class BoundedProtocol(HttpToolsProtocol):
    """Close connections on which no request arrives, and keep room for those on which one will.

    A client that only opens connections, or keeps them open after an answer, takes neither descriptors nor slots from
    others. When all slots are taken, the connection that has been without a request for longest is closed.
    """

    most_connections = 500

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._is_waiting = False
        self._idle_since = self.loop.time()
        self._check: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._bytes_without_part = 0
        self._hosts = 0
        self._is_between_messages = True
        self._odd_method: str | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_headers()
        if len(self.connections) > self.most_connections:
            idle = [c for c in self.connections if isinstance(c, BoundedProtocol) and c._can_go]
            # This connection itself, when all others are being served.
            min(idle, key=lambda connection: connection._idle_since).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        # In pieces that are counted: more than one part may have come at once.
        for begin in range(0, len(data), MAX_HEAD_BYTES):
            if self.transport.is_closing():
                return
            self._piece_received(data[begin : begin + MAX_HEAD_BYTES])

    def _piece_received(self, data: bytes) -> None:
        before = self.cycle
        self._bytes_without_part += len(data)
        super().data_received(self._readable(data))
        if self._bytes_without_part > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("Invalid HTTP request received.")
        if self.cycle is not before:
            self._headers_came()
        elif self._is_idle and not self._is_waiting:
            self._await_headers()

    def _readable(self, data: bytes) -> bytes:
        """Replace an unusual method for the parser. The application then refuses it and lists the allowed methods."""
        found = _METHOD.match(data) if self._is_between_messages else None
        self._is_between_messages = False
        if found is None or found[0] in _READ_AS_THEY_ARE:
            return data
        self._odd_method = found[0].decode("ascii")
        return _READ_INSTEAD + data[found.end() :]

    # Callbacks of the parser. An exception here becomes a 400 and ends the connection.

    def on_message_begin(self) -> None:
        self._head_bytes = self._hosts = 0
        self._is_between_messages = False
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value))
        super().on_header(name, value)
        if self.headers[-1][0] == b"host":
            self._hosts += 1

    def on_headers_complete(self) -> None:
        # Two Host headers could bypass a proxy's rules, and HTTP/1.1 requires one.
        if self._hosts > 1 or (self._hosts == 0 and self.parser.get_http_version() == "1.1"):
            raise ValueError("a request must have exactly one Host header")
        self._bytes_without_part = 0
        super().on_headers_complete()
        if self._odd_method is not None:  # the application has not seen the request yet
            self.scope["method"], self._odd_method = self._odd_method, None

    def on_body(self, body: bytes) -> None:
        self._bytes_without_part = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._bytes_without_part = 0
        self._is_between_messages = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        super().on_response_complete()

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError("the head of the request is too large")

    @property
    def _can_go(self) -> bool:
        return self._is_idle and not self.transport.is_closing()

    @property
    def _is_idle(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def _await_headers(self) -> None:
        self._is_waiting = True
        self._check = self.loop.call_later(HEADER_SECONDS, self._give_up)

    def _headers_came(self) -> None:
        self._is_waiting = False
        if self._check is not None:
            self._check.cancel()
            self._check = None

    def _give_up(self) -> None:
        self.transport.close()
