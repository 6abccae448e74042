"""Read a query again for a comparison: which of its rows no pass can have delivered yet, and how many there are."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from psycopg.sql import SQL, Composable, Identifier

from vitrina.connectors.postgres import cursor_facts
from vitrina.connectors.postgres.compare import Field, TableSide
from vitrina.connectors.postgres.opened_query import OpenedQuery
from vitrina.connectors.postgres.source import Bounds, Order, translate_read
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.compare import Extent

if TYPE_CHECKING:
    import pyarrow as pa

_IN_FLIGHT = "_young"


def is_read(source: OpenedQuery) -> Composable:
    """Build the condition that omits rows with a NULL cursor, as every run does unless an option says otherwise."""
    cursor = source.cursor
    if cursor is None or source.definition.options.null_cursor == "read":
        return SQL("true")
    return SQL("q.{} IS NOT NULL").format(Identifier(cursor.key))


def in_flight(source: OpenedQuery, found: Checkpoint) -> Composable:
    """Build the condition that the target may not have the row yet."""
    cursor, safe = source.cursor, found.safe_upto
    if cursor is None:
        return SQL("false")
    if safe is None:
        return SQL("true")  # no pass has ended yet
    # A number is assigned once, but further rows may get a time that the database stamps. In all other cases the
    # checkpoint is the highest value that was read: all rows of an import may share it, and none of them would ever be
    # compared.
    may_come_again = not cursor.is_number and cursor_facts.guarantee(source) == "exact"
    operator = SQL(">=" if may_come_again else ">")
    column = cursor.columns("q")[0]
    # A row without a cursor value may have just arrived.
    return SQL("(({0} {1} {2}) IS NOT FALSE)").format(column, operator, cursor.literal(safe))


def latest(source: OpenedQuery) -> tuple[Composable, ...]:
    """Build the order in which the last of several rows with one key is the valid one."""
    return tuple(source.cursor.columns("q")) if source.cursor else ()


def rows_by_age(
    source: OpenedQuery, found: Checkpoint, *, in_order: bool, sample: int | None, natural: bool, batch_rows: int
) -> "Iterator[tuple[int, pa.Table, bool]]":
    """Read the query again. Rows are divided by age here, because steps may drop the column that shows it."""
    # Imported here: comparisons within PostgreSQL do not need pyarrow, whose import takes half a second.
    from vitrina.connectors.postgres.stream import cut, outputs_of, read_ahead
    from vitrina.transforms.outputs import outputs as natural_outputs

    outputs = natural_outputs(source.result) if natural else outputs_of(source.result)
    outputs.append(SQL("coalesce({}, false) AS {}").format(in_flight(source, found), Identifier(_IN_FLIGHT)))
    order = latest(source) if in_order else ()
    if sample is not None:
        order = (SQL("pg_catalog.random()"),)
    statement = source.query.select(outputs, cursor_facts.all_rows(source), order=Order(order), limit=sample)
    with source.reader.stream(statement) as stream, closing(read_ahead(stream)) as pieces:
        for number, table in enumerate(cut(pieces, lambda: batch_rows, ordered_by=[]), 1):
            for part, is_young in _by_age(table):
                yield number, part, is_young


def _by_age(table: "pa.Table") -> "Iterator[tuple[pa.Table, bool]]":
    import pyarrow.compute as pc

    for is_young in (False, True):
        part = table.filter(pc.equal(table.column(_IN_FLIGHT), is_young)).drop_columns([_IN_FLIGHT])
        if part.num_rows:
            yield part, is_young


def extent(source: OpenedQuery, found: Checkpoint, key: Sequence[str], *, unless: str | None) -> Extent:
    """Count the rows and find the least and greatest key and cursor values in SQL."""
    head, rows = source.query.wrapped(Bounds())
    cursor = source.cursor
    condition = is_read(source)
    if unless:
        condition = SQL("{} AND q.{} IS NOT TRUE").format(condition, Identifier(unless))
    side = TableSide(
        connection=source.reader.connection,
        head=head,
        source=rows,
        key=tuple(_field(source, name) for name in key),
        columns=(),
        translate=translate_read,
        condition=condition,
        in_flight=in_flight(source, found),
        latest=latest(source),
        cursor=_field(source, cursor.key) if cursor else None,
    )
    with side.snapshot():
        return side.extent()


def _field(source: OpenedQuery, name: str) -> Field:
    return Field(name, SQL("q.{}").format(Identifier(name)), source.types[name])
