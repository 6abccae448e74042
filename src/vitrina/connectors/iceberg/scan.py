"""Read a table back as any reader does: with pyiceberg, through snapshot, manifests and column ids."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import Table

from vitrina.connectors.files.columns import DELETED, VERSION, Layout, comparable


class TableReader:
    """Read one snapshot of a table, in the types of a layout."""

    def __init__(self, table: Table, layout: Layout) -> None:
        self._table = table
        self._layout = layout

    def scan(self, *, is_log: bool) -> Iterator[pa.Table]:
        """Yield the rows that count. For a log, the keys with their versions are held in memory."""
        latest = self._latest_versions() if is_log else None
        for rows in self._read([*self._layout.schema.names, VERSION]):
            counting = rows if latest is None else rows.filter(pc.is_in(rows.column(VERSION), latest))
            if counting.num_rows:
                yield self._typed(counting)

    def _read(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Read file by file, because pyiceberg would read them all at once."""
        known = set(self._table.schema().column_names)
        scan = self._table.scan(selected_fields=tuple(name for name in columns if name in known))
        for task in scan.plan_files():
            reading = ArrowScan(self._table.metadata, self._table.io, scan.projection(), AlwaysTrue())
            for batch in reading.to_record_batches([task]):
                yield pa.Table.from_batches([batch])

    def _latest_versions(self) -> pa.Array:
        """Return the highest version of each key, unless its row is deleted."""
        key = list(self._layout.key)
        latest: pa.Table | None = None
        deleted: list[pa.Array] = []
        for rows in self._read([*key, VERSION, DELETED]):
            deleted += rows.column(VERSION).filter(rows.column(DELETED)).chunks
            keys = comparable(rows.select([*key, VERSION]))
            both = keys if latest is None else pa.concat_tables([latest, keys], promote_options="permissive")
            grouped = both.group_by(key).aggregate([(VERSION, "max")])
            latest = grouped.rename_columns({f"{VERSION}_max": VERSION}).select([*key, VERSION])
        if latest is None:
            return pa.array([], pa.int64())
        versions = latest.column(VERSION)
        return versions.filter(pc.invert(pc.is_in(versions, pa.chunked_array(deleted, pa.int64())))).combine_chunks()

    def _typed(self, rows: pa.Table) -> pa.Table:
        columns = [
            rows.column(field.name).cast(field.type)
            if field.name in rows.column_names
            else pa.nulls(rows.num_rows, field.type)
            for field in self._layout.schema
        ]
        return pa.table(columns, schema=self._layout.schema)
