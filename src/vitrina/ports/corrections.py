"""Build batches of source rows for the keys on which source and target disagree; each batch fits into memory."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from vitrina.ports.batch import Key
from vitrina.ports.compare import Correction

if TYPE_CHECKING:
    import pyarrow as pa

# A repair also ends a batch at this size: five thousand rows may be a megabyte or fill all memory.
BATCH_BYTES = 16 << 20


def of_reading(
    batches: "Iterable[tuple[pa.RecordBatch, Sequence[Key | None]]]", wanted: Collection[Key], batch_rows: int
) -> Iterator[Correction]:
    """Select the wanted rows from one read of the source. A wanted key that is not found has left the source."""
    keys, left, waiting = frozenset(wanted), set(wanted), _Rows()
    for batch, found in batches:
        waiting.add(batch, [key if key in keys else None for key in found])
        left.difference_update(key for key in found if key is not None)
        yield from waiting.full(batch_rows)
    yield from waiting.rest()
    absent = sorted(left)
    for start in range(0, len(absent), batch_rows):
        yield Correction(absent=absent[start : start + batch_rows])


class _Rows:
    """Collect rows until they fill a batch."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._keys: list[Key] = []
        self._size = 0

    def add(self, batch: "pa.RecordBatch", keys: Sequence[Key | None]) -> None:
        """Keep the rows whose key is not None."""
        import pyarrow as pa

        kept = batch.filter(pa.array([key is not None for key in keys], pa.bool_()))
        if kept.num_rows:
            self._batches.append(kept)
            self._keys += [key for key in keys if key is not None]
            self._size += kept.nbytes

    def full(self, rows: int) -> Iterator[Correction]:
        while len(self._keys) >= rows or self._size >= BATCH_BYTES:
            yield self._taken(min(rows, max(1, len(self._keys) * BATCH_BYTES // max(self._size, 1))))

    def rest(self) -> Iterator[Correction]:
        if self._keys:
            yield self._taken(len(self._keys))

    def _taken(self, rows: int) -> Correction:
        import pyarrow as pa

        table, keys = pa.Table.from_batches(self._batches), self._keys
        self._batches, self._keys = table.slice(rows).to_batches(), keys[rows:]
        self._size = sum(batch.nbytes for batch in self._batches)
        return Correction(keys[:rows], table.slice(0, rows))
