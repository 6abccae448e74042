"""Split a query's key into ranges of about equal size, and estimate what reading in ranges costs.

The origin of the bounds affects only how even the ranges are. In each case the server sorts them in the collation of
the query's column, as the conditions of the ranges compare them. Each row is therefore in exactly one range.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import psycopg
from psycopg.sql import SQL, Composable, Identifier, Literal

from vitrina import explain
from vitrina.connectors.postgres.plan_check import Plan
from vitrina.connectors.postgres.source import Bounds, Order, Query, SqlReader, translate_read
from vitrina.ports.batch import Position
from vitrina.ports.ranges import Cut, KeyRange
from vitrina.ports.schema import Column
from vitrina.ports.source import Window
from vitrina.sentences import say

EVERYTHING = KeyRange()
# Rows of a sample: a hundred for each range, and some more.
_SAMPLE_ROWS = 30_000
# Assumed for a table that was never analysed, whose rows per page are unknown.
_USUAL_ROWS_OF_PAGE = 50
# If a larger share of a table has changed, its statistics no longer describe where its rows are.
_MOST_CHANGED = 0.1
# What reading in ranges may cost beyond one read of everything, in the planner's units: half of that read, or for each
# row less than a tenth of the cost of transferring it (about 0.6), or an amount that is negligible.
_MORE_OF_WHOLE = 0.5
_MORE_OF_ROW = 0.06
_SMALL_COST = 5_000.0
# Ranges that the planner is asked about.
_ASKED_RANGES = 7


class SplitQuery(Protocol):
    """Describe what this module needs from a query; `QuerySource` implements it."""

    @property
    def reader(self) -> SqlReader: ...

    @property
    def query(self) -> Query: ...

    @property
    def result(self) -> tuple[Column, ...]: ...

    @property
    def plan(self) -> Plan: ...

    @property
    def estimated_rows(self) -> int: ...

    @property
    def is_pageable(self) -> bool: ...

    @property
    def foreign_functions(self) -> frozenset[str]: ...

    def everything(self) -> Bounds:
        """Return the bounds of a full load."""
        ...

    def order_of(self, window: Window) -> Order: ...

    def collation(self, name: str) -> str | None: ...


def plan_cut(source: SplitQuery, names: Sequence[str], ranges: int, workers: int) -> Cut:
    """Decide how many ranges the query can be split into: as many as requested, one for each worker, or none."""
    if not source.is_pageable:
        return Cut(obstacle=say("plan.ranges_sorted"))
    if volatile := _volatile_functions(source):
        return Cut(obstacle=say("plan.ranges_volatile", functions=", ".join(sorted(volatile))))
    whole = float(source.plan[0]["Plan"]["Total Cost"])
    allowed = whole + max(_MORE_OF_WHOLE * whole, _MORE_OF_ROW * source.estimated_rows, _SMALL_COST)
    cost = whole
    for count in dict.fromkeys((ranges, workers)):
        cost = _cost(source, names, count)
        if cost <= allowed:
            return Cut(count)
    times = round(cost / max(whole, 1.0), 1)
    return Cut(obstacle=say("plan.ranges_costly", times=times, columns=", ".join(names)))


def _volatile_functions(source: SplitQuery) -> set[str]:
    """Find functions whose result may vary between ranges: a row could be in two ranges or in none."""
    called = explain.explain_functions_of_catalog(source.plan)
    return source.reader.volatile_functions_of_catalog(called) | source.foreign_functions


def _cost(source: SplitQuery, names: Sequence[str], ranges: int) -> float:
    """Ask the planner for the cost of some ranges and multiply the median by the number of ranges.

    The bounds of a sample come from a few pages, so one range may have several times the rows of others.
    """
    order = source.order_of(Window(order=tuple(names)))
    bounds = _even(_sorted(source, order, names, EVERYTHING, _cheap_candidates(source, order, names, ranges)), ranges)
    if not bounds:
        return 0.0
    found = EVERYTHING.cut_at(bounds)
    asked = min(_ASKED_RANGES, len(found))
    some = [found[len(found) * (2 * place + 1) // (2 * asked)] for place in range(asked)]
    return len(found) * statistics.median(_cost_of_range(source, order, one) for one in some)


def _cost_of_range(source: SplitQuery, order: Order, one: KeyRange) -> float:
    within = replace(source.everything(), after=one.after, upto=one.upto)
    explained = source.reader.explain(source.query.select([SQL("q.*")], within, order=order))
    return float(explained.plan[0]["Plan"]["Total Cost"])


def split(source: SplitQuery, names: Sequence[str], within: KeyRange, ranges: int) -> list[KeyRange]:
    """Split a range of the key into about `ranges` parts."""
    order = source.order_of(Window(order=tuple(names)))
    candidates = _cheap_candidates(source, order, names, ranges, within)
    if not candidates:
        candidates = _from_query(source, order, names, ranges, within)
    return within.cut_at(_even(_sorted(source, order, names, within, candidates), ranges))


def _even(bounds: Sequence[Position], ranges: int) -> list[Position]:
    """Choose evenly spaced bounds, one fewer than the number of ranges."""
    if len(bounds) < ranges:
        return list(bounds)
    return [bounds[len(bounds) * place // ranges] for place in range(1, ranges)]


# --- where bounds come from ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Table:
    """Describe the table in which all columns of the key are plain columns."""

    identifier: Identifier
    columns: tuple[str, ...]
    rows: float
    is_fresh: bool
    oid: int
    places: tuple[int, ...]


def _cheap_candidates(
    source: SplitQuery, order: Order, names: Sequence[str], ranges: int, within: KeyRange = EVERYTHING
) -> list[Position]:
    """Take bounds from the statistics or a sample of the table; return none if the key does not come from one table."""
    table = _find_table(source, names)
    if table is None:
        return []
    # The text of a histogram of arrays reads back as one array of their elements.
    is_told = table.is_fresh and len(names) == 1 and within == EVERYTHING and not order.types[0].endswith("[]")
    found = _from_histogram(source, order, table) if is_told else []
    return found if len(found) >= ranges else _from_table(source, order, table, ranges, within)


def _find_table(source: SplitQuery, names: Sequence[str]) -> _Table | None:
    origins = [column.origin for name in names for column in source.result if column.name == name]
    known = [origin for origin in origins if origin is not None]
    if len(known) != len(names) or len({oid for oid, _ in known}) != 1:
        return None
    oid, places = known[0][0], [place for _, place in known]
    row = source.reader.connection.execute(
        """
        SELECT n.nspname AS schema, c.relname AS name,
               ARRAY(SELECT a.attname::text FROM unnest(%(places)s::int[]) WITH ORDINALITY AS p(number, place)
                     JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = p.number
                     ORDER BY p.place) AS columns,
               CASE WHEN c.reltuples > 0 THEN c.reltuples
                    ELSE pg_catalog.pg_table_size(c.oid) / 8192 * %(of_page)s END AS rows,
               c.reltuples > 0 AND coalesce(pg_catalog.pg_stat_get_mod_since_analyze(c.oid), 0)
                   <= %(changed)s * c.reltuples AS is_fresh
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE c.oid = %(oid)s AND c.relkind IN ('r', 'm', 'p')
        """,
        {"oid": oid, "places": places, "of_page": _USUAL_ROWS_OF_PAGE, "changed": _MOST_CHANGED},
    ).fetchone()
    if row is None:
        return None
    name = Identifier(row["schema"], row["name"])
    return _Table(name, tuple(row["columns"]), float(row["rows"]), row["is_fresh"], oid, tuple(places))


def _from_histogram(source: SplitQuery, order: Order, table: _Table) -> list[Position]:
    """Read the histogram bounds of ANALYZE; about equally many rows lie between each two neighbours."""
    found = source.reader.connection.execute(
        SQL(
            """
            SELECT pg_catalog.unnest(s.histogram_bounds::text::{}[])::text AS value
            FROM pg_catalog.pg_stats s
            JOIN pg_catalog.pg_class c ON c.relname = s.tablename
            JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace AND n.nspname = s.schemaname
            WHERE c.oid = {} AND s.attname = {} AND s.inherited = (c.relkind = 'p')
            """
        ).format(SQL(order.types[0]), Literal(table.oid), Literal(table.columns[0]))
    ).fetchall()
    # Drop the first and the last, which are the ends: ranges beyond them would be empty.
    return [(row["value"],) for row in found[1:-1]]


def _from_table(source: SplitQuery, order: Order, table: _Table, ranges: int, within: KeyRange) -> list[Position]:
    """Sample some pages of the table."""
    share = min(100.0, 100.0 * _SAMPLE_ROWS / max(table.rows, 1.0))
    columns = tuple(SQL("q.{}").format(Identifier(name)) for name in table.columns)
    own = replace(order, columns=columns, nullable=(True,) * len(columns))
    rows = SQL("{} AS q TABLESAMPLE SYSTEM ({})").format(table.identifier, Literal(share))
    try:
        return _quantiles(source, _Sample(own, rows, SQL("")), ranges, within)
    except psycopg.Error as exc:
        # The reader may see the table only through the query's view, or policies hide its rows.
        if isinstance(exc, psycopg.errors.InsufficientPrivilege):
            return []
        raise translate_read(exc) from exc


def _from_query(
    source: SplitQuery, order: Order, names: Sequence[str], ranges: int, within: KeyRange
) -> list[Position]:
    """Sample keys from the query itself, which is run once for this."""
    head, rows = source.query.wrapped(source.everything())
    share = min(1.0, _SAMPLE_ROWS / max(source.estimated_rows, 1))
    some = SQL("(SELECT {} FROM {} AS q WHERE pg_catalog.random() < {}) AS q").format(
        SQL(", ").join(SQL("q.{}").format(Identifier(name)) for name in names), rows, Literal(share)
    )
    try:
        return _quantiles(source, _Sample(order, some, head), ranges, within)
    except psycopg.Error as exc:
        raise translate_read(exc) from exc


@dataclass(frozen=True)
class _Sample:
    """Hold sampled rows and the columns of their key."""

    order: Order
    rows: Composable
    head: Composable


def _quantiles(source: SplitQuery, sample: _Sample, ranges: int, within: KeyRange) -> list[Position]:
    """Choose evenly spaced keys from sampled rows; the server sorts, and only the chosen keys are fetched."""
    order = sample.order
    conditions: list[Composable] = [SQL("{} IS NOT NULL").format(column) for column in order.columns]
    conditions += [order.behind(within.after)] if within.after is not None else []
    conditions += [order.upto(within.upto)] if within.upto is not None else []
    texts = [SQL("({})::text AS {}").format(place, Identifier(f"t{i}")) for i, place in enumerate(order.places)]
    names = SQL(", ").join(Identifier(f"t{i}") for i in range(len(texts)))
    statement = SQL(
        """
        {head} SELECT {names} FROM (
            SELECT {texts}, pg_catalog.row_number() OVER (ORDER BY {columns}) AS place,
                   count(*) OVER () AS total
            FROM {rows} WHERE {conditions}) AS s
        WHERE place % greatest(total / {wanted}, 1) = 0 ORDER BY place
        """
    ).format(
        head=sample.head,
        names=names,
        texts=SQL(", ").join(texts),
        columns=SQL(", ").join(order.columns),
        rows=sample.rows,
        conditions=SQL(" AND ").join(conditions),
        wanted=Literal(4 * ranges),
    )
    with source.reader.reading():
        found = source.reader.connection.execute(statement, prepare=True).fetchall()
    return [tuple(row.values()) for row in found]


def _sorted(
    source: SplitQuery, order: Order, names: Sequence[str], within: KeyRange, candidates: Sequence[Position]
) -> list[Position]:
    """Sort bounds as the conditions compare them; omit duplicates and those outside of the range."""
    if not candidates:
        return []
    collations = [source.collation(name) for name in names]
    values = tuple(
        SQL("v.{}::{}{}").format(Identifier(f"t{i}"), SQL(kind), SQL(f" COLLATE {collation}" if collation else ""))
        for i, (kind, collation) in enumerate(zip(order.types, collations, strict=True))
    )
    as_values = replace(order, columns=values, nullable=(False,) * len(values))
    conditions: list[Composable] = [SQL("true")]
    conditions += [as_values.behind(within.after)] if within.after is not None else []
    conditions += [SQL("NOT ({})").format(as_values.behind(within.upto))] if within.upto is not None else []
    typed = SQL(", ").join(values)
    texts = SQL(", ").join(SQL("v.{}").format(Identifier(f"t{i}")) for i in range(len(values)))
    columns = [list(column) for column in zip(*candidates, strict=True)]
    statement = SQL(
        "SELECT DISTINCT ON ({typed}) {texts} FROM ROWS FROM ({lists}) AS v({names}) WHERE {conditions}"
        " ORDER BY {typed}"
    )
    found: list[dict[str, Any]] = source.reader.connection.execute(
        statement.format(
            typed=typed,
            texts=texts,
            lists=SQL(", ").join(SQL("pg_catalog.unnest({}::text[])").format(Literal(column)) for column in columns),
            names=SQL(", ").join(Identifier(f"t{i}") for i in range(len(values))),
            conditions=SQL(" AND ").join(conditions),
        )
    ).fetchall()
    return [tuple(row.values()) for row in found]
