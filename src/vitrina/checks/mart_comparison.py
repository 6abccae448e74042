"""A mart and its source as the two sides of a comparison: both asked in SQL, in the types of the mart."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
from psycopg.sql import SQL, Composable, Identifier

from vitrina.checks import comparison
from vitrina.checks.sides import Side
from vitrina.checks.tables import Field, TableSide, refuse_other_encoding, refuse_strange_keys
from vitrina.connectors.postgres import carriage
from vitrina.connectors.postgres.source import Bounds, translate_read
from vitrina.errors import FatalError, VitrinaError
from vitrina.loads import job as jobs
from vitrina.loads import sources
from vitrina.loads.job import Job
from vitrina.store import database, state


class MartComparison:
    """A pipeline whose target is a table."""

    full_guarantee = "every row by a 64-bit hash of its key and columns, taken inside each database"

    def __init__(self, job: Job) -> None:
        self.job = job
        inspect(job)

    @property
    def compared(self) -> list[str]:
        return [name for name in self.job.writer.columns if name not in self.not_compared]

    @property
    def not_compared(self) -> list[str]:
        return [name for name in _other_columns(self.job) if name in self.job.writer.not_compared]

    @contextmanager
    def both_sides(self) -> Iterator[tuple[Side, Side]]:
        job = self.job
        job.checkpoint = state.peek(job.metastore, job.claim.pipeline_id)
        target = target_side(job)
        with target.snapshot(), source_side(job) as source, source.snapshot():
            refuse_other_encoding(source, target)
            yield source, target


def inspect(job: Job) -> None:
    """Nothing is created or changed, and what the next run would have to change is said."""
    comparison.refuse_moving_source(job)
    if job.source:
        sources.look_into(job)
    else:
        jobs.inspect(job, create_target=False)
    if not job.writer.exists:
        raise FatalError(f"{job.target} does not exist yet: run the pipeline first")
    missing = [c.name for c in job.output if job.writer.table.column(c.name) is None and c.name not in _cursors(job)]
    if missing:
        raise FatalError(f"{job.target} lacks the column {missing[0]!r}: run the pipeline, which adds it")
    found = job.writer.connection.execute(
        "SELECT pg_catalog.format_type(oid, NULL) AS name FROM pg_catalog.pg_type WHERE typtype = 'e'"
    ).fetchall()
    refuse_strange_keys(_fields(job, job.key), frozenset(row["name"] for row in found))


def _cursors(job: Job) -> set[str | None]:
    return {job.definition.incremental_key, job.definition.incremental_id_key} if job.cursor else set()


def target_side(job: Job) -> TableSide:
    return TableSide(
        connection=job.writer.connection,
        head=SQL(""),
        source=job.writer.table.identifier,
        key=_fields(job, job.key),
        columns=_fields(job, _compared_columns(job)),
        translate=_translate_target,
        cursor=_cursor_field(job),
    )


def _translate_target(exc: psycopg.Error) -> Exception:
    try:
        database.raise_translated("comparing with the mart", exc)
    except VitrinaError as translated:
        return translated


@contextmanager
def source_side(job: Job, *, all_columns: bool = False) -> Iterator[TableSide]:
    names = _other_columns(job) if all_columns else _compared_columns(job)
    if job.passage or job.source:
        # Imported here: it needs pyarrow, and half a second for it.
        from vitrina.checks import recomputed

        with recomputed.staged(job) as (connection, rows):
            yield TableSide(
                connection=connection,
                head=SQL(""),
                source=rows,
                key=_fields(job, job.key),
                columns=_fields(job, names),
                translate=_translate_target,
                young=recomputed.is_young(job),
                latest=recomputed.latest(job),
                cursor=_cursor_field(job),
            )
        return
    head, source = job.query.wrapped(Bounds())
    yield TableSide(
        connection=job.reader.connection,
        head=head,
        source=source,
        key=_fields(job, job.key, cast=True),
        columns=_fields(job, names, cast=True),
        translate=translate_read,
        condition=comparison.is_read(job),
        young=comparison.young(job),
        latest=tuple(job.cursor.columns("q")) if job.cursor else (),
        cursor=_cursor_field(job),
    )


def _other_columns(job: Job) -> list[str]:
    return [name for name in job.writer.columns if name not in job.key]


def _compared_columns(job: Job) -> list[str]:
    return [name for name in _other_columns(job) if name not in job.writer.not_compared]


def _fields(job: Job, names: Sequence[str], *, cast: bool = False) -> tuple[Field, ...]:
    return tuple(Field(name, _spelled(job, name, cast=cast), _kind(job, name)) for name in names)


def _kind(job: Job, name: str) -> str:
    column = job.writer.table.column(name)
    assert column is not None
    return carriage.merge_type(column.base_type)


def _spelled(job: Job, name: str, *, cast: bool) -> Composable:
    """In the mart's type: 0.1 as real is another text than as double precision."""
    reference = SQL("q.{}").format(Identifier(name))
    kind = _kind(job, name)
    if cast and job.types[name] != kind and carriage.merge_type(job.types[name]) != kind:
        return SQL("({}::{})").format(reference, SQL(kind))
    return reference


def _cursor_field(job: Job) -> Field | None:
    if job.cursor is None or job.cursor.key not in job.writer.columns or job.cursor.key in job.key:
        return None
    return Field(job.cursor.key, SQL("q.{}").format(Identifier(job.cursor.key)), job.cursor.key_type)
