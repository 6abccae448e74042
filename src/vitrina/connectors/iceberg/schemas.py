"""Plan the columns of an Iceberg table, each with an id by which readers find it in the files."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count

import pyarrow as pa
from pyiceberg import types
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata

from vitrina.connectors.files.columns import DELETED, TECHNICAL, VERSION, Format, Layout, arrow_type
from vitrina.errors import StageLost
from vitrina.ports.schema import Column

ICEBERG = Format("Iceberg", "options.iceberg")
_FIELD_ID = b"PARQUET:field_id"

_PRIMITIVES: dict[pa.DataType, types.PrimitiveType] = {
    pa.bool_(): types.BooleanType(),
    pa.int32(): types.IntegerType(),
    pa.int64(): types.LongType(),
    pa.float32(): types.FloatType(),
    pa.float64(): types.DoubleType(),
    pa.string(): types.StringType(),
    pa.binary(): types.BinaryType(),
    pa.uuid(): types.UUIDType(),
    pa.date32(): types.DateType(),
    pa.time64("us"): types.TimeType(),
    pa.timestamp("us"): types.TimestampType(),
    pa.timestamp("us", "UTC"): types.TimestamptzType(),
}


def held_in(schema: pa.Schema) -> pa.Schema:
    """Return the Iceberg types for those of Parquet. Iceberg has no 16-bit integers."""
    return pa.schema([field.with_type(_held(field.type)) for field in schema])


def _held(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_held(kind.value_type))
    return pa.int32() if kind == pa.int16() else kind


def empty() -> Schema:
    """Return the columns of a table before its first load is known: only Vitrina's own."""
    return Schema(*_own(count(1)))


def _own(ids: Iterator[int]) -> Iterator[types.NestedField]:
    for name, kind in ((VERSION, types.LongType()), (DELETED, types.BooleanType())):
        yield types.NestedField(next(ids), name, kind, required=True)


def planned(metadata: TableMetadata, columns: Sequence[Column]) -> Schema:
    """Return the schema for these columns. Unchanged columns of the table keep their ids.

    A schema that was planned before is found again, so that a resumed load continues with its ids.
    """
    now = metadata.schema()
    wanted = [(column.name, _held(arrow_type(column, "string"))) for column in columns]
    wanted += [(field.name, field.type) for field in TECHNICAL]
    known = {field.name: field for field in now.fields}
    kept = {name: known[name] for name, kind in wanted if name in known and _is(known[name].field_type, kind)}
    for schema in (now, *reversed(metadata.schemas)):
        if _fits(schema, wanted, kept):
            return schema
    ids = count(metadata.last_column_id + 1)
    fields = [kept.get(name) or _field(name, kind, ids) for name, kind in wanted]
    number = max(schema.schema_id for schema in metadata.schemas) + 1
    return Schema(*fields, schema_id=number)


def _fits(schema: Schema, wanted: Sequence[tuple[str, pa.DataType]], kept: dict[str, types.NestedField]) -> bool:
    if [field.name for field in schema.fields] != [name for name, _ in wanted]:
        return False
    return all(
        _is(field.field_type, kind) and kept.get(name, field).field_id == field.field_id
        for field, (name, kind) in zip(schema.fields, wanted, strict=True)
    )


def _is(found: types.IcebergType, kind: pa.DataType) -> bool:
    if isinstance(found, types.ListType):
        return pa.types.is_list(kind) and found.element_type == _primitive(kind.value_type)
    return not pa.types.is_list(kind) and found == _primitive(kind)


def _field(name: str, kind: pa.DataType, ids: Iterator[int]) -> types.NestedField:
    number = next(ids)
    made: types.IcebergType
    if pa.types.is_list(kind):
        made = types.ListType(next(ids), _primitive(kind.value_type), element_required=False)
    else:
        made = _primitive(kind)
    return types.NestedField(number, name, made, required=name in (VERSION, DELETED))


def _primitive(kind: pa.DataType) -> types.PrimitiveType:
    if pa.types.is_decimal(kind):
        return types.DecimalType(kind.precision, kind.scale)
    return _PRIMITIVES[kind]


def with_ids(layout: Layout, schema: Schema) -> Layout:
    """Set the ids that the table has for the columns of files."""
    return replace(layout, schema=_marked(layout.schema, schema), technical=_marked(TECHNICAL, schema))


def _marked(given: pa.Schema, schema: Schema) -> pa.Schema:
    known = {field.name: field for field in schema.fields}
    lacking = [field.name for field in given if field.name not in known]
    if lacking:
        raise StageLost(f"column {lacking[0]!r} was removed from the table while it was written: the load begins again")
    return pa.schema([_marked_field(field, known[field.name]) for field in given])


def require_ids(written: pa.Schema, schema: Schema) -> None:
    """Raise if the columns of a file lack the ids that the table has for them, by which alone readers find them."""
    wanted = {field.name: str(field.field_id).encode() for field in schema.fields}
    for field in written:
        if (field.metadata or {}).get(_FIELD_ID) != wanted.get(field.name):
            raise StageLost(
                f"column {field.name!r} of the table was replaced while it was written: the load begins again"
            )


def _marked_field(field: pa.Field, found: types.NestedField) -> pa.Field:
    if isinstance(found.field_type, types.ListType):
        element = pa.field("element", field.type.value_type, metadata=_id(found.field_type.element_id))
        field = field.with_type(pa.list_(element))
    return field.with_metadata(_id(found.field_id))


def _id(number: int) -> dict[bytes, bytes]:
    return {_FIELD_ID: str(number).encode()}
