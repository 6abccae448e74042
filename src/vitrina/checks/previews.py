"""Preview what Python steps make of the first rows, step by step; nothing is written."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from vitrina import revalidation
from vitrina.definition import Definition, Task
from vitrina.errors import FatalError
from vitrina.inside import queries
from vitrina.loads import opening, steps
from vitrina.loads.steps import ASK_FOR_LESS, StepEnvironment
from vitrina.ports import registry
from vitrina.ports.batch import DeadLetter
from vitrina.ports.source import Description, Samples, Source, Window
from vitrina.settings import DEFAULT_CONNECTION, Settings
from vitrina.store.leases import Claim

if TYPE_CHECKING:
    import pyarrow as pa

_NO_ID = UUID(int=0)
# A preview is held in memory and stored as a whole.
MAX_BYTES = 8 << 20
# How long steps may take for the rows of a preview.
STEP_SECONDS = 60.0


@dataclass(frozen=True)
class Sizes:
    """Limit how much is shown."""

    rows: int
    max_bytes: int


@dataclass(frozen=True)
class PreviewStage:
    """Hold the rows after one step; the first stage holds the result of the query."""

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
        """Return the rows as JSON values."""
        from vitrina.transforms import python_values

        return [json.loads(python_values.json_text_of(row)) for row in python_values.rows_of(self.batch)]


def preview(definition: Definition, settings: Settings, limit: int) -> dict[str, Any]:
    """Return what would be written: the first rows after the last step, and `before` it; or those of the source."""
    if definition.source_connector != registry.POSTGRES and not definition.steps:
        return _shown(first_rows_of_source(definition, settings, limit))
    letters: list[DeadLetter] = []
    stages = trace(definition, settings, limit, letters=letters)
    return _shown(stages[-1]) | {"before": _shown(stages[0]), "rejected": [letter.error for letter in letters]}


def _shown(stage: PreviewStage) -> dict[str, Any]:
    return {"columns": stage.columns, "rows": stage.rows}


def first_rows_of_source(definition: Definition, settings: Settings, limit: int) -> PreviewStage:
    """Read one batch of the source from its beginning."""
    with ExitStack() as sessions:
        return _bounded(_first_of_source(definition, settings, limit, sessions)[1])


def _first_of_source(
    definition: Definition, settings: Settings, limit: int, sessions: ExitStack
) -> tuple[Description, PreviewStage]:
    from vitrina.transforms import call

    claim = Claim(_NO_ID, definition.name, 0, _NO_ID, _NO_ID, 0, {"requested_range": None})
    source = opening.open_source_alone(_hurried(definition), settings, claim, sessions)
    described = source.describe(Window())
    name = definition.python_source or source.name
    if described.schema is None:
        raise FatalError(f"source {name} gives no rows")
    return described, PreviewStage(name, call.one_batch(_first_rows(source, limit)))


def _first_rows(source: Source, limit: int) -> "pa.Table":
    if isinstance(source, Samples):
        return source.sample(limit, MAX_BYTES, MAX_BYTES)
    with closing(source.read(Window(batch_rows=lambda: limit), "natural")) as batches:
        return next(batches).take().slice(0, limit)


def trace(
    definition: Definition,
    settings: Settings,
    limit: int,
    *,
    extra: Sequence[Task] = (),
    letters: list[DeadLetter] | None = None,
) -> list[PreviewStage]:
    """Return the first rows of the query, and the rows after each step; `extra` steps come last.

    A row that a step fails on is an error, or is added to `letters` if the step says so.
    """
    with _sampled(definition, settings, limit, extra) as (environment, described, first, sample):
        step_pipeline = steps.open_step_pipeline(environment, described, "exact", first)
        names = [first, *(f"{step.order_index} {step.name}" for step in environment.steps)]
        stages = step_pipeline.steps.trace(sample, letters)
        return [_bounded(PreviewStage(name, batch)) for name, batch in zip(names, stages, strict=True)]


def _bounded(stage: PreviewStage) -> PreviewStage:
    if stage.batch.nbytes > MAX_BYTES:
        raise FatalError(
            f"the first {stage.batch.num_rows} rows of {stage.name} are more than {MAX_BYTES >> 20} MB: {ASK_FOR_LESS}"
        )
    return stage


_Sampled = tuple[StepEnvironment, Description, str, "pa.Table"]


@contextmanager
def _sampled(definition: Definition, settings: Settings, limit: int, extra: Sequence[Task]) -> Iterator[_Sampled]:
    """Read some rows, and open everything that steps need to run on them."""
    # Imported here, because previews of plain queries do not need pyarrow, which takes half a second to load.
    import pyarrow as pa

    judged = revalidation.revalidate_reading(definition, settings)
    with ExitStack() as sessions:
        planned = steps.planned(_hurried(definition), settings, sessions, extra=extra)
        # For a source of another kind, the default database runs the reference queries of steps.
        connection = definition.source_connection if definition.reads_postgres else DEFAULT_CONNECTION
        session_name = f"vitrina:preview:{definition.name}"
        answering = queries.installed()
        reader = sessions.enter_context(answering.waited_for(connection, settings, session_name))
        environment = StepEnvironment(definition, settings, _NO_ID, planned, opening.references(reader, settings))
        if judged is None:
            described, first = _first_of_source(definition, settings, limit, sessions)
            yield environment, described, first.name, pa.Table.from_batches([first.batch])
            return
        described, sample = answering.sample(reader, definition, judged, settings, Sizes(limit, MAX_BYTES))
        yield environment, described, "query", sample


def _hurried(definition: Definition) -> Definition:
    """Limit the time of the steps, because the caller and other callers wait for the answer."""
    seconds = min(definition.options.step_timeout_seconds, STEP_SECONDS)
    options = definition.options.model_copy(update={"step_timeout_seconds": seconds, "parallel": 1})
    return definition.model_copy(update={"options": options})
