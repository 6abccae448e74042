"""Represent the incremental cursor: how its values are written in SQL, and how far a pass may move the checkpoint."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

import psycopg
from psycopg.sql import SQL, Composed, Identifier, Literal

from vitrina.definition import Definition, Options
from vitrina.errors import FatalError
from vitrina.sentences import say
from vitrina.store import database
from vitrina.store.database import Connection
from vitrina.store.prepared import Statement

# The session that keeps a transaction open: pid, user, start time.
Holder = dict[str, Any]

# A transaction's start time is taken a moment before other sessions can see the transaction.
VISIBILITY_SECONDS = 1.0

_CLOCKS = ("timestamp with time zone", "timestamp without time zone", "date")
_NUMBERS = ("smallint", "integer", "bigint", "numeric")
_TEXTS = ("text", "character varying", "character")
_LOWEST = {
    "timestamp with time zone": "-infinity",
    "timestamp without time zone": "-infinity",
    "date": "-infinity",
    "smallint": "-32768",
    "integer": "-2147483648",
    "bigint": "-9223372036854775808",
    "numeric": "-Infinity",
    "uuid": "00000000-0000-0000-0000-000000000000",
}
_HIGHEST = {
    "timestamp with time zone": "infinity",
    "timestamp without time zone": "infinity",
    "date": "infinity",
    "smallint": "32767",
    "integer": "2147483647",
    "bigint": "9223372036854775807",
    "numeric": "Infinity",
    "uuid": "ffffffff-ffff-ffff-ffff-ffffffffffff",
}


@dataclass(frozen=True)
class Cursor:
    """Describe the columns that order an incremental query. Values are text here and typed in SQL."""

    key: str
    key_type: str
    id: str | None = None
    id_type: str | None = None
    # The time zone of values without one: `timestamp` and `date`.
    zone: str | None = None

    @property
    def base_type(self) -> str:
        """Return the key's type without precision: `numeric(10,2)` is `numeric`."""
        return (
            self.key_type.replace("(", " (").partition(" (")[0]
            if "time" not in self.key_type
            else _clock_type(self.key_type)
        )

    @property
    def family(self) -> str:
        """Return the group of types that can read each other's values; a checkpoint survives a change within it."""
        if self.is_text:
            return "text"
        return "integer" if self.base_type in ("smallint", "integer", "bigint") else self.base_type

    @property
    def is_clock(self) -> bool:
        return self.base_type in _CLOCKS

    @property
    def has_no_zone(self) -> bool:
        return self.is_clock and self.base_type != "timestamp with time zone"

    @property
    def is_number(self) -> bool:
        return self.base_type in _NUMBERS

    @property
    def is_text(self) -> bool:
        return _is_text(self.key_type)

    def columns(self, alias: str) -> list[Composed]:
        """Build the ORDER BY expressions. Text is ordered bytewise so that all servers agree."""
        names = [(self.key, self.key_type)] + ([(self.id, self.id_type or "")] if self.id else [])
        return [
            SQL("{}.{}{}").format(SQL(alias), Identifier(name), SQL(' COLLATE "C"' if _is_text(kind) else ""))
            for name, kind in names
        ]

    @property
    def types(self) -> tuple[str, ...]:
        """Return the type of the key and, if there is one, of the id."""
        return (self.key_type, *([self.id_type] if self.id_type else []))

    @property
    def collations(self) -> tuple[str | None, ...]:
        kinds = (self.key_type, *([self.id_type or ""] if self.id else []))
        return tuple('"C"' if _is_text(kind) else None for kind in kinds)

    def literal(self, value: str, kind: str | None = None) -> Composed:
        return SQL("{}::{}").format(Literal(value), SQL(kind or self.key_type))

    def literal_or_null(self, value: str | None) -> Composed:
        return SQL("NULL::{}").format(SQL(self.key_type)) if value is None else self.literal(value)

    @property
    def lowest(self) -> str:
        return _LOWEST.get(self.base_type, "")

    @property
    def highest(self) -> str:
        # The highest code point, repeated: no realistic cursor value sorts after it.
        return _HIGHEST.get(self.base_type, "\U0010ffff" * 8)


def _clock_type(kind: str) -> str:
    """Remove the precision: `timestamp(3) with time zone` becomes `timestamp with time zone`."""
    head, parenthesis, tail = kind.partition("(")
    return head + tail.partition(")")[2] if parenthesis else kind


def _is_text(kind: str) -> bool:
    return kind.startswith(_TEXTS)


def cursor_of(definition: Definition, types: dict[str, str]) -> Cursor:
    """Build the cursor that the definition names and check it against the query's result."""
    key, identity = definition.incremental_key, definition.incremental_id_key
    if key is None:
        raise FatalError(say("run.no_cursor"))
    for name, field in ((key, "incremental_key"), (identity, "incremental_id_key")):
        if name is not None and name not in types:
            raise FatalError(say("run.column_not_in_result", field=field, column=name, columns=", ".join(types)))
    if identity and not _orders_exactly(types[identity]):
        # Of 0 and -0, or 1 month and 30 days, one would be skipped. Instead, rows with equal keys stay together.
        identity = None
    cursor = Cursor(key, types[key], identity, types[identity] if identity else None)
    if cursor.base_type in ("real", "double precision"):
        raise FatalError(say("run.cursor_is_float", column=key, type=types[key]))
    if not (cursor.is_clock or cursor.is_number or _is_text(types[key]) or cursor.base_type == "uuid"):
        raise FatalError(say("run.cursor_has_no_order", column=key, type=types[key]))
    return cursor


def _orders_exactly(kind: str) -> bool:
    """Return whether equal values of the type have, or can be given, the same text."""
    return "[" not in kind and kind.startswith((*_CLOCKS, *_NUMBERS, *_TEXTS, "timestamp(", "uuid", "boolean", "bytea"))


@dataclass(frozen=True)
class Watermark:
    """Describe how far the checkpoint may move when the pass that starts now ends, and which session holds it back."""

    upto: str | None
    held_upto: str | None = None
    hold: dict[str, Any] | None = None
    # The highest value that existed, for a load that does not read in the order of the cursor.
    newest: str | None = None

    @property
    def remembered(self) -> str:
        """Serialise the watermark for the checkpoint, so that it survives the run that computed it."""
        return json.dumps({"upto": self.upto, "held": self.held_upto, "newest": self.newest})

    @classmethod
    def recalled(cls, text: str | None) -> Self:
        found = json.loads(text) if text and text.startswith("{") else {}
        return cls(found.get("upto"), found.get("held"), newest=found.get("newest"))


def is_standby(source: Connection) -> bool:
    row = _IS_STANDBY.get_one(source, [])
    return bool(row["standby"])


_IS_STANDBY = Statement(b"SELECT pg_catalog.pg_is_in_recovery() AS standby")


def refuse_on_standby(cursor: Cursor, options: Options) -> None:
    """Refuse a cursor that is unsafe on a standby, which does not show the open transactions of its primary.

    The checkpoint could move past rows that these transactions are still writing.
    """
    if cursor.is_number:
        raise FatalError(
            f"the source is a standby, which does not show the transactions that hold values of {cursor.key} back: read"
            " from the primary, or by a timestamp with options.lookback_seconds"
        )
    if cursor.is_clock and not options.lookback_seconds:
        raise FatalError(
            "the source is a standby, which does not show how old the transactions of its primary are: set"
            " options.lookback_seconds to more than the longest of them takes, or read from the primary"
        )


def guarantee(
    cursor: Cursor, options: Options, *, on_standby: bool = False, is_computed: bool = False, doubts: Sequence[str] = ()
) -> str:
    """Determine what an incremental pipeline guarantees about rows that commit late.

    `doubts`: reasons why values may arrive late.
    """
    if is_computed or not (cursor.is_clock or cursor.is_number):
        return "reconciled"
    if on_standby or doubts or options.cursor_clock != "database" or cursor.has_no_zone:
        return "bounded-lag"
    return "exact"


def watermark(
    source: Connection, cursor: Cursor, options: Options, *, safe: str | None, held: str | None, newest: str | None
) -> Watermark:
    """Compute the watermark before the pass reads anything.

    `newest` is the highest value of a cursor that is not a clock.
    """
    if cursor.is_clock:
        return _clock_watermark(source, cursor, options, safe)
    if is_standby(source):
        refuse_on_standby(cursor, options)
    if cursor.is_number:
        return _sequence_watermark(source, safe, held, newest)
    # Text and uuid carry no time: the pass moves to the highest value it read.
    return Watermark(newest if newest is not None else safe)


def _clock_watermark(source: Connection, cursor: Cursor, options: Options, safe: str | None) -> Watermark:
    """Keep the checkpoint before the start of each open transaction: its rows carry that time and commit later."""
    found = _oldest_transaction(source, VISIBILITY_SECONDS + options.lookback_seconds)
    if found["standby"]:
        refuse_on_standby(cursor, options)
        return _standby_watermark(source, cursor, options, safe)
    if found["prepared"] or found["unreadable"]:
        what = "a prepared transaction is open" if found["prepared"] else "a session's transaction cannot be read"
        return Watermark(safe, hold={"reason": what, "since": datetime.now(UTC).isoformat()})
    hold = None
    if found["holds"]:
        hold = {
            "reason": "an open transaction",
            "pid": found["pid"],
            "user": found["usename"],
            "since": found["since"].isoformat(),
        }
    return Watermark(_later(source, cursor, safe, found["upto"]), hold=hold)


# Use the time at which the statement arrived, before any session is read: a session that begins meanwhile is later. The
# margin also applies to the start of a transaction: stamps may be truncated to seconds, and late by the lookback.
# Prepared transactions are counted after the sessions, from which the subquery takes a value: one that is prepared in
# between was still seen in its session.
OLDEST_TRANSACTION = """
    SELECT least(statement_timestamp(), a.since) - make_interval(secs => %(margin)s) AS upto,
           a.since <= statement_timestamp() - make_interval(secs => %(margin)s) AS holds,
           a.since, a.pid, a.usename, a.unreadable, pg_catalog.pg_is_in_recovery() AS standby,
           (SELECT count(*) FROM pg_catalog.pg_prepared_xacts
            WHERE database = current_database() AND a.unreadable IS NOT NULL) AS prepared
    FROM (SELECT 1) one LEFT JOIN LATERAL (
        SELECT min(least(xact_start, query_start)) AS since,
               (array_agg(pid ORDER BY least(xact_start, query_start)))[1] AS pid,
               (array_agg(usename ORDER BY least(xact_start, query_start)))[1] AS usename,
               count(*) FILTER (WHERE state IS NULL OR state = 'disabled') AS unreadable
        FROM pg_catalog.pg_stat_activity
        WHERE datname = current_database() AND usesysid IS NOT NULL AND pid <> pg_catalog.pg_backend_pid()
          AND state IS DISTINCT FROM 'idle' AND coalesce(usename, '') <> ALL(%(readers)s)
          -- sends what others wrote, for as long as it lives; a plain login is not told what sessions of others are
          AND coalesce(backend_type, '') <> 'walsender'
    ) a ON true
"""
_OLDEST_TRANSACTION = Statement(OLDEST_TRANSACTION.encode())


def _oldest_transaction(source: Connection, margin_seconds: float) -> dict[str, Any]:
    return _OLDEST_TRANSACTION.get_one(source, {"margin": margin_seconds, "readers": [READER]})


READER = "vitrina_reader"


def _standby_watermark(source: Connection, cursor: Cursor, options: Options, safe: str | None) -> Watermark:
    """Compute the watermark from the last replayed commit, less the declared lookback.

    Commits are replayed in order. A transaction that is not visible yet therefore ends after the last one replayed, and
    it began at most the lookback before that.
    """
    row = database.one(
        source.execute(
            "SELECT pg_catalog.pg_last_xact_replay_timestamp() - make_interval(secs => %s) AS upto",
            [VISIBILITY_SECONDS + options.lookback_seconds],
        )
    )
    if row["upto"] is None:
        since = datetime.now(UTC).isoformat()
        return Watermark(safe, hold={"reason": "the standby has replayed no transaction yet", "since": since})
    return Watermark(_later(source, cursor, safe, row["upto"]))


def lowest_to_come(source: Connection, moment: datetime, cursor: Cursor) -> str:
    """Return the lowest value that may still be written from that moment on."""
    return _later(source, cursor, None, moment)


def _to_come(cursor: Cursor) -> Composed:
    """Build the lowest value that may still be written from `moment` on, as text."""
    if cursor.base_type == "timestamp with time zone":
        return SQL("%(moment)s::timestamptz::text").format()
    if cursor.base_type == "date":
        # The day may not be over in the zone in which it was written, so the whole day is read again.
        return SQL("((%(moment)s::timestamptz AT TIME ZONE {})::date - 1)::text").format(_zone(cursor))
    # When clocks are set back, an hour occurs twice: rows of its second occurrence sort below those of the first.
    # Clocks change at a full quarter of an hour, and by three hours at most.
    return SQL(
        """
        (SELECT min(local)::text FROM (
            SELECT %(moment)s::timestamptz AT TIME ZONE {zone} AS local
            UNION ALL
            SELECT (date_bin('15 minutes', %(moment)s::timestamptz, 'epoch') + quarter * interval '15 minutes')
                       AT TIME ZONE {zone}
            FROM generate_series(1, 12) AS quarter
        ) AS to_come)
        """
    ).format(zone=_zone(cursor))


def _zone(cursor: Cursor) -> Literal:
    return Literal(cursor.zone or "UTC")


def _now(cursor: Cursor) -> Composed:
    """Build the server's current time as it would be written into the cursor."""
    if cursor.has_no_zone:
        return SQL("(clock_timestamp() AT TIME ZONE {})::{}").format(_zone(cursor), SQL(cursor.key_type))
    return SQL("clock_timestamp()::{}").format(SQL(cursor.key_type))


def soon(cursor: Cursor) -> Composed:
    """Build a time that no clock can show yet, even if clocks differ: 15 minutes from now."""
    return SQL("({} + make_interval(mins => 15))::{}").format(_now(cursor), SQL(cursor.key_type))


def is_ahead(source: Connection, cursor: Cursor, value: str) -> bool:
    """Return whether a value lies in the future."""
    row = database.one(source.execute(SQL("SELECT {} > {} AS ahead").format(cursor.literal(value), soon(cursor))))
    return bool(row["ahead"])


def _later(source: Connection, cursor: Cursor, safe: str | None, moment: datetime) -> str:
    """Return the lowest value to come; or `safe`, if the clock stepped back below it and it is not in the future."""
    statement = SQL(
        "SELECT value, least(%(safe)s::{kind}, value::{kind}) = value::{kind} AS stepped_back,"
        " %(safe)s::{kind} <= {now} AS past FROM (SELECT {value} AS value) AS upto"
    ).format(kind=SQL(cursor.key_type), now=_now(cursor), value=_to_come(cursor))
    try:
        row = database.one(source.execute(statement, {"safe": safe, "moment": moment}))
    except (psycopg.errors.InvalidDatetimeFormat, psycopg.errors.DatetimeFieldOverflow) as exc:
        raise FatalError(
            say("run.no_value_of_cursor", what="the checkpoint", value=safe, column=cursor.key, type=cursor.key_type)
        ) from exc
    # Without a safe point, `past` is NULL.
    return safe if safe is not None and row["stepped_back"] and row["past"] else str(row["value"])


@dataclass(frozen=True)
class SafePoint:
    """Hold where the next pass begins, and whether the last value of this one lies in the future."""

    safe: str | None
    is_ahead: bool = False


def safe_point(
    source: Connection,
    cursor: Cursor,
    options: Options,
    *,
    safe: str | None,
    upto: str | None,
    last: str | None,
    otherwise: str | None,
    is_exact: bool,
) -> SafePoint:
    """Compute where the next pass begins after one that saw values up to `last`, or `otherwise` if that is ahead.

    Only if the source's clock stamps the rows can no row arrive below the watermark. Otherwise the checkpoint does not
    run ahead of the data, because rows stamped with an earlier time may still arrive.
    """
    if not cursor.is_clock or (last is None and (upto is None or is_exact)):
        return SafePoint(safe if upto is None else upto)
    statement = SQL(
        """
        SELECT s.ahead, least({upto}, greatest({safe}, s.seen))::text AS value, s.seen IS NULL AS nothing
        FROM (
            SELECT a.ahead,
                   (CASE WHEN a.ahead THEN {otherwise} ELSE {last} END - make_interval(secs => {late}))::{kind} AS seen
            FROM (SELECT coalesce({last} > {soon}, false) AS ahead) AS a
        ) AS s
        """
    ).format(
        **{
            name: cursor.literal_or_null(value)
            for name, value in (("upto", upto), ("safe", safe), ("last", last), ("otherwise", otherwise))
        },
        late=Literal(options.lookback_seconds),
        kind=SQL(cursor.key_type),
        soon=soon(cursor),
    )
    row = database.one(source.execute(statement))
    if upto is None:
        return SafePoint(safe, row["ahead"])
    if is_exact:
        return SafePoint(upto, row["ahead"])
    if row["nothing"] and safe is None:
        return SafePoint(None, row["ahead"])  # there was no row
    return SafePoint(str(row["value"]), row["ahead"])


def _sequence_watermark(source: Connection, safe: str | None, held: str | None, newest: str | None) -> Watermark:
    """Hold an id back until every transaction that was open when it was seen has ended: ids precede commits."""
    open_now = _open_transactions(source)
    if held is not None:
        value, _, waiting = held.partition("|")
        still_open = _still_open(open_now, set(filter(None, waiting.split(","))))
        if still_open:
            return _waiting_for(open_now, still_open, safe, value)
        safe = value
    if newest is None or not open_now:
        return Watermark(newest if newest is not None else safe)
    return _waiting_for(open_now, open_now, safe, newest)


def _still_open(open_now: dict[str, Holder], waited_for: set[str]) -> set[str]:
    """Find awaited transactions that are still open.

    PREPARE TRANSACTION removes the awaited id, so any prepared transaction may be the same one.
    """
    still_open = open_now.keys() & waited_for
    if any(not _is_prepared(name) for name in waited_for - still_open):
        still_open |= {name for name in open_now if _is_prepared(name)}
    return still_open


def _is_prepared(name: str) -> bool:
    return name.startswith(_PREPARED)


_PREPARED = "prepared:"


def _waiting_for(open_now: dict[str, Holder], ids: Collection[str], safe: str | None, value: str) -> Watermark:
    """Hold `value` until these transactions have ended, and report the oldest of them."""
    oldest = min((open_now[name] for name in ids), key=lambda holder: holder["since"])
    hold = {"reason": "open transactions", **oldest, "transactions": sorted(ids)}
    return Watermark(safe, held_upto=f"{value}|{','.join(sorted(ids))}", hold=hold)


def _open_transactions(source: Connection) -> dict[str, Holder]:
    """List open transactions by id, with the user and the start of each."""
    rows = source.execute(
        """
        SELECT l.virtualtransaction AS id, a.pid, a.usename AS user, coalesce(a.xact_start, clock_timestamp()) AS since
        FROM pg_catalog.pg_locks l
        LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
        WHERE l.locktype = 'virtualxid' AND l.pid <> pg_catalog.pg_backend_pid()
          AND a.datname = current_database() AND coalesce(a.usename, '') <> ALL(%s)
          -- neither inserts a row, and both may last for hours
          AND coalesce(a.backend_type, '') NOT IN ('autovacuum worker', 'walsender')
        """,
        [[READER]],
    ).fetchall()
    # Query this after the sessions: a transaction prepared between the two queries was still seen in its session. The
    # transaction number distinguishes it from another one with the same name.
    rows += source.execute(
        """
        SELECT %s || transaction AS id, NULL::int AS pid, owner AS user, prepared AS since
        FROM pg_catalog.pg_prepared_xacts WHERE database = current_database()
        """,
        [_PREPARED],
    ).fetchall()
    return {row.pop("id"): row | {"since": row["since"].isoformat()} for row in rows}
