"""Encode rows as Parquet: sorted by key, in row groups of a given size, one file for each partition."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from vitrina.connectors.files import names
from vitrina.connectors.files.columns import VERSION, Layout, comparable


@dataclass(frozen=True)
class Packing:
    """Set how files are written."""

    compression: str
    row_group_bytes: int


def sorted_by_key(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Sort rows by key and version. Most arrive in order already and are then not copied."""
    keys = comparable(rows.select([*key, VERSION])).combine_chunks()
    if _ascends(keys.column(0)):
        return rows
    return rows.take(pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.column_names]))


def _ascends(column: pa.ChunkedArray) -> bool:
    """Return whether each value is greater than the one before it, so that the other columns decide nothing."""
    values = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    return bool(pc.all(pc.less(values[:-1], values[1:]), min_count=0).as_py())


def repeated_key(rows: pa.Table, key: Sequence[str]) -> dict[str, Any] | None:
    """Return a key that several rows have, in rows sorted by it; None if all are distinct."""
    if rows.num_rows < 2:
        return None
    keys = comparable(rows.select(list(key))).combine_chunks()
    same: Any = None
    for column in keys.columns:
        values = pa.concat_arrays(column.chunks)
        equal = pc.equal(values[1:], values[:-1])
        same = equal if same is None else pc.and_(same, equal)
    place = pc.index(same, True).as_py()
    return None if place < 0 else dict(rows.select(list(key)).slice(place, 1).to_pylist()[0])


def partitions(rows: pa.Table, layout: Layout) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of each partition with its folders, without the partition columns."""
    if not layout.partition_by:
        yield "", rows
        return
    texts = pa.table(
        [_folder_texts(rows.column(name)) for name in layout.partition_by], names=list(layout.partition_by)
    )
    numbered = texts.append_column("_row", pa.array(range(rows.num_rows), pa.int64()))
    groups = numbered.group_by(list(layout.partition_by), use_threads=False).aggregate([("_row", "list")])
    for group in groups.to_pylist():
        folder = names.partition_folder(layout.partition_by, [group[name] for name in layout.partition_by])
        yield folder, rows.take(pa.array(group["_row_list"])).drop_columns(list(layout.partition_by))


def _folder_texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if isinstance(column.type, pa.UuidType):
        return pa.chunked_array([pa.array([None if v is None else str(v) for v in column.to_pylist()], pa.string())])
    return column.cast(pa.string())


def encode(rows: pa.Table, key: Sequence[str], packing: Packing) -> memoryview:
    """Encode one file."""
    out = pa.BufferOutputStream()
    per_row = max(rows.nbytes // max(rows.num_rows, 1), 1)
    names_of_file = rows.schema.names
    by_key = [pq.SortingColumn(names_of_file.index(name)) for name in key if name in names_of_file]
    with pq.ParquetWriter(
        out,
        rows.schema,
        compression=packing.compression,
        # Every row has its own version, so a dictionary of versions would only cost space.
        use_dictionary=[_leaf(field) for field in rows.schema if field.name != VERSION],
        column_encoding={VERSION: "DELTA_BINARY_PACKED"},
        sorting_columns=by_key if len(by_key) == len(key) and _is_flat(rows.schema) else None,
    ) as writer:
        writer.write_table(rows, row_group_size=max(packing.row_group_bytes // per_row, 1))
    return memoryview(out.getvalue()).cast("B")


def _leaf(field: pa.Field) -> str:
    return f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name


def _is_flat(schema: pa.Schema) -> bool:
    """Return whether columns and leaves have the same positions, by which the writer identifies columns.

    A list with one leaf keeps its position; a struct does not.
    """
    return not any(pa.types.is_struct(field.type) for field in schema)


def decode(content: bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """Decode one file, or some of its columns."""
    return pq.ParquetFile(pa.BufferReader(content)).read(columns=list(columns) if columns else None)
