"""Run an HTTP proxy in front of a search server that answers for it, delays requests or changes its bulk replies."""

import contextlib
import gzip
import http.client
import json
import random
import ssl
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


@dataclass
class Request:
    """Hold a request as the client sent it, with its body decompressed."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    client_port: int = 0

    @property
    def is_bulk(self) -> bool:
        return "/_bulk" in self.path


@dataclass
class Answer:
    """Hold what is returned to the client."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "application/json"})
    stream: Generator[bytes] | None = None  # passed on as it arrives, instead of a body


class DropConnection(Exception):
    """Close the client's connection without an answer."""


Forward = Callable[[Request], Answer]


class HttpFault:
    """Apply to a number of bulk requests after the first few; everything else passes."""

    def __init__(self, times: int = 1_000_000_000, *, passing: int = 0) -> None:
        self._passing = passing
        self._left = times
        self._lock = threading.Lock()
        self.happened = 0

    def handle(self, request: Request, forward: Forward) -> Answer:
        if not request.is_bulk or not self._takes():
            return forward(request)
        return self.spoil(request, forward)

    def spoil(self, request: Request, forward: Forward) -> Answer:
        raise NotImplementedError

    def _takes(self) -> bool:
        with self._lock:
            if self._passing > 0:
                self._passing -= 1
                return False
            if self._left <= 0:
                return False
            self._left -= 1
            self.happened += 1
            return True


class AnswerInstead(HttpFault):
    """Answer in place of the server, as if busy or a proxy (429, 502, 503, 504, 413): it never sees the request."""

    def __init__(self, status: int, times: int, *, error_type: str = "made_up_exception") -> None:
        super().__init__(times)
        self._answer = Answer(
            status, json.dumps({"error": {"type": error_type, "reason": "made up"}, "status": status}).encode()
        )

    def spoil(self, request: Request, forward: Forward) -> Answer:
        return self._answer


class TooLarge(HttpFault):
    """Answer 413 to every request above a size, as a proxy with a body limit does."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__()
        self._limit_bytes = limit_bytes

    def spoil(self, request: Request, forward: Forward) -> Answer:
        if len(request.body) > self._limit_bytes:
            return Answer(413, b"<html>Request Entity Too Large</html>", {"content-type": "text/html"})
        return forward(request)


class LoseReply(HttpFault):
    """Pass the request to the server, then break the client's connection before the reply."""

    def spoil(self, request: Request, forward: Forward) -> Answer:
        forward(request)
        raise DropConnection


class CutReplyShort(HttpFault):
    """Pass the request to the server; the reply has status 200 and ends in the middle of its items."""

    def spoil(self, request: Request, forward: Forward) -> Answer:
        answer = forward(request)
        body = json.loads(answer.body)
        body["items"] = body["items"][: len(body["items"]) // 2]
        return Answer(answer.status, json.dumps(body).encode())


class Stall(HttpFault):
    """Delay the reply."""

    def __init__(self, seconds: float, times: int) -> None:
        super().__init__(times)
        self._seconds = seconds

    def spoil(self, request: Request, forward: Forward) -> Answer:
        answer = forward(request)
        time.sleep(self._seconds)
        return answer


class Together(HttpFault):
    """Answer only when this many requests are open at once; `met` records that they were."""

    PATIENCE_SECONDS = 30.0  # less than a client's timeout, and more than clients that send together need

    def __init__(self, count: int) -> None:
        super().__init__(times=count)
        self._meeting = threading.Barrier(count)
        self.met = False

    def spoil(self, request: Request, forward: Forward) -> Answer:
        with contextlib.suppress(threading.BrokenBarrierError):
            self._meeting.wait(self.PATIENCE_SECONDS)
            self.met = True
        return forward(request)


class Hold(HttpFault):
    """Hold back a request: the client's connection breaks, and the server gets the request on `release`."""

    def __init__(self, times: int = 1, *, passing: int = 0) -> None:
        super().__init__(times, passing=passing)
        self._held: list[tuple[Request, Forward]] = []

    def spoil(self, request: Request, forward: Forward) -> Answer:
        self._held.append((request, forward))
        raise DropConnection

    def release(self) -> list[Answer]:
        return [forward(request) for request, forward in self._held]


class FailItems(HttpFault):
    """Reply 200 with some failed items; those documents really were not applied."""

    def __init__(
        self, share: float, status: int, error_type: str, *, times: int = 1_000_000_000, seed: int = 1
    ) -> None:
        super().__init__(times)
        self._share = share
        self._error = {"type": error_type, "reason": "made up"}
        self._status = status
        self._random = random.Random(seed)
        self.failed_items = 0

    def spoil(self, request: Request, forward: Forward) -> Answer:
        actions = split_actions(request.body)
        with self._lock:
            fails = [self._random.random() < self._share for _ in actions]
        self.failed_items += sum(fails)
        taken = [lines for lines, failed in zip(actions, fails, strict=True) if not failed]
        items: list[Any] = []
        if taken:
            answer = forward(Request(request.method, request.path, request.headers, b"".join(taken)))
            if answer.status != 200:
                return answer
            items = json.loads(answer.body)["items"]
        replies = iter(items)
        merged = [
            {_action(lines): {"status": self._status, "error": self._error}} if failed else next(replies)
            for lines, failed in zip(actions, fails, strict=True)
        ]
        return Answer(200, json.dumps({"errors": any(fails), "items": merged}).encode())


def split_actions(body: bytes) -> list[bytes]:
    """Split into the lines of each action; a delete has one, the others two."""
    actions: list[bytes] = []
    lines = iter(body.splitlines(keepends=True))
    for line in lines:
        actions.append(line if _action(line) == "delete" else line + next(lines))
    return actions


def _action(lines: bytes) -> str:
    return str(next(iter(json.loads(lines.partition(b"\n")[0]))))


_PASSED_BACK = ("content-type", "idempotent-replayed")


def _pieces(connection: http.client.HTTPConnection, reply: http.client.HTTPResponse) -> Generator[bytes]:
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        while piece := reply.read1(65536):
            yield piece


class HttpFaultProxy:
    """Proxy a search server on loopback; `fault` applies to bulk requests from now on.

    `requests` records every request; with `tls` the proxy speaks HTTPS to the client.
    """

    def __init__(self, server_port: int, *, tls: ssl.SSLContext | None = None) -> None:
        self.fault: HttpFault | None = None
        self.requests: list[Request] = []
        self.server_port = server_port
        self._http = _QuietServer(("127.0.0.1", 0), self._handler())
        if tls:
            self._http.socket = tls.wrap_socket(self._http.socket, server_side=True)
        self.port: int = self._http.server_address[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"

    def __enter__(self) -> "HttpFaultProxy":
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()

    @property
    def bulk_requests(self) -> list[Request]:
        return [request for request in self.requests if request.is_bulk]

    def heal(self) -> None:
        self.fault = None

    def _answer(self, request: Request) -> Answer:
        self.requests.append(request)
        fault = self.fault
        return fault.handle(request, self._forward) if fault else self._forward(request)

    def _forward(self, request: Request) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.server_port, timeout=60)
        dropped = ("host", "content-length", "content-encoding", "connection", "accept-encoding")
        headers = {name: value for name, value in request.headers.items() if name not in dropped}
        try:
            connection.request(request.method, request.path, body=request.body or None, headers=headers)
            reply = connection.getresponse()
            told = {name: value for name in _PASSED_BACK if (value := reply.getheader(name)) is not None}
            if told.get("content-type", "").startswith("text/event-stream"):
                return Answer(reply.status, b"", told, stream=_pieces(connection, reply))
            answer = Answer(reply.status, reply.read(), {"content-type": "application/json"} | told)
        except (OSError, http.client.HTTPException) as exc:
            connection.close()
            raise DropConnection from exc
        connection.close()
        return answer

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        answer = self._answer

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                headers = {name.lower(): value for name, value in self.headers.items()}
                try:
                    reply = answer(Request(self.command, self.path, headers, body, self.client_address[1]))
                except DropConnection:
                    self.close_connection = True
                    return
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                if reply.stream is not None:
                    self.pass_on(reply.stream)
                    return
                self.send_header("content-length", str(len(reply.body)))
                self.end_headers()
                self.wfile.write(reply.body)

            def pass_on(self, stream: Generator[bytes]) -> None:
                self.send_header("connection", "close")
                self.end_headers()
                with contextlib.suppress(OSError), contextlib.closing(stream):
                    for piece in stream:
                        self.wfile.write(piece)
                        self.wfile.flush()

            do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = handle_any  # noqa: N815  names required by the base class

            def log_message(self, format: str, *arguments: Any) -> None:
                """Do nothing: tests read `requests` instead."""

        return Handler


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: these tests are about clients that give up."""
