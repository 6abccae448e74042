"""A target of any connector that can be read back, and its source, as the two sides of a comparison.

Both are read as a whole for every question: what is known of the target is only that it gives its rows.
"""

import json
import secrets
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa

from vitrina.checks import comparison, recomputed
from vitrina.checks.documents import Document, DocumentSide
from vitrina.checks.opened import cursor_of
from vitrina.errors import FatalError
from vitrina.loads.job import Job, Opened
from vitrina.ports.compare import Extent, Side
from vitrina.ports.target import Scans
from vitrina.store import state


class ScanComparison:
    """A pipeline whose target is `Scans`."""

    full_guarantee = "every row by a 64-bit hash of its key and columns, as the target gives them back"

    def __init__(self, opened: Opened) -> None:
        if not isinstance(opened.target, Scans):
            raise FatalError(
                f"{opened.definition.final_target} cannot be read back: its connector has no `scan`, so nobody can"
                " compare it with its source"
            )
        self.job = comparison.look_into(opened)
        self._target: Scans = opened.target

    @property
    def compared(self) -> list[str]:
        return [column.name for column in self.job.output if column.name not in self._stamps]

    @property
    def not_compared(self) -> list[str]:
        return [column.name for column in self.job.output if column.name in self._stamps]

    @property
    def _stamps(self) -> frozenset[str]:
        stamps = frozenset(self.job.definition.options.stamps) | self.job.fitted.stamps
        return stamps - set(self.job.key)

    @contextmanager
    def both_sides(self) -> Iterator[tuple[Side, Side]]:
        found = state.peek(self.job.metastore, self.job.claim.pipeline_id)
        job = self.job = replace(self.job, checkpoint=found)
        source = DocumentSide(SourceRows(job, self._target), self.compared, repeats=cursor_of(job) is not None)
        target = DocumentSide(TargetRows(self._target, job.key), self.compared)
        source.key_names = target.key_names = (", ".join(job.key),)
        with target.snapshot(), source.snapshot():
            yield source, target


class _Rows:
    """Rows as documents whose id is their key."""

    def __init__(self, key: Sequence[str]) -> None:
        self._key = key

    @contextmanager
    def opened(self) -> Iterator[None]:
        yield

    def documents(self, *, in_order: bool) -> Iterator[Document]:
        raise NotImplementedError

    def extent(self) -> Extent:
        """Count each key once: the last row of several counts."""
        ages = {document.id: document.young for document in self.documents(in_order=True)}
        return Extent(len(ages), sum(ages.values()), {}, {})

    def with_ids(self, ids: Collection[str]) -> Iterator[Document]:
        return (document for document in self.documents(in_order=True) if document.id in ids)

    def random_ids(self, count: int) -> list[str]:
        ids = sorted({document.id for document in self.documents(in_order=False)})
        return secrets.SystemRandom().sample(ids, min(count, len(ids)))

    def _documents(self, table: pa.Table, *, young: bool = False) -> Iterator[Document]:
        for row in table.to_pylist():
            content = {name: _plain(value) for name, value in row.items()}
            yield Document(_id_of([content.get(name) for name in self._key]), content, young)


class SourceRows(_Rows):
    """The rows of the source, as the target would give them back."""

    def __init__(self, job: Job, target: Scans) -> None:
        super().__init__(job.key)
        self._job = job
        self._target = target

    def documents(self, *, in_order: bool) -> Iterator[Document]:
        for table, young in recomputed.read(self._job, in_order=in_order, form=self._job.target.form):
            if table.num_rows:
                yield from self._documents(self._target.as_written(table), young=young)


class TargetRows(_Rows):
    """The rows of the target."""

    def __init__(self, target: Scans, key: Sequence[str]) -> None:
        super().__init__(key)
        self._target = target

    def documents(self, *, in_order: bool) -> Iterator[Document]:
        for table in self._target.scan():
            yield from self._documents(table)


def _id_of(key: list[Any]) -> str:
    return str(key[0]) if len(key) == 1 else json.dumps(key, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """As JSON: what it has no form for, as text. Both sides are made from the same Arrow types."""
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, bool | int | str) or value is None else str(value)
