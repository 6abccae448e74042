"""Compare a target of any connector that can be read back with its source.

Both are read as a whole for every question, because the target can do no more than return its rows.
"""

import json
import secrets
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from vitrina.data_checks import EMPTY
from vitrina.errors import FatalError, ShrinkRefused
from vitrina.ports import corrections
from vitrina.ports.batch import Key
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.compare import ComparableSide, Correction, Difference, Extent, Looked, Rescans
from vitrina.ports.documents import Document, DocumentSide
from vitrina.ports.source import Form
from vitrina.ports.target import Scans, Target
from vitrina.sentences import say


class ScanComparison:
    """Compare a pipeline's source with a target that implements `Scans`."""

    full_guarantee = "every row by a 64-bit hash of its key and columns, as the target returns them"
    # Corrections arrive like the rows of a run.
    arrives_as = None

    def __init__(self, looked: Looked, target: Scans, form: Form) -> None:
        self._looked = looked
        self._target = target
        self._form = form
        self._found = looked.checkpoint

    @property
    def compared(self) -> list[str]:
        return [column.name for column in self._looked.output if column.name not in self._stamps]

    @property
    def not_compared(self) -> list[str]:
        return [column.name for column in self._looked.output if column.name in self._stamps]

    @property
    def _stamps(self) -> frozenset[str]:
        return self._looked.stamps - set(self._looked.key)

    @contextmanager
    def sides(self, found: Checkpoint) -> Iterator[tuple[ComparableSide, ComparableSide]]:
        self._found = found
        read = self._looked.source
        repeats = isinstance(read, Rescans) and read.cursor_name is not None
        source = DocumentSide(SourceRows(self._looked, self._target, self._form, found), self.compared, repeats=repeats)
        target = DocumentSide(TargetRows(self._target, self._looked.key), self.compared)
        source.key_names = target.key_names = (", ".join(self._looked.key),)
        with target.snapshot(), source.snapshot():
            yield source, target

    def refuse_shrinking(self, deletes: int) -> None:
        """Refuse what publishing a load would refuse as well."""
        name, options = self._looked.definition.final_target, self._looked.definition.options
        rows = sum(table.num_rows for table in self._target.scan())
        if deletes >= rows and not options.allow_empty:
            raise ShrinkRefused(say("run.source_is_empty", target=name), EMPTY)
        if deletes > rows * options.shrink_limit:
            raise ShrinkRefused(say("run.would_shrink", removed=deletes, rows=rows, target=name))

    def corrections(self, wanted: Sequence[Difference], batch_rows: int) -> Iterator[Correction]:
        """Select the rows from one read of the source, as a run would send them."""
        source = SourceRows(self._looked, self._target, self._form, self._found)
        for found in corrections.of_reading(source.batches(), {one.key for one in wanted}, batch_rows):
            yield Correction(found.keys, found.rows, [self._parts(key) for key in found.absent])

    def _parts(self, key: Key) -> Key:
        """Split a key that is one text in a comparison."""
        return key if len(self._looked.key) == 1 else tuple(map(str, json.loads(key[0])))


def required(target: Target, name: str) -> Scans:
    """Return the target if it can be read back; refuse it otherwise."""
    if not isinstance(target, Scans):
        raise FatalError(
            f"{name} cannot be read back: its connector has no `scan`, so it cannot be compared with its source"
        )
    return target


class _Rows:
    """Provide rows as documents whose id is their key."""

    def __init__(self, key: Sequence[str]) -> None:
        self._key = key

    @contextmanager
    def opened(self) -> Iterator[None]:
        yield

    def documents(self, *, in_order: bool) -> Iterator[Document]:
        raise NotImplementedError

    def extent(self) -> Extent:
        """Count each key once, by the last of its rows."""
        ages = {document.id: document.in_flight for document in self.documents(in_order=True)}
        return Extent(len(ages), sum(ages.values()), {}, {})

    def with_ids(self, ids: Collection[str]) -> Iterator[Document]:
        return (document for document in self.documents(in_order=True) if document.id in ids)

    def random_ids(self, count: int) -> list[str]:
        ids = sorted({document.id for document in self.documents(in_order=False)})
        return secrets.SystemRandom().sample(ids, min(count, len(ids)))

    def _documents(self, table: pa.Table, *, in_flight: bool = False) -> Iterator[Document]:
        for row in table.to_pylist():
            content = {name: _plain(value) for name, value in row.items()}
            yield Document(_id_of([content.get(name) for name in self._key]), content, in_flight)


class SourceRows(_Rows):
    """Provide the rows of the source, as the target would return them."""

    def __init__(self, looked: Looked, target: Scans, form: Form, found: Checkpoint) -> None:
        super().__init__(looked.key)
        self._looked = looked
        self._target = target
        self._form = form
        self._found = found

    def documents(self, *, in_order: bool) -> Iterator[Document]:
        for table, in_flight in self._looked.rows(self._found, in_order=in_order, form=self._form):
            if table.num_rows:
                yield from self._documents(self._target.as_written(table), in_flight=in_flight)

    def batches(self) -> "Iterator[tuple[pa.RecordBatch, list[Key | None]]]":
        """Yield the rows as they are sent, each batch with the keys by which a comparison knows them."""
        for table, _ in self._looked.rows(self._found, in_order=True, form=self._form):
            for batch in self._present(table).combine_chunks().to_batches():
                shown = self._target.as_written(pa.Table.from_batches([batch]))
                yield batch, [(document.id,) for document in self._documents(shown)]

    def _present(self, rows: pa.Table) -> pa.Table:
        """Leave out rows that the source marks as deleted, which the target must not have and cannot return."""
        deleted = self._looked.definition.options.delete_when
        return rows.filter(pc.invert(pc.fill_null(rows.column(deleted), False))) if deleted and rows.num_rows else rows


class TargetRows(_Rows):
    """Provide the rows of the target."""

    def __init__(self, target: Scans, key: Sequence[str]) -> None:
        super().__init__(key)
        self._target = target

    def documents(self, *, in_order: bool) -> Iterator[Document]:
        for table in self._target.scan():
            yield from self._documents(table)


def _id_of(key: list[Any]) -> str:
    return str(key[0]) if len(key) == 1 else json.dumps(key, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Return a value as JSON, or as text if it has no JSON form. Both sides come from the same Arrow types."""
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, bool | int | str) or value is None else str(value)
