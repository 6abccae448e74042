"""Provide the step that adds columns about where and when a row was made."""

import pyarrow as pa
from pydantic import Field

from vitrina.definition import ColumnName, Strict
from vitrina.errors import FatalError
from vitrina.transforms import arrow_types, python_values
from vitrina.transforms.builtin import batches
from vitrina.transforms.context import StepContext
from vitrina.transforms.registry import transform


class AddColumns(Strict):
    constants: dict[ColumnName, str | int | float | bool] = Field(
        default_factory=dict, description="Column to the value that every row gets."
    )
    now: ColumnName | None = Field(None, description="Column for the moment at which the run started.")
    run_id: ColumnName | None = Field(None, description="Column for the id of the run.")
    pipeline: ColumnName | None = Field(None, description="Column for the name of the pipeline.")


@transform("add_columns", params=AddColumns)
def add_columns(batch: pa.RecordBatch, params: AddColumns, context: StepContext) -> pa.RecordBatch:
    """Add columns with a constant, the start time of the run, its id, or the pipeline's name.

    Time and id differ in every run, so a row is not rewritten if only they have changed.

    Example: `{"constants": {"country": "NL"}, "now": "loaded_at", "run_id": "run_id"}`
    """
    made = [python_values.column_of([value], name, None) for name, value in params.constants.items()]
    if params.pipeline:
        made.append(python_values.column_of([context.pipeline], params.pipeline, None))
    if params.now:
        made.append(_stamp(params.now, "timestamp with time zone", context.started_at))
    if params.run_id:
        made.append(_stamp(params.run_id, "uuid", context.run_id))
    for value, field in made:
        if batch.schema.get_field_index(field.name) >= 0:
            raise FatalError(f"there is a column {field.name!r} already; drop or rename it first")
        batch = batches.with_column(batch, field, value.take(pa.array([0] * batch.num_rows, pa.int64())))
    return batch


def _stamp(name: str, pg_type: str, value: object) -> tuple[pa.Array, pa.Field]:
    return python_values.column_of([value], name, arrow_types.tagged(name, pg_type, stamp=True))
