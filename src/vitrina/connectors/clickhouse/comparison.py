"""Compare a ClickHouse table with its source, and prepare the corrections that a repair writes into the table."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import pyarrow as pa

from vitrina.connectors.clickhouse import compare, types
from vitrina.connectors.clickhouse.opened_table import OpenedTable
from vitrina.connectors.clickhouse.writer import Converter
from vitrina.errors import FatalError
from vitrina.ports import corrections
from vitrina.ports.batch import Key
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.compare import ComparableSide, Correction, Difference, Looked, Rescans


class TableComparison:
    """Compare a pipeline's source with its ClickHouse table."""

    full_guarantee = "every row by a 128-bit hash of its columns, computed by the server from rows as a run writes them"
    # Corrections arrive like the rows of a run.
    arrives_as = None

    def __init__(self, target: OpenedTable, looked: Looked) -> None:
        if not looked.output:
            raise FatalError(f"{looked.source.name} returns no rows now, so its columns are unknown: run the pipeline")
        self._target = target
        self._looked = looked
        self._found = looked.checkpoint

    @property
    def compared(self) -> list[str]:
        return [name for name in self._columns if name not in self._stamps]

    @property
    def not_compared(self) -> list[str]:
        return [name for name in self._columns if name in self._stamps]

    @property
    def _columns(self) -> list[str]:
        return [one.name for one in self._target.layout.fields]

    @property
    def _stamps(self) -> frozenset[str]:
        return self._looked.stamps - set(self._looked.key)

    @contextmanager
    def sides(self, found: Checkpoint) -> Iterator[tuple[ComparableSide, ComparableSide]]:
        self._found = found
        with compare.sides(self._target, partial(self._rows, found), self.compared) as pair:
            yield pair

    def _rows(self, found: Checkpoint) -> Iterator[tuple[pa.Table, bool]]:
        source = self._looked.source
        in_order = isinstance(source, Rescans) and source.cursor_name is not None
        return self._looked.rows(found, in_order=in_order, form=self._target.form)

    def refuse_shrinking(self, deletes: int) -> None:
        before = self._target.rows_shown()
        self._target.refuse_shrinking(before - deletes, before)

    def corrections(self, wanted: Sequence[Difference], batch_rows: int) -> Iterator[Correction]:
        """Read the source once and yield the wanted rows. A wanted key that is not found has left the source."""
        return corrections.of_reading(self._batches(), {one.key for one in wanted}, batch_rows)

    def _batches(self) -> Iterator[tuple[pa.RecordBatch, Sequence[Key]]]:
        for table, _ in self._rows(self._found):
            for batch in table.combine_chunks().to_batches() if table.num_rows else ():
                yield batch, self._keys_of(pa.Table.from_batches([batch]))

    def _keys_of(self, rows: pa.Table) -> Sequence[Key]:
        """Return the keys of rows of the source, as the sides write them."""
        layout = self._target.layout
        sent = {one.name: types.sent(rows.column(one.name), one) for one in layout.fields if one.is_key}
        return Converter(layout, None, merges=True).keys(pa.table(sent))
