"""Require batches to have one schema: the first batch decides the columns and their types."""

import pyarrow as pa

from vitrina.errors import StepFailed

_SAME_KIND = (pa.types.is_integer, pa.types.is_decimal, pa.types.is_timestamp)


def require_same_schema(who: str, made: pa.RecordBatch, expected: pa.Schema | None, number: int) -> pa.RecordBatch:
    """Convert the batch to the expected schema. A column of NULLs has no type until a later batch decides it."""
    twice = [name for name in made.schema.names if made.schema.names.count(name) > 1]
    if twice:
        raise StepFailed(f"{who} gives the column {twice[0]!r} twice")
    if expected is None or made.schema.equals(expected):
        return made
    strange = set(made.schema.names) ^ set(expected.names)
    if strange:
        raise StepFailed(
            f"{who} gives other columns in batch {number} than in the first one ({', '.join(sorted(strange))}): give"
            " the same columns for every batch"
        )
    fields, columns = [], []
    for wanted in expected:
        column, found = made.column(wanted.name), made.schema.field(wanted.name)
        fields.append(found if pa.types.is_null(wanted.type) else wanted)
        columns.append(_converted(who, column, fields[-1], number))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _converted(who: str, column: pa.Array, wanted: pa.Field, number: int) -> pa.Array:
    if column.type == wanted.type:
        return column
    same_kind = any(kind(column.type) and kind(wanted.type) for kind in _SAME_KIND)
    try:
        if same_kind or pa.types.is_null(column.type):
            return column.cast(wanted.type)
    except pa.ArrowInvalid as exc:
        raise StepFailed(f"{who}: column {wanted.name!r} of batch {number} does not fit {wanted.type}: {exc}") from exc
    raise StepFailed(
        f"{who}: column {wanted.name!r} is {column.type} in batch {number} and {wanted.type} in the first one: give it"
        " the same type always"
    )
