"""Choose the Arrow type of each column of a target, and convert batches to these types exactly."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from vitrina.errors import BadKey, FatalError, TargetMismatch
from vitrina.ports.schema import Column

# Technical columns that every file has besides its own.
VERSION, DELETED = "_version", "_deleted"
TECHNICAL = pa.schema([pa.field(VERSION, pa.int64(), nullable=False), pa.field(DELETED, pa.bool_(), nullable=False)])
# `_version` is a sequence number, one for each part, followed by the row's position in its part.
ROW_BITS = 32

_SCALARS = {
    "boolean": pa.bool_(),
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "text": pa.string(),
    "character varying": pa.string(),
    "character": pa.string(),
    "name": pa.string(),
    "citext": pa.string(),
    "json": pa.string(),
    "jsonb": pa.string(),
    "bytea": pa.binary(),
    "uuid": pa.uuid(),
    "date": pa.date32(),
    "time without time zone": pa.time64("us"),
    "timestamp without time zone": pa.timestamp("us"),
    "timestamp with time zone": pa.timestamp("us", "UTC"),
}
# Values of these types can be folder names and be read back from them exactly.
_PARTITIONS = frozenset(
    {"boolean", "smallint", "integer", "bigint", "text", "character varying", "character", "name", "uuid", "date"}
)
_NUMERIC = re.compile(r"numeric\((\d+),(\d+)\)")
_MODIFIER = re.compile(r"\(\d+(?:,-?\d+)?\)")
_DIGITS = 38

Others = Literal["refuse", "string"]


class Format(NamedTuple):
    """Hold the name of a target's format and the path of its options, for messages."""

    name: str = "Parquet"
    options: str = "options.files"


PARQUET = Format()


def arrow_type(column: Column, others: Others, wanted: Format = PARQUET) -> pa.DataType:
    """Return the type that holds every value of the column exactly. Refuse the column by name if there is none."""
    if column.type.endswith("[]"):
        element = _scalar(column.type.removesuffix("[]"))
        # In arrays, 24:00 cannot be distinguished from 00:00.
        found = None if element is None or pa.types.is_time(element) else pa.list_(element)
    else:
        found = _scalar(column.type)
    if found is not None:
        return found
    if others == "string":
        return pa.string()
    raise TargetMismatch(
        f"column {column.name!r} is of type {column.type}, which {wanted.name} has no exact type for:"
        f' {_advice(column, wanted)}, or set {wanted.options}.other_types to "string" to write such columns as text'
    )


def _scalar(kind: str) -> pa.DataType | None:
    numeric = _NUMERIC.fullmatch(kind)
    if numeric:
        precision, scale = int(numeric[1]), int(numeric[2])
        return pa.decimal128(precision, scale) if scale <= precision <= _DIGITS else None
    return _SCALARS.get(_bare(kind))


def _bare(kind: str) -> str:
    return _MODIFIER.sub("", kind)


def _advice(column: Column, wanted: Format) -> str:
    if _bare(column.type) == "numeric":
        return f"cast it in the query to numeric(p,s) with at most {_DIGITS} digits"
    return f"cast it in the query to a type that {wanted.name} has, such as text"


@dataclass(frozen=True)
class Layout:
    """Describe how rows of one pipeline are written: its columns, its key, and the column that marks deleted rows."""

    columns: tuple[Column, ...]
    key: tuple[str, ...]
    schema: pa.Schema
    partition_by: tuple[str, ...] = ()
    delete_when: str | None = None
    # The two technical columns.
    technical: pa.Schema = TECHNICAL

    @classmethod
    def of(
        cls,
        columns: Sequence[Column],
        key: Sequence[str],
        *,
        partition_by: Sequence[str] = (),
        delete_when: str | None = None,
        others: Others = "refuse",
        wanted: Format = PARQUET,
    ) -> "Layout":
        _require_columns(columns, key, partition_by, delete_when)
        written = tuple(column for column in columns if column.name != delete_when)
        schema = pa.schema([pa.field(column.name, arrow_type(column, others, wanted)) for column in written])
        return cls(written, tuple(key), schema, tuple(partition_by), delete_when)

    @property
    def file_schema(self) -> pa.Schema:
        """Return the schema of a file, without the partition columns, whose values are in its path."""
        own = [field for field in self.schema if field.name not in self.partition_by]
        return pa.schema([*own, *TECHNICAL])

    def fitted(self, rows: pa.Table) -> pa.Table:
        """Convert the rows of the source to the types of the columns; keep deleted rows."""
        return pa.table([_fitted(rows.column(field.name), field) for field in self.schema], schema=self.schema)

    def deleted(self, rows: pa.Table) -> pa.ChunkedArray | None:
        """Return which rows the source marks as deleted; None if it does not mark any."""
        return pc.fill_null(rows.column(self.delete_when), False) if self.delete_when else None


def _require_columns(
    columns: Sequence[Column], key: Sequence[str], partition_by: Sequence[str], delete_when: str | None
) -> None:
    known = {column.name: column for column in columns}
    for name in (*key, *partition_by, *filter(None, [delete_when])):
        if name not in known:
            raise TargetMismatch(f"column {name!r} is not in the query's result (it has: {', '.join(known)})")
    for name in (VERSION, DELETED):
        if name in known:
            raise TargetMismatch(f"column {name!r} has the name of one that every file gets: call it otherwise")
    for name in partition_by:
        if name == delete_when or _bare(known[name].type) not in _PARTITIONS:
            raise TargetMismatch(
                f"column {name!r} is of type {known[name].type}, whose values cannot be names of folders; those of"
                f" {', '.join(sorted(_PARTITIONS))} can"
            )
    if set(partition_by) == known.keys() - {delete_when}:
        raise TargetMismatch("options.files.partition_by names every column: one has to be left for the files")
    if delete_when and known[delete_when].type != "boolean":
        raise TargetMismatch(
            f"options.delete_when names {delete_when!r}, which is {known[delete_when].type}, not boolean"
        )


def _fitted(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if column.type == field.type:
        return column
    try:
        return _texts(column) if pa.types.is_string(field.type) else column.cast(field.type)
    except pa.ArrowInvalid as exc:
        raise FatalError(f"column {field.name!r} has a value that {field.type} cannot hold: {exc}") from exc
    except pa.ArrowNotImplementedError as exc:
        raise FatalError(f"column {field.name!r} comes as {column.type} and is written as {field.type}") from exc


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert what a step produced to text; nested values become JSON."""
    kind = column.type
    if isinstance(kind, pa.JsonType):
        return pa.chunked_array([chunk.storage for chunk in column.chunks], pa.string()).cast(pa.string())
    if not pa.types.is_nested(kind):
        return column.cast(pa.string())
    values = column.to_pylist(maps_as_pydicts="strict")
    return pa.chunked_array([pa.array([None if value is None else _json(value) for value in values], pa.string())])


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def require_key(rows: pa.Table, key: Sequence[str]) -> None:
    for name in key:
        if rows.column(name).null_count:
            raise BadKey(f"column {name!r} is a part of the key and NULL in {rows.column(name).null_count} row(s)")


def comparable(rows: pa.Table) -> pa.Table:
    """Return columns of extension types as their storage, the only form that sorting and grouping support."""
    for place, field in enumerate(rows.schema):
        if isinstance(field.type, pa.BaseExtensionType):
            column = rows.column(place)
            stored = pa.chunked_array([chunk.storage for chunk in column.chunks], field.type.storage_type)
            rows = rows.set_column(place, field.name, stored)
    return rows
