"""Find and replace columns of batches, and convert values from params, for the shipped steps."""

from collections.abc import Iterable
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

import pyarrow as pa

from vitrina.errors import FatalError
from vitrina.transforms import arrow_types, python_values


def require(batch: pa.RecordBatch, names: Iterable[str]) -> None:
    """Raise unless the batch has all of these columns."""
    for name in names:
        if batch.schema.get_field_index(name) < 0:
            raise FatalError(f"there is no column {name!r}; there are: {', '.join(batch.schema.names)}")


def field_of(batch: pa.RecordBatch, name: str) -> pa.Field:
    require(batch, [name])
    return batch.schema.field(name)


def with_column(batch: pa.RecordBatch, field: pa.Field, column: pa.Array) -> pa.RecordBatch:
    """Replace the column in its position, or add it at the end."""
    position = batch.schema.get_field_index(field.name)
    if position < 0:
        return batch.append_column(field, column)
    return batch.set_column(position, field, column)


def plain(column: pa.Array) -> pa.Array:
    """Return the storage of an extension type, because Arrow's own functions do not take the extension."""
    return column.storage if isinstance(column.type, pa.BaseExtensionType) else column


def constant(value: Any, field: pa.Field) -> pa.Array:
    """Convert a value from params to a column of one row, in the type of a field. Raise if it does not fit."""
    try:
        column, found = python_values.column_of([in_type(value, field.type)], field.name, field)
    except (ValueError, InvalidOperation) as exc:
        raise _not_of_type(value, field) from exc
    if found.type != field.type:
        raise _not_of_type(value, field)
    return column


def _not_of_type(value: Any, field: pa.Field) -> FatalError:
    return FatalError(
        f"params give {value!r} for column {field.name!r}, which is {arrow_types.tag_of(field) or field.type}"
    )


def in_type(value: Any, kind: pa.DataType) -> Any:
    """Convert a JSON value to a type that JSON lacks: a text may be a date, and a number a decimal."""
    if isinstance(value, float) and pa.types.is_decimal(kind):
        return Decimal(repr(value))
    if not isinstance(value, str):
        return value
    for fits, parse in _PARSERS:
        if fits(kind):
            return parse(value)
    return value


_PARSERS: tuple[tuple[Any, Any], ...] = (
    (lambda kind: isinstance(kind, pa.UuidType), UUID),
    (pa.types.is_decimal, Decimal),
    (pa.types.is_timestamp, datetime.fromisoformat),
    (pa.types.is_date, date.fromisoformat),
    (pa.types.is_time, time.fromisoformat),
)
