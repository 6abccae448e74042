"""A target that answers for both sides of a comparison itself, and what a repair writes into it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa

from vitrina.checks import comparison, recomputed
from vitrina.checks.compare import Difference
from vitrina.checks.opened import cursor_of
from vitrina.checks.repair import Correction
from vitrina.errors import FatalError
from vitrina.loads.job import Opened
from vitrina.ports.batch import Key
from vitrina.ports.compare import Side
from vitrina.ports.target import Comparable
from vitrina.store import state


class SideComparison:
    """A pipeline whose target is `Comparable`."""

    full_guarantee = "every row by a 128-bit hash of its columns, computed by the target from rows as a run writes them"
    # Corrections come as the rows of a run do.
    arrives_as = None

    def __init__(self, opened: Opened, target: Comparable) -> None:
        self.job = comparison.look_into(opened)
        if not self.job.output:
            raise FatalError(f"{opened.source.name} gives no row now, so nobody can tell its columns: run the pipeline")
        self._target = target

    @property
    def compared(self) -> list[str]:
        return [name for name in self.job.prepared.columns if name not in self._stamps]

    @property
    def not_compared(self) -> list[str]:
        return [name for name in self.job.prepared.columns if name in self._stamps]

    @property
    def _stamps(self) -> frozenset[str]:
        stamps = frozenset(self.job.definition.options.stamps) | self.job.fitted.stamps
        return stamps - set(self.job.key)

    @contextmanager
    def both_sides(self) -> Iterator[tuple[Side, Side]]:
        found = state.peek(self.job.metastore, self.job.claim.pipeline_id)
        self.job = replace(self.job, checkpoint=found)
        with self._target.sides(self._rows, self.compared) as pair:
            yield pair

    def _rows(self) -> Iterator[tuple[pa.Table, bool]]:
        in_order = cursor_of(self.job) is not None
        return recomputed.read(self.job, in_order=in_order, form=self.job.target.form)

    # --- repairing -------------------------------------------------------------------------------------------------

    def refuse_shrinking(self, deletes: int) -> None:
        self._target.refuse_deleting(deletes)

    def corrections(self, wanted: Sequence[Difference], batch_rows: int) -> Iterator[Correction]:
        """One reading of the source gives what it has now; what was not met in it has left."""
        left = {difference.key for difference in wanted}
        keys = frozenset(left)
        for table, _ in self._rows():
            found = self._target.keys_of(table) if table.num_rows else []
            places = [at for at, key in enumerate(found) if key in keys]
            left.difference_update(found)
            for start in range(0, len(places), batch_rows):
                some = places[start : start + batch_rows]
                yield Correction([found[at] for at in some], table.take(some))
        yield from _absent(sorted(left), batch_rows)


def _absent(keys: Sequence[Key], batch_rows: int) -> Iterator[Correction]:
    for start in range(0, len(keys), batch_rows):
        yield Correction(absent=keys[start : start + batch_rows])
