"""A run's Python steps: looked up before anything is opened, fitted between query and target before rows move."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

import structlog
from psycopg.sql import SQL, Composable, Composed, Literal

from vitrina import sqlguard
from vitrina.connectors.postgres import catalog, plan_check
from vitrina.connectors.postgres.source import Bounds, Query, SqlReader
from vitrina.definition import Definition, Task
from vitrina.errors import FatalError, InvalidQuery, RunError, SourceQueryFailed
from vitrina.ports.batch import Endable
from vitrina.ports.schema import Column
from vitrina.settings import Settings
from vitrina.targets import PostgresTarget

if TYPE_CHECKING:
    import pyarrow as pa

    from vitrina.loads.job import Job
    from vitrina.transforms.chain import PlannedStep
    from vitrina.transforms.pipeline import Passage, RunsSteps
    from vitrina.transforms.process import Limits
    from vitrina.transforms.registry import Registry
    from vitrina.transforms.remote import WorkerSteps

NOBODY = UUID(int=0)

# Rows with which it is found out what comes out behind the steps.
SAMPLE_ROWS = 1000
SAMPLE_BYTES = 16 << 20
# A reference query's result is kept in memory for the whole run.
MAX_REFERENCE_BYTES = 256 << 20
# Where the rows of a preview are too large.
ASK_FOR_LESS = "ask for fewer, or shorten texts in the query"
# What importing the modules of steps may take when a runner starts.
IMPORT_MEMORY_MB = 4096


class Step(Protocol):
    """What the rest of a run knows of a step."""

    @property
    def order_index(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def digest(self) -> str: ...


@dataclass(frozen=True)
class PlannedSteps:
    """The steps of a pipeline, all of them in this process or all of them in workers."""

    own: "Sequence[PlannedStep]" = ()
    workers: "WorkerSteps | None" = field(default=None, repr=False)

    def __iter__(self) -> Iterator[Step]:
        return iter(self.workers.steps if self.workers else self.own)

    def __bool__(self) -> bool:
        return bool(self.own) or self.workers is not None


class Reading(Protocol):
    """What of a run, or of a preview, the steps need to know."""

    settings: Settings
    definition: Definition
    reader: SqlReader
    result: list[Column]
    steps: PlannedSteps

    @property
    def query(self) -> Query: ...

    @property
    def run_id(self) -> UUID: ...


def planned(
    definition: Definition,
    settings: Settings,
    sessions: ExitStack,
    run_id: UUID = NOBODY,
    *,
    extra: Sequence[Task] = (),
    attach: Callable[[Endable], object] | None = None,
) -> PlannedSteps:
    """The pipeline's steps with their params read; `Invalid` says what is wrong with which.

    Steps that ship with Vitrina are run here. Where there is one of anybody else, or several batches at a time, all of
    them run in workers, which end with `sessions`.
    """
    tasks = [*definition.steps, *extra]
    if not tasks:
        return PlannedSteps()
    # Imported here: pipelines without steps need neither pyarrow nor its half second.
    from vitrina.transforms import chain, registry, remote

    shipped = registry.load_shipped()
    if _workers(definition) == 1 and all(_is_shipped(task.body, shipped) for task in tasks):
        return PlannedSteps(chain.plan_steps(tasks, shipped))
    about = remote.About(
        definition.name, run_id, settings.transforms, datetime.now(UTC), _hash_key(tasks, settings, shipped)
    )
    steps = remote.WorkerSteps(tasks, about, limits(definition, settings), workers=_workers(definition))
    sessions.callback(steps.close)
    if attach:
        attach(steps)
    steps.plan()
    return PlannedSteps(workers=steps)


def describe(settings: Settings) -> list[dict[str, Any]]:
    """All steps and sources that this runner has. Modules are imported by a worker: they may do anything."""
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


def _workers(definition: Definition) -> int:
    asked = definition.options.parallel
    if asked != "auto":
        return asked
    # Not all systems tell which processors a process may use.
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable else os.cpu_count() or 1


def _is_shipped(name: str, shipped: "Registry") -> bool:
    found = shipped.find(name)
    return found is not None and found.is_shipped


def _hash_key(tasks: Sequence[Task], settings: Settings, shipped: "Registry") -> str | None:
    """Where a shipped step needs it, or the operator trusts all steps with it."""
    if settings.hash_key is None:
        return None
    own = [found for task in tasks if _is_shipped(task.body, shipped) and (found := shipped.find(task.body))]
    needed = any("context" in found.accepts for found in own) or "VITRINA_HASH_KEY" in settings.step_environment
    return settings.hash_key.get_secret_value() if needed else None


def fit(job: "Job") -> "tuple[Passage, list[Column]]":
    """The steps between the query's result and the target, and what is written behind them."""
    passage = open_passage(job)
    table = catalog.find_table(job.target_connection, job.target) if isinstance(job.target, PostgresTarget) else None
    output = passage.settle(_read_few(job, passage), table, job.definition.target_key)
    return passage, output


def open_passage(job: Reading) -> "Passage":
    from vitrina.transforms.pipeline import Passage

    return Passage(job.result, job.query.judged.volatile_columns, _open_steps(job))


def _open_steps(job: Reading) -> "RunsSteps":
    from vitrina.transforms.chain import Chain
    from vitrina.transforms.context import StepContext
    from vitrina.transforms.pipeline import OwnSteps

    stamps, references = job.query.judged.volatile_columns, References(job)
    if workers := job.steps.workers:
        workers.open(job.result, stamps, references.load)
        return workers
    key = job.settings.hash_key
    context = StepContext(
        pipeline=job.definition.name,
        run_id=job.run_id,
        hash_key=key.get_secret_value().encode() if key else None,
        reference=references.load,
    )
    return OwnSteps(job.result, stamps, Chain(job.steps.own, context))


def read_sample(job: Reading, passage: "Passage", rows: int, *, limit_bytes: int) -> "pa.Table":
    statement = sample_of(job, passage.outputs(), limit=rows, largest=limit_bytes)
    return _read(job, statement, limit_bytes=limit_bytes, what=f"the first {rows} rows are", advice=ASK_FOR_LESS)


def _read_few(job: Reading, passage: "Passage") -> "pa.Table":
    """Enough rows to find out what the steps make of them. Large ones tell no more than others, and are left out."""
    few = _read_fitting(job, passage, SAMPLE_ROWS, SAMPLE_BYTES)
    if few.rows.num_rows or not few.left_out:
        return few.rows
    # All are large: one has to do, if a runner carries values of that size.
    largest = job.settings.max_value_mb << 20
    one = _read_fitting(job, passage, 1, largest)
    if one.left_out:
        raise FatalError(
            f"the first row of the query has {one.left_out / (1 << 20):,.0f} MB; the steps are tried with rows of up to"
            f" {largest >> 20} MB: leave large columns out of the query, cut them there, or raise VITRINA_MAX_VALUE_MB"
            " on every runner"
        )
    return one.rows


@dataclass(frozen=True)
class _Few:
    rows: "pa.Table"
    left_out: int  # the size of the largest row that did not fit


def _read_fitting(job: Reading, passage: "Passage", rows: int, largest: int) -> _Few:
    import pyarrow as pa

    statement = sample_of(job, passage.outputs(), limit=rows, largest=largest)
    batches: list[pa.RecordBatch] = []
    size = left_out = 0
    with job.reader.stream(statement) as stream:
        for batch in stream:
            fitting, beyond = _told_apart(batch)
            left_out = max(left_out, beyond)
            batches.append(fitting)
            size += fitting.nbytes
            if size > largest:
                break
    return _Few(pa.Table.from_batches(batches) if batches else pa.table({}), left_out)


def sample_of(
    job: Reading, outputs: Sequence[Composable] = (SQL("q.*"),), *, limit: int, largest: int = SAMPLE_BYTES
) -> Composed:
    return _fitting(job.query, outputs, SQL("LIMIT {}").format(Literal(limit)), largest)


def _fitting(query: Query, outputs: Sequence[Composable], limit: Composable, largest: int) -> Composed:
    """`outputs` of each row, NULL where it has more than `largest` bytes; the last column says how many such a row has.

    The server looks at the length: a row that has come is in the runner's memory already, several times.
    """
    head, source = query.wrapped(Bounds())
    return SQL(
        "{head} SELECT {outputs}, CASE WHEN sized.bytes > {largest} THEN sized.bytes END"
        " FROM (SELECT * FROM {source} AS s {limit}) AS r"
        # ROW(): of the row itself, the server would count what it has compressed.
        " CROSS JOIN LATERAL (SELECT pg_catalog.pg_column_size(ROW(r.*)) AS bytes OFFSET 0) AS sized"
        " LEFT JOIN LATERAL (SELECT r.* WHERE sized.bytes <= {largest}) AS q ON true"
    ).format(head=head, outputs=SQL(", ").join(outputs), source=source, limit=limit, largest=Literal(largest))


def _told_apart(batch: "pa.RecordBatch") -> "tuple[pa.RecordBatch, int]":
    """The rows that the server sent, and how large the largest other is."""
    import pyarrow.compute as pc

    sizes = batch.column(batch.num_columns - 1)
    sent = batch.select(range(batch.num_columns - 1))
    if sizes.null_count == batch.num_rows:
        return sent, 0
    return sent.filter(pc.is_null(sizes)), pc.max(sizes).as_py()


def _read(job: Reading, statement: Composed, *, limit_bytes: int, what: str, advice: str) -> "pa.Table":
    import pyarrow as pa

    batches, size = [], 0
    with job.reader.stream(statement) as stream:
        for batch in stream:
            fitting, beyond = _told_apart(batch)
            batches.append(fitting)
            size += max(fitting.nbytes, beyond)
            if size > limit_bytes:
                raise FatalError(f"{what} more than {limit_bytes >> 20} MB: {advice}")
    return pa.Table.from_batches(batches) if batches else pa.table({})


class References:
    """Reference queries of one run: judged like the source query, run with its rights, each once."""

    def __init__(self, job: Reading) -> None:
        self._job = job
        self._found: dict[str, pa.Table] = {}

    def load(self, query: str) -> "pa.Table":
        if query not in self._found:
            self._found[query] = self._load(query)
        return self._found[query]

    def _load(self, query: str) -> "pa.Table":
        from vitrina.transforms import natural
        from vitrina.transforms.outputs import outputs

        settings = self._job.settings
        try:
            judged = sqlguard.judge(query, settings.sql_policy)
        except InvalidQuery as exc:
            raise SourceQueryFailed(f"reference query: {exc.message}") from exc
        if judged.parameters:
            raise SourceQueryFailed("a reference query has no :since or :until")
        columns = self._job.reader.describe(judged)
        statement = _fitting(Query(judged), outputs(columns), SQL("OFFSET 0"), MAX_REFERENCE_BYTES)
        plan_check.admit(self._job.reader, Query(judged), settings, "a reference query", statement=statement)
        table = _read(
            self._job,
            statement,
            limit_bytes=MAX_REFERENCE_BYTES,
            what="a reference query gives",
            advice="join it in the source query instead",
        )
        schema = natural.schema_of(columns)
        return natural.naturalise(table, schema) if table.num_columns else schema.empty_table()
