"""Check the range of a backfill when it is requested, so that a typing error is reported before the run starts."""

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import sql

from vitrina.errors import Conflict, InvalidField
from vitrina.sentences import say
from vitrina.status import Status
from vitrina.store import runs
from vitrina.store.database import Connection
from vitrina.store.pipelines import Row

# Types whose values have the same text on every server. The run itself checks values of other types.
_KNOWN_TYPES = {
    *("timestamp with time zone", "timestamp without time zone", "date"),
    *("smallint", "integer", "bigint", "numeric", "double precision", "real", "uuid"),
}


def refuse(connection: Connection, row: Row, asked: Mapping[str, str]) -> None:
    """Raise unless the pipeline can backfill this range now."""
    if row["mode"] != "incremental":
        raise InvalidField("since", say("pipeline.no_cursor_to_backfill", name=row["name"]))
    _refuse_values(connection, row, asked)
    if row["status"] not in (Status.IDLE, Status.FAILED):
        raise Conflict(say("pipeline.no_backfill_now", name=row["name"], status=row["status"]))


def _refuse_values(connection: Connection, row: Row, asked: Mapping[str, str]) -> None:
    kind = runs.find_cursor_type(connection, row["id"], row["incremental_key"])
    if kind not in _KNOWN_TYPES:
        return
    for name, value in asked.items():
        if not _is_value(connection, value, kind):
            raise InvalidField(
                name,
                say("pipeline.no_value_of_cursor", field=name, value=value, column=row["incremental_key"], type=kind),
            )
    if {"since", "until"} <= asked.keys() and not _is_before(connection, asked["since"], asked["until"], kind):
        raise InvalidField("until", say("pipeline.empty_range", until=asked["until"], since=asked["since"]))


def _is_value(connection: Connection, value: str, kind: str) -> bool:
    try:
        with connection.transaction():
            connection.execute(sql.SQL("SELECT {}::{}").format(sql.Literal(value), sql.SQL(kind)))
    except psycopg.DataError:
        return False
    return True


def _is_before(connection: Connection, since: str, until: str, kind: str) -> bool:
    found: dict[str, Any] | None = connection.execute(
        sql.SQL("SELECT {}::{kind} < {}::{kind} AS before").format(
            sql.Literal(since), sql.Literal(until), kind=sql.SQL(kind)
        )
    ).fetchone()
    return bool(found and found["before"])
