"""Prepare statements that the API and runs execute often once per session, and execute them without a cursor.

For every execution, the driver creates a cursor and determines how each column is read. That takes several times as
long as such a statement itself, which finds a row or a page by an index. Here the result is kept with the session.
Other sessions execute a `Statement` in the driver's usual way.

The driver must keep no prepared statement of its own in such a session: after a rollback, or a DROP, it would
deallocate all prepared statements, including these. See `prepare_once`.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import psycopg
from psycopg import errors
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import DiagnosticField, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult

from vitrina.store.database import Connection

Row = dict[str, Any]
Values = Sequence[Any] | Mapping[str, Any]

# Maximum per session, because the server keeps a plan for each. Lists have one statement for each set of filters.
MAX_PREPARED = 64


class _Schema:
    """Count how often this process found a statement outdated. All sessions then prepare all statements again.

    Otherwise each session would fail once for each statement, because in a transaction nothing can be prepared again
    after a failure.
    """

    number = 0


_schema = _Schema()


class PreparingConnection(Connection):
    """Represent a session that lives long enough to prepare statements in it. One thread uses it at a time."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.prepared: dict[bytes, _Prepared] = {}
        self.numbers = count()
        self.prepared_for = _schema.number


def prepare_once(connection: Connection) -> None:
    """Make the driver prepare only what it is told to (`prepare=True`), and deallocate that immediately.

    With `prepare_threshold` set to None it would prepare nothing, and send users' SQL by a protocol that allows several
    statements.
    """
    connection.prepare_threshold, connection.prepared_max = sys.maxsize, 0


class Statement:
    """Hold a statement in the driver's notation: `%s`, or `%(name)s`. Parameters have the types of their positions."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._numbered, self._names = _numbered(text)

    def execute(self, connection: Connection, values: Values) -> int:
        """Execute a change. Return the number of rows that it affected."""
        found = self._prepared_in(connection)
        if found is None:
            return connection.execute(self._text, values).rowcount
        return found.execute(self._in_order(values))

    def fetch_one(self, connection: Connection, values: Values) -> Row | None:
        return next(iter(self.fetch_all(connection, values)), None)

    def get_one(self, connection: Connection, values: Values = ()) -> Row:
        """Return the row of a statement that always returns one."""
        row = self.fetch_one(connection, values)
        if row is None:
            raise RuntimeError("a statement that always returns a row returned none")
        return row

    def fetch_all(self, connection: Connection, values: Values) -> list[Row]:
        try:
            return self._fetch_all(connection, values)
        except errors.FeatureNotSupported as exc:
            if not _is_outdated(exc):
                raise
            _schema.number += 1
            if connection.info.transaction_status != TransactionStatus.IDLE:
                raise errors.SerializationFailure(
                    "a table was changed after this statement was prepared; execute the transaction again"
                ) from exc
            return self._fetch_all(connection, values)

    def _fetch_all(self, connection: Connection, values: Values) -> list[Row]:
        found = self._prepared_in(connection)
        if found is None:
            return connection.execute(self._text, values).fetchall()
        return found.fetch_all(self._in_order(values))

    def _in_order(self, values: Values) -> list[Any]:
        return [values[name] for name in self._names]  # type: ignore[index]

    def _prepared_in(self, connection: Connection) -> "_Prepared | None":
        if not isinstance(connection, PreparingConnection):
            return None
        if connection.prepared_for != _schema.number:
            connection.prepared_for = _schema.number
            connection.prepared.clear()
        found = connection.prepared.get(self._text)
        if found is None and len(connection.prepared) < MAX_PREPARED:
            found = connection.prepared[self._text] = _Prepared(connection, self._numbered)
        return found


class _Prepared:
    """Hold a statement as prepared in one session, and how its columns are read there."""

    def __init__(self, connection: PreparingConnection, numbered: bytes) -> None:
        self._session, self._name = connection.pgconn, b"vitrina_%d" % next(connection.numbers)
        self._reading = Transformer.from_context(connection)
        self._make_row: Callable[[Sequence[Any]], Row] | None = None
        _refuse_error(self._session.prepare(self._name, numbered))

    def execute(self, values: Sequence[Any]) -> int:
        return self._ask(values).command_tuples or 0

    def fetch_all(self, values: Sequence[Any]) -> list[Row]:
        result = self._ask(values)
        # The columns are those of the first execution: the server refuses a statement whose columns have changed since.
        self._reading.set_pgresult(result, set_loaders=self._make_row is None)
        self._make_row = self._make_row or _row_maker(result)
        rows = self._reading.load_rows(0, result.ntuples, self._make_row)
        self._reading.set_pgresult(None, set_loaders=False)  # a page may be large
        return rows

    def _ask(self, values: Sequence[Any]) -> PGresult:
        sent = self._reading.dump_sequence(values, [PyFormat.TEXT] * len(values))
        result = self._session.exec_prepared(self._name, sent)  # type: ignore[arg-type] # None is NULL
        _refuse_error(result)
        return result


_PLACE = re.compile(rb"%(?:\((\w+)\)s|s|%)")


def _numbered(text: bytes) -> tuple[bytes, list[str | int]]:
    """Convert parameters to the server's notation (`$1`), and list the names or positions of their values."""
    names: list[str | int] = []

    def number(place: re.Match[bytes]) -> bytes:
        if place[0] == b"%%":
            return b"%"
        name = place[1].decode() if place[1] else len(names)
        if name not in names:
            names.append(name)
        return b"$%d" % (names.index(name) + 1)

    return _PLACE.sub(number, text), names


def _row_maker(result: PGresult) -> Callable[[Sequence[Any]], Row]:
    names = [(result.fname(column) or b"").decode() for column in range(result.nfields)]
    return lambda values: dict(zip(names, values, strict=True))


def _is_outdated(error: errors.FeatureNotSupported) -> bool:
    """Tell whether a migration changed a table, so that the columns are others than those that were prepared.

    The server's words for it are translated, the name of its function is not.
    """
    return error.diag.source_function == "RevalidateCachedQuery"


def _refuse_error(result: PGresult) -> None:
    if result.status in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
        return
    # the server did not report this, so the connection is lost
    if result.error_field(DiagnosticField.SQLSTATE) is None:
        raise psycopg.OperationalError(result.error_message.decode(errors="replace").strip())
    raise errors.error_from_result(result)
