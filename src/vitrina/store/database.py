"""Connect to Postgres with uniform session settings, and translate the driver's errors."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, NoReturn, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit
from weakref import WeakKeyDictionary

import psycopg
from psycopg import conninfo
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format
from psycopg.rows import DictRow, dict_row
from psycopg.sql import SQL, Composable
from psycopg.types.datetime import TimestamptzLoader

from vitrina import errors, json_values
from vitrina.settings import READER_ROLE, Settings
from vitrina.store import pooling

Connection = psycopg.Connection[DictRow]
Found = TypeVar("Found")

TRANSPORT: dict[str, Any] = {
    # Set explicitly instead of by the environment: the guard must parse a query in the same encoding as the server.
    "client_encoding": "UTF8",
    # A stopped or vanished peer must not keep row locks: the kernel gives up after half a minute.
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}

# Settings that a server, a database or a login may override and that affect values or sessions. The list comes from a
# review of `pg_settings` as of PostgreSQL 18; docs/reliability.md ("What every session is set to") also lists what is
# not set, and why. Two more are set once the session is open: see `settle`.
SESSION = {
    # Values travel as text in places (COPY, cursors, checkpoints), so every session must write and read them alike.
    "timezone": "UTC",
    "datestyle": "ISO, YMD",
    "intervalstyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "xmlbinary": "base64",
    "xmloption": "content",
    "array_nulls": "on",
    # Statements of Vitrina and of users mean the same everywhere: the guard parses them by these rules.
    "search_path": "",
    "row_security": "off",
    "standard_conforming_strings": "on",
    "backslash_quote": "safe_encoding",
    "transform_null_equals": "off",
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    # Type names and index definitions are read from the catalog, compared, and used in statements.
    "quote_all_identifiers": "off",
    # The sessions of a run wait for each other without a limit. Callers that need a limit pass it to `connect`.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
}

# Maximum length of a server's message, of its detail and of its hint, in characters.
MAX_MESSAGE = 4_000

# Users' SQL starts read-only, whatever else the login is set to.
READ_ONLY = {"default_transaction_read_only": "on"}


def connect(
    url: str,
    application_name: str,
    *,
    connect_timeout_seconds: int = 10,
    settings: dict[str, str] | None = None,
    autocommit: bool = True,
    kind: type[psycopg.Connection[Any]] = psycopg.Connection,
) -> Connection:
    """Open a session with uniform settings. Raise `CannotConnect`, without the password, if that fails."""
    with translated_connect(url):
        connection: Connection = kind.connect(
            url,
            autocommit=True,
            row_factory=dict_row,
            connect_timeout=connect_timeout_seconds,
            application_name=application_name[:63],
            options=options_of(SESSION | (settings or {})),
            **TRANSPORT,
        )
        settle(connection)
        connection.autocommit = autocommit
    return connection


@contextmanager
def translated_connect(url: str) -> Iterator[None]:
    """Translate driver errors inside the block to `CannotConnect`, without the password."""
    try:
        yield
    except (psycopg.OperationalError, psycopg.ProgrammingError) as exc:
        raise errors.CannotConnect(f"cannot connect to {describe(url)}: {reason(exc, url)}") from None


_TRANSACTION_TIMEOUT = 17_00_00

# C counts two digits after the decimal point. If the locale has more or fewer, C would read another amount.
SETTLE = """
    SELECT pg_catalog.pg_backend_pid()::text AS found
    UNION ALL
    SELECT pg_catalog.set_config('lc_monetary', 'C', false) WHERE pg_catalog.scale(1::numeric::money::numeric) = 2
    UNION ALL
    SELECT pg_catalog.set_config('transaction_timeout', '0', false)
    WHERE pg_catalog.current_setting('transaction_timeout', true) IS NOT NULL /* since PostgreSQL 17 */
"""


def settle(connection: Connection) -> None:
    """Apply settings that depend on the database or the server's version and cannot be sent on connecting."""
    settled_as(connection, one(connection.execute(SETTLE)))


def settled_as(connection: Connection, row: Mapping[str, Any]) -> None:
    """Check the result of `SETTLE`: behind a pooler, the session may not be the one that was connected."""
    if int(row["found"]) != connection.info.backend_pid:
        pooling.settle(connection)


def settled(connection: Connection) -> dict[str, str]:
    """Return these settings for another session on this database, for a driver that takes them when it connects."""
    row = one(connection.execute("SELECT pg_catalog.current_setting('lc_monetary') AS lc_monetary"))
    has_timeout = connection.info.server_version >= _TRANSACTION_TIMEOUT
    return {"lc_monetary": row["lc_monetary"], **({"transaction_timeout": "0"} if has_timeout else {})}


def reset(connection: Connection, application_name: str, *, begin: str | None = None) -> None:
    """Restore the settings that the session began with, whatever a query has set since.

    A kept session began without the name of a run; without it, the next claim would not find and end the session.
    `begin`: how to begin a transaction afterwards, in the same message.
    """
    named = SQL("SELECT pg_catalog.set_config('application_name', {}, false)").format(application_name[:63])
    # As a transaction of its own: the statements of a message are one, and the next one could choose no mode.
    apart = SQL("BEGIN; RESET ALL; {} UNION ALL {}; COMMIT" if begin else "RESET ALL; {} UNION ALL {}")
    message = apart.format(SQL(SETTLE), named) + SQL(f"; {begin}" if begin else "")
    settled_as(connection, last_row(connection.execute(message)))


def last_row(cursor: psycopg.Cursor[DictRow]) -> DictRow:
    """Return the row of the last result that has one, of a message with several statements."""
    found = None
    while True:
        found = cursor.fetchone() if cursor.description else found
        if not cursor.nextset():
            break
    if found is None:
        raise RuntimeError("a statement that always returns a row returned none")
    return found


@contextmanager
def beginning_with(connection: Connection, statements: Composable) -> Iterator[None]:
    """Run a transaction that begins with these statements, in one message: each round trip costs CPU on both sides."""
    with _ending_transaction(connection):
        connection.execute(SQL("BEGIN; {}").format(statements))
        yield


@contextmanager
def resetting(connection: Connection, application_name: str, *, begin: str) -> Iterator[None]:
    """Reset the session and run a transaction, which begins in the same message."""
    with _ending_transaction(connection):
        reset(connection, application_name, begin=begin)
        yield


@contextmanager
def _ending_transaction(connection: Connection) -> Iterator[None]:
    """Commit the transaction that was begun in the block, or roll it back after an error."""
    try:
        yield
        connection.commit()
    except BaseException:
        with suppress(psycopg.Error):  # a broken connection has no transaction
            connection.rollback()
        raise


def read_json_cut(connection: Connection) -> None:
    """Truncate JSON that is nested too deeply for readers. For sessions on the metastore."""
    for kind in ("json", "jsonb"):
        connection.adapters.register_loader(kind, _CutJsonLoader)


class _CutJsonLoader(Loader):
    """Call the function directly, because a list has hundreds of values."""

    load = staticmethod(json_values.loads_cut)  # type: ignore[assignment]


def read_any_time(connection: Connection) -> None:
    """Read a time outside the calendar as the first or the last one. For sessions that only show rows."""
    connection.adapters.register_loader("timestamptz", _AnyTimeLoader)


class _AnyTimeLoader(Loader):
    """Use the driver's own loader first, which may be compiled, because a list has hundreds of times."""

    _own = psycopg.adapters.get_loader(psycopg.adapters.types["timestamptz"].oid, Format.TEXT) or TimestamptzLoader

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        self._load = self._own(oid, context).load

    def load(self, data: Buffer) -> datetime:
        try:
            found: datetime = self._load(data)
            return found
        except psycopg.DataError:
            text = bytes(data)
            early = text.startswith(b"-") or text.endswith(b"BC")
            return datetime.min.replace(tzinfo=UTC) if early else datetime.max.replace(tzinfo=UTC)


def find_timezone(url: str, application_name: str, *, connect_timeout_seconds: int = 10) -> str:
    """Find the time zone that the login has by default, in a session without Vitrina's settings."""
    with translated_connect(url):
        plain = psycopg.connect(
            url,
            autocommit=True,
            connect_timeout=connect_timeout_seconds,
            application_name=application_name[:63],
            **TRANSPORT,
        )
    with plain:
        row = one(plain.execute("SHOW TimeZone"))
    return str(row[0])


def place(connection: Connection) -> tuple[object, ...]:
    """Identify the database of a session. A copy of it differs, because its server was started at another time.

    Neither value changes during a session, so each session is queried once.
    """
    if connection not in _places:
        _places[connection] = _ask_place(connection)
    return _places[connection]


_places: "WeakKeyDictionary[Connection, tuple[object, ...]]" = WeakKeyDictionary()


def _ask_place(connection: Connection) -> tuple[object, ...]:
    row = one(
        connection.execute(
            """
        SELECT pg_catalog.pg_postmaster_start_time() AS started, oid FROM pg_catalog.pg_database
        WHERE datname = pg_catalog.current_database()
        """
        )
    )
    return tuple(row.values())


def one(found: psycopg.Cursor[Found]) -> Found:
    """Return the row of a statement that always returns one."""
    row = found.fetchone()
    if row is None:
        raise RuntimeError("a statement that always returns a row returned none")
    return row


def now(connection: Connection) -> datetime:
    """Return the time of the server's clock, by which rows are dated."""
    row = one(connection.execute("SELECT clock_timestamp() AS now"))
    moment: datetime = row["now"]
    return moment


def text_array(values: Iterable[str | None]) -> str:
    """Format texts as an array literal of Postgres; for many values this is ten times as fast as the driver."""
    return "{" + ",".join("NULL" if value is None else _in_array(value) for value in values) + "}"


def _in_array(value: str) -> str:
    if "\\" in value or '"' in value:
        value = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{value}"'


def describe(url: str) -> str:
    """Describe a URL as `user@host:port/database`, which is enough to find a mistake and contains no password."""
    try:
        parts = conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        return "the configured database URL (it is not a valid postgresql:// URL)"
    host, port = parts.get("host", "localhost"), parts.get("port", 5432)
    return f"{parts.get('user', '')}@{host}:{port}/{parts.get('dbname', '')}"


def reason(exc: Exception, url: str) -> str:
    """Return the driver's message, with the password masked in case the driver repeats it."""
    text = " ".join(str(exc).split())
    try:
        password = conninfo.conninfo_to_dict(url).get("password")
    except psycopg.ProgrammingError:
        return "it is not a valid postgresql:// URL"
    return text.replace(str(password), "***") if password else text


def reader_url(settings: Settings, connection: str | None) -> str:
    """Return the URL of the login that runs users' SQL. It never falls back to the application's login."""
    if connection not in (None, "default"):
        return settings.connection_url(connection)
    if settings.reader_url is not None:
        return settings.reader_url.get_secret_value()
    if settings.reader_password is None:
        raise errors.ConfigError(
            "users' SQL has no login to run under: set VITRINA_READER_URL, or VITRINA_READER_PASSWORD for the role"
            f" {READER_ROLE} (`vitrina migrate` creates it with that password)"
        )
    return with_login(settings.require_database_url(), READER_ROLE, settings.reader_password.get_secret_value())


def with_login(url: str, user: str, password: str | None) -> str:
    """Return the URL of the same database with another login."""
    if "://" not in url:
        return conninfo.make_conninfo(url, user=user, password=password)
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    login = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    return urlunsplit(parts._replace(netloc=f"{login}@{host}"))


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Translate driver errors inside the block to `RunError`s that tell whether a retry may help."""
    try:
        yield
    except psycopg.Error as exc:
        raise_translated(what, exc)


def raise_translated(what: str, exc: psycopg.Error) -> NoReturn:
    message = f"{what}: {sql_message(exc)}"
    if is_disconnect(exc):
        raise errors.Disconnected(message) from exc
    if is_transient(exc):
        raise errors.TransientError(message) from exc
    raise errors.FatalError(message) from exc


def sql_message(exc: psycopg.Error) -> str:
    """Return the message of Postgres, with SQLSTATE, detail and hint. The hint usually contains the next step."""
    diagnostics = exc.diag
    primary = diagnostics.message_primary or " ".join(str(exc).split())
    extra = " ".join(part for part in (diagnostics.message_detail, diagnostics.message_hint) if part)
    state = f" (SQLSTATE {exc.sqlstate})" if exc.sqlstate else ""
    return f"{_cut(primary)}{state}{'. ' + _cut(extra) if extra else ''}"


def _cut(text: str) -> str:
    """Truncate a long message: a failing cast repeats the value it failed on, however long that is."""
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}... ({len(text) - MAX_MESSAGE} more characters)"


def sqlstate_of(error: BaseException | None) -> str | None:
    """Find the SQLSTATE of the driver's error that caused an error of ours."""
    while error is not None:
        state = getattr(error, "sqlstate", None)
        if isinstance(state, str) and state:
            return state
        error = error.__cause__
    return None


# 40xxx: serialization and deadlock; 53xxx: out of resources; 55P03: lock not available; 58030: I/O.
_TRANSIENT_STATES = ("40", "53", "55P03", "58030")
# 08xxx: connection; 57P0x: the server shuts down or ended the session; 25P03: idle too long in a transaction.
_DISCONNECT_STATES = ("08", "57P", "25P03")
# 55: object in use or not ready; 57: cancelled, timed out; 58: the system; 25006: a standby; 42501: no privilege.
_MOMENTARY_STATES = ("55", "57", "58", "25006", "42501")


def is_disconnect(exc: psycopg.Error) -> bool:
    """Return whether the connection is broken, as an operational error without SQLSTATE implies."""
    if exc.sqlstate is None:
        return isinstance(exc, psycopg.OperationalError)
    return is_disconnect_state(exc.sqlstate)


def is_passing(exc: psycopg.Error) -> bool:
    """Return whether the error concerns the server or the moment, and not the row that was being handled."""
    return is_disconnect(exc) or is_transient(exc) or (exc.sqlstate or "").startswith(_MOMENTARY_STATES)


def is_transient(exc: psycopg.Error) -> bool:
    return exc.sqlstate is not None and is_transient_state(exc.sqlstate)


def is_disconnect_state(state: str) -> bool:
    # A server reports 08P01 about a message and keeps the connection.
    return state.startswith(_DISCONNECT_STATES) and state != "08P01"


def is_transient_state(state: str) -> bool:
    return state.startswith(_TRANSIENT_STATES)


def options_of(settings: Mapping[str, str]) -> str:
    """Format session settings as libpq's `options`, which it splits at spaces."""
    return " ".join(f"-c {name}={_escaped(value)}" for name, value in settings.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")
