"""Query metrics of the metastore: a row for each of the oldest pipelines, one for all others, a few totals.

Times are seconds since 1970 by the database's clock.
"""

from collections.abc import Collection
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg import sql

from vitrina.store import database
from vitrina.store.database import Connection

Row = dict[str, Any]
# Position of one pipeline among all, oldest first.
Place = tuple[datetime, UUID]


def list_oldest(connection: Connection, *, limit: int | None = None, only_limited: bool = False) -> list[Row]:
    """List pipelines, oldest first, so that a new one does not displace an old one if only some can be shown.

    With `only_limited`, list only the enabled ones that limit the age of their mart.
    """
    return connection.execute(
        sql.SQL(
            """
            SELECT p.id, p.created_at, p.name, p.status, p.enabled, p.mode, p.options,
                   extract(epoch FROM clock_timestamp())::float8 AS now,
                   extract(epoch FROM p.status_since)::float8 AS status_since,
                   extract(epoch FROM p.failing_since)::float8 AS failing_since,
                   s.safe_upto, s.identity -> 'live' ->> 'as_of' AS live_as_of, p.hold,
                   {success}, {at_work}, failed.error_code, letters.open AS dead_letters, {drift}
            FROM etl.etl_pipelines p
            LEFT JOIN etl.etl_state s ON s.pipeline_id = p.id
            {of_success} {of_work} {of_failure} {of_check}
            CROSS JOIN LATERAL (SELECT count(*) AS open FROM etl.etl_dead_letters d
                                WHERE d.pipeline_id = p.id AND d.resolved_at IS NULL) letters
            WHERE {wanted}
            ORDER BY p.created_at, p.id
            LIMIT %(limit)s
            """
        ).format(
            wanted=sql.SQL("p.enabled AND p.options ? 'max_lag_seconds'" if only_limited else "true"),
            success=_SUCCESS,
            at_work=_AT_WORK,
            drift=_DRIFT,
            of_success=_OF_SUCCESS,
            of_work=_OF_WORK,
            of_failure=_OF_FAILURE,
            of_check=_OF_CHECK,
        ),
        {"limit": limit},
    ).fetchall()


# A mart is as fresh as the oldest data it is built on.
_SUCCESS = sql.SQL(
    """
    extract(epoch FROM least(done.started_at, done.data_as_of))::float8 AS success_started,
    extract(epoch FROM done.finished_at)::float8 AS success_finished
    """
)
# Repairs and replays correct some rows, which does not make the mart fresher.
_OF_SUCCESS = sql.SQL(
    """
    LEFT JOIN LATERAL (SELECT r.started_at, r.finished_at, r.data_as_of FROM etl.etl_runs r
                       WHERE r.pipeline_id = p.id AND r.status = 'SUCCESS' AND NOT r.metrics ?| '{repair,replay}'
                       ORDER BY r.finished_at DESC LIMIT 1) done ON true
    """
)
_AT_WORK = sql.SQL("extract(epoch FROM work.updated_at)::float8 AS progressed")
_OF_WORK = sql.SQL(
    """
    LEFT JOIN LATERAL (SELECT r.updated_at FROM etl.etl_runs r
                       WHERE r.pipeline_id = p.id AND r.status = 'RUNNING'
                         AND p.status IN ('RUNNING', 'PAUSE_REQUESTED')
                       ORDER BY r.started_at DESC LIMIT 1) work ON true
    """
)
_OF_FAILURE = sql.SQL(
    """
    LEFT JOIN LATERAL (SELECT r.error_code FROM etl.etl_runs r
                       WHERE r.pipeline_id = p.id AND p.status = 'FAILED'
                       ORDER BY r.started_at DESC, r.id DESC LIMIT 1) failed ON true
    """
)
_DRIFT = sql.SQL(
    """
    CASE WHEN jsonb_typeof(checked.result -> 'remaining') = 'number' THEN (checked.result ->> 'remaining')::float8
         WHEN jsonb_typeof(checked.result -> 'differences') = 'number'
         THEN (checked.result ->> 'differences')::float8 END AS drift_rows
    """
)
_OF_CHECK = sql.SQL(
    """
    LEFT JOIN LATERAL (SELECT q.result FROM etl.etl_requests q
                       WHERE q.pipeline_id = p.id AND q.kind = 'reconcile' AND q.status = 'DONE'
                       ORDER BY q.created_at DESC LIMIT 1) checked ON true
    """
)


def sum_up_rest(connection: Connection, after: Place) -> Row:
    """Compute the oldest value or the sum of each figure over the pipelines created after `after`.

    `success_started` leaves out the pipelines of `list_oldest_cursors`.
    """
    return database.one(
        connection.execute(
            sql.SQL(
                """
            WITH RECURSIVE rest AS (
                SELECT extract(epoch FROM p.status_since)::float8 AS status_since,
                       extract(epoch FROM p.failing_since)::float8 AS failing_since,
                       CASE WHEN p.enabled AND jsonb_typeof(p.options -> 'max_lag_seconds') = 'number'
                            THEN (p.options ->> 'max_lag_seconds')::numeric END AS lag_limit,
                       p.mode = 'incremental' AND {is_time} IS TRUE AS has_cursor, {success}
                FROM etl.etl_pipelines p
                LEFT JOIN etl.etl_state s ON s.pipeline_id = p.id {of_success}
                WHERE {is_behind}
            ), asked (id) AS (
                -- From one pipeline to the next in the index: most have never been compared.
                (SELECT q.pipeline_id FROM etl.etl_requests q WHERE q.pipeline_id IS NOT NULL ORDER BY 1 LIMIT 1)
                UNION ALL
                SELECT (SELECT q.pipeline_id FROM etl.etl_requests q WHERE q.pipeline_id > asked.id ORDER BY 1 LIMIT 1)
                FROM asked WHERE asked.id IS NOT NULL
            )
            SELECT min(status_since) AS status_since, min(failing_since) AS failing_since,
                   min(success_finished) AS success_finished,
                   min(success_started) FILTER (WHERE NOT has_cursor) AS success_started,
                   -- A row may have been edited by hand, to a number that is too large for a figure.
                   (min(lag_limit) FILTER (WHERE abs(lag_limit) < 1e300))::float8 AS lag_limit,
                   (SELECT min(progressed) FROM (
                        SELECT {at_work} FROM etl.etl_pipelines p {of_work}
                        WHERE p.status IN ('RUNNING', 'PAUSE_REQUESTED') AND {is_behind}) working) AS progressed,
                   (SELECT sum(drift_rows) FROM (
                        SELECT {drift} FROM asked JOIN etl.etl_pipelines p ON p.id = asked.id {of_check}
                        WHERE {is_behind}) compared) AS drift_rows,
                   (SELECT count(*) FROM etl.etl_dead_letters d JOIN etl.etl_pipelines p ON p.id = d.pipeline_id
                    WHERE d.resolved_at IS NULL AND {is_behind}) AS dead_letters
            FROM rest
            """
            ).format(
                is_behind=_IS_BEHIND,
                is_time=_IS_TIME,
                success=_SUCCESS,
                at_work=_AT_WORK,
                drift=_DRIFT,
                of_success=_OF_SUCCESS,
                of_work=_OF_WORK,
                of_check=_OF_CHECK,
            ),
            {"created_at": after[0], "id": after[1]},
        )
    )


_IS_BEHIND = sql.SQL("(p.created_at, p.id) > (%(created_at)s, %(id)s)")


def list_oldest_cursors(connection: Connection, after: Place) -> list[Row]:
    """List the oldest safe cursors for each text form of a time, because only texts of one form sort by time.

    List a few of each, because one that was edited by hand may not be a time.
    """
    return connection.execute(
        sql.SQL(
            """
            SELECT jsonb_build_object('cursor_timezone', zone) AS options, unnest(cursors[1:5]) AS safe_upto
            FROM (SELECT p.options -> 'cursor_timezone' AS zone,
                         array_agg(DISTINCT s.safe_upto COLLATE "C" ORDER BY s.safe_upto COLLATE "C") AS cursors
                  FROM etl.etl_pipelines p JOIN etl.etl_state s ON s.pipeline_id = p.id
                  WHERE {is_behind} AND p.mode = 'incremental' AND {is_time}
                  GROUP BY p.options -> 'cursor_timezone', substr(s.safe_upto, 11, 1), {offset}) forms
            """
        ).format(is_behind=_IS_BEHIND, is_time=_IS_TIME, offset=_OFFSET),
        {"created_at": after[0], "id": after[1]},
    ).fetchall()


# Compared as text, not cast: a value edited by hand must not break the others.
_IS_TIME = sql.SQL(
    """
    (s.safe_upto LIKE '____-__-__%%' AND translate(left(s.safe_upto, 10), '0123456789', '') = '--'
     AND substr(s.safe_upto, 11, 1) IN ('', ' ', 'T')
     AND translate(substr(s.safe_upto, 12), '0123456789:.+-Z', '') = '')
    """
)
# What follows the digits of the time: nothing, `Z` or the offset to UTC.
_OFFSET = sql.SQL("ltrim(substr(s.safe_upto, 12), '0123456789:.')")


def list_held(connection: Connection, after: Place) -> list[Row]:
    """List what is needed to compute since when each held pipeline has been held."""
    return connection.execute(
        sql.SQL(
            """
            SELECT extract(epoch FROM clock_timestamp())::float8 AS now, p.hold, {success}
            FROM etl.etl_pipelines p {of_success}
            WHERE p.hold IS NOT NULL AND {is_behind}
            """
        ).format(is_behind=_IS_BEHIND, success=_SUCCESS, of_success=_OF_SUCCESS),
        {"created_at": after[0], "id": after[1]},
    ).fetchall()


def count_failures(connection: Connection, after: Place) -> dict[str | None, int]:
    """Count the pipelines that are FAILED, by error code."""
    rows = connection.execute(
        sql.SQL(
            """
            SELECT failed.error_code, count(*) AS failed
            FROM etl.etl_pipelines p {of_failure}
            WHERE p.status = 'FAILED' AND {is_behind}
            GROUP BY 1
            """
        ).format(is_behind=_IS_BEHIND, of_failure=_OF_FAILURE),
        {"created_at": after[0], "id": after[1]},
    )
    return {row["error_code"]: row["failed"] for row in rows}


def count_statuses(connection: Connection) -> dict[str, int]:
    rows = connection.execute("SELECT status, count(*) AS pipelines FROM etl.etl_pipelines GROUP BY status")
    return {row["status"]: row["pipelines"] for row in rows}


def find_existing(connection: Connection, names: Collection[str]) -> set[str]:
    """Return those of the names that belong to pipelines."""
    rows = connection.execute("SELECT name FROM etl.etl_pipelines WHERE name = ANY(%s)", [list(names)])
    return {row["name"] for row in rows}


def totals(connection: Connection, *, stale_after_seconds: float) -> Row:
    return database.one(
        connection.execute(
            """
        SELECT (SELECT count(*) FROM etl.etl_runners
                WHERE heartbeat_at > clock_timestamp() - make_interval(secs => %s)) AS runners_alive,
               queue.depth AS queue_depth,
               coalesce(extract(epoch FROM clock_timestamp() - queue.since), 0)::float8 AS queue_oldest,
               (SELECT count(*) FROM etl.etl_notifications WHERE done_at IS NULL) AS notifications_waiting
        FROM (SELECT count(*) AS depth, min(status_since) AS since
              FROM etl.etl_pipelines WHERE status = 'RUN_REQUESTED' AND enabled) queue
        """,
            [stale_after_seconds],
        )
    )
