"""Choose the Postgres type for each Arrow column of the last step, and convert its values for the stage.

No value is rounded or truncated. This module refuses what Postgres would change silently; Postgres refuses the rest.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from vitrina.errors import StepFailed, TargetMismatch
from vitrina.ports import types
from vitrina.ports.schema import Column, Known
from vitrina.transforms import arrow_types, python_values

_INTEGERS = ("smallint", "integer", "bigint")
# Types that accept text and silently round or truncate it to their precision.
_PRECISION = re.compile(r"\((\d+)(?:,(-?\d+))?\)")
_MICROSECOND_DIGITS = 6

_TYPES: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (pa.types.is_boolean, "boolean"),
    (lambda kind: kind in (pa.int8(), pa.int16(), pa.uint8()), "smallint"),
    (lambda kind: kind in (pa.int32(), pa.uint16()), "integer"),
    (lambda kind: kind in (pa.int64(), pa.uint32()), "bigint"),
    (pa.types.is_uint64, "numeric(20,0)"),
    (lambda kind: kind in (pa.float16(), pa.float32()), "real"),
    (pa.types.is_float64, "double precision"),
    (pa.types.is_string, "text"),
    (pa.types.is_binary, "bytea"),
    (pa.types.is_fixed_size_binary, "bytea"),
    (lambda kind: isinstance(kind, pa.UuidType), "uuid"),
    (lambda kind: isinstance(kind, pa.JsonType), "jsonb"),
    (pa.types.is_date, "date"),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None, "timestamp with time zone"),
    (pa.types.is_timestamp, "timestamp without time zone"),
    (pa.types.is_time, "time without time zone"),
    (pa.types.is_duration, "interval"),
    (pa.types.is_nested, "jsonb"),
)


@dataclass(frozen=True)
class Landing:
    """Hold the type in which one column is staged, and the type of the target's column."""

    name: str
    staged: str
    target: str


def settle(schema: pa.Schema, known: Known | None) -> list[Column]:
    """Choose the target's columns. An existing column's type is kept if every value fits it."""
    return [Column(field.name, _settled(field, known)) for field in schema]


def _settled(field: pa.Field, known: Known | None) -> str:
    found = known.column(field.name) if known is not None else None
    if found is not None and lands(field, found.type):
        return found.type
    made = postgres_type(field)
    if made is None:
        raise StepFailed(
            f"column {field.name!r} has no value in the first rows, so its type is unknown: name it in"
            f" @transform(columns={{{field.name!r}: ...}}), cast it with the step cast_columns, or create the target"
        )
    return made


def postgres_type(field: pa.Field) -> str | None:
    """Return the type that the column came with, else that of its Arrow type, or None if all of it is NULL."""
    return arrow_types.tag_of(field) or _derived(field.type, field.name)


def _derived(kind: pa.DataType, name: str) -> str | None:
    if pa.types.is_null(kind):
        return None
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})" if 0 <= kind.scale <= kind.precision else "numeric"
    if pa.types.is_list(kind) and not pa.types.is_nested(kind.value_type):
        element = _derived(kind.value_type, name)
        return f"{element or 'text'}[]"
    for fits, made in _TYPES:
        if fits(kind):
            return made
    raise StepFailed(f"column {name!r} has the Arrow type {kind}, which Postgres lacks: cast it in the step")


def lands(field: pa.Field, target: str) -> bool:
    """Return whether each value arrives in a column of that type unchanged, or is refused."""
    made = postgres_type(field)
    if made is None or types.fits(made, target):
        return True
    exact = "(" not in target
    if pa.types.is_string(field.type):
        return exact or arrow_types.bare_type(target) in ("character varying", "numeric")
    if pa.types.is_list(field.type) and pa.types.is_string(field.type.value_type):
        return exact and arrow_types.is_array(target)
    bare, goal = arrow_types.bare_type(made), arrow_types.bare_type(target)
    if bare in _INTEGERS:
        return goal in (*_INTEGERS, "numeric")
    if bare == "numeric":
        whole = pa.types.is_decimal(field.type) and field.type.scale == 0
        return goal == "numeric" or (whole and goal in _INTEGERS)
    if bare == "jsonb":
        return goal in ("json", "jsonb", "text")
    if bare == "uuid":
        return goal in ("text", "character varying")
    return bare == goal and not arrow_types.is_array(target)


def landings(schema: pa.Schema, columns: Sequence[Column]) -> dict[str, Landing]:
    targets = {column.name: column.type for column in columns}
    return {field.name: Landing(field.name, staged_type(field), targets[field.name]) for field in schema}


def staged_type(field: pa.Field) -> str:
    """Return the type of the stage's column: unchanged if the driver copies it exactly, otherwise text for Postgres."""
    made = _derived(field.type, field.name)
    if made is None or made == "jsonb" or made.startswith("numeric"):
        return "text[]" if made and arrow_types.is_array(made) else "text"
    return made


def to_stage(batch: pa.RecordBatch, landings: Mapping[str, Landing]) -> pa.Table:
    """Convert the columns of a batch to the form in which they are copied into the stage."""
    names, columns = [], []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        landing = landings[field.name]
        _refuse_rounding(column, landing)
        names.append(field.name)
        columns.append(_staged(column, field, landing))
    return pa.table(columns, names=names)


def _staged(column: pa.Array, field: pa.Field, landing: Landing) -> pa.Array:
    kind = field.type
    if landing.staged == "text" and not pa.types.is_string(kind):
        return _texts(column, field)
    if landing.staged == "text[]":
        return column.cast(pa.list_(pa.string()))
    if isinstance(kind, pa.UuidType):
        return column.storage
    if pa.types.is_timestamp(kind):
        return _cast(column, pa.timestamp("us", "UTC" if kind.tz else None), landing)
    if pa.types.is_list(kind) and isinstance(kind.value_type, pa.UuidType):
        return column.cast(pa.list_(kind.value_type.storage_type))
    if pa.types.is_date64(kind):
        return _cast(column, pa.date32(), landing)
    if pa.types.is_time(kind):
        return _cast(column, pa.time64("us"), landing)
    if pa.types.is_duration(kind):
        return _cast(column, pa.duration("us"), landing)
    if pa.types.is_fixed_size_binary(kind):
        return column.cast(pa.binary())
    if pa.types.is_float16(kind):
        return column.cast(pa.float32())
    return column


def _texts(column: pa.Array, field: pa.Field) -> pa.Array:
    if isinstance(field.type, pa.JsonType):
        return column.storage
    if pa.types.is_null(field.type):
        return pa.nulls(len(column), pa.string())
    if pa.types.is_nested(field.type):
        values = column.to_pylist(maps_as_pydicts="strict")
        return pa.array([None if value is None else python_values.json_text_of(value) for value in values], pa.string())
    return column.cast(pa.string())


def _cast(column: pa.Array, kind: pa.DataType, landing: Landing) -> pa.Array:
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as exc:
        raise TargetMismatch(
            f"column {landing.name!r} has values that {landing.target} cannot hold ({exc}): round it in a step"
        ) from exc


def _refuse_rounding(column: pa.Array, landing: Landing) -> None:
    """Refuse values that Postgres would round to the precision of the column without an error."""
    found = _PRECISION.search(landing.target)
    if not found or arrow_types.is_array(landing.target):
        return
    kind = column.type
    if landing.target.startswith("numeric"):
        rounds = _rounds_to_scale(column, int(found[2] or 0))
    elif landing.target.startswith("time") and (pa.types.is_timestamp(kind) or pa.types.is_time(kind)):
        rounds = _rounds_to_digits(column, int(found[1]))
    else:
        return
    if rounds:
        raise TargetMismatch(
            f"column {landing.name!r} has values with more digits than {landing.target} holds: round it in a step or in"
            " the query, or change the table"
        )


def _rounds_to_scale(column: pa.Array, scale: int) -> bool:
    if pa.types.is_decimal(column.type):
        if column.type.scale <= scale:
            return False
        try:
            column.cast(pa.decimal256(76, scale))
        except pa.ArrowInvalid:
            return True
        return False
    if not pa.types.is_string(column.type):
        return False
    suspicious = pc.match_substring_regex(column, rf"\.\d{{{max(scale, 0)}}}\d*[1-9]|[eE]")
    texts = column.filter(pc.fill_null(suspicious, False)).to_pylist() if scale >= 0 else column.drop_null().to_pylist()
    return any(_rounds(text, scale) for text in texts)


def _rounds(text: str, scale: int) -> bool:
    try:
        _, digits, exponent = Decimal(text.strip()).as_tuple()
    except ArithmeticError:
        return False  # not a number at all; Postgres reports that itself
    if not isinstance(exponent, int):
        return False  # NaN
    significant = "".join(map(str, digits)).rstrip("0")
    return bool(significant) and -(exponent + len(digits) - len(significant)) > scale


def _rounds_to_digits(column: pa.Array, digits: int) -> bool:
    if digits >= _MICROSECOND_DIGITS:
        return False
    numbers = column.cast(pa.timestamp("us", column.type.tz) if pa.types.is_timestamp(column.type) else pa.time64("us"))
    numbers = numbers.cast(pa.int64())
    unit = 10 ** (_MICROSECOND_DIGITS - digits)
    whole = pc.multiply(pc.divide(numbers, unit), unit)
    return bool(pc.any(pc.not_equal(numbers, whole), min_count=0).as_py())
