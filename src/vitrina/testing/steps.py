"""Run steps and Python sources in tests, without a database."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from vitrina.definition import Task
from vitrina.errors import NotFound
from vitrina.ports.batch import DeadLetter
from vitrina.transforms import arrow_types, chain, python_values, registry, sources
from vitrina.transforms.context import SourceContext, StepContext
from vitrina.transforms.registry import Registered

Step = str | Callable[..., Any]


@dataclass(frozen=True)
class StepResult:
    """Hold the output of a step: a batch, and the rows that it rejected with `on_error: dead_letter`."""

    batch: pa.RecordBatch
    rejected: tuple[DeadLetter, ...] = ()

    @property
    def rows(self) -> list[dict[str, Any]]:
        return python_values.rows_of(self.batch)


@dataclass(frozen=True)
class SourceResult:
    """Hold what a source yielded, and the checkpoint that would be stored with it."""

    batch: pa.RecordBatch
    checkpoint: Any

    @property
    def rows(self) -> list[dict[str, Any]]:
        return python_values.rows_of(self.batch)


def run_step(
    step: Step,
    rows: Any,
    *,
    params: Mapping[str, Any] | None = None,
    types: Mapping[str, str] | None = None,
    context: StepContext | None = None,
) -> StepResult:
    """Run a registered step, by name or function, as a runner would. `rows` are dicts, a record batch or a table.

    `types`: PostgreSQL types of the columns, such as {"rating": "numeric(3,1)"}; else they follow from the values.
    """
    task = Task(order_index=1, task_type="PYTHON", body=_registered(step).name, params=dict(params or {}))
    steps = chain.plan_steps([task], registry.load())
    passed = chain.Chain(steps, context or StepContext()).apply(_table(rows, types or {}), 1)
    return StepResult(passed.batch, passed.letters)


def run_source(
    source: Step, *, checkpoint: Any = None, params: Mapping[str, Any] | None = None, limit: int | None = None
) -> list[SourceResult]:
    """Run a registered source from a checkpoint until its end, or for a number of batches."""
    registered = _registered(source)
    context = SourceContext(
        checkpoint=checkpoint, params=chain.read_params(registered, dict(params or {}), registered.name)
    )
    found = []
    for batch, state in sources.yielded(registered, context):
        found.append(SourceResult(batch, state))
        if len(found) == limit:
            break
    return found


def _registered(step: Step) -> Registered:
    known = registry.load()
    for found in known:
        if step in (found.name, found.function):
            return found
    raise NotFound(f"{step!r} is not registered: import the module that has its @transform or @source")


def _table(rows: Any, types: Mapping[str, str]) -> pa.Table:
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if isinstance(rows, pa.Table):
        return rows
    hints = pa.schema([arrow_types.tagged(name, arrow_types.long_name(kind)) for name, kind in types.items()])
    if not rows:
        return hints.empty_table()
    return pa.Table.from_batches([python_values.batch_of([dict(row) for row in rows], hints)])


__all__ = ["SourceContext", "SourceResult", "StepContext", "StepResult", "run_source", "run_step"]
