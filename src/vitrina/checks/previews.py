"""A look at what Python steps make of the first rows, step by step; nothing is written."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from vitrina.connectors.postgres import cursor as cursors
from vitrina.connectors.postgres import plan_check
from vitrina.connectors.postgres import sessions as source_sessions
from vitrina.connectors.postgres.source import Query, SqlReader
from vitrina.definition import Definition, Task
from vitrina.errors import FatalError
from vitrina.loads import job as jobs
from vitrina.loads import sources, steps
from vitrina.loads.steps import PlannedSteps
from vitrina.ports.batch import DeadLetter
from vitrina.ports.schema import Column
from vitrina.settings import Settings
from vitrina.store.leases import Claim

if TYPE_CHECKING:
    import pyarrow as pa

_NOBODY = UUID(int=0)
# What is shown has to be held, and written down, whole.
MAX_BYTES = 8 << 20
# How long steps may take over the rows of a preview.
STEP_SECONDS = 60.0


@dataclass
class Reading:
    """Enough of a run to read some rows and pass them through steps."""

    settings: Settings
    definition: Definition
    reader: SqlReader
    query: Query
    result: list[Column]
    steps: PlannedSteps
    run_id: UUID = field(default=_NOBODY)


@dataclass(frozen=True)
class Stage:
    """The rows behind one step; the first stage is what the query gives."""

    name: str
    batch: "pa.RecordBatch"

    @property
    def columns(self) -> list[dict[str, str]]:
        from vitrina.transforms import to_target

        return [
            {"name": column.name, "type": to_target.postgres_type(column) or "unknown"} for column in self.batch.schema
        ]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """As JSON has them."""
        from vitrina.transforms import python_values

        return [json.loads(python_values.json_text_of(row)) for row in python_values.rows_of(self.batch)]


def preview(definition: Definition, settings: Settings, limit: int) -> dict[str, Any]:
    """What would be written: the first rows behind the last step, and `before` the first; or those of the source."""
    if definition.python_source:
        return _shown(first_rows_of_source(definition, settings, limit))
    letters: list[DeadLetter] = []
    stages = trace(definition, settings, limit, letters=letters)
    return _shown(stages[-1]) | {"before": _shown(stages[0]), "rejected": [letter.error for letter in letters]}


def _shown(stage: Stage) -> dict[str, Any]:
    return {"columns": stage.columns, "rows": stage.rows}


def first_rows_of_source(definition: Definition, settings: Settings, limit: int) -> Stage:
    """The source is asked from its beginning, for one batch."""
    claim = Claim(_NOBODY, definition.name, 0, _NOBODY, _NOBODY, 0, {"requested_range": None})
    with ExitStack() as sessions:
        source = sources.open_source(_hurried(definition), settings, claim, sessions)
        assert source is not None
        for batch, _ in source.batches(None):
            if batch.num_columns:
                return _bounded(Stage(source.name, batch.slice(0, limit)))
    raise FatalError(f"source {source.name} gives no rows")


def trace(
    definition: Definition,
    settings: Settings,
    limit: int,
    *,
    extra: Sequence[Task] = (),
    letters: list[DeadLetter] | None = None,
) -> list[Stage]:
    """The first rows of the query, and what they are behind each step; `extra` steps come last.

    A row that a step fails on is an error, or goes to `letters` where the step says so.
    """
    with _reading(definition, settings, extra) as reading:
        passage = steps.open_passage(reading)
        sample = steps.read_sample(reading, passage, limit, limit_bytes=MAX_BYTES)
        names = ["query", *(f"{step.order_index} {step.name}" for step in reading.steps)]
        stages = passage.steps.trace(sample, letters)
        return [_bounded(Stage(name, batch)) for name, batch in zip(names, stages, strict=True)]


def _bounded(stage: Stage) -> Stage:
    if stage.batch.nbytes > MAX_BYTES:
        raise FatalError(
            f"the first {stage.batch.num_rows} rows of {stage.name} are more than {MAX_BYTES >> 20} MB:"
            f" {steps.ASK_FOR_LESS}"
        )
    return stage


@contextmanager
def _reading(definition: Definition, settings: Settings, extra: Sequence[Task]) -> Iterator[Reading]:
    judged = jobs.judge_reading(definition, settings)
    if judged is None:
        raise FatalError("the pipeline has no query: a Python source makes its rows")
    with ExitStack() as sessions:
        planned = steps.planned(_hurried(definition), settings, sessions, extra=extra)
        reader = sessions.enter_context(source_sessions.preview_reader(definition, settings))
        result = reader.describe(judged)
        types = {column.name: column.type for column in result}
        cursor = cursors.cursor_of(definition, types) if definition.mode == "incremental" else None
        reading = Reading(settings, definition, reader, Query(judged, cursor), result, planned)
        plan_check.admit(reader, reading.query, settings, statement=steps.sample_of(reading, limit=1))
        yield reading


def _hurried(definition: Definition) -> Definition:
    """Somebody waits for the answer, and others for theirs."""
    seconds = min(definition.options.step_timeout_seconds, STEP_SECONDS)
    options = definition.options.model_copy(update={"step_timeout_seconds": seconds, "parallel": 1})
    return definition.model_copy(update={"options": options})
