"""How the application is served: the options of uvicorn and of its socket, and how many may come, in one place."""

import asyncio
import resource
import socket
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from vitrina.settings import Settings

# Longer than a load balancer keeps an idle connection: the side that closes first must not be this one, or a
# request that is on its way meets a closed door.
_KEEP_ALIVE_SECONDS = 75
# Event streams stay open for ever, so a stop must not wait for their clients.
_STOP_SECONDS = 3
# From the connection, or the first byte of a further request, to the end of its headers.
HEADER_SECONDS = 10.0


def make_server(
    app: FastAPI, listener: socket.socket, *, settings: Settings | None = None, access_log: bool = False
) -> uvicorn.Server:
    """Run it with `server.run(sockets=[listener])`."""
    # An answer goes out in two parts. asyncio sets this only on sockets that were made with the protocol's number;
    # without it the second part waits 40 ms for the first one to be acknowledged.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    settings = settings or Settings()
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=_protocol(max_connections(settings)),
            log_config=None,
            access_log=access_log,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_STOP_SECONDS,
            # uvicorn would believe any process of this machine.
            proxy_headers=bool(settings.trusted_proxies),
            forwarded_allow_ips=settings.trusted_proxies or None,
        )
    )


def max_connections(settings: Settings) -> int:
    """Descriptors are for the metastore, too: half of what the process may have open."""
    may_open, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return settings.api_max_connections if may_open < 0 else max(8, min(settings.api_max_connections, may_open // 2))


def _protocol(most: int) -> type[H11Protocol]:
    class Bounded(BoundedProtocol):
        most_connections = most

    return Bounded


class BoundedProtocol(H11Protocol):
    """Closes connections on which no request arrives, and keeps room for those on which one will.

    Who only opens connections, or keeps them behind an answer, takes neither descriptors nor places from others: when
    all places are taken, the one on which nothing has been asked for longest goes.
    """

    most_connections = 500

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._waits_since: float | None = None
        self._idle_since = self.loop.time()
        self._check: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_headers()
        if len(self.connections) > self.most_connections:
            idle = [c for c in self.connections if isinstance(c, BoundedProtocol) and c._can_go]
            # Itself, when all the others are being served.
            min(idle, key=lambda connection: connection._idle_since).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        if self._is_idle and self._waits_since is None:
            self._await_headers()
        super().data_received(data)
        if self.cycle is not before:
            self._headers_came()

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        super().on_response_complete()

    @property
    def _can_go(self) -> bool:
        return self._is_idle and not self.transport.is_closing()

    @property
    def _is_idle(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def _await_headers(self) -> None:
        self._waits_since = self.loop.time()
        self._check = self.loop.call_later(HEADER_SECONDS, self._give_up)

    def _headers_came(self) -> None:
        self._waits_since = None
        if self._check is not None:
            self._check.cancel()

    def _give_up(self) -> None:
        self.transport.close()
