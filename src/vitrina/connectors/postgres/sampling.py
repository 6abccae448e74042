"""Read some rows of a query: to learn what steps make of them, to show them, or to keep them as a reference."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from psycopg.sql import SQL, Composable, Composed, Literal

from vitrina import sqlguard
from vitrina.connectors.postgres import plan_check
from vitrina.connectors.postgres.opened_query import OpenedQuery
from vitrina.connectors.postgres.source import Bounds, Query, SqlReader
from vitrina.errors import FatalError, InvalidQuery, SourceQueryFailed
from vitrina.settings import Settings
from vitrina.transforms import arrow_types
from vitrina.transforms.outputs import outputs as natural_outputs

# Advice if the rows of a preview are too large.
ASK_FOR_LESS = "ask for fewer, or shorten texts in the query"
# A reference query's result stays in memory for the whole run.
MAX_REFERENCE_BYTES = 256 << 20


def read_first(reader: SqlReader, query: Query, outputs: Sequence[Composable], rows: int, limit_bytes: int) -> pa.Table:
    """Read the first rows to show them, or refuse them as too large."""
    statement = sample_of(query, outputs, limit=rows, largest=limit_bytes)
    return _read(reader, statement, limit_bytes=limit_bytes, what=f"the first {rows} rows are", advice=ASK_FOR_LESS)


def read_few(source: OpenedQuery, rows: int, max_bytes: int, max_row_bytes: int) -> pa.Table:
    """Read enough rows to learn what the steps make of them. Large rows reveal no more and are omitted."""
    few = _read_fitting(source, rows, max_bytes)
    if few.rows.num_rows or not few.left_out:
        return few.rows
    # All rows are large: read a single one, if the runner may handle values of that size.
    one = _read_fitting(source, 1, max_row_bytes)
    if one.left_out:
        raise FatalError(
            f"the first row of the query has {one.left_out / (1 << 20):,.0f} MB; the steps are tried with rows of up to"
            f" {max_row_bytes >> 20} MB: leave large columns out of the query, cut them there, or raise"
            " VITRINA_MAX_VALUE_MB on every runner"
        )
    return one.rows


@dataclass(frozen=True)
class _Few:
    rows: pa.Table
    left_out: int  # the size of the largest row that did not fit


def _read_fitting(source: OpenedQuery, rows: int, largest: int) -> _Few:
    statement = sample_of(source.query, natural_outputs(source.result), limit=rows, largest=largest)
    batches: list[pa.RecordBatch] = []
    size = left_out = 0
    with source.reader.stream(statement) as stream:
        for batch in stream:
            fitting, beyond = _told_apart(batch)
            left_out = max(left_out, beyond)
            batches.append(fitting)
            size += fitting.nbytes
            if size > largest:
                break
    return _Few(pa.Table.from_batches(batches) if batches else pa.table({}), left_out)


def sample_of(query: Query, outputs: Sequence[Composable] = (SQL("q.*"),), *, limit: int, largest: int) -> Composed:
    return _fitting(query, outputs, SQL("LIMIT {}").format(Literal(limit)), largest)


def _fitting(query: Query, outputs: Sequence[Composable], limit: Composable, largest: int) -> Composed:
    """Select `outputs` of each row, or NULLs and the row's size if it has more than `largest` bytes.

    The last column has the size in bytes. The server checks it: the runner's memory already holds an arrived row
    several times.
    """
    head, source = query.wrapped(Bounds())
    return SQL(
        "{head} SELECT {outputs}, CASE WHEN sized.bytes > {largest} THEN sized.bytes END"
        " FROM (SELECT * FROM {source} AS s {limit}) AS r"
        # ROW(): for the row itself, the server would return the compressed size.
        " CROSS JOIN LATERAL (SELECT pg_catalog.pg_column_size(ROW(r.*)) AS bytes OFFSET 0) AS sized"
        " LEFT JOIN LATERAL (SELECT r.* WHERE sized.bytes <= {largest}) AS q ON true"
    ).format(head=head, outputs=SQL(", ").join(outputs), source=source, limit=limit, largest=Literal(largest))


def _told_apart(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
    """Separate the rows that the server sent from the oversized ones, and return the largest size of those."""
    sizes = batch.column(batch.num_columns - 1)
    sent = batch.select(range(batch.num_columns - 1))
    if sizes.null_count == batch.num_rows:
        return sent, 0
    return sent.filter(pc.is_null(sizes)), pc.max(sizes).as_py()


def _read(reader: SqlReader, statement: Composed, *, limit_bytes: int, what: str, advice: str) -> pa.Table:
    batches, size = [], 0
    with reader.stream(statement) as stream:
        for batch in stream:
            fitting, beyond = _told_apart(batch)
            batches.append(fitting)
            size += max(fitting.nbytes, beyond)
            if size > limit_bytes:
                raise FatalError(f"{what} more than {limit_bytes >> 20} MB: {advice}")
    return pa.Table.from_batches(batches) if batches else pa.table({})


def load_reference(reader: SqlReader, settings: Settings, query: str) -> pa.Table:
    """Run a reference query of a step. It is checked like the source query and has the same rights."""
    try:
        judged = sqlguard.check(query, settings.sql_policy)
    except InvalidQuery as exc:
        raise SourceQueryFailed(f"reference query: {exc.message}") from exc
    if judged.parameters:
        raise SourceQueryFailed("a reference query has no :since or :until")
    columns = reader.describe(judged)
    statement = _fitting(Query(judged), natural_outputs(columns), SQL("OFFSET 0"), MAX_REFERENCE_BYTES)
    plan_check.admit(reader, Query(judged), settings, "a reference query", statement=statement)
    table = _read(
        reader,
        statement,
        limit_bytes=MAX_REFERENCE_BYTES,
        what="a reference query gives",
        advice="join it in the source query instead",
    )
    schema = arrow_types.schema_of(columns)
    return arrow_types.naturalise(table, schema) if table.num_columns else arrow_types.no_rows(schema)
