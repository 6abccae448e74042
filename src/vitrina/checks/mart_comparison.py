"""A mart and its source as the two sides of a comparison: both asked in SQL, in the types of the mart."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from psycopg.sql import SQL, Composable, Identifier

from vitrina.checks import comparison, repair
from vitrina.checks.compare import Difference
from vitrina.checks.opened import cursor_of, is_recomputed, query_of, writer_of
from vitrina.checks.repair import Correction
from vitrina.connectors.postgres import mart_rows
from vitrina.connectors.postgres.compare import Field, TableSide, refuse_other_encoding, refuse_strange_keys
from vitrina.connectors.postgres.source import Bounds, translate_read
from vitrina.errors import FatalError
from vitrina.loads.job import Job, Opened
from vitrina.ports import types
from vitrina.ports.compare import Side
from vitrina.store import state


class MartComparison:
    """A pipeline whose target is a table."""

    full_guarantee = "every row by a 64-bit hash of its key and columns, taken inside each database"

    def __init__(self, opened: Opened) -> None:
        self.job = inspect(opened)

    @property
    def compared(self) -> list[str]:
        return [name for name in writer_of(self.job).columns if name not in self.not_compared]

    @property
    def not_compared(self) -> list[str]:
        return [name for name in _other_columns(self.job) if name in writer_of(self.job).not_compared]

    @contextmanager
    def both_sides(self) -> Iterator[tuple[Side, Side]]:
        found = state.peek(self.job.metastore, self.job.claim.pipeline_id)
        job = self.job = replace(self.job, checkpoint=found)
        target = target_side(job)
        with target.snapshot(), source_side(job) as source, source.snapshot():
            refuse_other_encoding(source, target)
            yield source, target

    # --- repairing -------------------------------------------------------------------------------------------------

    @property
    def arrives_as(self) -> dict[str, str]:
        """Corrections come as text, which is exact for every type."""
        return dict.fromkeys(writer_of(self.job).columns, "text")

    def refuse_shrinking(self, deletes: int) -> None:
        writer_of(self.job).refuse_shrinking(deletes)

    def corrections(self, wanted: Sequence[Difference], batch_rows: int) -> Iterator[Correction]:
        # Imported here: comparisons within Postgres need neither pyarrow nor its half second.
        import pyarrow as pa

        job, names = self.job, writer_of(self.job).columns
        for connection in (job.reader.connection, writer_of(job).connection):
            connection.execute("SET lc_monetary = 'C'")
        with source_side(job, all_columns=True) as source:
            for keys in repair.batches(wanted, batch_rows):
                with source.snapshot():
                    found = source.texts(keys)
                columns = {name: pa.array([row[name] for row in found.values()], pa.string()) for name in names}
                yield Correction(list(found), pa.table(columns), [key for key in keys if key not in found])


def inspect(opened: Opened) -> Job:
    """Nothing is created or changed, and what the next run would have to change is said."""
    job = comparison.look_into(opened)
    mart, writer = job.definition.final_target, writer_of(job)
    if not writer.exists:
        raise FatalError(f"{mart} does not exist yet: run the pipeline first")
    missing = [c.name for c in job.output if writer.table.column(c.name) is None and c.name not in _cursors(job)]
    if missing:
        raise FatalError(f"{mart} lacks the column {missing[0]!r}: run the pipeline, which adds it")
    found = writer.connection.execute(
        "SELECT pg_catalog.format_type(oid, NULL) AS name FROM pg_catalog.pg_type WHERE typtype = 'e'"
    ).fetchall()
    refuse_strange_keys(_fields(job, job.key), frozenset(row["name"] for row in found))
    return job


def _cursors(job: Job) -> set[str | None]:
    return {job.definition.incremental_key, job.definition.incremental_id_key} if cursor_of(job) else set()


def target_side(job: Job) -> TableSide:
    return TableSide(
        connection=writer_of(job).connection,
        head=SQL(""),
        source=writer_of(job).table.identifier,
        key=_fields(job, job.key),
        columns=_fields(job, _compared_columns(job)),
        translate=mart_rows.translate,
        cursor=_cursor_field(job),
    )


@contextmanager
def source_side(job: Job, *, all_columns: bool = False) -> Iterator[TableSide]:
    names = _other_columns(job) if all_columns else _compared_columns(job)
    if is_recomputed(job):
        # Imported here: it needs pyarrow, and half a second for it.
        from vitrina.checks import recomputed

        with recomputed.staged(job) as (connection, rows):
            yield TableSide(
                connection=connection,
                head=SQL(""),
                source=rows,
                key=_fields(job, job.key),
                columns=_fields(job, names),
                translate=mart_rows.translate,
                young=recomputed.is_young(job),
                latest=recomputed.latest(job),
                cursor=_cursor_field(job),
            )
        return
    query, cursor = query_of(job), cursor_of(job)
    head, source = query.query.wrapped(Bounds())
    yield TableSide(
        connection=query.reader.connection,
        head=head,
        source=source,
        key=_fields(job, job.key, cast=True),
        columns=_fields(job, names, cast=True),
        translate=translate_read,
        condition=comparison.is_read(job),
        young=comparison.young(job),
        latest=tuple(cursor.columns("q")) if cursor else (),
        cursor=_cursor_field(job),
    )


def _other_columns(job: Job) -> list[str]:
    return [name for name in writer_of(job).columns if name not in job.key]


def _compared_columns(job: Job) -> list[str]:
    return [name for name in _other_columns(job) if name not in writer_of(job).not_compared]


def _fields(job: Job, names: Sequence[str], *, cast: bool = False) -> tuple[Field, ...]:
    return tuple(Field(name, _spelled(job, name, cast=cast), _kind(job, name)) for name in names)


def _kind(job: Job, name: str) -> str:
    return mart_rows.kind_of(writer_of(job), name)


def _spelled(job: Job, name: str, *, cast: bool) -> Composable:
    """In the mart's type: 0.1 as real is another text than as double precision."""
    reference = SQL("q.{}").format(Identifier(name))
    kind = _kind(job, name)
    given = query_of(job).types[name] if cast else kind
    if given != kind and types.merge_type(given) != kind:
        return SQL("({}::{})").format(reference, SQL(kind))
    return reference


def _cursor_field(job: Job) -> Field | None:
    cursor = cursor_of(job)
    if cursor is None or cursor.key not in writer_of(job).columns or cursor.key in job.key:
        return None
    return Field(cursor.key, SQL("q.{}").format(Identifier(cursor.key)), cursor.key_type)
