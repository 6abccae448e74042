"""How the application is served: the options of uvicorn and of its socket, in one place."""

import socket

import uvicorn
from fastapi import FastAPI

# Longer than a load balancer keeps an idle connection: the side that closes first must not be this one, or a
# request that is on its way meets a closed door.
_KEEP_ALIVE_SECONDS = 75
# Event streams stay open for ever, so a stop must not wait for their clients.
_STOP_SECONDS = 3


def make_server(app: FastAPI, listener: socket.socket, *, access_log: bool = False) -> uvicorn.Server:
    """Run it with `server.run(sockets=[listener])`."""
    # An answer goes out in two parts. asyncio sets this only on sockets that were made with the protocol's number;
    # without it the second part waits 40 ms for the first one to be acknowledged.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return uvicorn.Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=access_log,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_STOP_SECONDS,
        )
    )
