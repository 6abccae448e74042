"""Provide steps that choose and multiply rows: conditions, duplicates, lists."""

from collections.abc import Callable
from functools import reduce
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ConfigDict, Field

from vitrina.definition import ColumnName, Strict
from vitrina.errors import FatalError
from vitrina.transforms import arrow_types, python_values
from vitrina.transforms.builtin import batches
from vitrina.transforms.registry import transform

_EQUALITIES = ("eq", "ne", "in", "not_in")
_TEXTS = ("text", "character varying", "character")
# Wide enough for the numbers in practice; longer ones are refused rather than rounded.
_WIDE = pa.decimal256(76, 30)

Order = Literal["eq", "ne", "lt", "le", "gt", "ge"]
Membership = Literal["in", "not_in", "is_null", "not_null"]
TextTest = Literal["contains", "starts_with", "ends_with", "matches"]
Value = str | int | float | bool


class Comparison(Strict):
    """Compare one column with a value. As in SQL, a comparison with NULL is neither true nor false."""

    column: ColumnName
    op: Order | Membership | TextTest
    value: Value | list[Value] | None = None


class AllOf(Strict):
    """Require every one of the conditions."""

    all: list["Condition"] = Field(min_length=1)


class AnyOf(Strict):
    """Require at least one of the conditions."""

    any: list["Condition"] = Field(min_length=1)


class NotThat(Strict):
    """Require that the condition does not hold."""

    model_config = ConfigDict(extra="forbid", strict=True, validate_by_alias=True)

    negated: "Condition" = Field(alias="not")


Condition = Comparison | AllOf | AnyOf | NotThat
AllOf.model_rebuild()
AnyOf.model_rebuild()
NotThat.model_rebuild()


class Where(Strict):
    where: Condition | list[Condition] = Field(description="A condition, or several that must all hold.")


@transform("keep_rows", params=Where)
def keep_rows(batch: pa.RecordBatch, params: Where) -> pa.RecordBatch:
    """Keep the rows for which the condition holds.

    `op` is one of eq, ne, lt, le, gt, ge, in, not_in, is_null, not_null, contains, starts_with, ends_with, matches (a
    regular expression); `{"all": [...]}`, `{"any": [...]}` and `{"not": ...}` combine conditions.

    Example: `{"where": [{"column": "rating", "op": "ge", "value": 7}, {"column": "title", "op": "not_null"}]}`
    """
    return batch.filter(pc.fill_null(_holds(batch, params.where), False))


@transform("drop_rows", params=Where)
def drop_rows(batch: pa.RecordBatch, params: Where) -> pa.RecordBatch:
    """Drop the rows for which the condition holds; see keep_rows. A row for which it is neither true nor false stays.

    Example: `{"where": {"any": [{"column": "title", "op": "is_null"}, {"column": "title", "op": "eq", "value": ""}]}}`
    """
    return batch.filter(pc.invert(pc.fill_null(_holds(batch, params.where), False)))


def _holds(batch: pa.RecordBatch, condition: Condition | list[Condition]) -> pa.Array:
    if isinstance(condition, list):
        return reduce(pc.and_kleene, (_holds(batch, part) for part in condition))
    if isinstance(condition, AllOf):
        return _holds(batch, condition.all)
    if isinstance(condition, AnyOf):
        return reduce(pc.or_kleene, (_holds(batch, part) for part in condition.any))
    if isinstance(condition, NotThat):
        return pc.invert(_holds(batch, condition.negated))
    return _compared(batch, condition)


_ORDERS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": pc.equal,
    "ne": pc.not_equal,
    "lt": pc.less,
    "le": pc.less_equal,
    "gt": pc.greater,
    "ge": pc.greater_equal,
}
_TEXT_TESTS: dict[str, Callable[[Any, str], Any]] = {
    "contains": pc.match_substring,
    "starts_with": pc.starts_with,
    "ends_with": pc.ends_with,
    "matches": pc.match_substring_regex,
}


def _compared(batch: pa.RecordBatch, wanted: Comparison) -> pa.Array:
    field = batches.field_of(batch, wanted.column)
    column = batch.column(wanted.column)
    if wanted.op in ("is_null", "not_null"):
        return column.is_null() if wanted.op == "is_null" else column.is_valid()
    if wanted.op in _TEXT_TESTS:
        if not pa.types.is_string(field.type) or not isinstance(wanted.value, str):
            raise FatalError(f"{wanted.op} compares text with text, and {field.name!r} is {field.type}")
        return _TEXT_TESTS[wanted.op](column, wanted.value)
    column, field = _comparable(column, field, wanted.op)
    if wanted.op in ("in", "not_in"):
        return _among(column, field, wanted)
    if isinstance(wanted.value, list) or wanted.value is None:
        raise FatalError(f"{wanted.op} on {field.name!r} needs one value")
    return _ORDERS[wanted.op](batches.plain(column), batches.plain(batches.constant(wanted.value, field))[0])


def _comparable(column: pa.Array, field: pa.Field, op: str) -> tuple[pa.Array, pa.Field]:
    """Convert a numeric, which is represented as text, and refuse to order other types that Arrow lacks."""
    tag = arrow_types.tag_of(field) or "text"
    if not pa.types.is_string(column.type) or arrow_types.bare_type(tag) in _TEXTS:
        return column, field
    if tag == "numeric":
        return column.cast(_WIDE), pa.field(field.name, _WIDE)
    if op in _EQUALITIES:
        return column, pa.field(field.name, pa.string())
    raise FatalError(f"{field.name!r} is {tag}, which steps cannot order: compare it in the query")


def _among(column: pa.Array, field: pa.Field, wanted: Comparison) -> pa.Array:
    if not isinstance(wanted.value, list):
        raise FatalError(f"{wanted.op} on {field.name!r} needs a list of values")
    values = pa.concat_arrays([batches.plain(batches.constant(value, field)) for value in wanted.value] or [column[:0]])
    found = pc.is_in(batches.plain(column), values)
    found = pc.if_else(column.is_null(), pa.scalar(None, pa.bool_()), found)
    return pc.invert(found) if wanted.op == "not_in" else found


class Deduplicate(Strict):
    by: list[ColumnName] = Field(min_length=1, description="Rows that are equal in these columns are duplicates.")
    keep: Literal["first", "last"] = "last"


@transform("deduplicate", params=Deduplicate)
def deduplicate(batch: pa.RecordBatch, params: Deduplicate) -> pa.RecordBatch:
    """Keep one of the rows that are equal in some columns, within a batch. NULL equals NULL.

    Rows are in the order in which the pipeline reads: by its key, or by incremental_key.

    Example: `{"by": ["film_id"], "keep": "last"}`
    """
    batches.require(batch, params.by)
    columns = [python_values.to_python(batch.column(name), batch.schema.field(name)) for name in params.by]
    kept: dict[Any, int] = {}
    for position, values in enumerate(zip(*columns, strict=True)):
        key = tuple(map(_hashable, values))
        if params.keep == "last" or key not in kept:
            kept[key] = position
    return batch.take(pa.array(sorted(kept.values()), pa.int64()))


def _hashable(value: Any) -> Any:
    return python_values.json_text_of(value) if isinstance(value, list | dict) else value


class Explode(Strict):
    column: ColumnName = Field(description="A list column.")
    into: ColumnName | None = Field(None, description="Name of the column for the items; default: the list's own.")
    position: ColumnName | None = Field(None, description="Column for the item's place in the list, from 1.")
    keep_empty: bool = Field(False, description="Keep rows whose list is empty or NULL, with NULL for the item.")


@transform("explode", params=Explode)
def explode(batch: pa.RecordBatch, params: Explode) -> pa.RecordBatch:
    """Make one row of each item of a list.

    Example: `{"column": "genres", "into": "genre", "position": "place"}`
    """
    field = batches.field_of(batch, params.column)
    if not pa.types.is_list(field.type):
        raise FatalError(f"column {params.column!r} is {field.type}, not a list")
    lists = batch.column(params.column)
    if params.keep_empty:
        lists = _with_one_null(lists)
    place = batch.schema.get_field_index(params.column)
    made = batch.drop_columns([params.column]).take(pc.list_parent_indices(lists))
    made = made.add_column(
        place, arrow_types.item_field(field).with_name(params.into or params.column), pc.list_flatten(lists)
    )
    if params.position:
        made = made.append_column(pa.field(params.position, pa.int32()), _places(lists))
    return made


def _with_one_null(lists: pa.ListArray) -> pa.ListArray:
    values = lists.to_pylist()
    return pa.array([value or [None] for value in values], lists.type)


def _places(lists: pa.ListArray) -> pa.Array:
    lengths = lists.value_lengths().to_pylist()
    return pa.array([place for length in lengths for place in range(1, (length or 0) + 1)], pa.int32())
