"""Determine the facts about a cursor before a run reads: its origin, its time zone, and what it guarantees."""

from dataclasses import replace
from typing import Any

from psycopg.sql import SQL, Identifier

from vitrina.connectors.postgres import advice, provenance
from vitrina.connectors.postgres import cursor as cursors
from vitrina.connectors.postgres.cursor import Cursor
from vitrina.connectors.postgres.opened_query import OpenedQuery
from vitrina.connectors.postgres.source import Bounds
from vitrina.errors import FatalError
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.source import Unseen
from vitrina.sentences import say
from vitrina.store import databases, named_sessions

# Key of the checkpoint's identity: how many rows of the source had ever been written at the end of the last pass.
CHANGES = "changes"
# The database that the cursor's values belong to: a connection may be pointed to another one.
SOURCE = "source"


def choose_cursor(source: OpenedQuery) -> Cursor:
    """Choose the cursor; raise if a pass cannot be resumed from it."""
    options = source.definition.options
    cursor = cursors.cursor_of(source.definition, source.types)
    if source.on_standby:
        cursors.refuse_on_standby(cursor, options)
    if cursor.has_no_zone:
        cursor = replace(cursor, zone=options.cursor_timezone or _default_zone(source))
    source.cursor = cursor
    source.provenance = provenance.of_cursor(source.reader, cursor, _origin(source, cursor))
    _refuse_other_zone(source, cursor)
    return cursor


def _default_zone(source: OpenedQuery) -> str:
    """Find the zone in which `now()` is written by default. Our session is set to UTC, so another one is queried."""
    name = source.definition.source_connection
    found = named_sessions.find_timezone(source.settings, source.reader_url, name, source.session_name)
    return "UTC" if found in ("Etc/UTC", "GMT", "Etc/GMT", "Etc/UCT", "UCT", "Zulu", "Etc/Zulu") else found


def _refuse_other_zone(source: OpenedQuery, cursor: Cursor) -> None:
    """Refuse values from the future.

    They were written in another zone, so no clock tells which values may still arrive.
    """
    if cursor.base_type != "timestamp without time zone":
        return
    newest = newest_cursor(source, cursor)
    if newest is None or not cursors.is_ahead(source.reader.connection, cursor, newest):
        return
    raise FatalError(say("run.cursor_in_future", column=cursor.key, newest=newest, zone=cursor.zone))


def guarantee(source: OpenedQuery) -> str | None:
    """Determine what the pipeline guarantees about rows that commit late."""
    if source.cursor is None:
        return None
    return cursors.guarantee(
        source.cursor,
        source.definition.options,
        on_standby=source.on_standby,
        is_computed=not source.provenance.is_column,
        doubts=source.provenance.doubts,
    )


def warnings(source: OpenedQuery, checkpoint: Checkpoint) -> list[str]:
    """List reasons why rows may arrive late or never."""
    cursor, options = source.cursor, source.definition.options
    if cursor is None:
        return []
    column = source.cursor_column = advice.find_column(source.reader.connection, _origin(source, cursor))
    found: list[str] = []
    if cursor.base_type == "timestamp without time zone" and not options.cursor_timezone:
        found.append(say("warning.zone_assumed", column=cursor.key, zone=cursor.zone))
    if source.on_standby:
        found.append(say("warning.standby", seconds=options.lookback_seconds))
    elif options.cursor_clock == "database" and source.provenance.doubts:
        found += [say("warning.not_exact", because=doubt) for doubt in source.provenance.doubts]
    elif guarantee(source) == "bounded-lag":
        found.append(say("warning.other_clock"))
    if guarantee(source) == "exact" and cursor.is_clock:
        before = checkpoint.identity.get(CHANGES)
        found += advice.clock_warnings(source.reader.connection, cursor, column, before)
    return found + advice.cursor_warnings(cursor, column, options)


def count_changes(source: OpenedQuery) -> dict[str, Any] | None:
    """Count changes for the next run to compare with, if the database's clock is declared to stamp the rows."""
    cursor = source.cursor
    if guarantee(source) != "exact" or cursor is None or not cursor.is_clock:
        return None
    return advice.count_changes(source.reader.connection, _origin(source, cursor))


def source_identity(source: OpenedQuery) -> str | None:
    """Return the identity of the database, or None if the login may not read it.

    A standby, and the server that it becomes, have the same identity.
    """
    seen = databases.look(source.reader.connection)
    return seen.identity if seen else None


def _origin(source: OpenedQuery, cursor: Cursor) -> tuple[int, int] | None:
    return next(column.origin for column in source.result if column.name == cursor.key)


def unseen(source: OpenedQuery) -> Unseen:
    """Count rows that no pass can see, because their cursor is NULL."""
    cursor = source.cursor
    if cursor is None or source.definition.options.null_cursor == "read":
        return Unseen()
    if advice.has_no_nulls(source.cursor_column, source.judged.text):
        return Unseen()
    head, rows = source.query.wrapped(Bounds())
    statement = SQL("{} SELECT count(*) FROM {} AS q WHERE q.{} IS NULL").format(head, rows, Identifier(cursor.key))
    found = int(source.reader.value(statement) or 0)
    return Unseen(found, say("warning.null_cursor", rows=found, column=source.definition.incremental_key))


def all_rows(source: OpenedQuery) -> Bounds:
    """Bound the rows of the source that a complete mart contains."""
    return Bounds(nulls="included" if source.definition.options.null_cursor == "read" else "left out")


def newest_cursor(source: OpenedQuery, cursor: Cursor, *, from_the_future: bool = True) -> str | None:
    """Find the highest value of the cursor that later values can still exceed."""
    head, rows = source.query.wrapped(Bounds())
    column = cursor.columns("q")[0]
    # No value sorts after NaN and Infinity: a checkpoint there would skip all later rows.
    has_infinity = cursor.base_type == "numeric" or cursor.is_clock
    wanted = SQL("{} < 'infinity'").format(column) if has_infinity else SQL("true")
    if not from_the_future:
        wanted = SQL("{} <= {}").format(column, cursors.soon(cursor))
    found = source.reader.value(
        SQL("{0} SELECT ({1})::text FROM {2} AS q WHERE {1} IS NOT NULL AND {3} ORDER BY {1} DESC LIMIT 1").format(
            head, column, rows, wanted
        )
    )
    return None if found is None else str(found)
