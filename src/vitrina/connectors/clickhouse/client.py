"""Send statements to one ClickHouse server, and translate its errors for a run."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from vitrina.connectors.clickhouse import urls
from vitrina.errors import CannotConnect, ConfigError, Disconnected, FatalError, TransientError

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

# Its log lines would repeat our errors.
logging.getLogger("clickhouse_connect").setLevel(logging.CRITICAL)

_MISSING = frozenset({60, 81})
_EXISTS = frozenset({57})
# Too many parts or statements, memory, time, Keeper: the server may accept the statement later.
_BUSY = frozenset({159, 202, 203, 209, 210, 241, 242, 252, 319, 394, 425, 999})
PATIENCE_SECONDS = 120.0
_LONGEST_REST_SECONDS = 5.0

# Every insert is on disk and visible when it is acknowledged, and NULL never becomes a default.
SETTINGS: Mapping[str, Any] = {
    "async_insert": 0,
    "input_format_null_as_default": 0,
    "lightweight_deletes_sync": 2,
    "mutations_sync": 2,
    "insert_quorum_parallel": 0,
}


class Missing(FatalError):
    """Signal that a table or database of the statement does not exist."""


class Exists(FatalError):
    """Signal that a table that the statement would create exists already."""


class Busy(TransientError):
    """Signal that the server does not accept the statement now."""


class Unreachable(Disconnected):
    """Signal that the server sent no answer, so the run cannot tell whether the statement was executed."""


class Session:
    """Connect one run to a server. `comment` marks its statements in the process list, so that they can be killed."""

    def __init__(self, url: str, comment: str = "vitrina", timeout_seconds: float | None = None) -> None:
        self.server = urls.parse(url)
        self.comment = comment
        self._client = _connect(self.server, comment, timeout_seconds)

    def command(self, statement: str, **settings: Any) -> Any:
        with translated(statement):
            return self._client.command(statement, settings=settings or None)

    def rows(self, statement: str, parameters: Mapping[str, Any] | None = None, **settings: Any) -> list[Sequence[Any]]:
        with translated(statement):
            found = self._client.query(statement, parameters=dict(parameters or {}), settings=settings or None)
            return list(found.result_rows)

    def value(self, statement: str, parameters: Mapping[str, Any] | None = None, **settings: Any) -> Any:
        return self.rows(statement, parameters, **settings)[0][0]

    def arrow(self, statement: str, **settings: Any) -> "pa.Table":
        """Query rows as Arrow. Strings come as bytes, because a String may hold any bytes."""
        with translated(statement):
            return self._client.query_arrow(statement, settings={"output_format_arrow_string_as_string": 0} | settings)

    def batches(self, statement: str, **settings: Any) -> "Iterator[pa.RecordBatch]":
        with translated(statement):
            stream = self._client.query_arrow_stream(
                statement, settings={"output_format_arrow_string_as_string": 0} | settings
            )
            with stream:
                yield from stream

    def insert(self, table: str, rows: "pa.Table", *, token: str, **settings: Any) -> None:
        """Insert rows. The server ignores a second insert with the same token."""
        with translated(f"INSERT INTO {table}"):
            self._client.insert_arrow(table, rows, settings={"insert_deduplication_token": token} | settings)

    def close(self) -> None:
        self._client.close()


def _connect(server: urls.Server, comment: str, timeout_seconds: float | None) -> Any:
    try:
        import clickhouse_connect
    except ImportError as exc:
        raise ConfigError(
            "ClickHouse targets need the package clickhouse-connect on every runner: pip install 'vitrina[clickhouse]'"
        ) from exc
    from clickhouse_connect.driver.exceptions import Error

    settings = dict(SETTINGS) | {"log_comment": comment}
    try:
        if server.directory:
            return clickhouse_connect.get_client(interface="chdb", path=server.directory, settings=settings)
        return clickhouse_connect.get_client(
            host=server.host,
            port=server.port,
            username=server.user,
            password=server.password,
            database=server.database,
            secure=server.secure,
            ca_cert=server.ca_file,
            compress="lz4" if server.compress else False,
            send_receive_timeout=int(timeout_seconds or server.timeout_seconds),
            autogenerate_session_id=False,
            client_name="vitrina",
            settings=settings,
        )
    except Error as exc:
        if exc.code is None:
            raise CannotConnect(f"ClickHouse at {server.host}:{server.port} does not answer") from exc
        raise _meaning(exc, "logging in") from exc


@contextmanager
def translated(statement: str) -> Iterator[None]:
    """Translate an error of the driver into what it means for a run."""
    from clickhouse_connect.driver.exceptions import Error

    try:
        yield
    except Error as exc:
        raise _meaning(exc, statement) from exc


def _meaning(exc: Any, statement: str) -> Exception:
    code = exc.code
    what = " ".join(statement.split())[:120]
    if code is None:
        return Unreachable(f"ClickHouse gave no answer to {what}")
    said = str(exc).partition("DB::Exception: ")[2].partition(" (for url")[0] or f"error {code}"
    message = f"ClickHouse refused {what}: {said[:1000]}"
    if code in _MISSING:
        return Missing(message)
    if code in _EXISTS:
        return Exists(message)
    return Busy(message) if code in _BUSY else FatalError(message)


def retry_while_blocked(
    move: Callable[[], T], rest: Callable[[float], object], tell: Callable[[str | None], object]
) -> T:
    """Repeat a move, which must be safe to repeat, while the server is busy or unreachable.

    `rest` sleeps, or raises if the run must end. `tell` receives the reason while waiting, and None afterwards.
    """
    began, wait, waited = time.monotonic(), 0.2, False
    while True:
        try:
            done = move()
        except (Busy, Unreachable) as exc:
            if time.monotonic() - began > PATIENCE_SECONDS:
                raise
            waited = True
            tell(exc.message)
            rest(wait)
            wait = min(wait * 2, _LONGEST_REST_SECONDS)
        else:
            if waited:
                tell(None)
            return done


def quoted(name: str) -> str:
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
