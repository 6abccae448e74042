"""Write the rows of a load: convert and insert batches; rows that the table cannot hold become dead letters.

A thread inserts several batches together, because each insert creates a part that the server has to merge.
"""

import json
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from secrets import token_hex
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from vitrina.connectors.clickhouse import types
from vitrina.connectors.clickhouse.tables import DELETED, VERSION, Layout, version_of
from vitrina.errors import BadKey, FatalError, TargetMismatch, TransientError
from vitrina.ports.batch import Counts, DeadLetter, PartId, Written
from vitrina.ports.target import Receipt

_ROW = "_vitrina_row"
# Batches are inserted together once they reach this size, or when a caller waits for one of them.
_GROUP_BYTES = 24 << 20


@dataclass(frozen=True)
class Converted:
    """Hold a batch as it is inserted, and its rejected rows."""

    rows: pa.Table
    upserts: int = 0
    deletes: int = 0
    # Whether its rows become visible with their part; those of a full load count when it is published.
    merges: bool = False
    letters: tuple[DeadLetter, ...] = ()
    delivered: frozenset[str] = frozenset()

    @property
    def written(self) -> Written:
        counts = Counts(inserted=self.upserts, deleted=self.deletes) if self.merges else Counts()
        return Written(self.upserts + self.deletes, self.letters, self.delivered, counts)


@dataclass(frozen=True)
class Converter:
    """Convert batches of a run to rows of a table.

    `merges`: of several rows with one key the last counts, and `delete_when` produces tombstones; a full load leaves
    such rows out.
    """

    layout: Layout
    delete_when: str | None
    merges: bool
    watched: set[str] | None = None

    def convert(self, rows: pa.Table, part: PartId) -> Converted:
        if rows.num_rows == 0:
            return Converted(rows)
        deleted = self._deleted(rows)
        columns = {one.name: types.sent(self._column(rows, one.name), one) for one in self.layout.fields}
        table = pa.table(columns)
        self._refuse_null_keys(table)
        kept = self._latest(table) if self.merges else None
        if kept is not None:
            table, deleted = table.take(kept), deleted.take(kept) if deleted is not None else None
        removals = None if deleted is None else table.filter(deleted)
        upserts = table if deleted is None else table.filter(pc.invert(deleted))
        upserts, letters = self._without_unfit(upserts)
        parts = [self._versioned(upserts, part, deleted=0)]
        deletes = removals.num_rows if self.merges and removals is not None else 0
        if removals is not None and deletes:
            parts.append(self._versioned(self._tombstones(removals.select(list(self.layout.key))), part, deleted=1))
        made = pa.concat_tables(parts)
        return Converted(made, upserts.num_rows, deletes, self.merges, letters, self._delivered(made))

    def tombstones(self, keys: Sequence[Sequence[str]], part: PartId) -> pa.Table:
        """Return rows that mark these keys as deleted; the server parses the text in the types of the key."""
        columns = [pa.array([key[at] for key in keys], pa.string()) for at in range(len(self.layout.key))]
        return self._versioned(self._tombstones(pa.table(columns, names=list(self.layout.key))), part, deleted=1)

    def _column(self, rows: pa.Table, name: str) -> pa.ChunkedArray:
        if name not in rows.column_names:
            raise TargetMismatch(f"column {name!r} is not in a batch that came: it has {', '.join(rows.column_names)}")
        return rows.column(name)

    def _deleted(self, rows: pa.Table) -> pa.ChunkedArray | None:
        """Return which rows `delete_when` marks; None if it marks none, so that nothing is copied."""
        name = self.delete_when
        if name is None:
            return None
        column = self._column(rows, name)
        if not pa.types.is_boolean(column.type):
            raise FatalError(f"delete_when names {name!r}, which is {column.type} and not boolean")
        return pc.fill_null(column, False) if pc.any(column, min_count=0).as_py() else None

    def _refuse_null_keys(self, table: pa.Table) -> None:
        for name in self.layout.key:
            if table.column(name).null_count:
                raise BadKey(f"target_key column {name!r} is NULL in {table.column(name).null_count} row(s)")

    def _latest(self, table: pa.Table) -> pa.Array | None:
        """Return the positions of the rows that count; None if all of them do."""
        names = list(self.layout.key)
        keyed = table.select(names).append_column(_ROW, pa.array(range(table.num_rows), pa.int64()))
        grouped = keyed.group_by(names).aggregate([(_ROW, "max")])
        if grouped.num_rows == table.num_rows:
            return None
        return grouped.column(f"{_ROW}_max").combine_chunks().sort()

    def _without_unfit(self, table: pa.Table) -> tuple[pa.Table, tuple[DeadLetter, ...]]:
        if table.num_rows == 0:
            return table, ()
        reasons: dict[int, str] = {}
        for one in self.layout.fields:
            if found := types.unfit(table.column(one.name), one):
                places = [at for at, is_bad in enumerate(found[0].to_pylist()) if is_bad]
                reasons |= {at: found[1] for at in places if at not in reasons}
        if not reasons:
            return table, ()
        bad = table.take(sorted(reasons))
        letters = tuple(
            DeadLetter.about(name, reasons[at], document)
            for at, name, document in zip(sorted(reasons), self._ids(bad), _documents(bad), strict=True)
        )
        return table.take([at for at in range(table.num_rows) if at not in reasons]), letters

    def _tombstones(self, keys: pa.Table) -> pa.Table:
        columns = {}
        for one in self.layout.fields:
            if one.name in self.layout.key:
                columns[one.name] = keys.column(one.name)
            elif one.is_array:
                columns[one.name] = pa.chunked_array([pa.array([[]] * keys.num_rows, one.sent_as)])
            else:
                columns[one.name] = pa.chunked_array([pa.nulls(keys.num_rows, one.sent_as)])
        return pa.table(columns)

    def _versioned(self, table: pa.Table, part: PartId, *, deleted: int) -> pa.Table:
        version = pa.scalar(version_of(part.epoch, part.number), pa.uint64())
        return table.append_column(VERSION, pa.repeat(version, table.num_rows)).append_column(
            DELETED, pa.repeat(pa.scalar(deleted, pa.uint8()), table.num_rows)
        )

    def _delivered(self, rows: pa.Table) -> frozenset[str]:
        return frozenset(self._ids(rows)) & self.watched if self.watched else frozenset()

    def _ids(self, rows: pa.Table) -> list[str]:
        return [letter_name(key) for key in self.keys(rows)]

    def keys(self, rows: pa.Table) -> list[tuple[str, ...]]:
        columns = [types.key_texts(rows.column(name)) for name in self.layout.key]
        return [tuple(str(one) for one in key) for key in zip(*columns, strict=True)]


def letter_name(key: Sequence[str]) -> str:
    """Return the name of a row's dead letter: its key, joined with `|`."""
    return key[0] if len(key) == 1 else "|".join(re.sub(r"([|\\])", r"\\\1", part) for part in key)


def _documents(rows: pa.Table) -> list[bytes]:
    readable = pa.table({name: types.readable(rows.column(name)) for name in rows.column_names})
    return [json.dumps(row, ensure_ascii=False, default=_as_json).encode() for row in readable.to_pylist()]


def _as_json(value: Any) -> Any:
    return types.key_texts(pa.chunked_array([[value]]))[0] if isinstance(value, bytes) else str(value)


@dataclass(frozen=True)
class Inserting:
    """Describe one insert. `may_be_all`: it is the first, and no more rows were queued when it began."""

    rows: pa.Table
    part: PartId
    token: str
    may_be_all: bool = False


Insert = Callable[[Inserting], None]


@dataclass
class _Sent:
    rows: pa.Table
    part: PartId
    token: str
    done: "Future[None]" = field(default_factory=Future)


@dataclass(frozen=True)
class _Wanted:
    """Signal that a caller waits for a batch that was queued before."""

    done: "Future[None]"


@dataclass
class _Group:
    batches: list[_Sent]
    size: int
    is_last: bool = False

    @property
    def is_full(self) -> bool:
        return self.size >= _GROUP_BYTES

    def add(self, batch: _Sent) -> None:
        self.batches.append(batch)
        self.size += batch.rows.nbytes


class GroupingWriter:
    """Insert batches in the order in which they came, several at once if `groups`."""

    timed_as = "stage"

    def __init__(self, converter: Converter, insert: Insert, *, ahead: int, groups: bool) -> None:
        self._converter = converter
        self._insert = insert
        self.ahead = ahead
        self._groups = groups
        self._queue: SimpleQueue[_Sent | _Wanted | None] = SimpleQueue()
        self._pieces: dict[PartId, int] = {}
        # Part of the tokens of its inserts. A repeated run reuses part numbers, and the server would ignore an insert
        # whose
        # token belongs to rows that were deleted since.
        self._name = token_hex(4)
        self._error: BaseException | None = None
        self._is_closed = False
        self._has_inserted = False
        self._thread = threading.Thread(target=self._work, name="clickhouse-insert", daemon=True)
        self._thread.start()

    def write(self, rows: pa.Table, part: PartId) -> Receipt:
        if self._is_closed:
            raise TransientError("the load was ended while rows were being sent")
        converted = self._converter.convert(rows, part)
        if converted.rows.num_rows == 0:
            return lambda: converted.written
        piece = self._pieces[part] = self._pieces.get(part, 0) + 1
        sent = _Sent(converted.rows, part, f"{self._name}-{part.epoch}-{part.number}-{piece}")
        written, done = converted.written, sent.done
        self._queue.put(sent)
        if self._is_closed:
            self.drain()
            self._refuse_rest()

        def arrived() -> Written:
            if not done.done():
                self._queue.put(_Wanted(done))
            done.result()
            return written

        return arrived

    def pieces(self, part: PartId) -> int:
        return self._pieces.get(part, 0)

    def close(self) -> None:
        """Close the writer, from any thread. Batches that were already sent are still completed."""
        self._is_closed = True
        self._queue.put(None)

    def drain(self) -> None:
        self.close()
        self._thread.join()

    def _work(self) -> None:
        while self._insert_next():
            pass

    def _insert_next(self) -> bool:
        """Insert what comes next. Return False at the end. No rows are kept between two calls."""
        first = self._queue.get()
        if not isinstance(first, _Sent):
            return first is not None
        group = self._gathered(first)
        self._send(group)
        return not group.is_last

    def _refuse_rest(self) -> None:
        """Fail batches that were queued after the end, because a caller waits for each."""
        while True:
            try:
                left = self._queue.get_nowait()
            except Empty:
                return
            if isinstance(left, _Sent):
                left.done.set_exception(TransientError("the load was ended while rows were being sent"))

    def _gathered(self, first: _Sent) -> _Group:
        group = _Group([first], first.rows.nbytes)
        while self._groups and not group.is_full:
            more = self._queue.get()
            if isinstance(more, _Sent):
                group.add(more)
            elif more is None:
                group.is_last = True
                break
            elif not more.done.done():
                break
        return group

    def _send(self, group: _Group) -> None:
        """Insert one group. After a failed insert, insert nothing more, so that no later batch arrives without it."""
        try:
            if self._error is not None:
                raise self._error
            self._insert(self._inserting(group))
        except BaseException as exc:  # noqa: BLE001 - raised where the batch is waited for
            self._error = exc
            for one in group.batches:
                one.done.set_exception(exc)
        else:
            for one in group.batches:
                one.done.set_result(None)

    def _inserting(self, group: _Group) -> Inserting:
        batches = group.batches
        may_be_all = not group.is_full and not self._has_inserted
        self._has_inserted = True
        rows = pa.concat_tables([one.rows for one in batches])
        return Inserting(rows, batches[0].part, "+".join(one.token for one in batches), may_be_all)
