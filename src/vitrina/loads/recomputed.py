"""The rows of a source once more, through the steps: what a comparison is made with."""

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.compare import Rescans
from vitrina.ports.source import Form, Window

if TYPE_CHECKING:
    import pyarrow as pa

    from vitrina.loads.job import Job

_ROWS_AT_ONCE = 10_000


def rows(
    job: "Job", found: Checkpoint, *, in_order: bool, sample: int | None, form: Form
) -> "Iterator[tuple[pa.Table, bool]]":
    """Yield the source's rows after the steps, in tables whose rows are all young, or all not.

    A source that cannot be asked again for parts starts from its beginning, and gives all rows instead of a sample.
    """
    passage = job.fitted.passage
    for number, table, young in _numbered(job, found, in_order=in_order, sample=sample, form=form):
        yield (passage.steps.take(table, number).table if passage else table), young


def _numbered(
    job: "Job", found: Checkpoint, *, in_order: bool, sample: int | None, form: Form
) -> "Iterator[tuple[int, pa.Table, bool]]":
    source, passage = job.source, job.fitted.passage
    if isinstance(source, Rescans):
        yield from source.rows_by_age(
            found,
            in_order=in_order,
            sample=sample,
            # Steps are given natural types; without any, rows come in the form that the target takes.
            natural=passage is not None or form == "natural",
            # Steps see the batches that they see in a run; nobody else minds.
            batch_rows=job.definition.batch_size if passage else _ROWS_AT_ONCE,
        )
        return
    with closing(source.read(Window(), "natural")) as batches:
        for number, batch in enumerate(batches, 1):
            yield number, batch.take(), False
