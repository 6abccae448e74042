"""Plan a run's Python steps before anything is opened, and fit them between query and target."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

import structlog

from vitrina.definition import Definition, Task
from vitrina.errors import RunError
from vitrina.loads import processors
from vitrina.ports.batch import Endable
from vitrina.ports.schema import Column, Known
from vitrina.ports.source import Description, Form, Samples, Source, Window
from vitrina.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa

    from vitrina.transforms.chain import PlannedStep
    from vitrina.transforms.pipeline import RunsSteps, StepPipeline
    from vitrina.transforms.process import Limits
    from vitrina.transforms.registry import Registry
    from vitrina.transforms.remote import WorkerSteps

NOBODY = UUID(int=0)

# Rows of the sample with which the output of the steps is determined.
SAMPLE_ROWS = 1000
SAMPLE_BYTES = 16 << 20
# Hint for previews whose rows are too large.
ASK_FOR_LESS = "ask for fewer, or shorten texts in the query"
# Memory limit for importing the modules of steps when a runner starts, in MiB.
IMPORT_MEMORY_MB = 4096


class Step(Protocol):
    """Describe a step to the rest of a run."""

    @property
    def order_index(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def digest(self) -> str: ...

    @property
    def max_dead_letters(self) -> int: ...


@dataclass(frozen=True)
class PlannedSteps:
    """Hold the steps of a pipeline, which all run in this process or all in workers."""

    own: "Sequence[PlannedStep]" = ()
    workers: "WorkerSteps | None" = field(default=None, repr=False)

    def __iter__(self) -> Iterator[Step]:
        return iter(self.workers.steps if self.workers else self.own)

    def __bool__(self) -> bool:
        return bool(self.own) or self.workers is not None


def planned(
    definition: Definition,
    settings: Settings,
    sessions: ExitStack,
    run_id: UUID = NOBODY,
    *,
    extra: Sequence[Task] = (),
    started_at: datetime | None = None,
    attach: Callable[[Endable], object] | None = None,
) -> PlannedSteps:
    """Plan the pipeline's steps and read their params. Raise `Invalid` with what is wrong in each step.

    Steps that ship with Vitrina run in this process. If a step comes from elsewhere, or several batches run at a time,
    all steps run in workers, which end with `sessions`.
    """
    tasks = [*definition.steps, *extra]
    if not tasks:
        return PlannedSteps()
    # Imported here: pipelines without steps need neither pyarrow nor its half second of import.
    from vitrina.transforms import chain, registry, remote

    shipped = registry.load_shipped()
    if workers_of(definition) == 1 and all(_is_shipped(task.body, shipped) for task in tasks):
        return PlannedSteps(chain.plan_steps(tasks, shipped))
    about = remote.About(
        definition.name,
        run_id,
        settings.transforms,
        started_at or datetime.now(UTC),
        _hash_key(tasks, settings, shipped),
    )
    steps = remote.WorkerSteps(tasks, about, limits(definition, settings), workers=workers_of(definition))
    sessions.callback(steps.close)
    if attach:
        attach(steps)
    steps.plan()
    return PlannedSteps(workers=steps)


def describe(settings: Settings) -> list[dict[str, Any]]:
    """Describe all steps and sources of this runner. A worker imports their modules, which may do anything."""
    from vitrina.transforms import registry

    if registry.finds_only_shipped(settings.transforms):
        return registry.describe_shipped()

    from vitrina.transforms import process, remote

    modules = settings.transforms
    try:
        return remote.describe(
            modules, process.Limits(process.IMPORT_SECONDS, IMPORT_MEMORY_MB, settings.step_environment)
        )
    except RunError as exc:
        structlog.get_logger().error("transforms.import_failed", module=modules, error=exc.message)
        broken = registry.BrokenModule(modules or "installed packages", exc.message)
        shipped = [found for found in registry.load_shipped() if found.is_shipped]
        return [*(found.describe() for found in shipped), broken.describe()]


def limits(definition: Definition, settings: Settings) -> "Limits":
    from vitrina.transforms.process import Limits

    options = definition.options
    return Limits(options.step_timeout_seconds, options.step_memory_mb, settings.step_environment)


def moment() -> datetime:
    """Return the moment that all processes of a run pass to their steps."""
    return datetime.now(UTC)


def workers_of(definition: Definition) -> int:
    """Return how many processes `options.parallel` requests."""
    asked = definition.options.parallel
    return processors.usable() if asked == "auto" else asked


def _is_shipped(name: str, shipped: "Registry") -> bool:
    found = shipped.find(name)
    return found is not None and found.is_shipped


def _hash_key(tasks: Sequence[Task], settings: Settings, shipped: "Registry") -> str | None:
    """Return the hash key if a shipped step needs it, or the operator trusts all steps with it."""
    if settings.hash_key is None:
        return None
    own = [found for task in tasks if _is_shipped(task.body, shipped) and (found := shipped.find(task.body))]
    needed = any("context" in found.accepts for found in own) or "VITRINA_HASH_KEY" in settings.step_environment
    return settings.hash_key.get_secret_value() if needed else None


@dataclass(frozen=True)
class Fitted:
    """Hold what is between a source and a target: steps, a conversion of types, or nothing."""

    output: tuple[Column, ...]
    stamps: frozenset[str]
    step_pipeline: "StepPipeline | None" = None

    @property
    def arrives_as(self) -> dict[str, str] | None:
        """Return the type in which the values of each column are staged, after the steps."""
        return (
            {name: place.staged for name, place in self.step_pipeline.landings.items()} if self.step_pipeline else None
        )


@dataclass(frozen=True)
class StepEnvironment:
    """Hold what steps are told, and may ask for."""

    definition: Definition
    settings: Settings
    run_id: UUID
    steps: PlannedSteps
    reference: "Callable[[str], pa.Table]"
    # One moment for a run whose steps run in several processes; None means now.
    started_at: datetime | None = None


def fit(
    environment: StepEnvironment, source: Source, described: Description, form: Form, known: Callable[[], Known | None]
) -> Fitted:
    """Run the steps on a sample to learn the output schema and its target types."""
    if not environment.steps and described.schema is None and form == "exact":
        return Fitted(described.columns, described.stamps)
    python = environment.definition.python_source
    step_pipeline = open_step_pipeline(environment, described, form, f"source {python}" if python else source.name)
    output = step_pipeline.settle(_sample(source, described, environment), known(), environment.definition.target_key)
    return Fitted(tuple(output), step_pipeline.stamps, step_pipeline)


def _sample(source: Source, described: Description, environment: StepEnvironment) -> "pa.Table":
    if not environment.steps:
        return _no_rows(described.schema)
    if isinstance(source, Samples):
        return source.sample(SAMPLE_ROWS, SAMPLE_BYTES, environment.settings.max_value_mb << 20)
    with closing(source.read(Window(batch_rows=lambda: SAMPLE_ROWS), "natural")) as batches:
        return next((batch.take() for batch in batches), _nothing())


def _no_rows(schema: "pa.Schema | None") -> "pa.Table":
    from vitrina.transforms import arrow_types

    return arrow_types.no_rows(schema) if schema is not None else _nothing()


def _nothing() -> "pa.Table":
    import pyarrow as pa

    return pa.table({})


def open_step_pipeline(environment: StepEnvironment, described: Description, form: Form, giver: str) -> "StepPipeline":
    from vitrina.transforms import arrow_types
    from vitrina.transforms.pipeline import StepPipeline

    natural_schema = described.schema
    comes_natural = natural_schema is not None
    schema = natural_schema if comes_natural else arrow_types.schema_of(described.columns, described.stamps)
    opened = _open_steps(environment, schema, comes_natural=comes_natural, stays_natural=form == "natural")
    return StepPipeline(schema, opened, giver)


def _open_steps(
    environment: StepEnvironment, schema: "pa.Schema", *, comes_natural: bool, stays_natural: bool
) -> "RunsSteps":
    from vitrina.transforms.chain import Chain
    from vitrina.transforms.context import StepContext
    from vitrina.transforms.pipeline import OwnSteps

    if workers := environment.steps.workers:
        workers.open(schema, environment.reference, comes_natural=comes_natural, stays_natural=stays_natural)
        return workers
    key = environment.settings.hash_key
    context = StepContext(
        pipeline=environment.definition.name,
        run_id=environment.run_id,
        started_at=environment.started_at or datetime.now(UTC),
        hash_key=key.get_secret_value().encode() if key else None,
        reference=environment.reference,
    )
    chain = Chain(environment.steps.own, context)
    return OwnSteps(schema, chain, comes_natural=comes_natural, stays_natural=stays_natural)
