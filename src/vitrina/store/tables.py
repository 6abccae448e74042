"""Read a source's catalog: columns, keys, indexes, and which triggers stamp a changed row."""

import re
from dataclasses import dataclass
from typing import Any

from psycopg.sql import Identifier

from vitrina.store.database import Connection

READABLE = ("r", "p", "v", "m", "f")
KINDS = {"r": "table", "p": "partitioned table", "v": "view", "m": "materialized view", "f": "foreign table"}
_CLOCK = r"(?:now\s*\(\s*\)|(?:clock|statement|transaction|current)_timestamp)"


@dataclass(frozen=True)
class Column:
    """Hold one column, as far as a suggestion needs it."""

    name: str
    type: str
    not_null: bool
    is_indexed: bool
    has_clock_default: bool


@dataclass(frozen=True)
class Table:
    """Hold a table or view of a source."""

    schema: str
    name: str
    kind: str
    rows: int
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    # Unique keys over all rows, of columns that are never NULL: as good as a primary key.
    unique_keys: tuple[tuple[str, ...], ...]
    # Sources of the functions that are called for each row before an UPDATE, and before an INSERT.
    before_update: tuple[str, ...]
    before_insert: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def quoted(self) -> str:
        return Identifier(self.schema, self.name).as_string()

    def find(self, name: str) -> Column | None:
        return next((column for column in self.columns if column.name == name), None)

    def is_moved_by_trigger(self, column: str) -> bool:
        """Return whether a trigger sets the column on UPDATE, whatever the application writes."""
        return any(_sets(column, text) for text in self.before_update)

    def is_stamped_by_trigger(self, column: str) -> bool:
        """Return whether triggers on INSERT and UPDATE both set the column to the database's own time."""
        return all(any(_stamps(column, text) for text in texts) for texts in (self.before_insert, self.before_update))


def _sets(column: str, function: str) -> bool:
    return re.search(rf'\bnew\s*\.\s*"?{re.escape(column)}"?\s*:?=', function, re.IGNORECASE) is not None


def _stamps(column: str, function: str) -> bool:
    return re.search(rf'\bnew\s*\.\s*"?{re.escape(column)}"?\s*:?=\s*{_CLOCK}\s*;', function, re.IGNORECASE) is not None


def list_schemas(connection: Connection) -> list[str]:
    """List the schemas that are neither the server's nor Vitrina's own."""
    rows = connection.execute(
        """
        SELECT nspname AS name FROM pg_catalog.pg_namespace
        WHERE nspname !~ '^pg_' AND nspname NOT IN ('information_schema', 'etl', 'etl_stage') ORDER BY 1
        """
    ).fetchall()
    return [row["name"] for row in rows]


def list_names(connection: Connection, schemas: list[str]) -> list[tuple[str, str]]:
    """List schema and name of everything that can be read there; a partition is part of its table."""
    rows = connection.execute(
        """
        SELECT n.nspname AS schema, c.relname AS name
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = ANY(%s) AND c.relkind = ANY(%s) AND NOT c.relispartition
        ORDER BY 1, 2
        """,
        [schemas, list(READABLE)],
    ).fetchall()
    return [(row["schema"], row["name"]) for row in rows]


def find(connection: Connection, schema: str, name: str) -> Table | None:
    row = connection.execute(
        """
        SELECT c.oid, c.relkind::text AS kind, greatest(c.reltuples, 0)::bigint AS rows
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = %s AND c.relname = %s AND c.relkind = ANY(%s)
        """,
        [schema, name, list(READABLE)],
    ).fetchone()
    if row is None:
        return None
    keys = _keys(connection, row["oid"])
    before_update, before_insert = (_trigger_functions(connection, row["oid"], event) for event in (16, 4))
    return Table(
        schema,
        name,
        KINDS[row["kind"]],
        row["rows"],
        _columns(connection, row["oid"]),
        next((tuple(key["columns"]) for key in keys if key["primary"]), ()),
        tuple(tuple(key["columns"]) for key in keys if not key["primary"]),
        before_update,
        before_insert,
    )


def _columns(connection: Connection, oid: int) -> tuple[Column, ...]:
    rows = connection.execute(
        """
        SELECT a.attname AS name, pg_catalog.format_type(a.atttypid, NULL) AS type, a.attnotnull AS not_null,
               EXISTS (SELECT FROM pg_catalog.pg_index i
                       WHERE i.indrelid = a.attrelid AND i.indkey[0] = a.attnum AND i.indpred IS NULL AND i.indisvalid
               ) AS is_indexed,
               coalesce(pg_catalog.pg_get_expr(d.adbin, d.adrelid) ~* %(clock)s, false) AND a.attgenerated = ''
                   AS has_clock_default
        FROM pg_catalog.pg_attribute a
        LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped
        ORDER BY a.attnum
        """,
        {"oid": oid, "clock": _CLOCK.replace("(?:", "(")},
    ).fetchall()
    return tuple(Column(**row) for row in rows)


def _keys(connection: Connection, oid: int) -> list[dict[str, Any]]:
    """List unique indexes that identify every row, short ones first: no expressions, no conditions, no NULL."""
    return connection.execute(
        """
        SELECT i.indisprimary AS primary,
               array_agg(a.attname::text ORDER BY k.place) AS columns
        FROM pg_catalog.pg_index i
        CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k (number, place)
        JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
        WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
          AND i.indimmediate AND k.place <= i.indnkeyatts
        GROUP BY i.indexrelid, i.indisprimary
        HAVING bool_and(a.attnotnull)
        ORDER BY i.indisprimary DESC, count(*), i.indexrelid
        """,
        [oid],
    ).fetchall()


def _trigger_functions(connection: Connection, oid: int, event: int) -> tuple[str, ...]:
    """List the sources of row triggers BEFORE an event, for all rows and columns.

    `event` is its bit: 4 for INSERT, 16 for UPDATE.
    """
    rows = connection.execute(
        """
        SELECT p.prosrc AS text
        FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
        WHERE t.tgrelid = %s AND NOT t.tgisinternal AND t.tgenabled IN ('O', 'A') AND t.tgqual IS NULL
          AND t.tgattr = ''::pg_catalog.int2vector AND t.tgtype & 3 = 3 AND t.tgtype & %s > 0
        ORDER BY t.tgname
        """,
        [oid, event],
    ).fetchall()
    return tuple(row["text"] for row in rows)
