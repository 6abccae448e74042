"""Warn about an incremental cursor for which the source's catalog suggests slow passes or missed rows."""

import re
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier, Literal

from vitrina.connectors.postgres.cursor import Cursor
from vitrina.definition import Options
from vitrina.sentences import say
from vitrina.store.database import Connection
from vitrina.store.prepared import Statement

Found = dict[str, Any]

# A smaller table is scanned as fast as its index.
WORTH_AN_INDEX_BYTES = 1 << 20
# Keywords of a query that may produce NULL in a column that contains none.
_MAKES_NULLS = re.compile(r"\b(left|right|full|union|intersect|except|sets|rollup|cube)\b", re.IGNORECASE)
_CLOCKS = r"now\(\)|(clock|statement|transaction|current)_timestamp|localtimestamp|current_date"


def cursor_warnings(cursor: Cursor, found: Found | None, options: Options) -> list[str]:
    """Warn about a cursor that is a plain column of a table.

    The catalog says nothing about computed columns and columns of views.
    """
    return list(_warnings(cursor, found, options)) if found else []


def count_changes(source: Connection, origin: tuple[int, int] | None) -> dict[str, Any] | None:
    """Return how many rows of the cursor's table were ever inserted or updated, and the time of the count."""
    found = find_column(source, origin)
    return {"rows": int(found["inserts"] + found["updates"]), "at": found["now"]} if found else None


def clock_warnings(source: Connection, cursor: Cursor, found: Found | None, before: dict[str, Any] | None) -> list[str]:
    """Warn if something other than the database's clock seems to set a column that is declared to be stamped by it.

    `before`: the number of changes at the end of the last pass.
    """
    if found is None or not (found["indexed"] or found["bytes"] < WORTH_AN_INDEX_BYTES):
        return []  # finding the newest value would take too long
    try:
        newest = _newest(source, cursor, found, before)
    except psycopg.errors.InsufficientPrivilege:
        return []  # a view may read tables that its reader may not
    if newest is None:
        return []
    said = say("warning.clock_newest", column=cursor.key, table=found["table"], newest=newest["value"])
    remedy = say("warning.clock_remedy")
    if newest["ahead"]:
        return [say("warning.clock_future", said=said, remedy=remedy)]
    changes = found["inserts"] + found["updates"] - before["rows"] if before else 0
    if newest["behind"] and changes > 0:
        return [say("warning.clock_behind", said=said, changes=changes, remedy=remedy)]
    return []


def _newest(
    source: Connection, cursor: Cursor, found: dict[str, Any], before: dict[str, Any] | None
) -> dict[str, Any] | None:
    """Find the table's newest value and whether it disagrees with the clock. The server's counters lag slightly."""
    column = Identifier(found["column"])
    return source.execute(
        SQL(
            """
            SELECT {column}::text AS value, {column} > clock_timestamp() + interval '1 minute' AS ahead,
                   {column} < {before}::timestamptz - interval '15 minutes' AS behind
            FROM {table} WHERE {column} < 'infinity' ORDER BY {column} DESC LIMIT 1
            """
        ).format(
            column=column,
            before=Literal(before["at"] if before else None),
            table=Identifier(found["schema"], found["relation"]),
        )
    ).fetchone()


def is_never_null(source: Connection, origin: tuple[int, int], query: str) -> bool:
    """Return whether a result column taken directly from a table is never NULL, as far as the catalog shows."""
    return not _MAKES_NULLS.search(query) and has_no_nulls(find_column(source, origin), query)


def has_no_nulls(found: Found | None, query: str) -> bool:
    """Return whether a result column that comes from this column of a table is never NULL."""
    return found is not None and bool(found["not_null"]) and not _MAKES_NULLS.search(query)


def _warnings(cursor: Cursor, found: dict[str, Any], options: Options) -> Iterator[str]:
    table, column = found["table"], cursor.key
    order = f'{column} COLLATE "C"' if cursor.is_text else column
    if not found["bytewise" if cursor.is_text else "indexed"] and found["bytes"] >= WORTH_AN_INDEX_BYTES:
        columns = f"{order}, {cursor.id}" if cursor.id else order
        yield (say("warning.no_index", table=table, order=order, columns=columns))
    if not found["not_null"] and options.null_cursor == "reject":
        yield (say("warning.cursor_may_be_null", column=column, table=table))
    if cursor.is_clock and found["set_by_default"] and not found["set_by_trigger"] and found["updates"]:
        yield (say("warning.default_only", column=column, table=table, changes=found["updates"]))


def find_column(source: Connection, origin: tuple[int, int] | None) -> Found | None:
    """Return what the catalog says about a column of a table; nothing about computed columns and columns of views."""
    if origin is None:
        return None
    return _FIND_COLUMN.fetch_one(source, {"clocks": _CLOCKS, "table": origin[0], "column": origin[1]})


_FIND_COLUMN = Statement(
    b"""
    SELECT c.oid::regclass::text AS table, s.nspname AS schema, c.relname AS relation, a.attname AS column,
           clock_timestamp()::text AS now,
           -- A constraint may be there for new rows only, or not for the tables that inherit.
           a.attnotnull AND NOT (c.relhassubclass AND c.relkind = 'r') AND NOT EXISTS (
               SELECT FROM pg_catalog.pg_constraint n
               WHERE n.conrelid = c.oid AND n.contype = 'n' AND n.conkey = ARRAY[a.attnum] AND NOT n.convalidated
           ) AS not_null,
           (SELECT coalesce(sum(pg_catalog.pg_relation_size(t.relid)), 0)
            FROM pg_catalog.pg_partition_tree(c.oid) t) + pg_catalog.pg_relation_size(c.oid) AS bytes,
           -- Whatever the application may do, a default counts once and a trigger each time.
           coalesce(pg_catalog.pg_get_expr(d.adbin, d.adrelid) ~* %(clocks)s, false)
               AND a.attgenerated = '' AS set_by_default,
           EXISTS (SELECT FROM pg_catalog.pg_trigger g
                   WHERE g.tgrelid = c.oid AND NOT g.tgisinternal AND g.tgenabled IN ('O', 'A')
                     AND g.tgtype & 19 = 19) AS set_by_trigger, -- FOR EACH ROW, BEFORE, UPDATE
           (SELECT coalesce(sum(pg_catalog.pg_stat_get_tuples_updated(t.relid)), 0)
            FROM pg_catalog.pg_partition_tree(c.oid) t)
               + pg_catalog.pg_stat_get_tuples_updated(c.oid) AS updates,
           (SELECT coalesce(sum(pg_catalog.pg_stat_get_tuples_inserted(t.relid)), 0)
            FROM pg_catalog.pg_partition_tree(c.oid) t)
               + pg_catalog.pg_stat_get_tuples_inserted(c.oid) AS inserts,
           coalesce(i.indexed, false) AS indexed, coalesce(i.bytewise, false) AS bytewise
    FROM pg_catalog.pg_attribute a
    JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
    JOIN pg_catalog.pg_namespace s ON s.oid = c.relnamespace
    LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    LEFT JOIN LATERAL (
        -- An index in the order of the database's own collation does not serve, even if that orders bytes.
        SELECT true AS indexed, bool_or(x.indcollation[0] = 'pg_catalog."C"'::pg_catalog.regcollation) AS bytewise
        FROM pg_catalog.pg_index x
        JOIN pg_catalog.pg_class xc ON xc.oid = x.indexrelid
        JOIN pg_catalog.pg_am m ON m.oid = xc.relam AND m.amname = 'btree'
        WHERE x.indrelid = c.oid AND x.indkey[0] = a.attnum AND x.indisvalid AND x.indpred IS NULL
        HAVING count(*) > 0
    ) i ON true
    WHERE a.attrelid = %(table)s AND a.attnum = %(column)s AND c.relkind IN ('r', 'p', 'm')
    """
)
