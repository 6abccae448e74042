"""Read a pipeline's SQL: describe its result, explain it, and fetch its rows as Arrow."""

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import conninfo, generators
from psycopg.sql import SQL, Composable, Composed, Identifier
from psycopg.sql import Literal as Value

from vitrina import sqlguard
from vitrina.connectors.postgres.cursor import Cursor
from vitrina.errors import Disconnected, SnapshotGone, SourceQueryFailed, TransientError
from vitrina.ports.batch import Position
from vitrina.ports.schema import Column
from vitrina.sentences import say
from vitrina.sqlguard import CheckedQuery
from vitrina.store import database, pooling
from vitrina.store.database import Connection
from vitrina.store.prepared import Statement

if TYPE_CHECKING:
    import pyarrow as pa

# The plan of a hundred joins has a fifth of this size. A larger one would cost the runner too much memory and time.
MAX_PLAN_CHARACTERS = 4 << 20
_TOO_LONG = "the plan is too long"
# libpq holds a whole row in memory, so the server checks its length. A cursor accepts a single statement, never two.
# The text of an error may be as long as a plan. These are one message: the user's query is a literal in the first
# statement, and the last one has the answer.
_EXPLAIN_BOUNDED = f"""
SELECT pg_catalog.set_config('vitrina.statement', {{}}, true);
DO $vitrina$
DECLARE
    shown text;
    detail text;
    hint text;
BEGIN
    FOR shown IN EXECUTE pg_catalog.current_setting('vitrina.statement') LOOP
        IF pg_catalog.length(shown) > {MAX_PLAN_CHARACTERS} THEN
            RAISE program_limit_exceeded USING MESSAGE = '{_TOO_LONG}';
        END IF;
        PERFORM pg_catalog.set_config('vitrina.plan', shown, true);
    END LOOP;
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
    RAISE EXCEPTION USING ERRCODE = SQLSTATE, MESSAGE = pg_catalog."left"(SQLERRM, 10000),
        DETAIL = pg_catalog."left"(detail, 10000), HINT = pg_catalog."left"(hint, 10000);
END $vitrina$;
SELECT pg_catalog.current_setting('vitrina.plan') AS plan,
       ARRAY(SELECT DISTINCT relation::int8 FROM pg_catalog.pg_lock_status()
             WHERE pid = pg_catalog.pg_backend_pid() AND locktype = 'relation') AS opened,
       pg_catalog.pg_is_in_recovery() AS on_standby
"""  # noqa: S608 - a number and a constant
_SET = Statement(b"SELECT pg_catalog.set_config(%s, %s, true)")
# The driver returns Arrow batches of about this size, from which the batches of the run are assembled.
_FETCH_BYTES = 2 << 20
NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Bounds:
    """Bound what is read: `:since` and `:until` of the query, and the range around it."""

    since: str | None = None  # inclusive
    until: str | None = None  # exclusive
    after: Position | None = None  # exclusive, in the order in which the query is read
    upto: Position | None = None  # inclusive, in the same order
    only: Composable | None = None  # a condition on `q`, to read only some rows
    nulls: Literal["left out", "included", "alone"] = "left out"  # rows whose cursor is NULL

    @property
    def settings(self) -> Mapping[str, str]:
        """Return settings for the session that reads within these bounds.

        If the planner expects the table to be cached, it reads all rows in the order of a random key by an index scan.
        If the table is larger than the cache, that takes three times as long as sorting. An index in the table's
        physical order is still used.
        """
        is_everything = self.since is None and self.until is None and self.only is None and self.nulls != "alone"
        return {"effective_cache_size": "64MB"} if is_everything else {}


@dataclass(frozen=True)
class Order:
    """Describe the columns by which a query is ordered."""

    columns: tuple[Composable, ...] = ()
    types: tuple[str, ...] = ()
    nullable: tuple[bool, ...] = ()
    # Collations of text columns, if they differ from the database's default.
    collations: tuple[str | None, ...] = ()

    @property
    def places(self) -> list[Composable]:
        """Return the columns as expressions in which equal values have the same text: 1.0 and 1.00 are one position."""
        numeric = [kind.partition("(")[0] == "numeric" and "[" not in kind for kind in self.types]
        return [
            SQL("pg_catalog.trim_scale({})").format(column) if is_number else column
            for column, is_number in zip(self.columns, numeric, strict=True)
        ]

    def behind(self, after: Position) -> Composable:
        """Build the condition for rows after this position.

        NULL sorts last, but PostgreSQL compares it as neither greater nor smaller.
        """
        if None not in after:
            return self._greater(after)
        # After the columns before the first NULL; or equal to them, also NULL here, and after the remaining columns.
        place = after.index(None)
        before, rest = self._part(0, place), self._part(place + 1, len(after))
        alternatives = []
        if place:
            alternatives.append(before._greater(after[:place]))
        if rest.columns:
            same = [SQL("{} = {}").format(*pair) for pair in before._pairs(after[:place])]
            same.append(SQL("{} IS NULL").format(self.columns[place]))
            alternatives.append(SQL(" AND ").join([*same, SQL("({})").format(rest.behind(after[place + 1 :]))]))
        return SQL("({})").format(SQL(" OR ").join(alternatives)) if alternatives else SQL("FALSE")

    def upto(self, last: Position) -> Composable:
        """Build the condition for all other rows: those at this position, which has no NULL, or before it."""
        pairs = self._pairs(last)
        columns, values = (SQL(", ").join(part) for part in zip(*pairs, strict=True))
        if not any(self.nullable):
            return SQL("({}) <= ({})").format(columns, values)
        # As in `_greater`, the first condition is for the index; it follows from the second.
        first = SQL("{} <= {}").format(*pairs[0])
        return SQL("{} AND (({}) > ({})) IS FALSE").format(first, columns, values)

    def _greater(self, after: Position) -> Composable:
        pairs = self._pairs(after)
        columns, values = (SQL(", ").join(part) for part in zip(*pairs, strict=True))
        later = SQL("({}) > ({})").format(columns, values)
        if not any(self.nullable):
            return later
        # The first condition lets the server use the index, which the second one cannot.
        first = SQL("") if self.nullable[0] else SQL("{} >= {} AND ").format(*pairs[0])
        return SQL("{}({}) IS NOT FALSE").format(first, later)

    def _pairs(self, after: Position) -> list[tuple[Composable, Composable]]:
        """Pair each column with its value of a position, in the column's type."""
        values = (SQL("{}::{}").format(Value(value), SQL(kind)) for value, kind in zip(after, self.types, strict=True))
        return list(zip(self.columns, values, strict=True))

    def _part(self, start: int, end: int) -> "Order":
        return Order(self.columns[start:end], self.types[start:end], self.nullable[start:end])


NO_ORDER = Order()


class Age:
    """Measure how long a snapshot has been held.

    While it is held, a source cannot clean up rows, and a standby cannot replay past it.
    """

    def __init__(self, limit_seconds: float | None) -> None:
        self.limit_seconds = limit_seconds
        self._began = time.monotonic()

    @property
    def is_over(self) -> bool:
        return self.limit_seconds is not None and time.monotonic() - self._began >= self.limit_seconds


@dataclass(frozen=True)
class Query:
    """Represent a checked query with its cursor bounds filled in."""

    judged: CheckedQuery
    cursor: Cursor | None = None

    def wrapped(self, bounds: Bounds) -> tuple[Composed, Composed]:
        """Split the query into its WITH clause and a FROM item.

        Inside the wrapper a CTE would be an optimisation fence.
        """
        values = {}
        for name, value, default in (
            ("since", bounds.since, self.cursor.lowest if self.cursor else None),
            ("until", bounds.until, self.cursor.highest if self.cursor else None),
        ):
            if name in self.judged.parameters:
                values[name] = _quoted(value if value is not None else default)
        head, body = sqlguard.render_parts(self.judged, values)
        return SQL("{}").format(SQL(head)), SQL("(\n{}\n)").format(SQL(body))

    def select(
        self,
        outputs: Sequence[Composable],
        bounds: Bounds,
        *,
        order: Order = NO_ORDER,
        limit: int | None = None,
    ) -> Composed:
        """Select `outputs` of the rows within the bounds, in order. Ties of the last row are never cut off."""
        head, source = self.wrapped(bounds)
        conditions = [*self._range(bounds), *([bounds.only] if bounds.only else [])]
        if bounds.after is not None:
            conditions.append(order.behind(bounds.after))
        if bounds.upto is not None:
            conditions.append(order.upto(bounds.upto))
        return SQL("{head} SELECT {outputs} FROM {source} AS q{where}{order}{limit}").format(
            head=head,
            outputs=SQL(", ").join(outputs),
            source=source,
            where=SQL(" WHERE {}").format(SQL(" AND ").join(conditions)) if conditions else SQL(""),
            order=SQL(" ORDER BY {}").format(SQL(", ").join(order.columns)) if order.columns else SQL(""),
            limit=SQL(" FETCH FIRST {} ROWS WITH TIES").format(Value(limit)) if limit else SQL(""),
        )

    def _range(self, bounds: Bounds) -> Iterator[Composable]:
        if self.cursor is None:
            return
        column = self.cursor.columns("q")[0]
        # A row with a NULL cursor is in no range: it is omitted, or read separately each time.
        if bounds.nulls != "included":
            wanted = SQL("NULL" if bounds.nulls == "alone" else "NOT NULL")
            yield SQL("q.{} IS {}").format(Identifier(self.cursor.key), wanted)
        if bounds.since is not None:
            yield SQL("{} >= {}").format(column, self.cursor.literal(bounds.since))
        if bounds.until is not None:
            yield SQL("{} < {}").format(column, self.cursor.literal(bounds.until))


def _quoted(value: str | None) -> str:
    return Value(value).as_string(None)


class SqlReader:
    """Read through a session logged in as the reader.

    Users' SQL goes only over the extended protocol, which accepts a single statement.
    """

    def __init__(self, connection: Connection, url: str, application_name: str) -> None:
        self.connection = connection
        self._url = url
        self._application_name = application_name
        self._streaming: Any = None
        # The Arrow driver's session for the next `stream` that keeps it.
        self._kept: Any = None
        self._is_reading = False
        # Set if functions of unknown effect were called or a large value has grown the buffers: other runs must not
        # reuse it.
        self.ends_with_run = False

    @contextmanager
    def reading(self, settings: Mapping[str, str] = NO_SETTINGS, snapshot: str | None = None) -> Iterator[None]:
        """Open a read-only transaction that is always rolled back, including settings that a query changes in it.

        Inside such a block, another one without settings is part of its transaction. `snapshot`: one that another
        session has exported.
        """
        if self._is_reading and not settings and snapshot is None:
            yield
            return
        is_first = self.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        if is_first:  # part of BEGIN, which saves a statement
            self.connection.read_only = True
        try:
            with self.connection.transaction(force_rollback=True):
                if not is_first:
                    self.connection.execute("SET TRANSACTION READ ONLY")
                if snapshot is not None:
                    self.enter(snapshot)
                for name, value in settings.items():
                    _SET.fetch_one(self.connection, [name, value])
                was_reading, self._is_reading = self._is_reading, True
                try:
                    yield
                finally:
                    self._is_reading = was_reading
        finally:
            if is_first:
                self._forget_read_only()

    def reset(self) -> None:
        """Restore the settings of the session, whatever a query has set."""
        database.reset(self.connection, self._application_name)

    def writing(self) -> AbstractContextManager[None]:
        """Run a transaction that may write, as those of a reader may not, with the session's initial settings."""
        return database.resetting(self.connection, self._application_name, begin="BEGIN READ WRITE")

    def _forget_read_only(self) -> None:
        """Reset the mode, so that the next transaction chooses its own; a broken connection has none."""
        with suppress(psycopg.Error):
            self.connection.read_only = None

    def enter(self, snapshot: str) -> None:
        """Read in a snapshot that another session holds. Raise `SnapshotGone` if it no longer does."""
        self.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        try:
            self.connection.execute(SQL("SET TRANSACTION SNAPSHOT {}").format(Value(snapshot)))
        except psycopg.Error as exc:
            if exc.sqlstate in _SNAPSHOT_STATES:
                raise SnapshotGone(say("run.snapshot_gone", message=database.sql_message(exc))) from exc
            raise translate_read(exc) from exc

    def describe(self, judged: CheckedQuery) -> list[Column]:
        """Return names and types of the result without running or planning the query."""
        # Both requests query the server, which may be lost before the second.
        self._refuse_failed(self._prepare(sqlguard.render(judged, _placeholders(judged))), judged)
        described = self._describe_prepared()
        self._refuse_failed(described, judged)
        columns = [
            (described.fname(i).decode(), described.ftype(i), described.fmod(i))  # type: ignore[union-attr]
            for i in range(described.nfields)
        ]
        self._refuse_unnamed([name for name, _, _ in columns])
        named = self._with_type_names(columns)
        return [replace(column, origin=origin) for column, origin in zip(named, _origins(described), strict=True)]

    def find_origins(self, view: str) -> list[tuple[int, int] | None]:
        """Find the table columns that a view's columns come from; return none if the reader may not describe it."""
        with self.reading():
            if self._prepare(view).status != psycopg.pq.ExecStatus.COMMAND_OK:
                return []
            return _origins(self._describe_prepared())

    def _prepare(self, text: str) -> "psycopg.pq.abc.PGresult":
        self.connection.pgconn.send_prepare(b"", text.encode())
        return self._await_result()

    def _describe_prepared(self) -> "psycopg.pq.abc.PGresult":
        """Describe what was prepared last.

        The driver's own `describe_prepared` keeps the GIL until the server answers, which stops the heartbeats, and
        the watchdog that would end the wait.
        """
        self.connection.pgconn.send_describe_prepared(b"")
        return self._await_result()

    def _await_result(self) -> "psycopg.pq.abc.PGresult":
        results: list[psycopg.pq.abc.PGresult] = self.connection.wait(generators.execute(self.connection.pgconn))
        return results[-1]

    def _refuse_failed(self, result: "psycopg.pq.abc.PGresult", judged: CheckedQuery) -> None:
        if result.status == psycopg.pq.ExecStatus.COMMAND_OK:
            return
        exc = psycopg.errors.error_from_result(result)
        # An error of a server that crashed, or is temporarily out of resources, does not concern the query.
        if self.connection.broken:
            raise psycopg.OperationalError(f"{exc}") from exc
        if database.is_disconnect(exc) or database.is_transient(exc):
            raise exc
        position = exc.diag.statement_position
        said = database.sql_message(exc)
        if "row-level security" in said:
            said = say("run.query_meets_rls", message=said)
        if not position:
            raise SourceQueryFailed(say("run.query_refused", message=said))
        line, column = sqlguard.place(judged, _placeholders(judged), int(position) - 1)
        raise SourceQueryFailed(say("run.query_refused_at", line=line, column=column, message=said))

    def _refuse_unnamed(self, names: Sequence[str]) -> None:
        if not names:
            raise SourceQueryFailed(say("run.no_columns"))
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise SourceQueryFailed(say("run.column_twice", column=twice[0]))
        if "?column?" in names:
            raise SourceQueryFailed(say("run.column_unnamed"))

    def _with_type_names(self, columns: Sequence[tuple[str, int, int]]) -> list[Column]:
        """Look up the names of the types. What the statement sets ends with its transaction, or by itself."""
        kinds = {(oid, typmod) for _, oid, typmod in columns}
        found = {kind: _known_types[kind] for kind in kinds & _known_types.keys()}
        unknown = list(kinds - found.keys())
        if unknown:
            row = _TYPE_NAMES.get_one(self.connection, [[oid for oid, _ in unknown], [typmod for _, typmod in unknown]])
            found.update(zip(unknown, row["types"], strict=True))
            _known_types.update({kind: name for kind, name in found.items() if kind[0] < _FIRST_ASSIGNED_OID})
        return [Column(name, found[oid, typmod]) for name, oid, typmod in columns]

    def explain(self, statement: Composed) -> "Explained":
        """Run EXPLAIN (VERBOSE, FORMAT JSON) on a statement that may contain the user's query, and list what it opened.

        Before planning, the server locks each relation that a statement names, including those that views name.
        Relations that the planner omits have therefore been opened as well.
        """
        text = SQL("EXPLAIN (VERBOSE, FORMAT JSON) {}").format(statement).as_string(self.connection)
        try:
            row = self._explain(SQL(_EXPLAIN_BOUNDED).format(Value(text)))
        except psycopg.errors.ProgramLimitExceeded as exc:
            if exc.diag.message_primary != _TOO_LONG:
                raise translate_read(exc) from exc
            raise SourceQueryFailed(
                f"the plan of the source query is longer than {MAX_PLAN_CHARACTERS >> 20} MB, so it is not run: it"
                " computes a constant of that size, or lists as many values; leave that out, or keep them in a table"
            ) from None
        except psycopg.Error as exc:
            raise translate_read(exc) from exc
        return Explained(_parsed(row["plan"]), frozenset(row["opened"]), row["on_standby"])

    def _explain(self, statements: Composed) -> dict[str, Any]:
        """Return the row of the last of these statements. Whatever they set is rolled back."""
        if self._is_reading:
            return database.last_row(self.connection.execute(statements))
        # In one message with the transaction, which saves two.
        message = SQL("BEGIN READ ONLY; {}; ROLLBACK").format(statements)
        try:
            return database.last_row(self.connection.execute(message))
        finally:
            with suppress(psycopg.Error):
                self.connection.rollback()  # says nothing to the server unless a statement failed

    def volatile_functions_of_catalog(self, names: Collection[str]) -> set[str]:
        """Return those names for which the server has a volatile function."""
        rows = self.connection.execute(
            """
            SELECT DISTINCT proname FROM pg_catalog.pg_proc
            WHERE pronamespace = 'pg_catalog'::pg_catalog.regnamespace AND provolatile = 'v' AND proname = ANY(%s)
            """,
            [list(names)],
        ).fetchall()
        return {row["proname"] for row in rows}

    def value(self, statement: Composed) -> Any:
        """Return the single value of a statement that contains the user's query."""
        try:
            with self.reading():
                row = self.connection.execute(statement, prepare=True).fetchone()
        except psycopg.Error as exc:
            raise translate_read(exc) from exc
        return next(iter(row.values())) if row else None

    @contextmanager
    def stream(
        self,
        statement: Composable,
        settings: Mapping[str, str] = NO_SETTINGS,
        *,
        snapshot: str | None = None,
        keeps_session: bool = False,
    ) -> Iterator["Iterator[pa.RecordBatch]"]:
        """Stream the rows as Arrow over a separate session that ends with the block.

        `snapshot`: one that another session has exported, in which the rows are read. `keeps_session`: use one session
        for all calls with these settings, because the driver reads the catalog whenever it connects. Each call is a
        transaction that is rolled back. A caller ensures that its statements leave nothing else in a session.
        """
        # Imported here: only the runner needs the driver and pyarrow, whose import takes half a second.
        import adbc_driver_manager
        from adbc_driver_manager._reader import AdbcRecordBatchReader

        text = statement.as_string(self.connection)
        connection, is_at_end = self._arrow_session(settings, is_kept=keeps_session), False
        try:
            with connection.cursor() as cursor:
                cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(_FETCH_BYTES)})
                self._streaming = cursor
                if snapshot is not None or keeps_session:
                    _begin_in(connection, snapshot)
                cursor.execute(text)
                # Not fetch_record_batch(): its reader loses the SQLSTATE of errors after the first rows.
                handle = cursor.fetch_arrow()
                with closing(AdbcRecordBatchReader._import_from_c(handle.address)) as batches:
                    rows = _Rows(batches)
                    yield iter(rows)
                is_at_end = rows.is_at_end
        except adbc_driver_manager.Error as exc:
            raise translate_arrow(exc) from exc
        finally:
            self._streaming = None
            # One that was abandoned in the middle still sends rows.
            if keeps_session and is_at_end and _is_rolled_back(connection):
                self._kept = connection
            else:
                connection.close()

    def _arrow_session(self, settings: Mapping[str, str], *, is_kept: bool) -> Any:
        import adbc_driver_manager
        import adbc_driver_postgresql.dbapi as adbc

        if is_kept and self._kept is not None:
            connection, self._kept = self._kept, None
            return connection
        try:
            connection = adbc.connect(self._arrow_url(settings), autocommit=True)
            if pooling.is_pooled(self.connection):
                with connection.cursor() as cursor:
                    cursor.execute(pooling.statement_of(self._arrow_options(settings)))
        except psycopg.Error as exc:  # our main session, which knows the settings, was ended
            raise translate_read(exc) from exc
        except adbc_driver_manager.Error as exc:
            # The driver's message contains host and login, which users who may see a run need not know.
            raise Disconnected("the source took no second connection of the same login") from exc
        return connection

    def close_stream(self) -> None:
        """Close the session that `stream` has kept."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()

    def cancel_stream(self) -> None:
        """Cancel the query from another thread, so that an abandoned one ends now and not at its first row."""
        import adbc_driver_manager

        streaming = self._streaming
        if streaming is not None:
            with suppress(adbc_driver_manager.Error):  # it has ended in the meantime
                streaming.adbc_cancel()

    def _arrow_url(self, settings: Mapping[str, str]) -> str:
        """Build a read-only URL with the same login and the settings of our session.

        ADBC accepts settings only in the URL. Such a session runs a single user statement, so nothing that the
        statement changes outlives it.
        """
        return arrow_url(self._url, self._application_name, self._arrow_options(settings))

    def _arrow_options(self, settings: Mapping[str, str]) -> str:
        options = self.connection.info.get_parameters().get("options", "")
        more = database.options_of({**database.settled(self.connection), **database.READ_ONLY, **settings})
        return f"{options} {more}"


# Names have schemas, as other sessions have to write them: only this session finds types of extensions without. Each
# step reads the result of the one before: the path is emptied, the names are made, the path is restored.
_TYPE_NAMES = Statement(
    b"""
    WITH emptied AS MATERIALIZED (
        SELECT pg_catalog.current_setting('search_path') AS path, pg_catalog.set_config('search_path', '', true)
    ), named AS MATERIALIZED (
        SELECT pg_catalog.array_agg(pg_catalog.format_type(oid, typmod) ORDER BY position) AS types, min(path) AS path
        FROM emptied, unnest(%s::oid[], %s::int[]) WITH ORDINALITY AS c(oid, typmod, position)
    )
    SELECT types, pg_catalog.set_config('search_path', path, true) FROM named
    """
)
# What SET TRANSACTION SNAPSHOT answers if the snapshot is unknown (22023, from PostgreSQL 17 on 42704), no longer held
# (55000), incomplete (22P02) or of another database (0A000). Other errors, such as a lost session, say nothing of it.
_SNAPSHOT_STATES = frozenset({"22023", "42704", "55000", "22P02", "0A000"})
# The server's own types have the same oids and names in every database.
_FIRST_ASSIGNED_OID = 10000
_known_types: dict[tuple[int, int], str] = {}


@dataclass(frozen=True)
class Explained:
    """Hold the plan of a statement, the relations (by oid) that the server opened to make it, and what server it is."""

    plan: list[dict[str, Any]]
    opened: frozenset[int]
    on_standby: bool


def _begin_in(connection: Any, snapshot: str | None) -> None:
    """Begin a transaction of the Arrow driver, in a snapshot that another session holds, or in its own."""
    import adbc_driver_manager

    with connection.cursor() as beginning:
        beginning.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        if snapshot is None:
            return
        try:
            beginning.execute(SQL("SET TRANSACTION SNAPSHOT {}").format(Value(snapshot)).as_string(None))
        except adbc_driver_manager.Error as exc:
            if exc.sqlstate in _SNAPSHOT_STATES:
                raise SnapshotGone(say("run.snapshot_gone", message=" ".join(str(exc).split()))) from exc
            raise


def _parsed(plan: str) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = json.loads(plan)
    except RecursionError:
        raise SourceQueryFailed("the plan of the source query is nested too deeply: join or union less") from None
    return found


def _origins(described: "psycopg.pq.abc.PGresult") -> list[tuple[int, int] | None]:
    found = [(described.ftable(i), described.ftablecol(i)) for i in range(described.nfields)]
    return [origin if all(origin) else None for origin in found]


def _placeholders(judged: CheckedQuery) -> dict[str, str]:
    """Return placeholders for the parameters, whose types the server infers when it describes a query."""
    return {"since": "$1", "until": "$2" if "since" in judged.parameters else "$1"}


def arrow_url(url: str, application_name: str, options: str) -> str:
    if "://" not in url:
        return conninfo.make_conninfo(url, application_name=application_name, options=options, **database.TRANSPORT)
    parts = urlsplit(url)
    extra = urlencode({"application_name": application_name, "options": options} | database.TRANSPORT, quote_via=quote)
    return urlunsplit(parts._replace(query=f"{parts.query}&{extra}" if parts.query else extra))


def _is_rolled_back(connection: Any) -> bool:
    """End a transaction of the Arrow driver. Return False if the session is broken."""
    import adbc_driver_manager

    with suppress(adbc_driver_manager.Error), connection.cursor() as ending:
        ending.execute("ROLLBACK")
        return True
    return False


class _Rows:
    """Yield the batches that the Arrow driver reads, translate its errors, and know whether these were all."""

    def __init__(self, batches: "pa.RecordBatchReader") -> None:
        self._batches = batches
        self.is_at_end = False

    def __iter__(self) -> "Iterator[pa.RecordBatch]":
        import adbc_driver_manager
        import pyarrow as pa

        try:
            yield from self._batches
            self.is_at_end = True
        except adbc_driver_manager.Error as exc:
            raise translate_arrow(exc) from exc
        except (pa.ArrowException, OSError) as exc:
            raise TransientError(say("run.reading_failed", message=" ".join(str(exc).split()))) from exc


def translate_read(exc: psycopg.Error) -> Exception:
    """Translate a driver's error raised while a user's query ran."""
    message = say("run.query_failed", message=database.sql_message(exc))
    if database.is_disconnect(exc):
        return Disconnected(message)
    if database.is_transient(exc):
        return TransientError(message)
    return SourceQueryFailed(message)


def translate_arrow(exc: Any) -> Exception:
    """Translate an error of ADBC by its SQLSTATE; one without it counts as a lost connection."""
    state = exc.sqlstate if isinstance(exc.sqlstate, str) and exc.sqlstate != "\0\0\0\0\0" else None
    said = " ".join(str(exc)[: database.MAX_MESSAGE].split())
    message = say("run.query_failed", message=said + (f" (SQLSTATE {state})" if state else ""))
    if state is None or database.is_disconnect_state(state):
        return Disconnected(message)
    return TransientError(message) if database.is_transient_state(state) else SourceQueryFailed(message)


def column(name: str, cast: str | None = None) -> Composed:
    """Build `q."name"`, optionally cast."""
    reference = SQL("q.{}").format(Identifier(name))
    return SQL("{}::{} AS {}").format(reference, SQL(cast), Identifier(name)) if cast else reference
