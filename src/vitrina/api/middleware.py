"""Wrap every request: request id, limit on the body, security headers, one log line, metrics and trace."""

import asyncio
import os
import re
import time
from collections.abc import Iterable
from functools import cache

import structlog
from prometheus_client import CollectorRegistry, Histogram
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitrina.observe import logs, tracing
from vitrina.observe.tracing import OpenSpan, Tracing

log = structlog.get_logger("vitrina.api")

MAX_BODY_BYTES = 8 * 1024 * 1024
# Time for a whole body, from its first byte to its last.
BODY_SECONDS = 60.0
_DRAINED_BYTES = 8 * MAX_BODY_BYTES
# Programs call these every few seconds; traces of them would hide the others.
_UNTRACED = frozenset({"/health", "/livez", "/metrics", "/readyz"})
# A client may send any word as a method, and every label value is kept until the process ends.
_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.\-]{1,100}")

# The console is served from here and loads nothing from other hosts.
_PAGE_POLICY = (
    "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; base-uri 'none';"
    " form-action 'self'; frame-ancestors 'none'; object-src 'none'"
)
# As they are sent.
_SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", _PAGE_POLICY.encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class RequestContextMiddleware:
    """The only middleware: plain ASGI, so that streams stay streams."""

    def __init__(self, app: ASGIApp, registry: CollectorRegistry | None, tracing: Tracing | None = None) -> None:
        self._app = app
        self._tracing = tracing
        self._seconds = Histogram(
            "vitrina_http_request_duration_seconds",
            "Time to answer a request.",
            ["method", "route", "status"],
            registry=registry,
        )
        # There are few routes, methods and statuses, and looking up the labels takes longer than counting.
        self._seconds_of = cache(self._seconds.labels)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Of headers that are sent twice the first counts, as everywhere else.
        headers = dict(reversed(scope["headers"]))
        request_id = _request_id(headers.get(b"x-request-id", b"").decode("latin-1"))
        traceparent = tracing.acceptable(headers.get(b"traceparent", b"").decode("latin-1"))
        span = self._begin_span(scope, traceparent)
        told = span.traceparent if span else traceparent
        scope.setdefault("state", {}).update(request_id=request_id, traceparent=told)
        exchange = _Exchange(receive, send, request_id, headers.get(b"content-length", b""))
        started = time.perf_counter()
        names = {"request_id": request_id} | ({"trace_id": tracing.trace_id_of(told)} if told else {})
        bound = structlog.contextvars.bind_contextvars(**names)
        try:
            await self._app(scope, exchange.receive, exchange.send)
        finally:
            self._tell(scope, exchange.status, time.perf_counter() - started)
            if span:
                _end_span(span, scope, exchange.status)
            structlog.contextvars.reset_contextvars(**bound)

    def _begin_span(self, scope: Scope, traceparent: str | None) -> OpenSpan | None:
        if self._tracing is None or scope["path"] in _UNTRACED:
            return None
        return self._tracing.begin_request(scope["method"], scope["path"], traceparent)

    def _tell(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._seconds_of(method, route, status).observe(seconds)
        quiet = scope["method"] in ("GET", "HEAD") and status < 400
        if quiet and not logs.is_heard("debug"):
            return
        (log.debug if quiet else log.info)(
            "api.request",
            method=scope["method"],
            path=scope["path"],
            status=status,
            duration_ms=round(seconds * 1000, 1),
            caller=getattr(scope["state"].get("caller"), "name", None),
        )


class _Exchange:
    """Represent one request and its answer."""

    def __init__(self, receive: Receive, send: Send, request_id: str, length: bytes) -> None:
        self._receive, self._send, self._request_id = receive, send, request_id
        self._announced = int(length) if length.isdigit() else 0
        self._received = 0
        self._is_whole = False
        self._body_until: float | None = None
        self.status = 500

    async def receive(self) -> Message:
        message = await self._receive_in_time()
        self._received += len(message.get("body", b""))
        if max(self._received, self._announced) > MAX_BODY_BYTES:
            await self._let_it_finish(message)
            raise HTTPException(413)
        return message

    async def _receive_in_time(self) -> Message:
        """Receive the body within `BODY_SECONDS`. After it, wait for the end of the connection without a limit."""
        if self._is_whole:
            return await self._receive()
        # The time starts when the application asks for the body: the client is not responsible for what happens before.
        self._body_until = self._body_until or asyncio.get_running_loop().time() + BODY_SECONDS
        try:
            async with asyncio.timeout_at(self._body_until):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(408) from None
        self._is_whole = not message.get("more_body")
        return message

    async def _let_it_finish(self, message: Message) -> None:
        """Read the rest of a body that is too long: a client that is still sending would not see the answer.

        A client that sends more than `_DRAINED_BYTES` is cut off.
        """
        while message.get("more_body") and self._received < _DRAINED_BYTES:
            message = await self._receive_in_time()
            self._received += len(message.get("body", b""))

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = self._completed(message["headers"])
        await self._send(message)

    def _completed(self, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Add the headers that all answers have, unless the answer has them itself."""
        said = {name.lower(): value for name, value in headers}
        found = [(name, value) for name, value in headers if name.lower() != b"x-request-id"]
        found.append((b"x-request-id", self._request_id.encode()))
        found += [header for header in _SECURITY_HEADERS if header[0] not in said]
        if b"application/" in said.get(b"content-type", b"") and b"cache-control" not in said:
            found.append((b"cache-control", b"no-store"))
        return found


def common_headers(request_id: str) -> dict[str, str]:
    """List the headers that every answer has, for one that does not pass the middleware."""
    always = {name.decode(): value.decode() for name, value in _SECURITY_HEADERS}
    return always | {"x-request-id": request_id, "cache-control": "no-store"}


def _end_span(span: OpenSpan, scope: Scope, status: int) -> None:
    route = getattr(scope.get("route"), "path", None)
    if route:
        span.rename(f"{scope['method']} {route}")
    span.end(
        attributes={"http.route": route, "http.response.status_code": status},
        error=f"status {status}" if status >= 500 else None,
    )


def _request_id(given: str) -> str:
    """Take the caller's own id when it is harmless, because it ends up in logs and audit rows; else make one."""
    return given if _REQUEST_ID.fullmatch(given) else os.urandom(16).hex()
