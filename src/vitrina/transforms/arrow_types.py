"""Map each Postgres type to the Arrow type in which steps see its values, exactly, or refuse it by name.

A field's metadata keeps the Postgres type that the column came with. A column that no step touches therefore arrives in
the target as it left the source, including its precision.
"""

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from vitrina.errors import NotCarried
from vitrina.ports.schema import Column

TYPE, STAMP = b"vitrina:type", b"vitrina:stamp"
# Column that names the first array column of a row that Arrow cannot hold. NULL if all fit; absent without arrays.
UNFIT = "_vitrina_unfit"

# Types that the driver delivers exactly, apart from the values that `_refuse_lost` detects.
_SCALARS = {
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "boolean": pa.bool_(),
    "text": pa.string(),
    "character varying": pa.string(),
    "bytea": pa.binary(),
    "uuid": pa.uuid(),
    "date": pa.date32(),
    "timestamp without time zone": pa.timestamp("us"),
    "timestamp with time zone": pa.timestamp("us", "UTC"),
    "time without time zone": pa.time64("us"),
}
# Times in arrays cannot be checked for 24:00, which Arrow reads as 00:00.
_ELEMENTS = {name: kind for name, kind in _SCALARS.items() if not name.startswith("time without")}

_NUMERIC = re.compile(r"numeric\((\d+),(\d+)\)")
_DECIMAL128_DIGITS, _DECIMAL256_DIGITS = 38, 76

# Postgres's first day and last moment. The driver wraps infinity around to values below the first.
_FIRST_MICROSECOND = -210_866_803_200_000_000
_FIRST_DAY, _LAST_DAY = -2_440_588, 2_145_042_905
_DAY_MICROSECONDS = 86_400_000_000


# Short names that users write. Postgres itself answers with the long names.
_LONG_NAMES = {
    "int": "integer",
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "float4": "real",
    "float8": "double precision",
    "bool": "boolean",
    "varchar": "character varying",
    "timestamptz": "timestamp with time zone",
    "timestamp": "timestamp without time zone",
    "time": "time without time zone",
    "decimal": "numeric",
}


def long_name(written: str) -> str:
    """Convert a type name that a user wrote to the form of `format_type`."""
    base, brackets, _ = written.strip().lower().partition("[")
    return _LONG_NAMES.get(base, base.replace(", ", ",")) + ("[]" if brackets else "")


def bare_type(pg_type: str) -> str:
    """Strip the precision: `timestamp(3) with time zone` is `timestamp with time zone`."""
    return re.sub(r"\(\d+(?:,-?\d+)?\)", "", pg_type)


def is_array(pg_type: str) -> bool:
    return pg_type.endswith("[]")


def arrow_type(pg_type: str) -> pa.DataType:
    """Return the Arrow type that holds the values exactly, or text if there is none."""
    if is_array(pg_type):
        element = pg_type.removesuffix("[]")
        return pa.list_(_ELEMENTS.get(bare_type(element)) or _decimal(element) or pa.string())
    return _SCALARS.get(bare_type(pg_type)) or _decimal(pg_type) or pa.string()


def _decimal(pg_type: str) -> pa.DataType | None:
    """Return a decimal type for a numeric with a scale, or None for a plain numeric, whose values differ in scale."""
    found = _NUMERIC.fullmatch(pg_type)
    if not found or int(found[1]) > _DECIMAL256_DIGITS or int(found[2]) > int(found[1]):
        return None
    precision, scale = int(found[1]), int(found[2])
    return (pa.decimal128 if precision <= _DECIMAL128_DIGITS else pa.decimal256)(precision, scale)


def read_as(pg_type: str) -> str | None:
    """Return the type to cast a column to when it is read, or None if the driver delivers it as it is."""
    if is_array(pg_type):
        return None if bare_type(pg_type.removesuffix("[]")) in _ELEMENTS else "text[]"
    return None if bare_type(pg_type) in _SCALARS else "text"


def schema_of(columns: Sequence[Column], stamps: frozenset[str] = frozenset()) -> pa.Schema:
    """Build the schema of the rows that the first step receives."""
    return pa.schema([tagged(column.name, column.type, stamp=column.name in stamps) for column in columns])


def no_rows(schema: pa.Schema) -> pa.Table:
    """Create a table without rows; `Schema.empty_table` fails if a list holds an extension type, such as uuid[]."""
    return pa.table([pa.nulls(0, field.type) for field in schema], schema=schema)


def tagged(name: str, pg_type: str, *, stamp: bool = False) -> pa.Field:
    metadata = {TYPE: pg_type.encode()} | ({STAMP: b"1"} if stamp else {})
    return pa.field(name, arrow_type(pg_type), metadata=metadata)


def item_field(field: pa.Field) -> pa.Field:
    """Build a field for the items of a list, with the Postgres type of the array's elements where it is known."""
    tag = tag_of(field)
    metadata = {TYPE: tag.removesuffix("[]").encode()} if tag and is_array(tag) else None
    return pa.field(field.name, field.type.value_type, metadata=metadata)


def tag_of(field: pa.Field) -> str | None:
    """Return the Postgres type that the column came with, or None if a step made it or changed its type."""
    tag = (field.metadata or {}).get(TYPE)
    if tag is None or arrow_type(tag.decode()) != field.type:
        return None
    return str(tag.decode())


def is_stamp(field: pa.Field) -> bool:
    return STAMP in (field.metadata or {})


def naturalise(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Convert the driver's columns to the types of `arrow_type`. Refuse a value that has no exact form there."""
    if UNFIT in table.column_names:
        _refuse_unfit(table.column(UNFIT))
    columns = []
    for field in schema:
        column = _plain(table.column(field.name))
        if column.type != field.type:
            column = _parsed(column, field)
        _refuse_lost(column, field)
        columns.append(column)
    return pa.table(columns, schema=schema)


def _refuse_unfit(names: pa.ChunkedArray) -> None:
    found = names.drop_null()
    if len(found):
        name = found[0].as_py()
        raise NotCarried(
            f"column {name!r} holds an array of more than one dimension, or one that does not begin at 1, which Python"
            f' steps cannot be given: select to_jsonb("{name}") AS "{name}" in the query'
        )


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the text inside an opaque extension, which is how the driver marks types that it does not know."""
    if isinstance(column.type, pa.OpaqueType):
        return pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    return column


def _parsed(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid as exc:
        raise NotCarried(
            f"column {field.name!r} holds a value that has no exact form as {field.type} (NaN, perhaps): turn it into"
            " NULL in the query, or cast the column to text there"
        ) from exc


def _refuse_lost(column: pa.ChunkedArray, field: pa.Field) -> None:
    """Refuse infinity and 24:00, which the driver converts to other values."""
    kind = field.type.value_type if pa.types.is_list(field.type) else field.type
    if not pa.types.is_temporal(kind):
        return
    values = pc.list_flatten(column) if pa.types.is_list(field.type) else column
    number = pa.int32() if pa.types.is_date(kind) else pa.int64()
    extremes = pc.min_max(values.cast(number)).as_py()
    lowest, highest = extremes["min"], extremes["max"]
    if lowest is None:
        return
    if pa.types.is_timestamp(kind):
        lost = lowest < _FIRST_MICROSECOND
    elif pa.types.is_date(kind):
        lost = lowest < _FIRST_DAY or highest > _LAST_DAY
    else:
        lost = highest >= _DAY_MICROSECONDS
    if lost:
        what = "24:00" if pa.types.is_time(kind) else "infinity, or a year that Arrow does not reach"
        raise NotCarried(
            f"column {field.name!r} holds {what}, which Python steps cannot receive: turn it into NULL in the query,"
            " or cast the column to text there"
        )
