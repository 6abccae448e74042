"""Choose the ClickHouse type that holds a column exactly, and convert values to it.

A column that no type can hold is refused by name, or written as text if `options.clickhouse.as_string` names it.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from vitrina.errors import TargetMismatch
from vitrina.ports.schema import Column

_INTEGERS = {"smallint": ("Int16", pa.int16()), "integer": ("Int32", pa.int32()), "bigint": ("Int64", pa.int64())}
_FLOATS = {"real": ("Float32", pa.float32()), "double precision": ("Float64", pa.float64())}
_UTC = pa.timestamp("us", "UTC")
_SCALARS: dict[str, tuple[str, pa.DataType]] = {
    **_INTEGERS,
    **_FLOATS,
    "boolean": ("Bool", pa.bool_()),
    "text": ("String", pa.string()),
    "character varying": ("String", pa.string()),
    "character": ("String", pa.string()),
    "name": ("String", pa.string()),
    "json": ("String", pa.string()),
    "jsonb": ("String", pa.string()),
    "xml": ("String", pa.string()),
    "bytea": ("String", pa.binary()),
    "uuid": ("UUID", pa.binary(16)),
    "date": ("Date32", pa.date32()),
    "timestamp with time zone": ("DateTime64(6, 'UTC')", _UTC),
    "timestamp without time zone": ("DateTime64(6, 'UTC')", _UTC),
}
# PostgreSQL types without a ClickHouse equivalent. User-defined types, such as enums, are exact as text.
_WITHOUT_A_PLACE = frozenset({
    "bit", "bit varying", "box", "cidr", "circle", "daterange", "datemultirange", "inet", "int4multirange", "int4range",
    "int8multirange", "int8range", "interval", "line", "lseg", "macaddr", "macaddr8", "money", "numeric",
    "nummultirange", "numrange", "path", "pg_lsn", "point", "polygon", "time with time zone", "time without time zone",
    "tsmultirange", "tsquery", "tsrange", "tstzmultirange", "tstzrange", "tsvector",
})  # fmt: skip
_NUMERIC = re.compile(r"numeric\((\d+),(\d+)\)")
_LARGEST_PRECISION, _DECIMAL128_DIGITS = 76, 38
# The ranges of Date32 and DateTime64.
FIRST_DAY, LAST_DAY = date(1900, 1, 1), date(2299, 12, 31)
FIRST_MOMENT, LAST_MOMENT = datetime(1900, 1, 1), datetime(2299, 12, 31, 23, 59, 59, 999_999)  # noqa: DTZ001


@dataclass(frozen=True)
class Field:
    """Describe a column of the table: its type there, without Nullable, and the Arrow type in which values are sent."""

    name: str
    kind: str
    sent_as: pa.DataType
    is_key: bool = False

    @property
    def is_array(self) -> bool:
        return self.kind.startswith("Array(")

    @property
    def full_kind(self) -> str:
        """Return the type with Nullable, except for a key, which is never NULL, and an array, which cannot be NULL."""
        return self.kind if self.is_key or self.is_array else f"Nullable({self.kind})"


def fields_of(columns: Sequence[Column], key: Sequence[str], as_string: Sequence[str]) -> tuple[Field, ...]:
    """Return a field for each column. Raise with all columns that no type can hold."""
    unknown = sorted(set(as_string) - {column.name for column in columns})
    if unknown:
        raise TargetMismatch(f"options.clickhouse.as_string names {', '.join(unknown)}, which the query does not give")
    refused, fields = [], []
    for column in columns:
        found = ("String", pa.string()) if column.name in as_string else _type_of(column.type)
        if found is None:
            refused.append(f"{column.name} ({column.type})")
        else:
            fields.append(Field(column.name, *found, is_key=column.name in key))
    if refused:
        raise TargetMismatch(
            f"ClickHouse has no type that holds {', '.join(refused)} exactly: cast in the query, such as to"
            " numeric(38,9), or name the column in options.clickhouse.as_string to write its text"
        )
    _refuse_odd_keys([one for one in fields if one.is_key])
    return tuple(fields)


def _refuse_odd_keys(keys: Sequence[Field]) -> None:
    for one in keys:
        if one.is_array or one.kind.startswith("Float") or one.sent_as == pa.binary():
            raise TargetMismatch(
                f"target_key column {one.name!r} is {one.kind}, whose values cannot be compared exactly"
            )


def _type_of(pg_type: str) -> tuple[str, pa.DataType] | None:
    if pg_type.endswith("[]"):
        element = _type_of(pg_type.removesuffix("[]"))
        return (f"Array(Nullable({element[0]}))", pa.list_(element[1])) if element else None
    bare = re.sub(r"\(\d+(?:,-?\d+)?\)", "", pg_type)
    if bare in _SCALARS:
        return _SCALARS[bare]
    if bare == "numeric":
        return _decimal(pg_type)
    return None if bare in _WITHOUT_A_PLACE else ("String", pa.string())


def _decimal(pg_type: str) -> tuple[str, pa.DataType] | None:
    found = _NUMERIC.fullmatch(pg_type)
    if not found:
        return None
    precision, scale = int(found[1]), int(found[2])
    if precision > _LARGEST_PRECISION or scale > precision:
        return None
    made = pa.decimal128 if precision <= _DECIMAL128_DIGITS else pa.decimal256
    return f"Decimal({precision}, {scale})", made(precision, scale)


def sent(column: pa.ChunkedArray, field: Field) -> pa.ChunkedArray:
    """Convert a column from its natural Arrow type to the one in which it is sent, without rounding."""
    kind, wanted = column.type, field.sent_as
    if isinstance(kind, pa.BaseExtensionType):
        column = _storage(column)
        kind = column.type
    if kind == wanted:
        return column
    if pa.types.is_string(wanted):
        return _texts(column)
    if pa.types.is_timestamp(kind) and kind.tz is None and wanted == _UTC:
        return _cast(column, pa.timestamp("us"), field).cast(_UTC)
    if pa.types.is_list(kind) and isinstance(kind.value_type, pa.BaseExtensionType):
        column = column.cast(pa.list_(kind.value_type.storage_type))
    return _cast(column, wanted, field)


def _storage(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)


def _cast(column: pa.ChunkedArray, kind: pa.DataType, field: Field) -> pa.ChunkedArray:
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as exc:
        raise TargetMismatch(
            f"column {field.name!r} has values that {field.kind} does not hold ({exc}): round or cast it in a step"
        ) from exc


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_nested(kind):
        values = column.to_pylist(maps_as_pydicts="strict")
        return pa.chunked_array([pa.array([None if one is None else _json(one) for one in values], pa.string())])
    if kind == pa.binary(16):
        return pa.chunked_array([pa.array([_text_of(one) for one in column.to_pylist()], pa.string())])
    if pa.types.is_null(kind) or len(column) == 0:
        return pa.chunked_array([pa.nulls(len(column), pa.string())])
    return column.cast(pa.string())


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=_text_of)


def _text_of(value: Any) -> Any:
    if isinstance(value, bytes) and len(value) == 16:
        from uuid import UUID

        return str(UUID(bytes=value))
    return value.hex() if isinstance(value, bytes) else value if value is None else str(value)


def unfit(column: pa.ChunkedArray, field: Field) -> tuple[pa.ChunkedArray, str] | None:
    """Return the rows whose value the type cannot hold, and the reason; None if all fit."""
    if field.is_array:
        if column.null_count:
            return pc.is_null(column), f"{field.name} is NULL, and ClickHouse has no NULL in place of an array"
        inner = _outside(pc.list_flatten(column))
        if inner is None or not pc.any(pc.fill_null(inner, False), min_count=0).as_py():
            return None
        rows = pc.list_parent_indices(column).filter(pc.fill_null(inner, False)).unique()
        bad = pc.is_in(pa.array(range(len(column)), rows.type), value_set=rows)
        return pa.chunked_array([bad]), _beyond(field)
    outside = _outside(column)
    if outside is None or not pc.any(pc.fill_null(outside, False), min_count=0).as_py():
        return None
    return pc.fill_null(outside, False), _beyond(field)


def _beyond(field: Field) -> str:
    return f"{field.name} lies outside of the years 1900 to 2299, which {field.kind} holds"


def _outside(values: pa.ChunkedArray) -> pa.ChunkedArray | None:
    if pa.types.is_date(values.type):
        first, last = pa.scalar(FIRST_DAY, pa.date32()), pa.scalar(LAST_DAY, pa.date32())
    elif pa.types.is_timestamp(values.type):
        first, last = (pa.scalar(one, pa.timestamp("us")).cast(values.type) for one in (FIRST_MOMENT, LAST_MOMENT))
    else:
        return None
    return pc.or_(pc.less(values, first), pc.greater(values, last))


def key_texts(column: pa.ChunkedArray) -> list[str | None]:
    """Return the values of a key's column as text that ClickHouse reads back."""
    return [None if value is None else _key_text(value) for value in readable(column).to_pylist()]


def readable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return dates and timestamps as text, including those of years that Python does not support."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us")).cast(pa.string())
    if pa.types.is_date(kind):
        return column.cast(pa.string())
    if pa.types.is_list(kind) and pa.types.is_temporal(kind.value_type):
        return column.cast(pa.list_(pa.string()))
    return column


def _key_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        return str(_text_of(value)) if len(value) == 16 else value.hex()
    return str(value)
