"""Rows that Python makes, once more and beside the mart: what is there to compare when no query can be asked again."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.compute as pc
from psycopg.sql import SQL, Composable, Identifier

from vitrina.checks import comparison
from vitrina.checks.opened import cursor_of, mart_of
from vitrina.connectors.postgres import cursor_facts
from vitrina.connectors.postgres.query_source import QuerySource
from vitrina.connectors.postgres.source import Order
from vitrina.connectors.postgres.stage import BATCH, SCHEMA
from vitrina.connectors.postgres.stream import Stager, cut, outputs_of, read_ahead
from vitrina.errors import Conflict
from vitrina.loads.job import Job
from vitrina.ports.source import Form, Window
from vitrina.store import database
from vitrina.store.database import Connection
from vitrina.transforms.outputs import outputs as natural_outputs

_YOUNG = "_young"
_ROWS_AT_ONCE = 10_000


def read(
    job: Job, *, in_order: bool = False, sample: int | None = None, form: Form = "exact"
) -> Iterator[tuple[pa.Table, bool]]:
    """What the query gives and the steps make of it, in tables of rows that are all young, or none of them.

    Told apart before the steps: they may make any rows out of others, and leave out when those changed. `in_order` of
    the cursor the latest of several rows with one key comes last. A Python source starts from its beginning,
    and gives no sample but all.
    """
    passage = job.fitted.passage
    if not isinstance(job.source, QuerySource):
        with closing(job.source.read(Window(), "natural")) as batches:
            for number, batch in enumerate(batches, 1):
                rows = batch.take()
                yield (passage.steps.take(rows, number).table if passage else rows), False
        return
    source, cursor = job.source, job.source.cursor
    # Steps are given natural types; without any, rows come in the form that the target takes.
    natural = passage is not None or form == "natural"
    outputs = natural_outputs(source.result) if natural else outputs_of(source.result)
    outputs.append(SQL("coalesce({}, false) AS {}").format(comparison.young(job), Identifier(_YOUNG)))
    order: tuple[Composable, ...] = tuple(cursor.columns("q")) if cursor and in_order else ()
    if sample is not None:
        order = (SQL("pg_catalog.random()"),)
    statement = source.query.select(outputs, cursor_facts.all_rows(source), order=Order(order), limit=sample)
    with source.reader.stream(statement) as stream, closing(read_ahead(stream)) as pieces:
        # Steps see the batches that they see in a run; nobody else minds.
        size = job.definition.batch_size if passage else _ROWS_AT_ONCE
        tables = cut(pieces, lambda: size, ordered_by=[])
        for number, table in enumerate(tables, 1):
            for part, young in _by_age(table):
                yield (passage.steps.take(part, number).table if passage else part), young


def _by_age(table: pa.Table) -> Iterator[tuple[pa.Table, bool]]:
    for young in (False, True):
        part = table.filter(pc.equal(table.column(_YOUNG), young)).drop_columns([_YOUNG])
        if part.num_rows:
            yield part, young


@contextmanager
def staged(job: Job) -> Iterator[tuple[Connection, Composable]]:
    """In a table of its own beside the mart, for as long as the block; `is_young` and `latest` are about its rows."""
    name = f"r_{job.claim.pipeline_id.hex}_{uuid4().hex[:12]}"
    mart = mart_of(job)
    stage = mart.writer.stage(name, job.fitted.arrives_as or {})
    session = f"vitrina:reconcile:{job.claim.pipeline_id}"
    with database.connect(mart.opening.url, session) as connection:
        _drop_leftovers(connection, job.claim.pipeline_id)
        stage.create(connection, fillable_by=None)
        try:
            with closing(Stager(mart.opening.url, session, (stage,), epoch=0, target=mart.opening.name)) as stager:
                _fill(job, stager)
            stage.analyze(connection)
            yield connection, stage.in_batches()
        finally:
            stage.drop(connection)


def is_young(job: Job) -> Composable:
    """Young rows are staged in odd batches."""
    return SQL("q.{} % 2 = 1").format(Identifier(BATCH)) if cursor_of(job) else SQL("false")


def latest(job: Job) -> tuple[Composable, ...]:
    """A later batch writes over an earlier one; within a batch, a key may come only once."""
    return (SQL("q.{}").format(Identifier(BATCH)),) if cursor_of(job) else ()


def _fill(job: Job, stager: Stager) -> None:
    for number, (table, young) in enumerate(read(job, in_order=True), 1):
        stager.stage(table, 2 * number + young)


def _drop_leftovers(connection: Connection, pipeline_id: UUID) -> None:
    """Of a reconciliation whose runner died: nobody else has this lock now."""
    row = connection.execute(
        "SELECT pg_catalog.pg_try_advisory_lock(pg_catalog.hashtextextended(%s, 0)) AS ours",
        [f"vitrina:reconcile:{pipeline_id}"],
    ).fetchone()
    if not (row and row["ours"]):
        raise Conflict("another reconciliation of this pipeline is at work: wait for its report")
    found = connection.execute(
        """
        SELECT c.relname AS name FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = %s AND starts_with(c.relname, %s)
        """,
        [SCHEMA, f"r_{pipeline_id.hex}_"],
    ).fetchall()
    for left in found:
        connection.execute(SQL("DROP TABLE IF EXISTS {}").format(Identifier(SCHEMA, left["name"])))
