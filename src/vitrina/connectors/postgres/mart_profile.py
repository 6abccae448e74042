"""Profile a table: rows, size and, per column, NULLs, distinct values, minimum, maximum and most frequent values."""

import json
from typing import Any

from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from vitrina.connectors.postgres.catalog import Table, TableColumn
from vitrina.ports.profile import LONGEST_SHOWN, TOP_VALUES, ColumnProfile, TargetProfile
from vitrina.store import database
from vitrina.store.database import Connection

# Columns of a larger table are profiled on a sample of about this many rows.
MOST_ROWS = 1_000_000
_ORDERED = (
    "smallint", "integer", "bigint", "numeric", "real", "double precision", "date", "timestamp", "time", "text",
    "character varying", "interval",
)  # fmt: skip


def profile(connection: Connection, table: Table) -> TargetProfile:
    """Profile the table in one read-only snapshot."""
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        size = database.one(connection.execute(_size(), [table.oid]))["size"]
        rows = database.one(connection.execute(SQL("SELECT count(*) AS rows FROM {}").format(table.identifier)))["rows"]
        looked_at = _looked_at(table, rows)
        ends = database.one(connection.execute(_ends(table, looked_at)))
        columns = [_column(connection, looked_at, column, place, ends) for place, column in enumerate(table.columns)]
        return TargetProfile(rows, size, ends["rows"], columns)


def _size() -> str:
    return """
        SELECT pg_catalog.pg_total_relation_size(t.oid) + coalesce((
                   SELECT sum(pg_catalog.pg_total_relation_size(p.relid))
                   FROM pg_catalog.pg_partition_tree(t.oid) AS p
                   WHERE p.isleaf AND p.relid <> t.oid), 0)::bigint AS size
        FROM (SELECT %s::oid::regclass AS oid) AS t
        """


def _looked_at(table: Table, rows: int) -> Composed:
    """Build the FROM item: the table, or a sample of its pages that is the same for every column."""
    if rows <= MOST_ROWS:
        return SQL("{} AS q").format(table.identifier)
    share = Literal(100 * MOST_ROWS / rows)
    return SQL("{} AS q TABLESAMPLE SYSTEM ({}) REPEATABLE (1)").format(table.identifier, share)


def _ends(table: Table, looked_at: Composable) -> Composed:
    """Count the rows and each column's values, and find their minimum and maximum, in one scan."""
    outputs: list[Composable] = [SQL("count(*) AS rows")]
    for place, column in enumerate(table.columns):
        name = Identifier(column.name)
        outputs.append(SQL("count(q.{}) AS {}").format(name, Identifier(f"n{place}")))
        for letter, function in (("l", "min"), ("g", "max")):
            value = SQL("{}(q.{})::text").format(SQL(function), name) if _is_ordered(column) else SQL("NULL")
            outputs.append(
                SQL("left({}, {}) AS {}").format(value, Literal(LONGEST_SHOWN), Identifier(f"{letter}{place}"))
            )
    return SQL("SELECT {} FROM {}").format(SQL(", ").join(outputs), looked_at)


def _is_ordered(column: TableColumn) -> bool:
    return column.base_type.startswith(_ORDERED) and not column.base_type.endswith("]")


def _column(
    connection: Connection, looked_at: Composable, column: TableColumn, place: int, ends: dict[str, Any]
) -> ColumnProfile:
    """Group the values of one column as text: not every type has an order or a hash."""
    row = database.one(
        connection.execute(
            SQL(
                """
                WITH v AS MATERIALIZED (
                    SELECT q.{column}::text AS value, count(*) AS rows FROM {rows}
                    WHERE q.{column}::text IS NOT NULL GROUP BY 1
                )
                SELECT (SELECT count(*) FROM v) AS "distinct",
                       (SELECT json_agg(json_build_array(left(t.value, {longest}), t.rows))::text
                        -- values that come once are as frequent as all others
                        FROM (SELECT * FROM v WHERE rows > 1 ORDER BY rows DESC, value LIMIT {top}) AS t) AS top
                """
            ).format(
                column=Identifier(column.name), rows=looked_at, longest=Literal(LONGEST_SHOWN), top=Literal(TOP_VALUES)
            )
        )
    )
    return ColumnProfile(
        name=column.name,
        type=column.type,
        nulls=ends["rows"] - ends[f"n{place}"],
        distinct=row["distinct"],
        least=ends[f"l{place}"],
        greatest=ends[f"g{place}"],
        top=[(value, rows) for value, rows in json.loads(row["top"] or "[]")],
    )
