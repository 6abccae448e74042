"""Serve ClickHouse's HTTP protocol with its engine (chdb), in a separate process that can be killed and cut off.

    python -m tests.support.clickhouse_server DIRECTORY      # prints its port, then serves until it is ended

Faults are requested at `/fault?on=TEXT&do=ACTION`; the action applies to the next statement that contains the text.
`lose_request` closes the connection and does nothing. `lose_reply` executes the statement and closes the connection.
`hold` waits for `/release` before the execution, `hold_reply` after it. `refuse` answers that there are too many parts.
"""

import base64
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any
from urllib.parse import parse_qsl, urlsplit

USER, PASSWORD = "vitrina", "s3cret"
# Parameters of a request that are not settings of the engine.
_OF_HTTP = frozenset({
    "query", "query_id", "database", "user", "password", "session_id", "session_timeout", "wait_end_of_query",
    "compress",
    "client_protocol_version", "send_progress_in_http_headers", "http_headers_progress_interval_ms", "default_format",
    "buffer_size", "enable_http_compression", "quota_key", "role",
})  # fmt: skip
_DEFAULT_FORMAT = "TabSeparated"
_TOO_MANY_PARTS = "Code: 252. DB::Exception: Too many parts (3000). Merges are slower than inserts. (TOO_MANY_PARTS)"


@dataclass
class Fault:
    """Represent a fault for the next statement that contains a text."""

    on: str
    do: str
    release: threading.Event = field(default_factory=threading.Event)
    is_met: bool = False


class Engine:
    """Hold sessions of one engine; each running statement has one for itself."""

    def __init__(self, directory: str) -> None:
        import chdb

        self._connect: Callable[[], Any] = lambda: chdb.connect(directory)
        self._idle: SimpleQueue[Any] = SimpleQueue()
        self._kept = self._connect()  # the engine ends with its last session
        self.faults: list[Fault] = []
        self.lock = threading.Lock()

    @contextmanager
    def session(self, database: str | None, settings: dict[str, str]) -> Iterator[Any]:
        """Lend a session. Sessions keep their settings, which change only if the next statement needs others."""
        try:
            session, of_before = self._idle.get_nowait()
        except Empty:
            session, of_before = self._connect(), {}
        wanted = {"": database or "default"} | settings
        try:
            changes = [f"{name} = DEFAULT" for name in of_before.keys() - wanted.keys()]
            changes += [
                f"{name} = {_quoted(value)}" for name, value in settings.items() if of_before.get(name) != value
            ]
            if changes:
                session.query(f"SET {', '.join(changes)}")
            if of_before.get("") != wanted[""]:
                session.query(f"USE {_name(wanted[''])}")
            yield session
        finally:
            self._idle.put((session, wanted))

    def fault_for(self, statement: str) -> Fault | None:
        with self.lock:
            met = next((one for one in self.faults if not one.is_met and one.on in statement), None)
            if met:
                met.is_met = True
            return met


class Handler(BaseHTTPRequestHandler):
    """Handle one statement, or a request for a fault."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body in one packet, or Nagle's algorithm delays the second
    engine: Engine

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        asked = dict(parse_qsl(parts.query, keep_blank_values=True))
        if parts.path == "/ping":
            self._answer(200, b"Ok.\n")
        elif parts.path == "/fault":
            with self.engine.lock:
                self.engine.faults.append(Fault(asked["on"], asked["do"]))
            self._answer(200, b"")
        elif parts.path == "/met":
            met = [one for one in self.engine.faults if one.is_met]
            self._answer(200, str(len(met)).encode())
        elif parts.path == "/release":
            for one in self.engine.faults:
                one.release.set()
            self.engine.faults = [one for one in self.engine.faults if not one.is_met]
            self._answer(200, b"")
        else:
            self._statement(asked, b"")

    def do_POST(self) -> None:
        asked = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        self._statement(asked, self._body())

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self._decoded(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        pieces = []
        while size := int(self.rfile.readline(), 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return self._decoded(b"".join(pieces))

    def _decoded(self, body: bytes) -> bytes:
        if self.headers.get("Content-Encoding") != "lz4":
            return body
        import lz4.frame

        return bytes(lz4.frame.decompress(body))

    def _statement(self, asked: dict[str, str], body: bytes) -> None:
        if not self._is_known():
            self._refuse(f"Code: 516. DB::Exception: {USER}: Authentication failed. (AUTHENTICATION_FAILED)", 403)
            return
        statement, data = _split(asked.get("query", ""), body)
        fault = self.engine.fault_for(statement)
        if fault and fault.do == "lose_request":
            self.close_connection = True
            return
        if fault and fault.do == "refuse":
            self._refuse(_TOO_MANY_PARTS)
            return
        if fault and fault.do == "hold":
            fault.release.wait()
        try:
            result, form = self._run(statement, data, asked)
        except Exception as exc:  # noqa: BLE001 - any error of the engine is the answer
            self._refuse(str(exc))
            return
        if fault and fault.do == "hold_reply":
            fault.release.wait()
        if fault and fault.do == "lose_reply":
            self.close_connection = True
            return
        self._answer(
            200, result, {"X-ClickHouse-Format": form, "X-ClickHouse-Timezone": "UTC", "X-ClickHouse-Summary": "{}"}
        )

    def _is_known(self) -> bool:
        given = self.headers.get("Authorization", "").removeprefix("Basic ")
        return base64.b64decode(given).decode() == f"{USER}:{PASSWORD}"

    def _run(self, statement: str, data: bytes, asked: dict[str, str]) -> tuple[bytes, str]:
        params = {name.removeprefix("param_"): value for name, value in asked.items() if name.startswith("param_")}
        settings = {
            name: value for name, value in asked.items() if name not in _OF_HTTP and not name.startswith("param_")
        }
        statement, form = _without_format(statement, asked.get("default_format", _DEFAULT_FORMAT))
        with self.engine.session(asked.get("database"), settings) as session:
            if data:
                return _inserted(session, statement, form, data), form
            return bytes(session.query(statement, form, params=params).bytes()), form

    def _refuse(self, message: str, status: int = 500) -> None:
        code = message.partition("Code: ")[2].partition(".")[0]
        self._answer(status, message.encode(), {"X-ClickHouse-Exception-Code": code or "1"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        try:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:
            self.close_connection = True  # the client has disconnected

    def log_message(self, *_: object) -> None:
        """Do nothing: tests read the runner's log, not this."""


def _inserted(session: Any, statement: str, form: str, data: bytes) -> bytes:
    """Insert from a file: the engine reads it in blocks, as a server reads a request."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        session.query(f"{statement} FROM INFILE {_quoted(file.name)} FORMAT {form}")
    return b""


def _split(query: str, body: bytes) -> tuple[str, bytes]:
    """Return statement and data: the statement is a parameter, the body, or the first line of the body."""
    if query:
        return query, body
    first, newline, rest = body.partition(b"\n")
    if newline and first.lstrip()[:6].upper() == b"INSERT" and b" FORMAT " in first:
        return first.decode(), rest
    return body.decode(), b""


def _without_format(statement: str, default: str) -> tuple[str, str]:
    text, keyword, form = statement.rstrip().rstrip(";").rpartition("FORMAT ")
    if keyword and form.strip().isalnum():
        return text.strip(), form.strip()
    return statement, default


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _name(value: str) -> str:
    return "`" + value.replace("`", "\\`") + "`"


def serve(directory: str, port: int = 0) -> None:
    Path(directory).mkdir(parents=True, exist_ok=True)
    Handler.engine = Engine(directory)
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0)
