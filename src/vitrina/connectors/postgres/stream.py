"""Rows that travel: read as Arrow, passed through the steps, copied into the stage."""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import adbc_driver_manager
import adbc_driver_postgresql.dbapi as adbc
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg.sql import SQL, Composable, Identifier

from vitrina import failpoints
from vitrina.connectors.postgres import wide_rows
from vitrina.connectors.postgres.carriage import travels_natively
from vitrina.connectors.postgres.prefetch import prefetched
from vitrina.connectors.postgres.pushdown import Paging
from vitrina.connectors.postgres.source import Age, Bounds, Query, SqlReader, arrow_url, column
from vitrina.connectors.postgres.stage import BATCH, EPOCH, SCHEMA, Stage
from vitrina.connectors.postgres.target import null_key_error
from vitrina.errors import BadKey, Disconnected, FatalError, TransientError
from vitrina.ports import values
from vitrina.ports.batch import DeadLetter, Part, Position, Stopwatch, Written, delivered_in
from vitrina.ports.schema import Column
from vitrina.store import database, pooling, sessions
from vitrina.store.database import Connection
from vitrina.targets import PostgresTarget
from vitrina.transforms import underway
from vitrina.transforms.pipeline import Passage, Taken

# Wide rows must not exhaust memory: a batch ends early when it holds this much.
MAX_BATCH_BYTES = 64 << 20
# How long an end waits for the batch that another thread is copying.
_CLOSE_SECONDS = 10.0

# Where a row stands in the order of reading; travels beside the result's own columns.
POSITIONS = tuple(f"_position_{i}" for i in range(32))


class ArrowSource:
    """One streamed query, cut into batches; each is copied into the stage on a connection of its own."""

    def __init__(
        self,
        reader: SqlReader,
        query: Query,
        *,
        bounds: Bounds,
        result: Sequence[Column],
        paging: Paging,
        stager: "StagesTables",
        batch_size: Callable[[], int],
        max_value_bytes: int,
        passage: Passage | None = None,
        max_snapshot_seconds: float | None = None,
    ) -> None:
        self._reader = reader
        self._query = query
        self._bounds = bounds
        self._result = result
        self._paging = paging
        self._stager = stager
        self._batch_size = batch_size
        self._max_value_bytes = max_value_bytes
        # The Python steps, when the pipeline has some.
        self._passage = passage
        # After this long the query is asked anew behind the last row. None: all rows come from one snapshot.
        self._max_snapshot_seconds = max_snapshot_seconds

    def parts(self, first_number: int, after: Position | None) -> Iterator[Part]:
        """Without an order to continue from, all rows are one batch, however many pieces they come in."""
        pieces: list[Part] = []
        with closing(self._under_way(first_number, after)) as under_way:
            for filled in _arriving(under_way, self._stager.batches_ahead):
                if filled.last is None:
                    pieces.append(filled)
                else:
                    yield filled
        if pieces:
            yield _together(pieces)

    def _under_way(self, first_number: int, after: Position | None) -> Generator["_UnderWay", None, None]:
        steps = self._passage.steps if self._passage else None
        with closing(underway.taken(self._read(first_number, after), steps, MAX_BATCH_BYTES)) as batches:
            for read, taken in batches:
                under_way = self._begin(read, taken)
                del taken  # not kept while the next is read
                yield under_way
                del under_way

    def _read(self, first_number: int, after: Position | None) -> Generator["_Read", None, None]:
        number, position, reopened = first_number, after, False
        while True:
            age, is_complete = Age(self._max_snapshot_seconds), True
            # The tables are closed before the stream is: their thread reads from there.
            with (
                self._reader.stream(self._select(position), self._bounds.settings) as stream,
                closing(self._cut(stream)) as tables,
            ):
                watch = Stopwatch()
                while (table := watch.next_of("read", tables)) is not None:
                    position = self._position(table)
                    read = _Read(table, number, position, watch, reopened)
                    del table  # the steps' alone from now on
                    yield read
                    if position is None:
                        continue
                    number, watch = number + 1, Stopwatch()
                    if age.is_over:
                        is_complete = False
                        break
            if is_complete:
                return
            reopened = True

    def _cut(self, stream: Iterator[pa.RecordBatch]) -> Generator[pa.Table, None, None]:
        return cut(read_ahead(self._bounded(stream)), self._batch_size, ordered_by=self._position_names())

    def _bounded(self, stream: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Refuses a value that is too large, as soon as it has come."""
        for batch in stream:
            if batch.nbytes > self._max_value_bytes:
                _refuse_large(batch, self._max_value_bytes, self._position_names())
            yield batch
            del batch

    def _begin(self, read: "_Read", taken: Taken) -> "_UnderWay":
        with read.watch.lap(self._stager.timed_as):
            arrive = self._stager.begin(taken.table, read.number)
        filled = Part(read.number, read.rows, read.position, reopened=read.reopened)
        return _UnderWay(filled, taken.letters, taken.delivered, read.size, read.watch, self._stager.timed_as, arrive)

    def close(self) -> None:
        if self._passage:
            self._passage.steps.close()
        self._reader.cancel_stream()
        self._stager.close()
        self._reader.connection.close()

    def _select(self, after: Position | None) -> Composable:
        outputs = self._passage.outputs() if self._passage else outputs_of(self._result)
        outputs += [
            SQL("({})::text AS {}").format(expression, Identifier(name))
            for expression, name in zip(self._paging.order.places, self._position_names(), strict=True)
        ]
        bounds = replace(self._bounds, after=after)
        return self._query.select(outputs, bounds, order=self._paging.order)

    def _position_names(self) -> list[str]:
        return list(POSITIONS[: len(self._paging.order.columns)])

    def _position(self, table: pa.Table) -> Position | None:
        names = self._position_names()
        if not names:
            return None
        if self._passage and any(table.column(name).null_count for name in names):
            raise BadKey(
                f"a column that {self._stager.target} is read in the order of is NULL in a row of the source: a load"
                " could not be continued behind it; filter such rows out in the query, or change target_key"
            )
        return tuple(table.column(name)[-1].as_py() for name in names)


def _refuse_large(batch: pa.RecordBatch, limit: int, position: list[str]) -> None:
    for name, values_of in zip(batch.schema.names, batch.columns, strict=True):
        if not (pa.types.is_string(values_of.type) or pa.types.is_binary(values_of.type)):
            continue  # all others travel as text
        sizes = pc.binary_length(values_of)
        largest = pc.max(sizes).as_py() or 0
        if largest > limit:
            row = pc.index(sizes, pa.scalar(largest, sizes.type)).as_py()
            raise values.too_large(name, largest, limit, {place: batch[place][row].as_py() for place in position})


def outputs_of(result: Sequence[Column]) -> list[Composable]:
    """How columns are selected that travel through Arrow and pass no step."""
    return [column(c.name, None if travels_natively(c.type) else "text") for c in result]


class _Read:
    """A batch as it was read. Whoever takes its table has it alone: a large one must not be kept by those before."""

    def __init__(
        self, table: pa.Table, number: int, position: Position | None, watch: Stopwatch, reopened: bool
    ) -> None:
        self._table: pa.Table | None = table
        self.rows: int = table.num_rows
        self.size: int = table.nbytes
        self.number = number
        self.position = position
        self.watch = watch
        self.reopened = reopened

    def take_table(self) -> pa.Table:
        table, self._table = self._table, None
        assert table is not None
        return table


@dataclass(frozen=True)
class _UnderWay:
    """A batch that has been sent off: what is known of it, and how to wait for the rest."""

    filled: Part
    letters: tuple[DeadLetter, ...]
    delivered: frozenset[str]
    size: int
    watch: Stopwatch
    timed_as: str
    arrive: Callable[[], Written]

    def arrived(self) -> Part:
        with self.watch.lap(self.timed_as):
            staged = self.arrive()
        failpoints.hit("batch.filled")
        letters = (*self.letters, *staged.letters)
        return replace(
            self.filled,
            seconds=sum(lap.seconds for lap in self.watch.laps.values()),
            staged=staged.rows,
            letters=letters,
            laps=self.watch.laps,
            delivered=delivered_in(letters, self.delivered, staged.delivered),
        )


def _arriving(under_way: Iterator[_UnderWay], ahead: int) -> Iterator[Part]:
    """Batches in their order, each once that many more, or as many as memory has room for, were sent off behind it."""
    waiting: deque[_UnderWay] = deque()
    for batch in under_way:
        waiting.append(batch)
        del batch  # not kept while the next is read
        while len(waiting) > ahead or sum(one.size for one in waiting) > MAX_BATCH_BYTES:
            yield waiting.popleft().arrived()
    yield from (batch.arrived() for batch in waiting)


def _together(pieces: list[Part]) -> Part:
    letters = tuple(letter for piece in pieces for letter in piece.letters)
    return Part(
        pieces[0].number,
        sum(piece.rows for piece in pieces),
        None,
        pieces[-1].seconds,  # one stopwatch ran through all of them
        sum(piece.staged_rows for piece in pieces),
        letters,
        pieces[-1].laps,
        delivered=delivered_in(letters, *(piece.delivered for piece in pieces)),
    )


def read_ahead(stream: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
    return prefetched(stream, lambda batch: int(batch.nbytes))


def cut(
    stream: Iterator[pa.RecordBatch], batch_size: Callable[[], int], *, ordered_by: list[str]
) -> Generator[pa.Table, None, None]:
    """Tables of `batch_size` rows. Rows of one position stay together: a checkpoint cannot point between them."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in stream:
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        del batch
        while rows >= batch_size() + 1 or size > MAX_BATCH_BYTES:
            table = pa.Table.from_batches(waiting)
            end = _boundary(table, min(batch_size(), max(1, rows * MAX_BATCH_BYTES // max(size, 1))), ordered_by)
            if end is None:
                break
            done, waiting = [table.slice(0, end)], table.slice(end).to_batches()
            rows, size = table.num_rows - end, sum(rest.nbytes for rest in waiting)
            del table
            yield done.pop()  # the caller's alone: it may be large
    if rows:
        yield pa.Table.from_batches(waiting)


def _boundary(table: pa.Table, wanted: int, ordered_by: list[str]) -> int | None:
    """The first row at or after `wanted` whose position differs from the one before it; None: not in sight yet."""
    if not ordered_by:
        return min(wanted, int(table.num_rows))
    columns = [table.column(name) for name in ordered_by]
    for end in range(wanted, table.num_rows):
        if any(c[end].as_py() != c[end - 1].as_py() for c in columns):
            return end
    return None


class StagesTables(Protocol):
    """Where batches go: a stage in Postgres, or an index."""

    # What the time spent there is called: `stage` or `index`.
    timed_as: str
    # How many batches may be sent off behind one that has not arrived yet.
    batches_ahead: int

    @property
    def target(self) -> object: ...

    def begin(self, table: pa.Table, number: int) -> Callable[[], Written]:
        """Send a batch off; what is returned waits until it has arrived. Called in the order of the batches."""
        ...

    def close(self) -> None: ...


class Stager:
    """Copies Arrow tables into a stage, tagged, outside of the merge's transaction: untagged rows never count."""

    timed_as = "stage"
    batches_ahead = 0  # the stages take turns: one is filled while the other is merged, and there is no third

    def __init__(
        self, url: str, application_name: str, stages: tuple[Stage, ...], *, epoch: int, target: PostgresTarget
    ) -> None:
        self._stages = stages
        self._epoch = epoch
        self.target = target
        self._in_use = threading.Lock()
        self._connect = partial(database.connect, url, application_name)
        self._copying: Connection | None = None
        try:
            self._connection: Any = adbc.connect(
                arrow_url(url, application_name, database.options_of(database.SESSION)), autocommit=True
            )
            with self._connection.cursor() as cursor:
                cursor.execute(pooling.statement_of(database.options_of(database.SESSION)))
                cursor.execute(database.SETTLE)
        except adbc_driver_manager.Error as exc:
            # The driver's words repeat host and login; who may see a run need not know them.
            raise Disconnected(f"the database of {target} took no second connection of the same login") from exc

    def begin(self, table: pa.Table, number: int) -> Callable[[], Written]:
        return partial(self.stage, table, number)

    def stage(self, table: pa.Table, number: int) -> Written:
        if not table.num_rows:
            return Written(0)
        stage = self._stages[number % len(self._stages)]
        for name in stage.key:
            if table.column(name).null_count:
                raise null_key_error(name, self.target)
        tagged = table.select([c.name for c in stage.columns])
        for name, position in zip(stage.cursor_columns, POSITIONS, strict=False):
            tagged = tagged.append_column(name, table.column(position))
        tagged = tagged.append_column(EPOCH, pa.repeat(pa.scalar(self._epoch, pa.int64()), len(table)))
        tagged = tagged.append_column(BATCH, pa.repeat(pa.scalar(number, pa.int32()), len(table)))
        if wide_rows.is_wide(tagged):
            self._copy_wide(stage, tagged)
        else:
            self._ingest(stage, tagged)
        return Written(table.num_rows)

    def _ingest(self, stage: Stage, tagged: pa.Table) -> None:
        try:
            with self._in_use, self._connection.cursor() as cursor:
                cursor.adbc_ingest(stage.name, tagged, mode="append", db_schema_name=SCHEMA)
        except adbc_driver_manager.Error as exc:
            raise self._translate(exc) from exc

    def _copy_wide(self, stage: Stage, tagged: pa.Table) -> None:
        """On a session of its own, for as long as it takes: few loads have such rows."""
        with self._in_use, closing(self._connect()) as connection:
            self._copying = connection
            try:
                wide_rows.copy_into(connection, stage.identifier, tagged)
            except psycopg.Error as exc:
                database.raise_translated(f"staging rows for {self.target} failed", exc)
            finally:
                self._copying = None

    def close(self) -> None:
        """Close from any thread: the driver may crash when a statement is closed while another thread is in it.

        A server that does not answer keeps its session; it ends with the lease.
        """
        copying = self._copying
        if copying is not None:
            sessions.cut(copying)
        if self._in_use.acquire(timeout=_CLOSE_SECONDS):
            try:
                self._connection.close()
            finally:
                self._in_use.release()

    def _translate(self, exc: Any) -> Exception:
        state = exc.sqlstate if isinstance(exc.sqlstate, str) else None
        message = f"staging rows for {self.target} failed: {' '.join(str(exc).split())}"
        if state is None or database.is_disconnect_state(state):
            return Disconnected(message)
        return TransientError(message) if database.is_transient_state(state) else FatalError(message)
