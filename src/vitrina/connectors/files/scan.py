"""Read a target back: the rows that count, file by file."""

from collections.abc import Iterator, Sequence
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from vitrina.connectors.files import names, parquet
from vitrina.connectors.files.columns import DELETED, VERSION, Layout, comparable
from vitrina.connectors.files.manifest import DataFile, Generation
from vitrina.connectors.files.objects import Objects
from vitrina.errors import TransientError
from vitrina.ports.batch import Key


class Reader:
    """Read the files of one target, in the types of a layout."""

    def __init__(self, objects: Objects, folder: str, layout: Layout) -> None:
        self._objects = objects
        self._folder = folder
        self._layout = layout

    def scan(self, shown: Generation) -> Iterator[pa.Table]:
        """Yield the rows that count. For a log, the keys with their versions are held in memory."""
        latest = self._latest_versions(shown) if shown.kind == "log" else None
        for file in shown.files:
            rows = self.whole(file)
            if latest is not None:
                rows = rows.filter(pc.is_in(rows.column(VERSION), latest))
            if rows.num_rows:
                yield self._typed(rows, file, self._layout.schema)

    def whole(self, file: DataFile, columns: Sequence[str] | None = None) -> pa.Table:
        """Read a whole file, or some of its columns."""
        try:
            return parquet.decode(self._objects.get(f"{self._folder}/{file.path}"), columns)
        except FileNotFoundError as exc:
            raise TransientError(f"{file.path} was removed: a load replaced it while it was read") from exc

    def keys(self, file: DataFile) -> pa.Table:
        """Read the keys of a file with their versions, in their storage types."""
        key, schema = self._layout.key, self._layout.schema
        rows = self.whole(file, [*(name for name in key if name not in self._layout.partition_by), VERSION])
        typed = self._typed(rows, file, pa.schema([schema.field(name) for name in key]))
        return comparable(typed.append_column(VERSION, rows.column(VERSION)))

    def _latest_versions(self, shown: Generation) -> pa.Array:
        """Return the highest version of each key, unless its row is deleted."""
        key = list(self._layout.key)
        latest: pa.Table | None = None
        deleted: list[pa.Array] = []
        for file in shown.files:
            marks = self.whole(file, [VERSION, DELETED])
            deleted += marks.column(VERSION).filter(marks.column(DELETED)).chunks
            rows = self.keys(file)
            both = rows if latest is None else pa.concat_tables([latest, rows])
            grouped = both.group_by(key).aggregate([(VERSION, "max")])
            latest = grouped.rename_columns({f"{VERSION}_max": VERSION}).select([*key, VERSION])
        if latest is None:
            return pa.array([], pa.int64())
        versions = latest.column(VERSION)
        return versions.filter(pc.invert(pc.is_in(versions, pa.chunked_array(deleted, pa.int64())))).combine_chunks()

    def _typed(self, rows: pa.Table, file: DataFile, schema: pa.Schema) -> pa.Table:
        """Return the columns of a schema. Add partition columns; columns that a file lacks are NULL."""
        given = names.partition_values(file.path)
        columns = [
            rows.column(field.name).cast(field.type)
            if field.name in rows.column_names
            else _constant(given.get(field.name), field.type, rows.num_rows)
            for field in schema
        ]
        return pa.table(columns, schema=schema)


def _constant(text: str | None, kind: pa.DataType, count: int) -> pa.Array:
    if text is None:
        return pa.nulls(count, kind)
    if isinstance(kind, pa.UuidType):
        return pa.array([UUID(text).bytes] * count, kind)
    return pa.array([text] * count, pa.string()).cast(kind)


def only_keys(rows: pa.Table, key: Sequence[str], wanted: set[Key]) -> pa.Table:
    """Return the rows that have one of these keys, which are given as text."""
    columns = [rows.column(name).to_pylist() for name in key]
    found = [tuple(map(str, values)) in wanted for values in zip(*columns, strict=True)]
    return rows.filter(pa.array(found, pa.bool_()))
