"""The rows of a source once more, through the steps: what a comparison is made with."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.compare import Rescans
from vitrina.ports.source import Form, Source, Window

if TYPE_CHECKING:
    import pyarrow as pa

    from vitrina.transforms.pipeline import Passage

_ROWS_AT_ONCE = 10_000


@dataclass(frozen=True)
class Recomputed:
    """A source and the steps after it, to be read again."""

    source: Source
    passage: "Passage | None"
    batch_size: int

    def rows(
        self, found: Checkpoint, *, in_order: bool, sample: int | None, form: Form
    ) -> "Iterator[tuple[pa.Table, bool]]":
        """Give what the source gives and the steps make of it, in tables of rows that are all young, or none of them.

        A source that cannot be asked again for parts starts from its beginning, and gives no sample but all.
        """
        passage = self.passage
        for number, table, young in self._numbered(found, in_order=in_order, sample=sample, form=form):
            yield (passage.steps.take(table, number).table if passage else table), young

    def _numbered(
        self, found: Checkpoint, *, in_order: bool, sample: int | None, form: Form
    ) -> "Iterator[tuple[int, pa.Table, bool]]":
        source, passage = self.source, self.passage
        if isinstance(source, Rescans):
            yield from source.rows_by_age(
                found,
                in_order=in_order,
                sample=sample,
                # Steps are given natural types; without any, rows come in the form that the target takes.
                natural=passage is not None or form == "natural",
                # Steps see the batches that they see in a run; nobody else minds.
                batch_rows=self.batch_size if passage else _ROWS_AT_ONCE,
            )
            return
        with closing(source.read(Window(), "natural")) as batches:
            for number, batch in enumerate(batches, 1):
                yield number, batch.take(), False
