"""Store the changes of a feed in numbered tables that only grow and are dropped whole."""

from collections.abc import Collection, Iterator, Sequence
from itertools import takewhile
from typing import Any, LiteralString
from uuid import UUID

import orjson
import psycopg
from psycopg import sql

from vitrina.errors import TransientError
from vitrina.ports.live import Change, ChangeKind, Image
from vitrina.store import database
from vitrina.store.database import Connection

# Number of changes after which the next table is begun. A transaction is never divided.
SEGMENT_CHANGES = 100_000
# A larger transaction is returned as one change per table that concerns every key.
MOST_OF_TRANSACTION = 100_000

_KINDS: dict[ChangeKind, str] = {"insert": "i", "update": "u", "delete": "d", "truncate": "t"}
_KIND_NAMES: dict[str, ChangeKind] = {letter: kind for kind, letter in _KINDS.items()}


def table(number: int) -> sql.Identifier:
    return sql.Identifier("etl", f"feed_segment_{number}")


def begin(connection: Connection, feed_id: UUID, first_lsn: int) -> int:
    """Create the next table, in the transaction of the changes that need it."""
    row = database.one(connection.execute("SELECT nextval('etl.etl_feed_segment_number') AS number"))
    number = int(row["number"])
    connection.execute(
        sql.SQL(
            """
            CREATE TABLE {} (
                lsn bigint NOT NULL, number integer NOT NULL, xid bigint NOT NULL, relation text NOT NULL,
                kind "char" NOT NULL, old text, new text, PRIMARY KEY (lsn, number)
            ) WITH (autovacuum_enabled = false)
            """
        ).format(table(number))
    )
    connection.execute(
        "INSERT INTO etl.etl_feed_segments (number, feed_id, first_lsn, last_lsn) VALUES (%s, %s, %s, %s)",
        [number, feed_id, first_lsn, first_lsn],
    )
    return number


def append(connection: Connection, number: int, changes: Sequence[Change]) -> None:
    copied = sql.SQL("COPY {} (lsn, number, xid, relation, kind, old, new) FROM STDIN").format(table(number))
    with connection.cursor() as cursor, cursor.copy(copied) as copy:
        for change in changes:
            copy.write_row(
                (
                    change.lsn,
                    change.number,
                    change.xid,
                    change.relation,
                    _KINDS[change.kind],
                    _dumped(change.old),
                    _dumped(change.new),
                )
            )


def extend(connection: Connection, number: int, last_lsn: int, changes: int) -> None:
    connection.execute(
        "UPDATE etl.etl_feed_segments SET last_lsn = %s, changes = changes + %s WHERE number = %s",
        [last_lsn, changes, number],
    )


def _dumped(image: Image | None) -> str | None:
    return None if image is None else orjson.dumps(image).decode()


def read(
    connection: Connection, feed_id: UUID, after: int, limit: int, relations: Collection[str] | None = None
) -> list[Change]:
    """Read whole transactions after a position, in the order of their commits, until there are `limit` changes.

    Fewer than `limit` means that there are no more.
    """
    found: list[Change] = []
    for number in _list_after(connection, feed_id, after):
        while len(found) < limit:
            page = _read_page(connection, number, after, limit - len(found), relations)
            if not page:
                break
            found += page
            after = page[-1].lsn
    return found


def _list_after(connection: Connection, feed_id: UUID, after: int) -> list[int]:
    rows = connection.execute(
        "SELECT number FROM etl.etl_feed_segments WHERE feed_id = %s AND last_lsn > %s ORDER BY number",
        [feed_id, after],
    )
    return [row["number"] for row in rows]


def _read_page(
    connection: Connection, number: int, after: int, limit: int, relations: Collection[str] | None
) -> list[Change]:
    try:
        rows = _select(connection, number, "lsn > %(after)s", after, limit=limit + 1, relations=relations)
        if len(rows) <= limit:
            return [_change(row) for row in rows]
        # The last transaction may continue after the limit.
        last = rows[-1]["lsn"]
        whole = [_change(row) for row in rows if row["lsn"] < last]
        return whole + _read_transaction(connection, number, last, relations)
    except psycopg.errors.UndefinedTable as exc:
        raise TransientError("stored changes were dropped while they were read: the pipeline must reload") from exc


def _read_transaction(connection: Connection, number: int, lsn: int, relations: Collection[str] | None) -> list[Change]:
    rows = _select(connection, number, "lsn = %(after)s", lsn, limit=MOST_OF_TRANSACTION + 1, relations=relations)
    if len(rows) <= MOST_OF_TRANSACTION:
        return [_change(row) for row in rows]
    named = connection.execute(
        sql.SQL(
            """
            SELECT relation, min(number) AS number, min(xid) AS xid FROM {}
            WHERE lsn = %s AND (%s::text[] IS NULL OR relation = ANY(%s)) GROUP BY relation ORDER BY min(number)
            """
        ).format(table(number)),
        [lsn, *[None if relations is None else list(relations)] * 2],
    )
    return [Change(lsn, row["number"], row["xid"], row["relation"], "truncate") for row in named]


def _select(
    connection: Connection,
    number: int,
    which: LiteralString,
    after: int,
    *,
    limit: int,
    relations: Collection[str] | None,
) -> list[dict[str, Any]]:
    return connection.execute(
        sql.SQL(
            """
            SELECT lsn, number, xid, relation, kind::text AS kind, old, new FROM {}
            WHERE {} AND (%(relations)s::text[] IS NULL OR relation = ANY(%(relations)s))
            ORDER BY lsn, number LIMIT %(limit)s
            """
        ).format(table(number), sql.SQL(which)),
        {"after": after, "limit": limit, "relations": None if relations is None else list(relations)},
    ).fetchall()


def _change(row: dict[str, Any]) -> Change:
    kind = _KIND_NAMES[row["kind"]]
    return Change(
        row["lsn"], row["number"], row["xid"], row["relation"], kind, _loaded(row["old"]), _loaded(row["new"])
    )


def _loaded(text: str | None) -> Image | None:
    if text is None:
        return None
    image: Image = orjson.loads(text)
    return image


def count_after(connection: Connection, feed_id: UUID, after: int) -> int:
    """Count the stored changes after a position, by the totals of whole segments where possible."""
    rows = connection.execute(
        "SELECT number, first_lsn, changes FROM etl.etl_feed_segments WHERE feed_id = %s AND last_lsn > %s",
        [feed_id, after],
    ).fetchall()
    return sum(
        row["changes"] if row["first_lsn"] > after else _count_in(connection, row["number"], after) for row in rows
    )


def _count_in(connection: Connection, number: int, after: int) -> int:
    statement = sql.SQL("SELECT count(*) AS count FROM {} WHERE lsn > %s").format(table(number))
    try:
        return int(database.one(connection.execute(statement, [after]))["count"])
    except psycopg.errors.UndefinedTable:
        return 0  # it was just dropped, so no follower needs it


def drop(connection: Connection, numbers: Collection[int]) -> list[int]:
    """Drop segments, the oldest first. One that is being read is left for the next time, with those after it."""
    return list(takewhile(lambda number: _drop(connection, number), sorted(numbers)))


def _drop(connection: Connection, number: int) -> bool:
    try:
        with connection.transaction():
            connection.execute("SET LOCAL lock_timeout = 200")
            connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table(number)))
            connection.execute("DELETE FROM etl.etl_feed_segments WHERE number = %s", [number])
    except psycopg.errors.LockNotAvailable:
        return False
    return True


def list_all(connection: Connection, feed_id: UUID) -> Iterator[int]:
    rows = connection.execute("SELECT number FROM etl.etl_feed_segments WHERE feed_id = %s ORDER BY 1", [feed_id])
    return (row["number"] for row in rows)
