"""Copy rows that no step changes to another database: lines of COPY are passed on without parsing."""

import math
import re
import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace

import psycopg
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.sql import SQL, Composable, Identifier

from vitrina import failpoints
from vitrina.connectors.postgres.pushdown import Paging
from vitrina.connectors.postgres.source import Age, Bounds, Query, SqlReader, column, translate_read
from vitrina.connectors.postgres.stage import BATCH, EPOCH, Stage, StageColumn, Turns
from vitrina.connectors.postgres.target import null_key_error
from vitrina.ports import values
from vitrina.ports.batch import Part, Position, Stopwatch
from vitrina.ports.schema import Column
from vitrina.store import database, sessions
from vitrina.store.database import Connection
from vitrina.targets import PostgresTarget

# A batch ends early at this size, so that little work is lost with a runner even if rows are wide.
MAX_BATCH_BYTES = 64 << 20
# Lines are passed on in pieces of about this size: one write each, and little memory.
_PIECE_BYTES = 256 << 10
# A longer line is never copied: the driver already holds it twice, as received and as returned.
_LONG_LINE_BYTES = 1 << 20
# How long the server may take to react to a cancelled query.
_PATIENCE_SECONDS = 5.0


# A long line stays as libpq returned it.
Line = bytes | memoryview


class CopySource:
    """Stream one query into a stage.

    PostgreSQL's text form is exact for every type, and the stage's types read it back.
    """

    def __init__(
        self,
        reader: SqlReader,
        sink: Connection,
        query: Query,
        *,
        bounds: Bounds,
        turns: Turns,
        paging: Paging,
        epoch: int,
        target: PostgresTarget,
        result: Sequence[Column],
        batch_size: Callable[[], int],
        max_value_bytes: int,
        max_snapshot_seconds: float | None = None,
        snapshot: str | None = None,
        is_one_part: bool = False,
        progressed: Callable[[int], None] = lambda rows: None,
    ) -> None:
        # Receives how many more rows were passed on, many times for a part.
        self._progressed = progressed
        # A snapshot that another session exported; None: the reader's own.
        self._snapshot = snapshot
        # Whatever the size of the lines: a caller that loads a range needs it as one part.
        self._is_one_part = is_one_part
        self._max_value_bytes = max_value_bytes
        self._reader = reader
        self._sink = sink
        self._query = query
        self._bounds = bounds
        self._turns = turns
        self._paging = paging
        self._epoch = epoch
        self._target = target
        self._types = {c.name: c.type for c in result}
        self._batch_size = batch_size
        # The query is run again from the last row after this time. None: all rows come from one snapshot.
        self._max_snapshot_seconds = max_snapshot_seconds

    def parts(self, first_number: int, after: Position | None) -> Iterator[Part]:
        number, position, reopened = first_number, after, False
        while True:
            age = Age(self._max_snapshot_seconds)
            with self._copied(position) as pieces:
                lines = Lines(pieces, self._places(self._turns.stages[0]))
                while lines.waiting:
                    started, watch = time.monotonic(), Stopwatch()
                    # Rows are staged as they arrive, so this time is mostly that of the query.
                    with watch.lap("read"):
                        rows = self._fill(self._turns.of(number), number, lines)
                    failpoints.hit("batch.filled")
                    position, seconds = lines.position, time.monotonic() - started
                    yield Part(number, rows, position, seconds, timings=watch.timings, reopened=reopened)
                    number += 1
                    if age.is_over:
                        break
            if not lines.waiting:
                return
            reopened = True

    def _copied(self, position: Position | None) -> AbstractContextManager[Iterator[list["Line"]]]:
        statement = self._select(self._turns.stages[0], position)
        return copy_out(self._reader, statement, self._bounds.settings, self._snapshot)

    def close(self) -> None:
        with suppress(psycopg.Error):  # a server that does not respond is disconnected anyway
            self._reader.connection.cancel_safe(timeout=2)
        sessions.cut(self._reader.connection)
        sessions.cut(self._sink)

    def _select(self, stage: Stage, after: Position | None) -> Composable:
        outputs: list[Composable] = [column(c.name, self._cast(c)) for c in stage.columns]
        if stage.cursor_types:
            outputs += self._paging.order.places
        bounds = replace(self._bounds, after=after)
        return self._query.select(outputs, bounds, order=self._paging.order)

    def _cast(self, staged: StageColumn) -> str | None:
        """Cast a real that is staged as another type to double precision.

        The target's type parses the text: 0.1 of a real would become a different double than a cast produces.
        """
        widened = self._types[staged.name] == "real" and staged.type != "real"
        return "double precision" if widened else None

    def _places(self, stage: Stage) -> tuple[int, ...]:
        """Return the positions of the ordering columns in a line."""
        names = [*(c.name for c in stage.columns), *stage.cursor_columns]
        return tuple(names.index(name) for name in self._paging.staged_as)

    def _fill(self, stage: Stage, number: int, lines: "Lines") -> int:
        tags = [EPOCH, BATCH] if stage.is_tagged else []
        names = [*tags, *(c.name for c in stage.columns), *stage.cursor_columns]
        statement = SQL("COPY {} ({}) FROM STDIN").format(stage.identifier, SQL(", ").join(map(Identifier, names)))
        tag = b"%d\t%d\t" % (self._epoch, number) if tags else b""
        rows = 0
        try:
            with self._sink.cursor() as cursor, cursor.copy(statement) as copy:
                for piece in lines.batch(self._batch_size(), of_any_size=self._is_one_part):
                    self._refuse_large(stage, piece[-1])
                    rows += len(piece)
                    _send(copy, piece, tag)
                    self._progressed(len(piece))
        except psycopg.errors.NotNullViolation as exc:
            raise null_key_error(exc.diag.column_name, self._target) from exc
        except psycopg.Error as exc:
            database.raise_translated(f"staging rows for {self._target} failed", exc)
        return rows

    def _refuse_large(self, stage: Stage, line: Line) -> None:
        """Refuse a value above the limit and name its row. Only the last line of a piece can be that long."""
        if len(line) <= self._max_value_bytes:
            return
        names = [*(c.name for c in stage.columns), *stage.cursor_columns]
        for name, (start, end) in zip(names, _spans(line), strict=True):
            if end - start > self._max_value_bytes:
                key = {
                    name: _unescaped(field) for name, field in zip(stage.key, self._key_of(stage, line), strict=True)
                }
                raise values.too_large(name, end - start, self._max_value_bytes, key)

    def _key_of(self, stage: Stage, line: Line) -> tuple[bytes, ...]:
        names = [c.name for c in stage.columns]
        return _fields(line, tuple(names.index(name) for name in stage.key))


def _send(copy: psycopg.Copy, piece: list[Line], tag: bytes) -> None:
    """Send the lines, each prefixed with the tag. A long line is sent in parts and freed before more is read."""
    last = piece[-1]
    if isinstance(last, bytes):
        copy.write(tag + tag.join(piece))
        return
    copy.write(b"".join(tag + line for line in piece[:-1]) + tag)
    piece.clear()
    for start in range(0, len(last), _PIECE_BYTES):
        copy.write(last[start : start + _PIECE_BYTES])


def _fields(line: Line, places: tuple[int, ...]) -> tuple[bytes, ...]:
    if isinstance(line, bytes):
        fields = line.rstrip(b"\n").split(b"\t")
        return tuple(fields[place] for place in places)
    spans = _spans(line)
    return tuple(bytes(line[slice(*spans[place])]) for place in places)


def _spans(line: Line) -> list[tuple[int, int]]:
    """Find where the values of a line begin and end, without copying them."""
    tabs = [found.start() for found in re.finditer(rb"\t", line)]
    return list(zip([0, *(tab + 1 for tab in tabs)], [*tabs, len(line) - 1], strict=True))


class Lines:
    """Cut a stream of lines into batches. Lines of one position stay together: no checkpoint falls between them."""

    def __init__(self, pieces: Iterator[list[Line]], places: tuple[int, ...]) -> None:
        self._pieces = pieces
        self._places = places
        self.waiting = next(pieces, [])
        self._last: tuple[bytes, ...] = ()

    @property
    def position(self) -> Position | None:
        """Return the position of the last line returned."""
        if not self._places:
            return None
        return tuple(map(_unescaped, self._last))

    def batch(self, wanted_rows: int, *, of_any_size: bool = False) -> Iterator[list[Line]]:
        """Yield at least `wanted_rows` lines or MAX_BATCH_BYTES, then continue to the end of their position.

        The next piece is read only after the caller has consumed this one.
        """
        rows = size = 0
        max_bytes = math.inf if of_any_size else MAX_BATCH_BYTES
        while self.waiting and not (self._places and (rows >= wanted_rows or size >= max_bytes)):
            if self._places and len(self.waiting) > wanted_rows - rows:
                piece, self.waiting = self.waiting[: wanted_rows - rows], self.waiting[wanted_rows - rows :]
            else:
                piece, self.waiting = self.waiting, []
            rows += len(piece)
            size += sum(map(len, piece))
            self._last = _fields(piece[-1], self._places)
            yield piece
            self.waiting = self.waiting or next(self._pieces, [])
        yield from self._ties()

    def _ties(self) -> Iterator[list[Line]]:
        while self.waiting and self._same_position(self.waiting[0]):
            end = next((i for i, line in enumerate(self.waiting) if not self._same_position(line)), len(self.waiting))
            piece, self.waiting = self.waiting[:end], self.waiting[end:]
            yield piece
            self.waiting = self.waiting or next(self._pieces, [])

    def _same_position(self, line: Line) -> bool:
        return _fields(line, self._places) == self._last


@contextmanager
def copy_out(
    reader: SqlReader, statement: Composable, settings: Mapping[str, str], snapshot: str | None = None
) -> Iterator[Iterator[list[Line]]]:
    """Yield the query's rows as COPY writes them, in pieces. The caller may stop at any time."""
    connection = reader.connection
    text = SQL("COPY ({}) TO STDOUT").format(statement).as_string(connection)
    with reader.reading(settings, snapshot):
        try:
            yield _translated(_noticing_long_lines(reader, pieces(connection, text)))
        finally:
            if connection.pgconn.transaction_status == TransactionStatus.ACTIVE:
                reader.ends_with_run = True
                _abandon(connection)


def _translated(found: Iterator[list[Line]]) -> Iterator[list[Line]]:
    """Translate errors of the source where it is read, to distinguish them from errors of the target."""
    try:
        yield from found
    except psycopg.Error as exc:
        raise translate_read(exc) from exc


def _noticing_long_lines(reader: SqlReader, found: Iterator[list[Line]]) -> Iterator[list[Line]]:
    """Mark the session to end with the run after a long line.

    The driver's buffer keeps the size of the longest line.
    """
    for piece in found:
        # A long line is always the last of its piece.
        reader.ends_with_run = reader.ends_with_run or len(piece[-1]) > _LONG_LINE_BYTES
        yield piece


def pieces(connection: Connection, text: str) -> Iterator[list[Line]]:
    """Run COPY over the extended protocol, like all users' SQL; psycopg's COPY would accept two statements."""
    raw = connection.pgconn
    raw.send_query_params(text.encode(), None)
    while raw.flush():
        _wait(raw, select.POLLOUT)
    begun = _next_result(raw)
    if begun is None or begun.status != ExecStatus.COPY_OUT:
        raise _failure(connection, begun)
    yield from _gathered(raw)
    while (result := _next_result(raw)) is not None:
        if result.status != ExecStatus.COMMAND_OK:
            raise _failure(connection, result)


def _gathered(raw: PGconn) -> Iterator[list[Line]]:
    piece: list[Line] = []
    size = 0
    while True:
        length, data = raw.get_copy_data(1)
        if length > 0:
            piece.append(data if length > _LONG_LINE_BYTES else bytes(data))
            size += length
        if size >= _PIECE_BYTES or (length < 0 and piece):
            del data
            yield piece
            piece, size = [], 0
        if length < 0:
            return
        if length == 0:
            _wait(raw, select.POLLIN)
            raw.consume_input()


def _abandon(connection: Connection) -> None:
    """Cancel the query and read what the server had already sent."""
    raw = connection.pgconn
    try:
        connection.cancel_safe(timeout=_PATIENCE_SECONDS)
        while (result := _next_result(raw)) is not None:
            if result.status == ExecStatus.COPY_OUT:
                for _ in _gathered(raw):
                    pass
    except psycopg.Error:
        connection.close()  # the connection was lost, so there is nothing left to read


def _next_result(raw: PGconn) -> PGresult | None:
    while raw.is_busy():
        _wait(raw, select.POLLIN)
        raw.consume_input()
    return raw.get_result()


def _wait(raw: PGconn, event: int) -> None:
    """Wait without a time limit. To stop earlier, a caller closes the connection."""
    ready = select.poll()
    ready.register(raw.socket, event)
    ready.poll()


def _failure(connection: Connection, result: PGresult | None) -> psycopg.Error:
    if result is None:
        return psycopg.OperationalError("the source ended the conversation")
    return psycopg.errors.error_from_result(result, encoding=connection.info.encoding)


def _unescaped(field: bytes) -> str | None:
    r"""Decode a value of COPY: `\t`, `\n`, `\\` and the like stand for the characters, `\N` for NULL."""
    if field == b"\\N":
        return None
    if b"\\" not in field:
        return field.decode()
    parts = field.decode().split("\\\\")
    for name, character in (("b", "\b"), ("f", "\f"), ("n", "\n"), ("r", "\r"), ("t", "\t"), ("v", "\v")):
        parts = [part.replace(f"\\{name}", character) for part in parts]
    return "\\".join(parts)
