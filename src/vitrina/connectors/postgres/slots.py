"""Manage the replication slot of a feed: create it, detect its loss, drop it.

A source keeps its log until the slot has confirmed it.
"""

import time
from typing import Any

import psycopg
from psycopg import sql

from vitrina.errors import ConfigError, TransientError
from vitrina.ports.live import FeedNames, SlotState
from vitrina.store import database
from vitrina.store.database import Connection

# Creating a slot waits for running transactions to end; after this time the attempt is repeated.
MAKE_SECONDS = 60
_FREE_SECONDS = 10.0


def ensure(session: Connection, names: FeedNames, timeline: int | None) -> SlotState:
    """Find the slot or create it. Recreate one that can no longer be used, and return the reason."""
    now_on = current_timeline(session)
    found = _find(session, names.slot)
    lost = _why_lost(found, names, timeline, now_on)
    if found is not None and lost is None:
        return SlotState(is_new=False, confirmed=found["confirmed"], timeline=now_on)
    if found is not None:
        drop(session, names)
    return SlotState(is_new=True, confirmed=_make(session, names), timeline=now_on, lost=lost)


def _why_lost(found: dict[str, Any] | None, names: FeedNames, timeline: int | None, now_on: int) -> str | None:
    if timeline is None:
        return None
    if found is None:
        return f"the replication slot {names.slot} was dropped"
    if timeline != now_on:
        return f"the source changed from timeline {timeline} to {now_on}"
    if found["wal_status"] == "lost":
        return f"the source gave up the replication slot {names.slot}: more than max_slot_wal_keep_size was waiting"
    return None


def _find(session: Connection, slot: str) -> dict[str, Any] | None:
    found = session.execute(
        """
        SELECT s.plugin, s.database = pg_catalog.current_database() AS is_here, s.wal_status,
               coalesce(s.confirmed_flush_lsn, '0/0') - '0/0'::pg_catalog.pg_lsn AS confirmed
        FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = %s
        """,
        [slot],
    ).fetchone()
    if found and not (found["plugin"] == "pgoutput" and found["is_here"]):
        raise ConfigError(
            f"the replication slot {slot} is of another database or plugin: drop it with"
            f" SELECT pg_drop_replication_slot('{slot}')"
        )
    return {**found, "confirmed": int(found["confirmed"])} if found else None


def _make(session: Connection, names: FeedNames) -> int:
    """Create the slot; the server waits until running transactions have ended."""
    try:
        with session.transaction():
            session.execute(f"SET LOCAL statement_timeout = {MAKE_SECONDS * 1000}")
            row = database.one(
                session.execute(
                    """
                    SELECT lsn - '0/0'::pg_catalog.pg_lsn AS lsn
                    FROM pg_catalog.pg_create_logical_replication_slot(%s, 'pgoutput')
                    """,
                    [names.slot],
                )
            )
    except psycopg.errors.QueryCanceled as exc:
        raise TransientError(
            f"the replication slot {names.slot} cannot be made while a transaction of the source stays open"
            f" ({oldest_transaction(session) or 'it has just ended'}): end it, or wait"
        ) from exc
    return int(row["lsn"])


def current_timeline(session: Connection) -> int:
    row = database.one(
        session.execute(
            """
            SELECT left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8) AS timeline
            """
        )
    )
    return int(row["timeline"], 16)


def oldest_transaction(session: Connection) -> str | None:
    """Describe the longest-running transaction, including prepared ones."""
    row = session.execute(
        """
        SELECT * FROM (
            SELECT 'pid ' || a.pid || ', ' || coalesce(a.usename, 'unknown') || ', since '
                   || pg_catalog.date_trunc('second', a.xact_start) AS who, a.xact_start AS since
            FROM pg_catalog.pg_stat_activity a
            WHERE a.backend_xid IS NOT NULL AND a.pid <> pg_catalog.pg_backend_pid()
            UNION ALL
            SELECT 'prepared ' || p.gid || ', ' || p.owner || ', since '
                   || pg_catalog.date_trunc('second', p.prepared), p.prepared
            FROM pg_catalog.pg_prepared_xacts p
        ) open ORDER BY since LIMIT 1
        """
    ).fetchone()
    return row["who"] if row else None


def end_users(session: Connection, names: FeedNames) -> None:
    """Terminate the walsenders of previous owners by their application name, and wait until the slot is free."""
    end = time.monotonic() + _FREE_SECONDS
    while True:
        session.execute(
            """
            SELECT pg_catalog.pg_terminate_backend(a.pid) FROM pg_catalog.pg_stat_activity a
            WHERE a.application_name = %s AND a.backend_type = 'walsender' AND a.usename = current_user
            """,
            [names.session],
        )
        row = session.execute(
            "SELECT active_pid FROM pg_catalog.pg_replication_slots WHERE slot_name = %s AND active", [names.slot]
        ).fetchone()
        if row is None:
            return
        if time.monotonic() > end:
            raise TransientError(
                f"the replication slot {names.slot} is used by the process {row['active_pid']} of the source, which is"
                f" none of ours or does not end: SELECT pg_terminate_backend({row['active_pid']})"
            )
        time.sleep(0.05)


def drop(session: Connection, names: FeedNames) -> bool:
    """Drop the slot even if it is in use; return False if there was none."""
    end_users(session, names)
    return bool(
        session.execute(
            """
            SELECT pg_catalog.pg_drop_replication_slot(slot_name) FROM pg_catalog.pg_replication_slots
            WHERE slot_name = %s
            """,
            [names.slot],
        ).rowcount
    )


def drop_publication(session: Connection, names: FeedNames) -> bool:
    found = session.execute(
        "SELECT 1 AS found FROM pg_catalog.pg_publication WHERE pubname = %s", [names.publication]
    ).fetchone()
    session.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(names.publication)))
    return found is not None
