"""Provide the step that looks up values in the result of another query."""

from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from vitrina.definition import MAX_QUERY_LENGTH, ColumnName, Strict
from vitrina.errors import FatalError
from vitrina.transforms import call, python_values
from vitrina.transforms.builtin import batches
from vitrina.transforms.context import StepContext
from vitrina.transforms.registry import transform


class Lookup(Strict):
    query: str = Field(
        min_length=1, max_length=MAX_QUERY_LENGTH, description="SELECT with the same rights as the source query."
    )
    on: dict[ColumnName, ColumnName] = Field(min_length=1, description="Column of the rows to column of the query.")
    columns: dict[ColumnName, ColumnName] | None = Field(
        None, description="Column of the query to the name that it gets; default: all but those in `on`."
    )
    missing: Literal["null", "drop", "fail"] = Field("null", description="What happens to rows without a match.")


@transform("lookup", params=Lookup)
def lookup(batch: pa.RecordBatch, params: Lookup, context: StepContext) -> pa.RecordBatch:
    """Add columns from a reference query, matched by equal values. The query runs once per run.

    Example: `{"query": "SELECT id, name FROM content.genre", "on": {"genre_id": "id"}, "columns": {"name": "genre"}}`
    """
    found = call.one_batch(context.reference(params.query))
    batches.require(batch, params.on)
    batches.require(found, [*params.on.values(), *(params.columns or {})])
    matches = _matches(batch, found, params.on)
    if params.missing == "drop":
        batch, matches = batch.filter(matches.is_valid()), matches.drop_null()
    elif params.missing == "fail" and matches.null_count:
        raise ValueError("a row has no match in the reference query")
    names = params.columns or {name: name for name in found.schema.names if name not in params.on.values()}
    for name, new_name in names.items():
        if batch.schema.get_field_index(new_name) >= 0:
            raise FatalError(
                f"there is a column {new_name!r} already; give the looked-up one another name in `columns`"
            )
        field = found.schema.field(name).with_name(new_name)
        batch = batches.with_column(batch, field, found.column(name).take(matches))
    return batch


def _matches(batch: pa.RecordBatch, found: pa.RecordBatch, on: dict[str, str]) -> pa.Array:
    """Return for each row the position of its match, or NULL."""
    _require_same_types(batch, found, on)
    if len(on) == 1:
        [(ours, theirs)] = on.items()
        keys = batches.plain(found.column(theirs))
        if pc.count_distinct(keys, mode="only_valid").as_py() < len(keys) - keys.null_count:
            raise _ambiguous(on)
        return pc.index_in(batches.plain(batch.column(ours)), keys, skip_nulls=True)
    positions: dict[Any, int] = {}
    for position, key in enumerate(_keys(found, list(on.values()))):
        if None not in key and positions.setdefault(key, position) != position:
            raise _ambiguous(on)
    return pa.array([positions.get(key) for key in _keys(batch, list(on))], pa.int32())


def _keys(batch: pa.RecordBatch, names: list[str]) -> list[tuple[Any, ...]]:
    columns = [python_values.to_python(batch.column(name), batch.schema.field(name)) for name in names]
    return list(zip(*columns, strict=True))


def _require_same_types(batch: pa.RecordBatch, found: pa.RecordBatch, on: dict[str, str]) -> None:
    for ours, theirs in on.items():
        kinds = batch.schema.field(ours).type, found.schema.field(theirs).type
        if kinds[0] != kinds[1]:
            raise FatalError(
                f"column {ours!r} is {kinds[0]} and {theirs!r} of the reference query {kinds[1]}: cast one of them"
            )


def _ambiguous(on: dict[str, str]) -> FatalError:
    return FatalError(f"the reference query gives the same {', '.join(on.values())} more than once: make it unique")
