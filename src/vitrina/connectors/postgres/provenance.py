"""Determine where the values of a cursor come from: whether from a table's column, and what may delay them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vitrina.connectors.postgres.cursor import Cursor
from vitrina.connectors.postgres.source import SqlReader
from vitrina.sentences import say
from vitrina.store.prepared import Statement

# The deepest nesting of views that is followed.
_MAX_DEPTH = 20


@dataclass(frozen=True)
class Provenance:
    """Describe the origin of a cursor.

    `is_column`: it is a plain column of a table, also if views pass it on. `doubts`: reasons not to treat it as exact.
    """

    is_column: bool = False
    doubts: tuple[str, ...] = ()


def of_cursor(reader: SqlReader, cursor: Cursor, origin: tuple[int, int] | None) -> Provenance:
    """Determine the origin of a cursor from the source's catalog."""
    tables = _tables(reader, cursor, origin)
    if not tables or any(table["is_generated"] for table in tables):
        return Provenance()
    doubts = [*_doubts_of_tables(tables), *(_doubts_of_numbers(cursor, tables) if cursor.is_number else ())]
    doubts += _doubts_of_defaults(cursor, tables) if cursor.is_clock else ()
    return Provenance(True, tuple(doubts))


def _tables(reader: SqlReader, cursor: Cursor, origin: tuple[int, int] | None) -> list[dict[str, Any]]:
    """List the table, its partitions and the tables that inherit from it, each with its column of that name.

    A view's column is followed to the table's. Return none if a view computes it or cannot be described.
    """
    for _ in range(_MAX_DEPTH):
        if origin is None:
            return []
        asked = {"table": origin[0], "column": origin[1], "is_number": cursor.is_number}
        tables = _TABLES.fetch_all(reader.connection, asked)
        view = next((table["view"] for table in tables if table["view"] is not None), None)
        if view is None:
            return tables
        origins = reader.find_origins(view)
        origin = origins[origin[1] - 1] if len(origins) >= origin[1] else None
    return []


def _doubts_of_tables(tables: list[dict[str, Any]]) -> Iterator[str]:
    for table in tables:
        name = table["name"]
        if table["kind"] == "f":
            yield say("warning.foreign_table", table=name)
        if table["kind"] == "m":
            yield say("warning.materialized_view", table=name)
        if table["is_subscribed"]:
            yield say("warning.replicated", table=name)


def _doubts_of_numbers(cursor: Cursor, tables: list[dict[str, Any]]) -> Iterator[str]:
    sequences = {found["name"]: found for table in tables for found in table["sequences"] or []}
    if not sequences:
        yield say("warning.no_sequence", column=cursor.key)
    for name, found in sequences.items():
        if found["cache"] > 1:
            yield (say("warning.sequence_cache", sequence=name, cache=found["cache"]))
        if found["step"] < 0 or found["cycles"]:
            yield say("warning.sequence_turns", sequence=name)


def _doubts_of_defaults(cursor: Cursor, tables: list[dict[str, Any]]) -> Iterator[str]:
    """Report a default that truncates the clock to hours or shifts it. Truncation to seconds is within the margin."""
    for table in tables:
        default = table["default"]
        if default and _CLOCK.search(default) and not _PLAIN_CLOCK.fullmatch(default):
            yield (say("warning.default_is_early", column=cursor.key, table=table["name"], default=default))


_CLOCK = re.compile(r"now\(\)|timestamp|current_date", re.IGNORECASE)
_NOW = r"(now\(\)|(clock|statement|transaction)_timestamp\(\)|CURRENT_TIMESTAMP(\(\d\))?|LOCALTIMESTAMP(\(\d\))?)"
_PLAIN_CLOCK = re.compile(
    rf"\(*({_NOW}|date_trunc\('((micro|milli)?seconds?)'::text, {_NOW}\))\)*"
    r"(::timestamp(\(\d\))? with(out)? time zone)?\)*",
    re.IGNORECASE,
)


_TABLES = Statement(
    b"""
    WITH RECURSIVE tree AS (
        SELECT %(table)s::oid AS oid
        UNION
        SELECT i.inhrelid FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.oid
    )
    SELECT c.oid::regclass::text AS name, c.relkind AS kind,
           CASE c.relkind WHEN 'v' THEN pg_catalog.pg_get_viewdef(c.oid) END AS view,
           a.attgenerated <> '' AS is_generated,
           (SELECT pg_catalog.pg_get_expr(d.adbin, d.adrelid) FROM pg_catalog.pg_attrdef d
            WHERE d.adrelid = c.oid AND d.adnum = a.attnum) AS default,
           EXISTS (SELECT FROM pg_catalog.pg_subscription_rel s WHERE s.srrelid = c.oid) AS is_subscribed,
           CASE WHEN %(is_number)s THEN
           (SELECT json_agg(json_build_object('name', s.seqrelid::regclass::text, 'cache', s.seqcache,
                                              'step', s.seqincrement, 'cycles', s.seqcycle))
            FROM pg_catalog.pg_sequence s
            WHERE s.seqrelid IN (
                -- What a default draws from, and what belongs to an identity column.
                SELECT d.refobjid FROM pg_catalog.pg_depend d
                JOIN pg_catalog.pg_attrdef f ON f.oid = d.objid AND f.adrelid = c.oid AND f.adnum = a.attnum
                WHERE d.classid = 'pg_catalog.pg_attrdef'::regclass
                  AND d.refclassid = 'pg_catalog.pg_class'::regclass
                UNION
                SELECT d.objid FROM pg_catalog.pg_depend d
                WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.deptype = 'i'
                  AND d.refclassid = 'pg_catalog.pg_class'::regclass
                  AND d.refobjid = c.oid AND d.refobjsubid = a.attnum
            )) END AS sequences
    FROM tree
    JOIN pg_catalog.pg_class c ON c.oid = tree.oid
    JOIN pg_catalog.pg_attribute named ON named.attrelid = %(table)s AND named.attnum = %(column)s
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attname = named.attname AND NOT a.attisdropped
    ORDER BY tree.oid
    """
)
