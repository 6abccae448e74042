"""Build marts that keep every state of a row: their tables, and the SQL that closes states and adds new ones.

A state is valid from the snapshot in which a run first saw it until the snapshot in which a run no longer did. The
times of snapshots only increase, so states of one key never overlap, however late a transaction commits.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import psycopg
from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from vitrina.connectors.postgres import catalog, mart_identity, merge, table_options
from vitrina.connectors.postgres.catalog import Table
from vitrina.connectors.postgres.merge import Merge
from vitrina.errors import FatalError, TargetMismatch
from vitrina.mart_options import Grant, History
from vitrina.ports.batch import Counts
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.schema import Column
from vitrina.sentences import say
from vitrina.store import database
from vitrina.store.database import Connection
from vitrina.targets import PostgresTarget

# The least distance between snapshots of one pipeline: clocks go back, and two may read the same microsecond.
STEP = timedelta(microseconds=1)
# Keys of the checkpoint's identity: the latest snapshot of the mart, and the snapshot of an unfinished load.
LATEST, OF_LOAD = "history", "snapshot_at"

_CLOCK = "timestamp with time zone"
# Fill factor of the indexes of a new mart. Each change adds entries next to those of its key, so every page grows, is
# cleaned up and is split in the end. Splitting in advance, when the index is built in bulk, is cheaper.
_FILLFACTOR = 50
# Fill factor of a new table whose rows are updated in place. Without free space, the first change to a page moves its
# rows to other pages, with an index entry for each.
_HEAP_FILLFACTOR = 90
# Returned with the position of a current row: its partition, and since when it is current.
_PART, _BEGAN = f"{merge.POSITION}_part", f"{merge.POSITION}_began"
# Range types of these are ordered, so an exclusion constraint can use them without an extension. Integers become
# numeric: a range of bigint cannot contain the greatest one, because its upper bound is the next.
_RANGES = {
    "smallint": "numrange", "integer": "numrange", "bigint": "numrange", "numeric": "numrange", "date": "daterange",
    "timestamp without time zone": "tsrange", _CLOCK: "tstzrange",
}  # fmt: skip


# --- the table -------------------------------------------------------------------------------------------------------


def create_table(
    connection: Connection,
    target: PostgresTarget,
    result: Sequence[Column],
    key: Sequence[str],
    history: History,
    *,
    partitioning: Composable,
) -> None:
    """Create the mart with its validity: one state of a key at any time, and one that is current.

    A unique constraint by `valid_to` ensures both, because NULLs are not distinct in it.
    """
    _refuse_given(target, result, history)
    since, until, current = map(Identifier, history.columns)
    columns = [
        SQL("{} {}{}").format(
            Identifier(column.name), SQL(catalog.storable(column)), SQL(" NOT NULL" if column.name in key else "")
        )
        for column in result
    ]
    keys = _comma(map(Identifier, key))
    by_end = history.unique_by == "valid_to"
    constraints = [
        SQL("{} timestamptz NOT NULL").format(since),
        SQL("{} timestamptz").format(until),
        SQL("{} boolean GENERATED ALWAYS AS ({} IS NULL) {}").format(current, until, _generation(connection, by_end)),
        SQL("{} ({}, {}) WITH (fillfactor = {})").format(
            SQL("UNIQUE NULLS NOT DISTINCT" if by_end else "PRIMARY KEY"),
            keys,
            until if by_end else since,
            Literal(_FILLFACTOR),
        ),
        SQL("CHECK ({} < {})").format(since, until),
    ]
    if history.exclusion:
        constraints.append(_exclusion(connection, target, result, key, history))
    table = Identifier(target.schema, target.table)
    with connection.transaction():
        parts = _comma([*columns, *constraints])
        # The server accepts no storage parameters for a partitioned table, and its rows are not updated in place.
        room = SQL(" WITH (fillfactor = {})").format(Literal(_HEAP_FILLFACTOR))
        storage = room if by_end and not partitioning.as_string(connection) else SQL("")
        connection.execute(SQL("CREATE TABLE {} ({}){}{}").format(table, parts, partitioning, storage))
        if by_end:
            return
        connection.execute(
            SQL("CREATE UNIQUE INDEX ON {} ({}) WITH (fillfactor = {}) WHERE {} IS NULL").format(
                table, keys, Literal(_FILLFACTOR), until
            )
        )


def _generation(connection: Connection, by_end: bool) -> SQL:
    """Compute the flag on read if the server supports it: queries by it then use the index of current states.

    Without that index, store it. A publication cannot send a virtual column, and a table without a primary key has
    all its columns as its replica identity.
    """
    return SQL("VIRTUAL" if connection.info.server_version >= 18_00_00 and not by_end else "STORED")


def _exclusion(
    connection: Connection, target: PostgresTarget, result: Sequence[Column], key: Sequence[str], history: History
) -> Composed:
    types = {column.name: re.sub(r"\([^)]*\)", "", column.type) for column in result}
    foreign = [name for name in key if types[name] not in _RANGES]
    if foreign and not _has_extension(connection, "btree_gist"):
        raise FatalError(say("run.history_needs_gist", column=foreign[0], type=types[foreign[0]], target=target))
    same = [
        SQL("{} WITH =").format(
            SQL("{0}({1}, {1}, '[]')").format(SQL(_RANGES[types[name]]), Identifier(name))
            if types[name] in _RANGES
            else Identifier(name)
        )
        for name in key
    ]
    valid = SQL("tstzrange({}, {}) WITH &&").format(Identifier(history.valid_from), Identifier(history.valid_to))
    return SQL("EXCLUDE USING gist ({})").format(_comma([*same, valid]))


def _has_extension(connection: Connection, name: str) -> bool:
    return connection.execute("SELECT 1 FROM pg_catalog.pg_extension WHERE extname = %s", [name]).fetchone() is not None


def without_validity(connection: Connection, table: Table, result: Sequence[Column], history: History) -> Table:
    """Return the table as a run sees it, with one row per key. Refuse a table of another structure."""
    target = PostgresTarget(table.schema, table.name)
    _refuse_given(target, result, history)
    wanted = dict(zip(history.columns, (_CLOCK, _CLOCK, "boolean"), strict=True))
    for name, kind in wanted.items():
        column = table.column(name)
        if column is None or column.type != kind:
            raise TargetMismatch(say("run.no_history", target=target, column=name, type=kind))
    by_start, by_end = _without(history.valid_from, table.unique_keys), _keys_by_end(table, history)
    if not by_end and not (by_start and _has_current_key(connection, table, by_start, history)):
        raise TargetMismatch(
            say("run.history_keys", target=target, valid_from=history.valid_from, valid_to=history.valid_to)
        )
    return replace(
        table,
        columns=tuple(column for column in table.columns if column.name not in wanted),
        primary_key=main_key(table, history),
        unique_keys=(*by_start, *by_end),
    )


def main_key(table: Table, history: History) -> tuple[str, ...]:
    """Return the key of a row in the source: that of the primary key, or of the only constraint in its place."""
    if history.valid_from in table.primary_key:
        return tuple(name for name in table.primary_key if name != history.valid_from)
    by_end = _keys_by_end(table, history)
    return by_end[0] if len(by_end) == 1 else ()


def _without(name: str, keys: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the keys that contain the column, without it."""
    return [tuple(column for column in key if column != name) for key in keys if name in key]


def _keys_by_end(table: Table, history: History) -> list[tuple[str, ...]]:
    """Return the keys of which no two states end at the same time, or both not at all."""
    keys = _without(history.valid_to, table.keys_with_nulls)
    return [key for key in keys if key and history.valid_from not in key]


def drift(table: Table, key: Sequence[str], history: History) -> Iterator[str]:
    """Yield a warning if an existing table is not unique by the column that the option names."""
    found = {
        name
        for name, columns in (
            ("valid_from", _without(history.valid_from, table.unique_keys)),
            ("valid_to", _keys_by_end(table, history)),
        )
        if set(key) in map(set, columns)
    }
    if history.unique_by not in found:
        target = PostgresTarget(table.schema, table.name)
        yield say("warning.history_unique_by", target=target, wanted=history.unique_by, found=", ".join(sorted(found)))


def _refuse_given(target: PostgresTarget, result: Sequence[Column], history: History) -> None:
    given = [column.name for column in result if column.name in history.columns]
    if given:
        raise TargetMismatch(say("run.history_column_given", column=given[0], target=target))


def _has_current_key(connection: Connection, table: Table, keys: Sequence[tuple[str, ...]], history: History) -> bool:
    """Return whether the server prevents a second current state of a key, as in a table that a run creates."""
    rows = connection.execute(
        """
        SELECT (SELECT array_agg(a.attname::text ORDER BY a.attname)
                FROM unnest(i.indkey[0:i.indnkeyatts - 1]) AS k(attnum)
                JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum) AS columns,
               pg_catalog.pg_get_expr(i.indpred, i.indrelid) AS condition
        FROM pg_catalog.pg_index i
        WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indpred IS NOT NULL AND i.indexprs IS NULL
        """,
        [table.oid],
    ).fetchall()
    until = SQL("({} IS NULL)").format(Identifier(history.valid_to)).as_string(connection)
    found = [row["columns"] for row in rows if row["condition"].replace('"', "") == until.replace('"', "")]
    return any(sorted(key) in found for key in keys)


def name_of_view(table: Table) -> str:
    return f"{table.name}_current"


def keep_view(connection: Connection, table: Table, history: History, grants: Sequence[Grant]) -> None:
    """Create the view of the current rows, or add columns to it that the mart has since received.

    A view without Vitrina's comment was made by another client and is never replaced.
    """
    name = name_of_view(table)
    if len(name.encode()) > 63:
        raise FatalError(say("run.view_name_long", view=name))
    found = connection.execute(_VIEW, [table.schema, name]).fetchone()
    marking = SQL("COMMENT ON VIEW {} IS {}").format(Identifier(table.schema, name), Literal(_mark(table)))
    if found and (found["kind"] != "v" or found["comment"] != _mark(table)):
        statement = marking.as_string(connection)
        raise FatalError(say("run.view_of_others", view=f"{table.schema}.{name}", statement=statement))
    columns = [column.name for column in table.columns]
    if found and found["columns"] == columns:
        return
    try:
        with connection.transaction():
            connection.execute(_create_view(table, history))
            if found is None:
                connection.execute(marking)
                for grant in table_options.grants_of_view(connection, table.schema, name, grants):
                    connection.execute(grant)
    except psycopg.Error as exc:
        if database.is_disconnect(exc) or database.is_transient(exc):
            raise
        raise FatalError(
            say("run.no_current_view", view=f"{table.schema}.{name}", message=database.sql_message(exc))
        ) from exc


_VIEW = """
SELECT c.relkind::text AS kind, pg_catalog.obj_description(c.oid, 'pg_class') AS comment,
       ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum) AS columns
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s
"""


def _mark(table: Table) -> str:
    return f"Current rows of {table.schema}.{table.name}, kept by Vitrina"


def _create_view(table: Table, history: History) -> Composed:
    return SQL("CREATE OR REPLACE VIEW {} AS SELECT {} FROM {} WHERE {} IS NULL").format(
        Identifier(table.schema, name_of_view(table)),
        _comma(Identifier(column.name) for column in table.columns),
        table.identifier,
        Identifier(history.valid_to),
    )


def current_rows(table: Table, history: History) -> Composed:
    """Build a FROM item with the current rows and their physical positions."""
    return SQL("(SELECT t.*, t.ctid, t.tableoid FROM {} AS t WHERE t.{} IS NULL)").format(
        table.identifier, Identifier(history.valid_to)
    )


# --- the snapshots ---------------------------------------------------------------------------------------------------


def latest_of(found: Checkpoint, target: PostgresTarget) -> datetime | None:
    """Return the latest snapshot of this mart that the checkpoint records."""
    known = found.identity.get(LATEST)
    return datetime.fromisoformat(known["at"]) if known and known["of"] == str(target) else None


def latest_in(connection: Connection, table: Table, history: History) -> datetime | None:
    """Find the latest time in the mart by reading it once, for when no checkpoint records it."""
    since, until = Identifier(history.valid_from), Identifier(history.valid_to)
    row = database.one(
        connection.execute(
            SQL("SELECT greatest(max({}), max({})) AS latest FROM {}").format(since, until, table.identifier)
        )
    )
    latest: datetime | None = row["latest"]
    return latest


def later(moment: datetime, latest: datetime | None) -> datetime:
    """Return the moment, or the first one after the latest: the times of a mart's snapshots only increase."""
    return moment if latest is None or moment > latest else latest + STEP


def remembered(target: PostgresTarget, at: datetime) -> dict[str, Any]:
    return {LATEST: {"of": str(target), "at": at.isoformat()}}


# --- writing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Versioned:
    """Report what a merge did with the states of a mart."""

    counts: Counts
    # What it intended to do. Triggers and concurrent sessions may have reduced it.
    planned: Counts
    # A key whose current state is not older than the snapshot.
    ahead: str | None
    places: tuple[str, ...]


def may_renew(connection: Connection, table: Table, history: History) -> bool:
    """Return whether a row may be closed and followed by its next state before the next row is processed.

    A history needs two unique indexes, or one by `valid_to`. If there are more, a row may take over a value of one that
    is closed later. The server must also refuse a repeated key at once, and a key must not be in a child table too.
    """
    merges = connection.info.server_version >= merge.COUNTS_MERGED_ROWS
    unique = table.ways_to_differ - table.exclusions
    needed = 1 if _keys_by_end(table, history) else 2
    is_plain = unique == needed and table.exclusions <= (1 if history.exclusion else 0)
    return merges and is_plain and table.takes_every_row and table.refuses_repeats and not table.has_children


def _may_update_in_place(connection: Connection, merging: Merge, history: History) -> bool:
    """Return whether the next state of a key may be written over the current one, which is kept in a new row.

    In a table that is unique by `valid_to`, and may be renewed, no index has a column that changes. Columns of the
    mart's own must not receive their DEFAULT in the closed state, and every state must have a beginning.
    """
    table = merging.target
    returns_old = connection.info.server_version >= RETURNS_OLD_ROWS
    began = table.column(history.valid_from)
    has_begun = began is not None and began.not_null
    is_whole = {column.name for column in table.columns} == {*merging.columns, *history.columns}
    return returns_old and has_begun and is_whole and bool(_keys_by_end(table, history))


def renew(connection: Connection, merging: Merge, history: History, at: datetime) -> Versioned:
    """Close outdated states and add those of new keys and changed rows, looking up each staged row once.

    The caller takes the savepoint back if the server refuses a row.
    """
    written = (_in_place if _may_update_in_place(connection, merging, history) else _renewal)(merging, history, at)
    row = database.last_row(connection.execute(_BY_INDEX.format(Identifier(RENEWAL), written)))
    counts = Counts(inserted=row["written"] - row["closed"], updated=row["renewed"])
    return Versioned(counts, replace(counts, updated=row["closed"]), row["ahead"], tuple(row["places"]))


# Begins with a savepoint, because the caller names a key that two rows repeat. Rows are looked up by the index of
# current states. Without statistics, the planner assumes that almost all states are closed and would read the mart.
RENEWAL = "vitrina_renewal"
# MERGE .. RETURNING old.* came with PostgreSQL 18.
RETURNS_OLD_ROWS = 18_00_00
# What the server says to a repeated key, and to values of a constraint that rows exchange.
REFUSED = (psycopg.errors.CardinalityViolation, psycopg.errors.UniqueViolation, psycopg.errors.ExclusionViolation)
_BY_INDEX = SQL(
    "SAVEPOINT {0}; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; {1};"
    " SET LOCAL enable_hashjoin TO DEFAULT; SET LOCAL enable_mergejoin TO DEFAULT; RELEASE {0}"
)


def take_back(connection: Connection) -> None:
    """Undo a renewal that the server refused."""
    connection.execute(SQL("ROLLBACK TO {0}; RELEASE {0}").format(Identifier(RENEWAL)))


def _renewal(merging: Merge, history: History, at: datetime) -> Composed:
    """Build a MERGE that closes states and inserts new keys, and an INSERT of the successors of closed states.

    Rows come in the order of their keys: each change adds up to three index entries, next to those of its neighbours.
    """
    return SQL(
        """
        WITH done AS (
            MERGE INTO {target} AS t USING (SELECT * FROM {staged} AS s ORDER BY {keys}) AS s
            ON {on} AND t.{until} IS NULL
            WHEN MATCHED AND {differs} THEN UPDATE SET {until} = CASE WHEN t.{since} < {at} THEN {at} END{ended}
            WHEN NOT MATCHED THEN INSERT ({columns}, {since}{flag}){overriding} VALUES ({values}, {at}{flagged})
            RETURNING t.{until} AS {closed}, t.ctid AS {place}, {values},
                      CASE WHEN t.{until} IS NULL AND merge_action() = 'UPDATE' THEN {named} END AS {ahead}
        ), renewed AS (
            INSERT INTO {target} ({columns}, {since}{flag}){overriding}
            SELECT {columns}, {at}{flagged} FROM done WHERE {closed} IS NOT NULL
            RETURNING ctid AS place
        )
        SELECT count(*) AS written, count({closed}) AS closed, min({ahead}) AS ahead,
               (SELECT count(*) FROM renewed) AS renewed,
               ARRAY(SELECT w.place::text FROM (
                         SELECT place FROM renewed UNION ALL SELECT {place} FROM done WHERE {closed} IS NULL
                     ) AS w LIMIT {few}) AS places
        FROM done
        """
    ).format(
        target=merging.target.identifier,
        staged=merging.staged,
        keys=_comma(SQL("s.{}").format(Identifier(name)) for name in merging.key),
        on=merge.same_key(merging),
        differs=merge.differs(merging),
        columns=_comma(map(Identifier, merging.columns)),
        values=_comma(SQL("s.{}").format(Identifier(name)) for name in merging.columns),
        since=Identifier(history.valid_from),
        until=Identifier(history.valid_to),
        at=_moment(at),
        ended=_flag(merging.target, history, ", {} = false"),
        flag=_flag(merging.target, history, ", {}"),
        flagged=_flag(merging.target, history, ", true"),
        overriding=merge.overriding(merging.target, merging.columns),
        few=Literal(mart_identity.WITNESSES),
        named=_named("s", merging.key),
        **{name: Identifier(f"{merge.POSITION}_{name}") for name in ("closed", "ahead", "place")},
    )


def _in_place(merging: Merge, history: History, at: datetime) -> Composed:
    """Build a MERGE that writes the next state over the current one, and an INSERT of the states it has ended.

    The row is updated without a new index entry (HOT) if its page has room: its key and the end of its validity stay.
    A state that is not older than the snapshot is returned, and not changed.
    """
    return SQL(
        """
        WITH done AS (
            MERGE INTO {target} AS t USING (SELECT * FROM {staged} AS s ORDER BY {keys}) AS s
            ON {on} AND t.{until} IS NULL
            WHEN MATCHED AND t.{since} < {at} AND {differs} THEN UPDATE SET {assignments}{since} = {at}
            WHEN MATCHED AND t.{since} >= {at} AND {differs} THEN UPDATE SET {until} = NULL
            WHEN NOT MATCHED THEN INSERT ({columns}, {since}{flag}){overriding} VALUES ({values}, {at}{flagged})
            RETURNING {former}, old.{since} AS {began}, new.ctid AS {place},
                      CASE WHEN old.{since} >= {at} THEN {named} END AS {ahead}
        ), closed AS (
            INSERT INTO {target} ({columns}, {since}, {until}{flag}){overriding}
            SELECT {columns}, {began}, {at}{ended} FROM done WHERE {began} < {at}
            RETURNING 1
        )
        SELECT count(*) AS written, count(*) FILTER (WHERE {began} < {at}) AS closed,
               min({ahead}) AS ahead, (SELECT count(*) FROM closed) AS renewed,
               ARRAY(SELECT {place}::text FROM done LIMIT {few}) AS places
        FROM done
        """
    ).format(
        target=merging.target.identifier,
        staged=merging.staged,
        keys=_comma(SQL("s.{}").format(Identifier(name)) for name in merging.key),
        on=merge.same_key(merging),
        differs=merge.differs(merging),
        assignments=SQL("").join(SQL("{0} = s.{0}, ").format(Identifier(name)) for name in merging.written),
        columns=_comma(map(Identifier, merging.columns)),
        values=_comma(SQL("s.{}").format(Identifier(name)) for name in merging.columns),
        former=_comma(SQL("old.{0} AS {0}").format(Identifier(name)) for name in merging.columns),
        since=Identifier(history.valid_from),
        until=Identifier(history.valid_to),
        at=_moment(at),
        flag=_flag(merging.target, history, ", {}"),
        flagged=_flag(merging.target, history, ", true"),
        ended=_flag(merging.target, history, ", false"),
        overriding=merge.overriding(merging.target, merging.columns),
        few=Literal(mart_identity.WITNESSES),
        named=_named("s", merging.key),
        **{name: Identifier(f"{merge.POSITION}_{name}") for name in ("began", "place", "ahead")},
    )


def close_then_add(connection: Connection, merging: Merge, history: History, at: datetime) -> Versioned:
    """Write the same in two statements: all outdated states are closed before any is added."""
    closed = database.one(connection.execute(_close_changed(merging, history, at)))
    made = database.one(connection.execute(_add_missing(merging, history, at)))
    counts = Counts(inserted=made["made"] - closed["closed"], updated=closed["closed"])
    planned = replace(counts, updated=closed["changed"])
    if counts == planned and catalog.skippers(connection, merging.target, "INSERT"):
        lacking = database.one(connection.execute(_count_missing(merging, history)))["rows"]
        planned = replace(planned, inserted=planned.inserted + lacking)
    return Versioned(counts, planned, closed["ahead"], _known(made["places"]))


def _known(places: Sequence[str | None]) -> tuple[str, ...]:
    return tuple(place for place in places if place)


def _close_changed(merging: Merge, history: History, at: datetime) -> Composed:
    return SQL(
        """
        WITH changed AS MATERIALIZED (
            SELECT t.ctid AS place, t.tableoid AS part FROM {staged} AS s {joined}
            WHERE t.ctid IS NOT NULL AND {differs}
        ), closed AS (
            UPDATE {target} AS m SET {until} = CASE WHEN m.{since} < {at} THEN {at} END{ended} FROM changed AS c
            WHERE m.ctid = c.place{same_part} RETURNING CASE WHEN m.{until} IS NULL THEN {named} END AS ahead
        )
        SELECT (SELECT count(*) FROM changed) AS changed, count(*) AS closed, min(ahead) AS ahead
        FROM closed
        """
    ).format(
        staged=merging.staged,
        joined=_current_of_staged(merging, history),
        differs=merge.differs(merging),
        target=merging.target.identifier,
        since=Identifier(history.valid_from),
        until=Identifier(history.valid_to),
        at=_moment(at),
        ended=_flag(merging.target, history, ", {} = false"),
        same_part=SQL("" if merging.finds_by_position else " AND m.tableoid = c.part"),
        named=_named("m", merging.key),
    )


def _add_missing(merging: Merge, history: History, at: datetime) -> Composed:
    return SQL(
        """
        WITH made AS (
            INSERT INTO {target} ({columns}, {since}{flag}){overriding}
            SELECT {values}, {at}{flagged} FROM {staged} AS s {joined} WHERE t.ctid IS NULL
            RETURNING ctid AS place
        )
        SELECT count(*) AS made, ARRAY[min(place), max(place)]::text[] AS places FROM made
        """
    ).format(
        target=merging.target.identifier,
        columns=_comma(map(Identifier, merging.columns)),
        since=Identifier(history.valid_from),
        flag=_flag(merging.target, history, ", {}"),
        overriding=merge.overriding(merging.target, merging.columns),
        values=_comma(SQL("s.{}").format(Identifier(name)) for name in merging.columns),
        at=_moment(at),
        flagged=_flag(merging.target, history, ", true"),
        staged=merging.staged,
        joined=_current_of_staged(merging, history),
    )


def _count_missing(merging: Merge, history: History) -> Composed:
    return SQL("SELECT count(*) AS rows FROM {} AS s {} WHERE t.ctid IS NULL").format(
        merging.staged, _current_of_staged(merging, history)
    )


def replace_all(connection: Connection, merging: Merge, history: History, at: datetime, *, deletes: bool) -> Versioned:
    """Make the current states equal to the staged rows, in one statement that joins the two once.

    New states are built from the rows that the UPDATE returns. Counting these first makes the server close all states
    before it adds one, so that rows may exchange values of a unique index over current rows.
    """
    row = database.one(connection.execute(_statement(merging, history, at, deletes=deletes)))
    renewed = row["renewed"]
    counts = Counts(inserted=row["made"] - renewed, updated=renewed, deleted=row["closed"] - renewed)
    planned = Counts(inserted=row["new"], updated=row["changed"], deleted=row["gone"])
    return Versioned(counts, planned, row["ahead"], _known(row["places"]))


def _statement(merging: Merge, history: History, at: datetime, *, deletes: bool) -> Composed:
    table = merging.target
    return SQL(
        """
        WITH changed AS MATERIALIZED (
            SELECT CASE WHEN t.ctid IS NULL THEN 'I' WHEN {stage_absent} THEN 'D' ELSE 'U' END AS "_op",
                   t.ctid AS {position}, t.tableoid AS {part}, t.{since} AS {began}, {keys}{others}
            FROM {staged} AS s {joined}
            WHERE t.ctid IS NULL OR {stage_absent} OR {differs}
        ), closed AS (
            UPDATE {target} AS m SET {until} = {at}{ended} FROM changed AS c
            WHERE m.ctid = c.{position}{same_part} AND c."_op" <> 'I' AND c.{began} < {at}
            RETURNING c."_op" AS "_op", {returned}
        ), made AS (
            INSERT INTO {target} ({columns}, {since}{flag}){overriding}
            SELECT n.* FROM (
                SELECT {columns}, {at}{flagged} FROM closed WHERE "_op" = 'U'
                UNION ALL
                SELECT {columns}, {at}{flagged} FROM changed WHERE "_op" = 'I'
            ) AS n WHERE (SELECT count(*) FROM closed) IS NOT NULL
            RETURNING ctid AS place
        )
        SELECT c.*, k.*, m.* FROM
            (SELECT count(*) FILTER (WHERE "_op" = 'I') AS new, count(*) FILTER (WHERE "_op" = 'U') AS changed,
                    count(*) FILTER (WHERE "_op" = 'D') AS gone, min({named}) FILTER (WHERE {began} >= {at}) AS ahead
             FROM changed) AS c,
            (SELECT count(*) AS closed, count(*) FILTER (WHERE "_op" = 'U') AS renewed FROM closed) AS k,
            (SELECT count(*) AS made, ARRAY[min(place), max(place)]::text[] AS places FROM made) AS m
        """
    ).format(
        stage_absent=SQL("s.{} IS NOT DISTINCT FROM NULL").format(Identifier(merging.key[0])),
        position=Identifier(merge.POSITION),
        part=Identifier(_PART),
        began=Identifier(_BEGAN),
        since=Identifier(history.valid_from),
        until=Identifier(history.valid_to),
        keys=_comma(SQL("coalesce(s.{0}, t.{0}) AS {0}").format(Identifier(name)) for name in merging.key),
        others=SQL("").join(SQL(", s.{}").format(Identifier(name)) for name in merging.others),
        staged=merging.staged,
        joined=_all_current(merging, history, "FULL" if deletes else "LEFT"),
        differs=merge.differs(merging),
        target=table.identifier,
        at=_moment(at),
        ended=_flag(table, history, ", {} = false"),
        same_part=SQL("") if merging.finds_by_position else SQL(" AND m.tableoid = c.{}").format(Identifier(_PART)),
        returned=_comma(SQL("c.{0} AS {0}").format(Identifier(name)) for name in merging.columns),
        columns=_comma(map(Identifier, merging.columns)),
        flag=_flag(table, history, ", {}"),
        flagged=_flag(table, history, ", true"),
        overriding=merge.overriding(table, merging.columns),
        named=_named("changed", merging.key),
    )


def _all_current(merging: Merge, history: History, join: str) -> Composed:
    on = merge.same_key(merging)
    return SQL("{} JOIN {} AS t ON {}").format(SQL(join), current_rows(merging.target, history), on)


def _current_of_staged(merging: Merge, history: History) -> Composed:
    """Look up each staged row by the index of current rows.

    Without statistics, the planner assumes that almost all states are closed and would read the whole mart.
    """
    same = merge.same_key(merging)
    return SQL(
        "LEFT JOIN LATERAL"
        " (SELECT t.*, t.ctid, t.tableoid FROM {} AS t WHERE {} AND t.{} IS NULL OFFSET 0) AS t ON true"
    ).format(merging.target.identifier, same, Identifier(history.valid_to))


def fill(connection: Connection, merging: Merge, history: History, at: datetime, *, in_order: bool) -> int:
    """Insert the staged rows as the first states of an empty mart."""
    return connection.execute(
        SQL("INSERT INTO {} ({}, {}{}){} SELECT {}, {}{} FROM {} AS s{}").format(
            merging.target.identifier,
            _comma(map(Identifier, merging.columns)),
            Identifier(history.valid_from),
            _flag(merging.target, history, ", {}"),
            merge.overriding(merging.target, merging.columns),
            _comma(SQL("s.{}").format(Identifier(name)) for name in merging.columns),
            _moment(at),
            _flag(merging.target, history, ", true"),
            merging.staged,
            SQL(" ORDER BY {}").format(_comma(SQL("s.{}").format(Identifier(n)) for n in merging.key))
            if in_order
            else SQL(""),
        )
    ).rowcount


class Closed(NamedTuple):
    """Report how many states were closed, and a key of one that is not older than the snapshot."""

    rows: int
    ahead: str | None


def close(
    connection: Connection, table: Table, history: History, condition: Composable, at: datetime, *, key: Sequence[str]
) -> Closed:
    """Close the current states that match the condition on the alias `q`: their keys left the source.

    A state that began in this snapshot, or later, stays open: it would be valid at no time.
    """
    row = database.one(
        connection.execute(
            SQL(
                """
                WITH closed AS (
                    UPDATE {target} AS q SET {until} = CASE WHEN q.{since} < {at} THEN {at} END{ended}
                    WHERE q.{until} IS NULL AND {condition}
                    RETURNING q.{until} AS until, {named} AS example
                )
                SELECT count(*) AS rows, min(example) FILTER (WHERE until IS NULL) AS ahead FROM closed
                """
            ).format(
                target=table.identifier,
                since=Identifier(history.valid_from),
                until=Identifier(history.valid_to),
                at=_moment(at),
                ended=_flag(table, history, ", {} = false"),
                condition=condition,
                named=_named("q", key),
            )
        )
    )
    return Closed(row["rows"], row["ahead"])


def _flag(table: Table, history: History, written: str) -> Composable:
    """Write the flag of current rows, unless the server computes it, as in a table that a run created."""
    column = table.column(history.current)
    if column and column.generated:
        return SQL("")
    return SQL(written).format(Identifier(history.current)) if "{" in written else SQL(written)


def _named(alias: str, key: Iterable[str]) -> Composed:
    """Write the key of a row for a message."""
    parts = _comma(SQL("{}.{}::text").format(SQL(alias), Identifier(name)) for name in key)
    return SQL("concat_ws(', ', {})").format(parts)


def _moment(at: datetime) -> Composed:
    return SQL("{}::timestamptz").format(Literal(at.isoformat()))


def _comma(parts: Iterable[Composable]) -> Composed:
    return Composed(list(parts)).join(", ")
