"""Send calls to an API, with the standard library for plain HTTP and with httpx otherwise.

Most commands end in a moment, and importing httpx would take longer than their work. It is used only where plain
HTTP is not enough: https, a proxy, a login in the address, a stream of lines.
"""

import http.client
import json
import os
import select
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import SplitResult, urlencode, urlsplit

if TYPE_CHECKING:
    import httpx

Params = Mapping[str, Any]
# Shorter than any server keeps an idle connection, so that no request meets one that is just being closed.
_IDLE_SECONDS = 3.0
_STREAM_SILENCE_SECONDS = 60.0  # the server sends a heartbeat every 15 seconds
_LOCAL = ("localhost", "127.0.0.1", "::1")


class CallFailed(Exception):
    """The connection broke, and the request may have arrived."""


class NotConnected(CallFailed):
    """No server listens there, and nothing has been sent."""


class ConnectTimedOut(CallFailed):
    """No server answers there in time."""


class BadAddress(CallFailed):
    """The address is not an http:// or https:// URL."""


@dataclass(frozen=True)
class Reply:
    """Represent a whole answer."""

    status_code: int
    content: bytes
    url: str
    content_type: str = ""
    # Where a redirect leads. Redirects are not followed: a login page must not be taken for an answer.
    location: str = ""

    @property
    def is_error(self) -> bool:
        return not 200 <= self.status_code < 300

    @property
    def name(self) -> str:
        """Name the answer for messages: who answered, and with what."""
        return f"{without_login(self.url)} answered {self.status_code}"

    @property
    def text(self) -> str:
        return self.content.decode()

    def json(self) -> Any:
        return json.loads(self.content)


class Calls(Protocol):
    def request(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply: ...

    def close(self) -> None: ...


def open_calls(
    url: str, headers: Mapping[str, str], timeout_seconds: float, transport: "httpx.BaseTransport | None" = None
) -> Calls:
    _check(url)
    if transport is None and is_plain(url):
        return PlainCalls(url, headers, timeout_seconds)
    return HttpxCalls(url, headers, timeout_seconds, transport)


def _check(url: str) -> None:
    """Refuse what the libraries accept and then send to another address, or to none."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as exc:
        raise BadAddress(str(exc)) from exc
    if parts.scheme in ("http", "https") and not host:
        raise BadAddress("it has no host")
    if " " in url or not url.isprintable():  # urlsplit leaves out line breaks
        raise BadAddress("it contains a space or a control character")


def is_local(url: str) -> bool:
    """Return whether a URL leads to this machine. Proxies of the environment apply to other servers only."""
    return (urlsplit(url).hostname or "") in _LOCAL


def is_plain(url: str) -> bool:
    """Return whether the standard library is enough."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    if parts.scheme != "http" or not host or "@" in parts.netloc or parts.query or parts.fragment or not url.isascii():
        return False
    return is_local(url) or not any(
        os.environ.get(name) for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
    )


def without_login(url: str) -> str:
    """Return a URL as messages show it. A password may contain any character, so the last @ ends the login."""
    login, _, address = url.rpartition("@")
    scheme, separator, _ = login.partition("://")
    return f"{scheme}{separator}{address}" if separator else address


class PlainCalls:
    """Make calls with the standard library and keep connections for the next calls. Threads may share it."""

    def __init__(self, url: str, headers: Mapping[str, str], timeout_seconds: float) -> None:
        self._url = url
        self._parts: SplitResult = urlsplit(url)
        self._headers, self._timeout_seconds = dict(headers), timeout_seconds
        self._kept: list[tuple[float, http.client.HTTPConnection]] = []
        self._lock = threading.Lock()

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        target = self._parts.path.rstrip("/") + path + _query(params or {})
        connection = self._take() or self._connect()
        try:
            connection.request(method, target, body=content, headers=self._headers | dict(headers or {}))
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as exc:
            connection.close()
            raise CallFailed(str(exc) or type(exc).__name__) from exc
        except BaseException:
            connection.close()
            raise
        self._keep(connection)
        url = f"{self._parts.scheme}://{self._parts.netloc}{target}"
        return Reply(answer.status, body, url, answer.getheader("content-type", ""), answer.getheader("location", ""))

    def close(self) -> None:
        with self._lock:
            kept, self._kept = self._kept, []
        for _, connection in kept:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(
            self._parts.hostname or "", self._parts.port, timeout=self._timeout_seconds
        )
        try:
            connection.connect()
        except TimeoutError as exc:
            raise ConnectTimedOut(str(exc)) from exc
        except (OSError, UnicodeError) as exc:
            raise NotConnected(str(exc)) from exc
        return connection

    def _take(self) -> http.client.HTTPConnection | None:
        while True:
            with self._lock:
                if not self._kept:
                    return None
                since, connection = self._kept.pop()
            if time.monotonic() - since < _IDLE_SECONDS and not _has_news(connection):
                return connection
            connection.close()

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        if connection.sock is not None:  # http.client drops a connection that the server is about to close
            with self._lock:
                self._kept.append((time.monotonic(), connection))


def _has_news(connection: http.client.HTTPConnection) -> bool:
    """Return whether there is data to read: an idle server sends something only when it closes the connection."""
    news = select.poll()
    news.register(connection.sock, select.POLLIN)
    return bool(news.poll(0))


def _query(params: Params) -> str:
    given = {name: str(value).lower() if isinstance(value, bool) else value for name, value in params.items()}
    return "?" + urlencode(given, doseq=True) if any(value != [] for value in given.values()) else ""


class HttpxCalls:
    """Make the same calls with httpx, which also streams."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        timeout_seconds: float,
        transport: "httpx.BaseTransport | None" = None,
    ) -> None:
        import httpx

        self._library = httpx
        try:
            self._http = httpx.Client(
                base_url=url,
                headers=dict(headers),
                timeout=timeout_seconds,
                transport=transport,
                trust_env=not is_local(url),
                limits=httpx.Limits(keepalive_expiry=_IDLE_SECONDS),
            )
        except httpx.InvalidURL as exc:
            raise BadAddress(str(exc)) from exc

    def request(self, method: str, path: str, **request: Any) -> Reply:
        with self._translated():
            found = self._http.request(method, path, **request)
        return _reply(found, found.content)

    @contextmanager
    def lines(self, path: str, headers: Mapping[str, str]) -> Iterator[tuple[Reply, Iterator[str]]]:
        """Yield an answer without its content, and its lines as they are sent; an error has its whole content."""
        patient = self._library.Timeout(10.0, read=_STREAM_SILENCE_SECONDS)
        with self._translated(), self._http.stream("GET", path, headers=dict(headers), timeout=patient) as found:
            content = b"" if found.is_success else found.read()
            yield _reply(found, content), found.iter_lines()

    def close(self) -> None:
        self._http.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        httpx = self._library
        try:
            yield
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as exc:
            raise BadAddress(str(exc)) from exc
        except httpx.ConnectError as exc:
            raise NotConnected(str(exc)) from exc
        except httpx.ConnectTimeout as exc:
            raise ConnectTimedOut(str(exc)) from exc
        except httpx.RequestError as exc:
            raise CallFailed(str(exc) or type(exc).__name__) from exc


def _reply(found: "httpx.Response", content: bytes) -> Reply:
    headers = found.headers
    return Reply(
        found.status_code, content, str(found.request.url), headers.get("content-type", ""), headers.get("location", "")
    )
