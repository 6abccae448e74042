"""Provide steps that choose, rename, convert and fill columns."""

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from vitrina.definition import ColumnName, Strict
from vitrina.errors import FatalError
from vitrina.transforms import arrow_types, python_values
from vitrina.transforms.builtin import batches
from vitrina.transforms.registry import transform


class SelectColumns(Strict):
    columns: list[ColumnName] = Field(min_length=1, description="The columns to keep, in this order.")


@transform("select_columns", params=SelectColumns)
def select_columns(batch: pa.RecordBatch, params: SelectColumns) -> pa.RecordBatch:
    """Keep the named columns, in that order, and drop the others.

    Example: `{"columns": ["film_id", "title"]}`
    """
    batches.require(batch, params.columns)
    return batch.select(params.columns)


class DropColumns(Strict):
    columns: list[ColumnName] = Field(min_length=1, description="The columns to drop.")


@transform("drop_columns", params=DropColumns)
def drop_columns(batch: pa.RecordBatch, params: DropColumns) -> pa.RecordBatch:
    """Drop the named columns and keep the others.

    Example: `{"columns": ["description"]}`
    """
    batches.require(batch, params.columns)
    return batch.drop_columns(params.columns)


class RenameColumns(Strict):
    names: dict[ColumnName, ColumnName] = Field(min_length=1, description="Old name to new name.")


@transform("rename_columns", params=RenameColumns)
def rename_columns(batch: pa.RecordBatch, params: RenameColumns) -> pa.RecordBatch:
    """Rename columns; their values and types stay as they are.

    Example: `{"names": {"id": "film_id", "type": "kind"}}`
    """
    batches.require(batch, params.names)
    return batch.rename_columns([params.names.get(name, name) for name in batch.schema.names])


class CastColumns(Strict):
    types: dict[ColumnName, str] = Field(min_length=1, description="Column to Postgres type.")


@transform("cast_columns", params=CastColumns)
def cast_columns(batch: pa.RecordBatch, params: CastColumns) -> pa.RecordBatch:
    """Convert columns to other Postgres types. A value that does not fit is an error, never cut or rounded.

    Example: `{"types": {"year": "integer", "rating": "numeric(4,2)", "payload": "jsonb"}}`
    """
    for name, wanted in params.types.items():
        field = batches.field_of(batch, name)
        goal = arrow_types.tagged(name, arrow_types.long_name(wanted))
        batch = batches.with_column(batch, goal, _cast(batch.column(name), field, goal))
    return batch


def _cast(column: pa.Array, field: pa.Field, goal: pa.Field) -> pa.Array:
    if column.type == goal.type:
        return column
    if isinstance(goal.type, pa.UuidType) and pa.types.is_string(column.type):
        return python_values.uuids_of(column.to_pylist())
    if pa.types.is_decimal(column.type) and pa.types.is_floating(goal.type):
        return column.cast(pa.string()).cast(goal.type)  # Arrow's direct cast turns 0.3 into 0.30000000000000004
    if not pa.types.is_nested(column.type) and not isinstance(column.type, pa.BaseExtensionType):
        return column.cast(goal.type)
    if not pa.types.is_string(goal.type):
        raise FatalError(f"column {field.name!r} ({field.type}) has no cast to {goal.type}")
    as_json = pa.types.is_nested(column.type)
    values = python_values.to_python(column, field)
    texts = [
        None if value is None else python_values.json_text_of(value) if as_json else str(value) for value in values
    ]
    return pa.array(texts, pa.string())


class FillNulls(Strict):
    values: dict[ColumnName, str | int | float | bool] = Field(min_length=1, description="Column to value.")


@transform("fill_nulls", params=FillNulls)
def fill_nulls(batch: pa.RecordBatch, params: FillNulls) -> pa.RecordBatch:
    """Replace NULL in a column by a value.

    Example: `{"values": {"rating": 0, "title": "(untitled)", "released": "1900-01-01"}}`
    """
    for name, value in params.values.items():
        field = batches.field_of(batch, name)
        filling = batches.plain(batches.constant(value, field))[0]
        column = batch.column(name)
        filled = pc.fill_null(batches.plain(column), filling)
        if isinstance(column.type, pa.BaseExtensionType):
            filled = pa.ExtensionArray.from_storage(column.type, filled)
        batch = batches.with_column(batch, field, filled)
    return batch
