"""A run's Python steps: looked up before anything is opened, fitted between query and target before rows move."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from psycopg.sql import SQL, Composable, Composed, Literal

from vitrina import sqlguard
from vitrina.adapters import catalog
from vitrina.adapters.catalog import Column
from vitrina.adapters.readers.sql import Bounds, Query, SqlReader
from vitrina.definition import Definition, Task
from vitrina.errors import FatalError, InvalidQuery, SourceQueryFailed
from vitrina.runner import admission
from vitrina.settings import Settings
from vitrina.sqlguard import SqlPolicy
from vitrina.targets import PostgresTarget

if TYPE_CHECKING:
    import pyarrow as pa

    from vitrina.adapters.transforms.chain import PlannedStep
    from vitrina.adapters.transforms.passage import Passage
    from vitrina.runner.job import Job

# Rows with which it is found out what comes out behind the steps.
SAMPLE_ROWS = 1000
# A reference query's result is kept in memory for the whole run.
MAX_REFERENCE_BYTES = 256 << 20


class Reading(Protocol):
    """What of a run, or of a preview, the steps need to know."""

    settings: Settings
    definition: Definition
    reader: SqlReader
    result: list[Column]
    steps: "list[PlannedStep]"

    @property
    def query(self) -> Query: ...

    @property
    def run_id(self) -> UUID: ...


def planned(definition: Definition, settings: Settings) -> "list[PlannedStep]":
    """The pipeline's steps with their params read; `Invalid` says what is wrong with which."""
    return plan_tasks(definition.steps, settings)


def plan_tasks(tasks: Sequence[Task], settings: Settings) -> "list[PlannedStep]":
    if not tasks:
        return []
    # Imported here: pipelines without steps need neither pyarrow nor its half second.
    from vitrina.adapters.transforms import chain, registry

    return chain.plan_steps(tasks, registry.load(settings.transforms))


def fit(job: "Job") -> "tuple[Passage, list[Column]]":
    """The steps between the query's result and the target, and what is written behind them."""
    passage = open_passage(job)
    table = catalog.find_table(job.target_connection, job.target) if isinstance(job.target, PostgresTarget) else None
    output = passage.settle(read_sample(job, passage, SAMPLE_ROWS), table, job.definition.target_key)
    return passage, output


def open_passage(job: Reading) -> "Passage":
    from vitrina.adapters.transforms.chain import Chain
    from vitrina.adapters.transforms.context import StepContext
    from vitrina.adapters.transforms.passage import Passage

    key = job.settings.hash_key
    context = StepContext(
        pipeline=job.definition.name,
        run_id=job.run_id,
        hash_key=key.get_secret_value().encode() if key else None,
        reference=References(job).load,
    )
    return Passage(job.result, job.query.judged.volatile_columns, Chain(job.steps, context))


def read_sample(job: Reading, passage: "Passage", rows: int) -> "pa.Table":
    return _read(job, sample_of(job, passage.outputs(), limit=rows))


def sample_of(job: Reading, outputs: Sequence[Composable] = (SQL("q.*"),), *, limit: int) -> Composed:
    head, source = job.query.wrapped(Bounds())
    return SQL("{} SELECT {} FROM {} AS q LIMIT {}").format(head, SQL(", ").join(outputs), source, Literal(limit))


def _read(job: Reading, statement: Composed, *, limit_bytes: int | None = None) -> "pa.Table":
    import pyarrow as pa

    batches, size = [], 0
    with job.reader.stream(statement) as stream:
        for batch in stream:
            batches.append(batch)
            size += batch.nbytes
            if limit_bytes is not None and size > limit_bytes:
                raise FatalError(
                    f"a reference query gives more than {limit_bytes >> 20} MB: join it in the source query instead"
                )
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
        from vitrina.adapters.transforms import natural

        settings = self._job.settings
        try:
            judged = sqlguard.judge(query, SqlPolicy(settings.source_schemas, settings.extra_functions))
        except InvalidQuery as exc:
            raise SourceQueryFailed(f"reference query: {exc.message}") from exc
        if judged.parameters:
            raise SourceQueryFailed("a reference query has no :since or :until")
        columns = self._job.reader.describe(judged)
        statement = Query(judged).select(natural.outputs(columns), Bounds())
        admission.admit(self._job.reader, Query(judged), settings, "a reference query", statement=statement)
        table = _read(self._job, statement, limit_bytes=MAX_REFERENCE_BYTES)
        schema = natural.schema_of(columns)
        return natural.naturalise(table, schema) if table.num_columns else schema.empty_table()
