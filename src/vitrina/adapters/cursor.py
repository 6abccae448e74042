"""The incremental cursor: how its values are written in SQL, and how far a pass may move the checkpoint."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

from psycopg.sql import SQL, Composed, Identifier, Literal

from vitrina.definition import Definition, Options
from vitrina.errors import FatalError
from vitrina.store.database import Connection

# Who keeps a transaction open: pid, user, since.
Holder = dict[str, Any]

# A transaction's start time is taken a moment before other sessions can see it.
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
    """The columns by which an incremental query is read in order. Values are text here and typed in SQL."""

    key: str
    key_type: str
    id: str | None = None
    id_type: str | None = None

    @property
    def base_type(self) -> str:
        """The key's type without precision: `numeric(10,2)` is `numeric`."""
        return (
            self.key_type.replace("(", " (").partition(" (")[0]
            if "time" not in self.key_type
            else _clock_type(self.key_type)
        )

    @property
    def family(self) -> str:
        """Types that read each other's values: a checkpoint survives a change between them."""
        if self.is_text:
            return "text"
        return "integer" if self.base_type in ("smallint", "integer", "bigint") else self.base_type

    @property
    def is_clock(self) -> bool:
        return self.base_type in _CLOCKS

    @property
    def is_number(self) -> bool:
        return self.base_type in _NUMBERS

    @property
    def is_text(self) -> bool:
        return _is_text(self.key_type)

    def columns(self, alias: str) -> list[Composed]:
        """The ordered-by expressions; text is ordered bytewise so that all servers agree."""
        names = [(self.key, self.key_type)] + ([(self.id, self.id_type or "")] if self.id else [])
        return [
            SQL("{}.{}{}").format(SQL(alias), Identifier(name), SQL(' COLLATE "C"' if _is_text(kind) else ""))
            for name, kind in names
        ]

    @property
    def collations(self) -> tuple[str | None, ...]:
        kinds = (self.key_type, *([self.id_type or ""] if self.id else []))
        return tuple('"C"' if _is_text(kind) else None for kind in kinds)

    def literal(self, value: str, kind: str | None = None) -> Composed:
        return SQL("{}::{}").format(Literal(value), SQL(kind or self.key_type))

    @property
    def lowest(self) -> str:
        return _LOWEST.get(self.base_type, "")

    @property
    def highest(self) -> str:
        # The greatest code point, repeated: nothing that people use as a cursor sorts after it.
        return _HIGHEST.get(self.base_type, "\U0010ffff" * 8)


def _clock_type(kind: str) -> str:
    """`timestamp(3) with time zone` is `timestamp with time zone`."""
    head, parenthesis, tail = kind.partition("(")
    return head + tail.partition(")")[2] if parenthesis else kind


def _is_text(kind: str) -> bool:
    return kind.startswith(_TEXTS)


def cursor_of(definition: Definition, types: dict[str, str]) -> Cursor:
    """The cursor that the definition names, checked against the query's result."""
    key, identity = definition.incremental_key, definition.incremental_id_key
    for name, field in ((key, "incremental_key"), (identity, "incremental_id_key")):
        if name is not None and name not in types:
            raise FatalError(f"{field} {name!r} is not in the query's result (it has: {', '.join(types)})")
    assert key is not None
    if identity and not _orders_exactly(types[identity]):
        # Of 0 and -0, or 1 month and 30 days, one would be passed by: rows of one key stay together instead.
        identity = None
    cursor = Cursor(key, types[key], identity, types[identity] if identity else None)
    if cursor.base_type in ("real", "double precision"):
        raise FatalError(
            f"incremental_key {key!r} is {types[key]}: floating-point values cannot be resumed from exactly; cast it to"
            " numeric in the query or choose another column"
        )
    if not (cursor.is_clock or cursor.is_number or _is_text(types[key]) or cursor.base_type == "uuid"):
        raise FatalError(f"incremental_key {key!r} is {types[key]}, which has no order to resume from")
    return cursor


def _orders_exactly(kind: str) -> bool:
    """Whether values of the type that are equal are also written alike, or can be."""
    return "[" not in kind and kind.startswith((*_CLOCKS, *_NUMBERS, *_TEXTS, "timestamp(", "uuid", "boolean", "bytea"))


@dataclass(frozen=True)
class Watermark:
    """How far the checkpoint may move when the pass that starts now is done, and who holds it back."""

    upto: str | None
    held_upto: str | None = None
    hold: dict[str, Any] | None = None

    @property
    def remembered(self) -> str:
        """It survives the run that computed it: it is part of the checkpoint."""
        return json.dumps({"upto": self.upto, "held": self.held_upto})

    @classmethod
    def recalled(cls, text: str | None) -> Self:
        found = json.loads(text) if text and text.startswith("{") else {}
        return cls(found.get("upto"), found.get("held"))


def is_standby(source: Connection) -> bool:
    row = source.execute("SELECT pg_catalog.pg_is_in_recovery() AS standby").fetchone()
    assert row is not None
    return bool(row["standby"])


def refuse_on_standby(cursor: Cursor, options: Options) -> None:
    """A standby does not show which transactions are open on its primary: what they write could be passed by."""
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


def guarantee(cursor: Cursor, options: Options, *, on_standby: bool = False) -> str:
    """What an incremental pipeline promises about rows that commit late."""
    if on_standby and (cursor.is_clock or cursor.is_number):
        return "bounded-lag"
    if cursor.base_type == "timestamp with time zone" and options.cursor_clock == "database":
        return "exact"
    if cursor.is_number and options.cursor_clock == "database":
        return "exact"
    if cursor.is_clock or cursor.is_number:
        return "bounded-lag"
    return "reconciled"


def watermark(
    source: Connection, cursor: Cursor, options: Options, *, safe: str | None, held: str | None, newest: str | None
) -> Watermark:
    """Computed before the pass reads anything. `newest` is the highest cursor value there is, for non-clock cursors."""
    if is_standby(source):
        refuse_on_standby(cursor, options)
        if cursor.is_clock:
            return _standby_watermark(source, cursor, options, safe)
    if cursor.is_clock:
        return _clock_watermark(source, cursor, options, safe)
    if cursor.is_number:
        return _sequence_watermark(source, safe, held, newest)
    # Text and uuid say nothing about time: the pass moves to the highest value it saw.
    return Watermark(newest if newest is not None else safe)


def _clock_watermark(source: Connection, cursor: Cursor, options: Options, safe: str | None) -> Watermark:
    """Nothing moves the checkpoint past the start of an open transaction: its rows carry that time and commit later."""
    row = source.execute(
        """
        SELECT least(clock_timestamp() - make_interval(secs => %(margin)s), a.since) AS upto,
               a.since, a.pid, a.usename, a.unreadable,
               (SELECT count(*) FROM pg_catalog.pg_prepared_xacts WHERE database = current_database()) AS prepared
        FROM (SELECT 1) one LEFT JOIN LATERAL (
            SELECT min(least(xact_start, query_start)) AS since,
                   (array_agg(pid ORDER BY least(xact_start, query_start)))[1] AS pid,
                   (array_agg(usename ORDER BY least(xact_start, query_start)))[1] AS usename,
                   count(*) FILTER (WHERE state IS NULL OR state = 'disabled') AS unreadable
            FROM pg_catalog.pg_stat_activity
            WHERE datname = current_database() AND usesysid IS NOT NULL AND pid <> pg_catalog.pg_backend_pid()
              AND state IS DISTINCT FROM 'idle' AND usename <> ALL(%(readers)s)
              AND backend_type <> 'walsender' -- sends what others wrote, for as long as it lives
        ) a ON true
        """,
        {"margin": VISIBILITY_SECONDS + options.lookback_seconds, "readers": [READER]},
    ).fetchone()
    assert row is not None
    if row["prepared"] or row["unreadable"]:
        what = "a prepared transaction is open" if row["prepared"] else "a session's transaction cannot be read"
        return Watermark(safe, hold={"reason": what, "since": datetime.now(UTC).isoformat()})
    upto = _in_cursor_type(source, row["upto"], cursor, options)
    hold = None
    if row["since"] is not None and row["since"] <= row["upto"]:
        hold = {
            "reason": "an open transaction",
            "pid": row["pid"],
            "user": row["usename"],
            "since": row["since"].isoformat(),
        }
    return Watermark(_later(source, cursor, safe, upto), hold=hold)


READER = "vitrina_reader"


def _standby_watermark(source: Connection, cursor: Cursor, options: Options, safe: str | None) -> Watermark:
    """Commits are replayed in their order: who is not visible yet ends later than the last one replayed.

    Such a transaction began, at most, the declared lookback before that.
    """
    row = source.execute(
        "SELECT pg_catalog.pg_last_xact_replay_timestamp() - make_interval(secs => %s) AS upto",
        [VISIBILITY_SECONDS + options.lookback_seconds],
    ).fetchone()
    assert row is not None
    if row["upto"] is None:
        since = datetime.now(UTC).isoformat()
        return Watermark(safe, hold={"reason": "the standby has replayed no transaction yet", "since": since})
    return Watermark(_later(source, cursor, safe, _in_cursor_type(source, row["upto"], cursor, options)))


def _in_cursor_type(source: Connection, moment: datetime, cursor: Cursor, options: Options) -> str:
    if cursor.base_type == "timestamp with time zone":
        expression = SQL("{}::text").format(SQL("%s::timestamptz"))
    elif cursor.base_type == "date":
        # The day may not be over, in whatever zone it was written: it is read again as a whole.
        expression = SQL("((%s::timestamptz AT TIME ZONE {zone})::date - 1)::text").format(
            zone=Literal(options.cursor_timezone or "UTC")
        )
    else:
        expression = SQL("(%s::timestamptz AT TIME ZONE {zone})::text").format(
            zone=Literal(options.cursor_timezone or "UTC")
        )
    row = source.execute(SQL("SELECT {} AS value").format(expression), [moment]).fetchone()
    assert row is not None
    return str(row["value"])


def _later(source: Connection, cursor: Cursor, safe: str | None, upto: str) -> str:
    """The clock may have stepped back below what was safe: then it is read again from there."""
    if safe is None:
        return upto
    row = source.execute(
        SQL("SELECT least({0}, {1}) = {1} AS stepped_back, {0} <= clock_timestamp()::{2} AS past").format(
            cursor.literal(safe), cursor.literal(upto), SQL(cursor.key_type)
        )
    ).fetchone()
    assert row is not None
    if row["stepped_back"] and row["past"]:
        return safe
    return upto


def _sequence_watermark(source: Connection, safe: str | None, held: str | None, newest: str | None) -> Watermark:
    """Ids are drawn before they commit: an id counts as safe once every transaction open back then is gone."""
    open_now = _open_transactions(source)
    if held is not None:
        value, _, waiting = held.partition("|")
        still_open = open_now.keys() & set(filter(None, waiting.split(",")))
        if still_open:
            return _waiting_for(open_now, still_open, safe, value)
        safe = value
    if newest is None or not open_now:
        return Watermark(newest if newest is not None else safe)
    return _waiting_for(open_now, open_now, safe, newest)


def _waiting_for(open_now: dict[str, Holder], ids: Collection[str], safe: str | None, value: str) -> Watermark:
    """`value` is safe when these transactions are gone; the longest of them is shown."""
    oldest = min((open_now[name] for name in ids), key=lambda holder: holder["since"])
    hold = {"reason": "open transactions", **oldest, "transactions": sorted(ids)}
    return Watermark(safe, held_upto=f"{value}|{','.join(sorted(ids))}", hold=hold)


def _open_transactions(source: Connection) -> dict[str, Holder]:
    """By their id: who has them, and since when."""
    rows = source.execute(
        """
        SELECT l.virtualtransaction AS id, a.pid, a.usename AS user, coalesce(a.xact_start, clock_timestamp()) AS since
        FROM pg_catalog.pg_locks l
        LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
        WHERE l.locktype = 'virtualxid' AND l.pid <> pg_catalog.pg_backend_pid()
          AND a.datname = current_database() AND a.usename <> ALL(%s)
        UNION ALL
        SELECT 'prepared:' || gid, NULL, owner, prepared
        FROM pg_catalog.pg_prepared_xacts WHERE database = current_database()
        """,
        [[READER]],
    ).fetchall()
    return {row.pop("id"): row | {"since": row["since"].isoformat()} for row in rows}
