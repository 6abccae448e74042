"""Run a real HTTP receiver on loopback, which records every request and answers as configured."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self


@dataclass(frozen=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """Answer 200, after the statuses in `refusals`, or those of a path in `refusals_at`, are used up."""

    def __init__(self, refusals: list[int] | None = None) -> None:
        self.received: list[Received] = []
        self.refusals = list(refusals or [])
        self.refusals_at: dict[str, list[int]] = {}
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.received.append(Received(self.path, headers, body))
                refusals = receiver.refusals_at.get(self.path, receiver.refusals)
                self.send_response(refusals.pop(0) if refusals else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}{path}"

    def at(self, path: str) -> list[Received]:
        return [one for one in self.received if one.path == path]

    def wait_for(self, enough: Callable[["Receiver"], bool], *, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not enough(self):
            assert time.monotonic() < deadline, f"only {len(self.received)} requests came"
            time.sleep(0.05)
