"""Provide the step that extracts values from JSON."""

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pydantic import Field

from vitrina.definition import ColumnName, Strict
from vitrina.errors import FatalError
from vitrina.transforms import arrow_types, python_values
from vitrina.transforms.builtin import batches
from vitrina.transforms.registry import transform


class JsonField(Strict):
    path: str = Field(min_length=1, description="Keys and positions separated by dots: `credits.director.0.name`.")
    type: str = Field("text", description="Postgres type of the new column.")


class ParseJson(Strict):
    column: ColumnName = Field(description="A json, jsonb or text column.")
    fields: dict[ColumnName, JsonField] = Field(min_length=1, description="New column to its path and type.")
    keep: bool = Field(False, description="Keep the json column itself.")


@transform("parse_json", params=ParseJson)
def parse_json(batch: pa.RecordBatch, params: ParseJson) -> pa.RecordBatch:
    """Extract values of a json column into separate columns; a missing value becomes NULL.

    Example: `{"column": "payload", "fields": {"city": {"path": "home.city"}, "age": {"path": "age", "type": "int"}}}`
    """
    if not pa.types.is_string(batches.field_of(batch, params.column).type):
        raise FatalError(f"column {params.column!r} is not json or text")
    texts = batch.column(params.column).to_pylist()
    documents = [None if text is None else json.loads(text, parse_float=Decimal) for text in texts]
    if not params.keep:
        batch = batch.drop_columns([params.column])
    for name, wanted in params.fields.items():
        field = arrow_types.tagged(name, arrow_types.long_name(wanted.type))
        path = wanted.path.split(".")
        values = [_converted(_at(document, path), field) for document in documents]
        column, found = python_values.column_of(values, name, field)
        if found.type != field.type and column.null_count < len(column):
            raise ValueError(f"a value at {wanted.path} is not {wanted.type}")
        batch = batches.with_column(batch, field, column)
    return batch


def _at(value: Any, path: list[str]) -> Any:
    for part in path:
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and part.isdigit():
            value = value[int(part)] if int(part) < len(value) else None
        else:
            return None
    return value


def _converted(value: Any, field: pa.Field) -> Any:
    if value is None or arrow_types.tag_of(field) in ("json", "jsonb"):
        return value
    if pa.types.is_string(field.type) and not isinstance(value, str):
        return python_values.json_text_of(value)
    if pa.types.is_floating(field.type) and isinstance(value, Decimal):
        return float(value)
    return batches.in_type(value, field.type)
