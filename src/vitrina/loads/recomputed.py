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

    from vitrina.transforms.pipeline import StepPipeline

_ROWS_AT_ONCE = 10_000


@dataclass(frozen=True)
class Recomputed:
    """A source and the steps after it, to be read again."""

    source: Source
    step_pipeline: "StepPipeline | None"
    batch_size: int

    def rows(
        self, found: Checkpoint, *, in_order: bool, sample: int | None, form: Form
    ) -> "Iterator[tuple[pa.Table, bool]]":
        """Yield the recomputed rows, in tables whose rows are all in flight, or all not.

        A source that cannot be asked again for parts starts from its beginning, and gives no sample but all.
        """
        step_pipeline = self.step_pipeline
        for number, table, in_flight in self._numbered(found, in_order=in_order, sample=sample, form=form):
            yield (step_pipeline.steps.take(table, number).table if step_pipeline else table), in_flight

    def _numbered(
        self, found: Checkpoint, *, in_order: bool, sample: int | None, form: Form
    ) -> "Iterator[tuple[int, pa.Table, bool]]":
        source, step_pipeline = self.source, self.step_pipeline
        if isinstance(source, Rescans):
            yield from source.rows_by_age(
                found,
                in_order=in_order,
                sample=sample,
                # Steps are given natural types; without any, rows come in the form that the target takes.
                natural=step_pipeline is not None or form == "natural",
                # Steps see the batches that they see in a run; nobody else minds.
                batch_rows=self.batch_size if step_pipeline else _ROWS_AT_ONCE,
            )
            return
        with closing(source.read(Window(), "natural")) as batches:
            for number, batch in enumerate(batches, 1):
                yield number, batch.take(), False
