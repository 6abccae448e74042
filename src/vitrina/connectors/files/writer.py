"""Write the rows of a load: batches are collected into files, which a separate thread encodes and sends."""

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from vitrina.connectors.files import parquet
from vitrina.connectors.files.columns import DELETED, ROW_BITS, VERSION, Layout, comparable, require_key
from vitrina.connectors.files.manifest import DataFile
from vitrina.connectors.files.names import DATA, FileName
from vitrina.connectors.files.objects import Objects
from vitrina.errors import Disconnected, DuplicateKeys, RunError
from vitrina.ports.batch import Counts, PartId, Written
from vitrina.ports.target import Receipt

# How often a file is sent if the storage does not answer. Names are used once, so sending twice is harmless.
_SENDS = 3
_MANY = 10_000
# A batch counts only when its file has arrived, so files of a slow source are ended after this time.
SLOW_SECONDS = 30.0


@dataclass(frozen=True)
class Writing:
    """Describe where and how the files of one load are written."""

    objects: Objects
    folder: str
    generation: str
    owner: str
    epoch: int
    attempt: str
    layout: Layout
    packing: parquet.Packing
    file_bytes: int
    # Returns the sequence number of a part, from which the versions of its rows are built.
    sequence: Callable[[int], int]
    # Whether rows that the source marks as deleted are written as such; a snapshot leaves them out.
    keeps_deleted: bool
    refuses_repeats: bool
    wait: Callable[[float], object]


@dataclass
class PendingGroup:
    """Collect rows of consecutive parts, which become the files of one group."""

    first: int
    last: int
    tables: list[pa.Table] = field(default_factory=list)
    size: int = 0
    since: float = field(default_factory=time.monotonic)
    files: "Future[Group] | None" = None


@dataclass(frozen=True)
class Group:
    """Describe files that hold the rows of some parts; with partitions, each holds some rows of each part."""

    epoch: int
    attempt: str
    first: int
    last: int
    files: tuple[DataFile, ...]
    # The least and the greatest value of the key's first column; None: not computed.
    extent: tuple[Any, Any] | None = None


class FilesWriter:
    """Write the batches of one window. A batch has arrived when the files with its rows are stored."""

    timed_as = "stage"

    def __init__(self, writing: Writing, arrived: Callable[[Group], None]) -> None:
        self._writing = writing
        self._arrived = arrived
        self._pending: PendingGroup | None = None
        # Position in the part that is being written, which may come in pieces.
        self._part, self._row = 0, 0
        # Files of the same parts so far: a part that comes in pieces may fill several groups.
        self._files: Counter[tuple[int, int]] = Counter()
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="vitrina-files")
        self._is_closed = False

    @property
    def ahead(self) -> int:
        """Return how many batches may be pending. Bytes end a file long before that; for a slow source, time does."""
        waits = self._pending is not None and time.monotonic() - self._pending.since > SLOW_SECONDS
        return 0 if waits else _MANY

    def write(self, rows: pa.Table, part: PartId) -> Receipt:
        # An empty result of the steps has no columns either.
        table, counts = self._shaped(rows, part.number) if rows.num_rows else (rows, Counts())
        return self._take(table, counts, part)

    def remove(self, rows: pa.Table, part: PartId) -> Receipt:
        """Write entries that delete these rows, which are given as the target has them."""
        rows = rows.cast(self._writing.layout.schema)
        table = self._marked(rows, pa.repeat(True, rows.num_rows), part.number)
        return self._take(table, Counts(deleted=rows.num_rows), part)

    def _take(self, table: pa.Table, counts: Counts, part: PartId) -> Receipt:
        pending = self._pending = self._pending or PendingGroup(part.number, part.number)
        pending.last = part.number
        if table.num_rows:
            pending.tables.append(table)
            pending.size += table.nbytes
        if pending.size >= self._writing.file_bytes:
            self._send(pending)
        written = Written(table.num_rows, counts=counts)

        def arrived() -> Written:
            (pending.files or self._send(pending)).result()
            return written

        return arrived

    def close(self) -> None:
        """Abandon what has not arrived, because no caller waits for it any more."""
        self._is_closed = True
        self._sender.shutdown(wait=False, cancel_futures=True)

    def finish(self) -> None:
        """Wait until nothing is being sent."""
        self.close()
        self._sender.shutdown(wait=True)

    def _shaped(self, rows: pa.Table, number: int) -> tuple[pa.Table, Counts]:
        """Convert rows to the form of a file, each with its version."""
        layout, writing = self._writing.layout, self._writing
        deleted = layout.deleted(rows)
        if deleted is not None and not writing.keeps_deleted:
            rows, deleted = rows.filter(pc.invert(deleted)), None
        table = layout.fitted(rows)
        require_key(table, layout.key)
        if deleted is None:
            deleted = pa.repeat(False, table.num_rows)
        removed = pc.sum(deleted).as_py() or 0
        return self._marked(table, deleted, number), Counts(inserted=table.num_rows - removed, deleted=removed)

    def _marked(self, table: pa.Table, deleted: "pa.Array | pa.ChunkedArray", number: int) -> pa.Table:
        technical = self._writing.layout.technical
        table = table.append_column(technical.field(VERSION), self._versions(table.num_rows, number))
        return table.append_column(technical.field(DELETED), deleted)

    def _versions(self, count: int, number: int) -> pa.Array:
        if number != self._part:
            self._part, self._row = number, 0
        first = (self._writing.sequence(number) << ROW_BITS) + self._row
        self._row += count
        return pc.add(pc.cumulative_sum(pa.repeat(1, count)), first - 1)

    def _send(self, pending: PendingGroup) -> "Future[Group]":
        self._pending = None
        tables, pending.tables = pending.tables, []
        pending.files = self._sender.submit(self._sent, pending.first, pending.last, tables)
        return pending.files

    def _sent(self, first: int, last: int, tables: list[pa.Table]) -> Group:
        writing = self._writing
        if not tables:
            return Group(writing.epoch, writing.attempt, first, last, ())
        rows = parquet.sorted_by_key(pa.concat_tables(tables).combine_chunks(), writing.layout.key)
        tables.clear()
        if writing.refuses_repeats:
            refuse_repeats(rows, writing.layout)
        files = []
        for folder, part in parquet.partitions(rows, writing.layout):
            place = self._files[first, last]
            self._files[first, last] += 1
            name = FileName(writing.owner, writing.epoch, writing.attempt, first, last, place, part.num_rows)
            content = parquet.encode(part, writing.layout.key, writing.packing)
            path = f"{DATA}/{writing.generation}/{folder}{name}"
            self._put(f"{writing.folder}/{path}", content)
            files.append(DataFile(path, part.num_rows, content.nbytes))
        group = Group(writing.epoch, writing.attempt, first, last, tuple(files), extent_of(rows, writing.layout))
        self._arrived(group)
        return group

    def _put(self, name: str, content: memoryview) -> None:
        for attempt in range(1, _SENDS + 1):
            if self._is_closed:
                raise RunError("the load was abandoned")
            try:
                self._writing.objects.put(name, content)
                return
            except Disconnected:
                if attempt == _SENDS:
                    raise
                self._writing.wait(float(attempt))


def refuse_repeats(rows: pa.Table, layout: Layout) -> None:
    """Raise if several of these rows, which are sorted by key, have one key."""
    repeated = parquet.repeated_key(rows, layout.key)
    if repeated:
        shown = ", ".join(f"{name} = {value}" for name, value in repeated.items())
        raise DuplicateKeys(
            f"several rows have the key {shown}: change target_key ({', '.join(layout.key)}), or group them in the"
            " query"
        )


def extent_of(rows: pa.Table, layout: Layout) -> tuple[Any, Any]:
    """Return the least and the greatest value of the key's first column, by which the rows are sorted."""
    first = comparable(rows.select([layout.key[0]])).column(0)
    return first[0].as_py(), first[-1].as_py()
