"""Call a step in the form that it takes: Arrow, row by row, polars or pandas."""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import pyarrow as pa

from vitrina.errors import RunError
from vitrina.transforms import arrow_types, progress, python_values
from vitrina.transforms.python_values import Original
from vitrina.transforms.registry import Form, Registered

# Report progress every so many rows. When a step's process ends, the failing row is known this precisely.
_ROWS_NOTED = 100

# A step with its parameters filled in.
Bound = Callable[[Any], Any]


class WrongResult(TypeError):
    """Report that a step returned something other than rows."""


class NoRowsToTell(Exception):
    """Report that a row step returned no row, so that its columns are unknown."""


def call_batch(form: Form, bound: Bound, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Pass one batch through a step that takes batches."""
    return _BATCH_FORMS[form](bound, batch)


def one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    if batches:
        return batches[0]
    # Empty lists would not do: pyarrow cannot build a list of an extension type, such as uuid[], from one.
    return pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in table.schema.types], schema=table.schema)


def _call_arrow(bound: Bound, batch: pa.RecordBatch) -> pa.RecordBatch:
    result = bound(batch)
    if isinstance(result, pa.Table):
        result = one_batch(result)
    if not isinstance(result, pa.RecordBatch):
        raise WrongResult(f"it returned {type(result).__name__}, not a pyarrow.RecordBatch")
    return normalised(result)


def normalised(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert to one Arrow type for each kind of value, so that later code has fewer cases to distinguish."""
    if not any(_plain_type(field.type) for field in batch.schema):
        return batch
    fields, columns = [], []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        kind = _plain_type(field.type)
        fields.append(field.with_type(kind) if kind else field)
        columns.append(column.cast(kind) if kind else column)
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _plain_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the plain type for a variant of it, or None if the type is plain already."""
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type) or kind.value_type
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind) or pa.types.is_list_view(kind):
        return pa.list_(_plain_type(kind.value_type) or kind.value_type)
    if pa.types.is_list(kind):
        element = _plain_type(kind.value_type)
        return pa.list_(element) if element else None
    return None


def call_rows(
    registered: Registered,
    bound: Bound,
    batch: pa.RecordBatch,
    expected: pa.Schema | None,
    rejected: list[tuple[int, Exception]],
) -> pa.RecordBatch:
    """Pass one batch through a row step. Rows on which it raises are added to `rejected`.

    `expected` is the schema of earlier batches; its types are requested again.
    """
    hints = expected if expected is not None else _hints(registered, batch.schema)
    # By the time collection is enabled again, the rows are freed. Otherwise it would scan all of them.
    with python_values.without_collection():
        made = _through(bound, batch, hints, rejected)
    if made is not None:
        return made
    if expected is None and not registered.columns:
        raise NoRowsToTell
    return pa.RecordBatch.from_pylist([], schema=hints)


def _through(
    bound: Bound, batch: pa.RecordBatch, hints: pa.Schema, rejected: list[tuple[int, Exception]]
) -> pa.RecordBatch | None:
    values = python_values.values_of(batch)
    before = zip(batch.schema, batch.columns, values, strict=True)
    originals = {field.name: Original.of(column, field, given) for field, column, given in before}
    rows = _made_rows(bound, python_values.rows_from(values, batch.schema), rejected)
    return python_values.batch_of(rows, hints, originals) if rows else None


def _made_rows(
    bound: Bound, given: list[dict[str, Any]], rejected: list[tuple[int, Exception]]
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for start in range(0, len(given), _ROWS_NOTED):
        some = given[start : start + _ROWS_NOTED]
        progress.narrow(start + 1, start + len(some))
        made = _called(bound, some, start, rejected)
        if set(map(type, made)) <= {dict}:
            rows += made
        else:
            rows.extend(chain.from_iterable(_several(one) for one in made if one is not None))
    return rows


def _called(bound: Bound, given: list[dict[str, Any]], start: int, rejected: list[tuple[int, Exception]]) -> list[Any]:
    """Call the step on each row. `extend` keeps the results before an exception, and resumes after the failed row."""
    made: list[Any] = []
    rest, failed = iter(given), 0
    while len(made) + failed < len(given):
        exc: Exception = StopIteration()  # `extend` swallows a StopIteration that a step raises
        try:
            made.extend(map(bound, rest))
        except (RunError, ConnectionError, TimeoutError):
            raise
        except Exception as raised:  # noqa: BLE001 - a step is foreign code and may raise anything
            exc = raised
        if len(made) + failed < len(given):
            rejected.append((start + len(made) + failed, exc))
            failed += 1
    return made


def _several(made: Any) -> Iterable[dict[str, Any]]:
    if isinstance(made, dict):
        return [made]
    if not isinstance(made, list | tuple) or not all(isinstance(row, dict) for row in made):
        raise WrongResult(f"it returned {type(made).__name__}: return a dict, None to drop the row, or a list of dicts")
    return made


def _hints(registered: Registered, schema: pa.Schema) -> pa.Schema:
    fields = {field.name: field for field in schema}
    fields |= {name: pa.field(name, kind) for name, kind in registered.columns.items()}
    return pa.schema(list(fields.values()))


def _call_polars(bound: Bound, batch: pa.RecordBatch) -> pa.RecordBatch:
    import polars

    result = bound(polars.from_arrow(_for_frames(batch)))
    if not isinstance(result, polars.DataFrame):
        raise WrongResult(f"it returned {type(result).__name__}, not a polars.DataFrame")
    return _from_frame(normalised(one_batch(result.to_arrow())), batch.schema)


def _call_pandas(bound: Bound, batch: pa.RecordBatch) -> pa.RecordBatch:
    import pandas

    # Arrow-backed columns: no copy, and NULL does not turn integers into floats.
    result = bound(_for_frames(batch).to_pandas(types_mapper=pandas.ArrowDtype))
    if not isinstance(result, pandas.DataFrame):
        raise WrongResult(f"it returned {type(result).__name__}, not a pandas.DataFrame")
    made = pa.RecordBatch.from_pandas(result, preserve_index=False).replace_schema_metadata(None)
    return _from_frame(normalised(made), batch.schema)


def _for_frames(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert to text what frames lack: uuid, and numbers of more than 38 digits."""
    columns = [
        _as_text(column, field) if _frames_lack(field.type) else column
        for column, field in zip(batch.columns, batch.schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _frames_lack(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind):
        return _frames_lack(kind.value_type)
    return isinstance(kind, pa.UuidType) or pa.types.is_decimal256(kind)


def _as_text(column: pa.Array, field: pa.Field) -> pa.Array:
    if pa.types.is_list(field.type):
        return python_values.regrouped(column, _as_text(column.flatten(), arrow_types.item_field(field)))
    values = python_values.to_python(column, field)
    return pa.array([None if value is None else str(value) for value in values], pa.string())


def _from_frame(made: pa.RecordBatch, before: pa.Schema) -> pa.RecordBatch:
    """Restore the Postgres type, which frames do not carry, of columns that kept their name and type."""
    fields, columns = [], []
    for field, column in zip(made.schema, made.columns, strict=True):
        known = before.field(field.name) if before.get_field_index(field.name) >= 0 else None
        restored = _restored(column, known.type) if known is not None else None
        fields.append(pa.field(field.name, field.type) if restored is None else known)
        columns.append(column if restored is None else restored)
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _restored(column: pa.Array, known: pa.DataType) -> pa.Array | None:
    """Restore a column's type, or return None if the step has changed the column's type."""
    if column.type == known:
        return column
    if pa.types.is_timestamp(known) and pa.types.is_timestamp(column.type):
        return column.cast(known) if column.type.tz == known.tz else None
    if pa.types.is_list(known) and pa.types.is_list(column.type):
        items = _restored(column.flatten(), known.value_type)
        return None if items is None else python_values.regrouped(column, items)
    if not pa.types.is_string(column.type) or not _frames_lack(known):
        return None
    try:
        return column.cast(known) if pa.types.is_decimal(known) else python_values.uuids_of(column.to_pylist())
    except ValueError:
        return None


_BATCH_FORMS: dict[Form, Callable[[Bound, pa.RecordBatch], pa.RecordBatch]] = {
    "arrow": _call_arrow,
    "polars": _call_polars,
    "pandas": _call_pandas,
}
