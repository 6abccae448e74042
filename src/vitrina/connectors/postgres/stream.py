"""Move rows as Arrow: read them from a query and copy them into a stage."""

import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from functools import partial
from typing import Any

import adbc_driver_manager
import adbc_driver_postgresql.dbapi as adbc
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg.sql import SQL, Composable, Identifier

from vitrina.connectors.postgres import wide_rows
from vitrina.connectors.postgres.prefetch import prefetched
from vitrina.connectors.postgres.source import NO_SETTINGS, Age, Bounds, Order, Query, SqlReader, arrow_url, column
from vitrina.connectors.postgres.stage import BATCH, EPOCH, SCHEMA, Stage, Turns
from vitrina.connectors.postgres.target import null_key_error
from vitrina.errors import BadKey, Disconnected, FatalError, TransientError
from vitrina.ports import values
from vitrina.ports.batch import MAX_BATCH_BYTES, Batch, PartId, Position, Stopwatch, Written
from vitrina.ports.schema import Column
from vitrina.ports.target import Receipt
from vitrina.ports.types import travels_natively
from vitrina.store import database, pooling, sessions
from vitrina.store.database import Connection
from vitrina.targets import PostgresTarget

# How long `close` waits for the batch that another thread is copying.
_CLOSE_SECONDS = 10.0

# Columns with the position of a row in the reading order, sent in addition to the result's columns.
POSITIONS = tuple(f"_position_{i}" for i in range(32))


class ArrowReader:
    """Stream one query and cut it into batches."""

    def __init__(
        self,
        reader: SqlReader,
        query: Query,
        *,
        bounds: Bounds,
        outputs: Sequence[Composable],
        order: Order,
        batch_size: Callable[[], int],
        max_value_bytes: int,
        max_snapshot_seconds: float | None = None,
        needs_position: str | None = None,
        snapshot: str | None = None,
        settings: Mapping[str, str] = NO_SETTINGS,
        keeps_session: bool = False,
    ) -> None:
        self._reader = reader
        # Whether later reads use the same session.
        self._keeps_session = keeps_session
        # A snapshot that another session holds; None: the stream's own.
        self._snapshot = snapshot
        self._settings = {**bounds.settings, **settings}
        self._query = query
        self._bounds = bounds
        self._outputs = outputs
        self._order = order
        self._batch_size = batch_size
        self._max_value_bytes = max_value_bytes
        # The query is run again from the last row after this time. None: all rows come from one snapshot.
        self._max_snapshot_seconds = max_snapshot_seconds
        # The target's name, if a row without a position must be refused.
        self._needs_position = needs_position

    def batches(self, after: Position | None) -> Generator[Batch, None, None]:
        position, reopened = after, False
        while True:
            age, is_complete = Age(self._max_snapshot_seconds), True
            # The tables are closed before the stream, because their thread reads from it.
            with (
                self._streaming(position) as stream,
                closing(self._cut(stream)) as tables,
            ):
                watch = Stopwatch()
                while (table := watch.next_of("read", tables)) is not None:
                    position = self._position(table)
                    batch = Batch(table, position, watch=watch, reopened=reopened)
                    del table  # only the steps may hold it from now on
                    yield batch
                    del batch
                    if position is None:
                        continue
                    watch = Stopwatch()
                    if age.is_over:
                        is_complete = False
                        break
            if is_complete:
                return
            reopened = True

    def _streaming(self, after: Position | None) -> AbstractContextManager[Iterator[pa.RecordBatch]]:
        return self._reader.stream(
            self._select(after), self._settings, snapshot=self._snapshot, keeps_session=self._keeps_session
        )

    def _cut(self, stream: Iterator[pa.RecordBatch]) -> Generator[pa.Table, None, None]:
        return cut(read_ahead(self._bounded(stream)), self._batch_size, ordered_by=self._position_names())

    def _bounded(self, stream: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Refuse a value above the limit as soon as it arrives."""
        for batch in stream:
            if batch.nbytes > self._max_value_bytes:
                _refuse_large(batch, self._max_value_bytes, self._position_names())
            yield batch
            del batch

    def _select(self, after: Position | None) -> Composable:
        outputs = [
            *self._outputs,
            *(
                SQL("({})::text AS {}").format(expression, Identifier(name))
                for expression, name in zip(self._order.places, self._position_names(), strict=True)
            ),
        ]
        return self._query.select(outputs, replace(self._bounds, after=after), order=self._order)

    def _position_names(self) -> list[str]:
        return list(POSITIONS[: len(self._order.columns)])

    def _position(self, table: pa.Table) -> Position | None:
        names = self._position_names()
        if not names:
            return None
        if self._needs_position and any(table.column(name).null_count for name in names):
            raise BadKey(
                f"a column that {self._needs_position} is read in the order of is NULL in a row of the source: a load"
                " could not be resumed after it; filter such rows out in the query, or change target_key"
            )
        return tuple(table.column(name)[-1].as_py() for name in names)


def _refuse_large(batch: pa.RecordBatch, limit: int, position: list[str]) -> None:
    for name, values_of in zip(batch.schema.names, batch.columns, strict=True):
        if not (pa.types.is_string(values_of.type) or pa.types.is_binary(values_of.type)):
            continue  # all other types are sent as text
        sizes = pc.binary_length(values_of)
        largest = pc.max(sizes).as_py() or 0
        if largest > limit:
            row = pc.index(sizes, pa.scalar(largest, sizes.type)).as_py()
            raise values.too_large(name, largest, limit, {place: batch[place][row].as_py() for place in position})


def outputs_of(result: Sequence[Column]) -> list[Composable]:
    """Build the outputs for columns that are sent as Arrow without any step."""
    return [column(c.name, None if travels_natively(c.type) else "text") for c in result]


def read_ahead(stream: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
    return prefetched(stream, lambda batch: int(batch.nbytes))


def cut(
    stream: Iterator[pa.RecordBatch], batch_size: Callable[[], int], *, ordered_by: list[str]
) -> Generator[pa.Table, None, None]:
    """Cut the stream into tables of `batch_size` rows.

    Rows of one position stay together, because a checkpoint cannot fall between them.
    """
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
            yield done.pop()  # only the caller may hold it: it may be large
    if rows:
        yield pa.Table.from_batches(waiting)


def _boundary(table: pa.Table, wanted: int, ordered_by: list[str]) -> int | None:
    """Find the first row at or after `wanted` whose position differs from the row before; None if not read yet."""
    if not ordered_by:
        return min(wanted, int(table.num_rows))
    columns = [table.column(name) for name in ordered_by]
    for end in range(wanted, table.num_rows):
        if any(c[end].as_py() != c[end - 1].as_py() for c in columns):
            return end
    return None


class Stager:
    """Copy tagged Arrow tables into a stage, outside the merge's transaction.

    Rows without an accepted tag never count.
    """

    timed_as = "stage"
    ahead = 0  # stages alternate: one is filled while the other is merged, and there is no third

    def __init__(self, url: str, application_name: str, turns: Turns, *, epoch: int, target: PostgresTarget) -> None:
        self._turns = turns
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
            # The driver's message contains host and login, which users who may see a run need not know.
            raise Disconnected(f"the database of {target} took no second connection of the same login") from exc

    def write(self, rows: pa.Table, part: PartId) -> Receipt:
        return partial(self.stage, rows, part.number)

    def stage(self, table: pa.Table, number: int) -> Written:
        if not table.num_rows:
            return Written(0)
        stage = self._turns.of(number)
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
        """Copy over a separate session that ends with the table; few loads have such rows."""
        with self._in_use, closing(self._connect()) as connection:
            self._copying = connection
            try:
                wide_rows.copy_into(connection, stage.identifier, tagged)
            except psycopg.Error as exc:
                database.raise_translated(f"staging rows for {self.target} failed", exc)
            finally:
                self._copying = None

    def close(self) -> None:
        """Close from any thread. The driver may crash if a statement is closed while another thread uses it.

        If the server does not answer, its session stays open until the lease ends.
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
