"""Read the rows of a source again, through the steps, for a comparison with the target."""

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
    """Hold a source and its steps, to be read again."""

    source: Source
    step_pipeline: "StepPipeline | None"
    batch_size: int

    def rows(
        self, found: Checkpoint, *, in_order: bool, sample: int | None, form: Form
    ) -> "Iterator[tuple[pa.Table, bool]]":
        """Yield the recomputed rows, in tables whose rows are either all in flight or all not.

        A source that cannot return parts is read from its beginning, and returns all rows instead of a sample.
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
                # Steps receive the types of `arrow_type`; without steps, rows come in the form that the target accepts.
                natural=step_pipeline is not None or form == "natural",
                # Steps receive batches of the same size as in a run; for anything else the size does not matter.
                batch_rows=self.batch_size if step_pipeline else _ROWS_AT_ONCE,
            )
            return
        with closing(source.read(Window(), "natural")) as batches:
            for number, batch in enumerate(batches, 1):
                yield number, batch.take(), False
