"""Partition a mart by time spans: each partition is created when the first row of its span arrives."""

from typing import Any

import psycopg
from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from vitrina.connectors.postgres.catalog import Table
from vitrina.errors import BadKey, FatalError, TargetMismatch
from vitrina.mart_options import Partitions
from vitrina.sentences import say
from vitrina.store import database
from vitrina.store.database import Connection
from vitrina.targets import PostgresTarget

# Suffixes of partition names, after the table's name.
_NAMES = {"day": "YYYY_MM_DD", "month": "YYYY_MM", "year": "YYYY"}
# How a value of each type is read as a time in UTC, and how a bound is written.
_AS_TIME = {
    "date": ("{}::timestamp", ""),
    "timestamp without time zone": ("{}", ""),
    "timestamp with time zone": ("{} AT TIME ZONE 'UTC'", " 00:00:00+00"),
}
# The bounds of a partition as PostgreSQL shows them.
_BOUNDS = r"FROM \('?([^')]+)'?\) TO \('?([^')]+)'?\)"
# PostgreSQL truncates longer names, and two might become the same.
_LONGEST_NAME = 63


def refuse(target: PostgresTarget, column: str, kind: str | None, every: str) -> None:
    """Refuse a column without time spans, and a table whose partitions would not have distinct names."""
    if kind is None or _plain(kind) not in _AS_TIME:
        raise TargetMismatch(say("run.partition_type", column=column, type=kind or "missing", target=target))
    name = f"{target.table}_{_NAMES[every]}"
    if len(name.encode()) > _LONGEST_NAME:
        raise TargetMismatch(say("run.partition_name", name=name))


def make_missing(connection: Connection, table: Table, cut: Partitions, staged: Composable) -> int:
    """Create the missing partitions for staged rows before these are written; return how many.

    A partition is created separately and then attached, so that readers of the mart do not wait, as they would for
    CREATE .. PARTITION OF.
    """
    column = table.column(cut.range or "")
    if column is None or not is_cut_so(connection, table, cut):
        return 0
    missing = connection.execute(_missing_spans(table, cut, _plain(column.type), staged)).fetchall()
    for span in missing:
        _make(connection, table, cut, span)
    return len(missing)


def is_cut_so(connection: Connection, table: Table, cut: Partitions) -> bool:
    """Return whether the table is partitioned as the options request."""
    key = database.one(connection.execute("SELECT pg_catalog.pg_get_partkeydef(%s) AS key", [table.oid]))["key"]
    wanted = f"HASH ({cut.hash})" if cut.hash else f"RANGE ({cut.range})"
    return (key or "").replace('"', "") == wanted.replace('"', "")


def _missing_spans(table: Table, cut: Partitions, kind: str, staged: Composable) -> Composed:
    """Find the spans of staged rows that begin in no partition. A default partition accepts every row."""
    as_time, _ = _AS_TIME[kind]
    return SQL(
        """
        WITH part AS (
            SELECT pg_catalog.regexp_match(
                pg_catalog.pg_get_expr(c.relpartbound, c.oid), {bounds}) AS ends
            FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
            WHERE i.inhparent = {oid}
        ), span AS (
            SELECT DISTINCT pg_catalog.date_trunc({every}, {time}) AS since FROM {staged} AS s
        )
        SELECT since::text AS shown,
               pg_catalog.isfinite(since) AND extract(year FROM since) BETWEEN 1 AND 9998 AS has_name,
               pg_catalog.to_char(since, {name}) AS name, pg_catalog.to_char(since, 'YYYY-MM-DD') AS first,
               pg_catalog.to_char(since + {length}::interval, 'YYYY-MM-DD') AS next
        FROM span WHERE since IS NOT NULL AND NOT EXISTS (
            SELECT FROM part WHERE ends IS NULL OR (
                (ends[1] = 'MINVALUE' OR {least} <= since) AND (ends[2] = 'MAXVALUE' OR {greatest} > since)))
        ORDER BY since
        """
    ).format(
        oid=Literal(table.oid),
        bounds=Literal(_BOUNDS),
        every=Literal(cut.every),
        name=Literal(_NAMES[cut.every]),
        length=Literal(f"1 {cut.every}"),
        time=SQL(as_time).format(SQL("s.{}").format(Identifier(cut.range or ""))),
        staged=staged,
        least=SQL(as_time).format(SQL("CASE WHEN ends[1] <> 'MINVALUE' THEN ends[1]::{} END").format(SQL(kind))),
        greatest=SQL(as_time).format(SQL("CASE WHEN ends[2] <> 'MAXVALUE' THEN ends[2]::{} END").format(SQL(kind))),
    )


def _make(connection: Connection, table: Table, cut: Partitions, span: dict[str, Any]) -> None:
    target = PostgresTarget(table.schema, table.name)
    if not span["has_name"]:
        raise BadKey(say("run.partition_value", column=cut.range, value=span["shown"], target=target))
    name = f"{table.name}_{span['name']}"
    column = table.column(cut.range or "")
    _, midnight = _AS_TIME[_plain(column.type if column else "date")]
    partition = Identifier(table.schema, name)
    try:
        with connection.transaction():
            connection.execute(
                SQL(
                    "CREATE TABLE {} (LIKE {} INCLUDING ALL EXCLUDING INDEXES EXCLUDING IDENTITY EXCLUDING STATISTICS)"
                ).format(partition, table.identifier)
            )
            connection.execute(
                SQL("ALTER TABLE {} ATTACH PARTITION {} FOR VALUES FROM ({}) TO ({})").format(
                    table.identifier,
                    partition,
                    Literal(span["first"] + midnight),
                    Literal(span["next"] + midnight),
                )
            )
    except psycopg.Error as exc:
        if database.is_disconnect(exc) or database.is_transient(exc):
            raise
        message = database.sql_message(exc)
        raise FatalError(say("run.no_partition", partition=f"{table.schema}.{name}", message=message)) from exc


def _plain(kind: str) -> str:
    """Drop the precision: timestamp(3) without time zone has the same spans as any timestamp."""
    head, bracket, rest = kind.partition("(")
    return head + rest.partition(")")[2] if bracket else kind
