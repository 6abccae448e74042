"""Query `etl_runs`: the history of a pipeline and the progress of its current run."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, LiteralString
from uuid import UUID

from psycopg import sql
from psycopg.types.json import Jsonb

from vitrina.store import database, pipelines
from vitrina.store.database import Connection
from vitrina.store.prepared import Statement

Row = dict[str, Any]

# Runs with fewer rows spend most of their time on work that every run has.
LARGE_ROWS = 100_000


@dataclass
class Counters:
    """Hold what a run has done so far; written with every checkpoint."""

    rows_read: int = 0
    rows_written: int = 0
    rows_deleted: int = 0
    rows_rejected: int = 0
    batches: int = 0
    cursor_from: str | None = None
    cursor_to: str | None = None
    metrics: dict[str, Any] = field(default_factory=dict)


def find_rate(connection: Connection, pipeline_id: UUID) -> float | None:
    """Return the rows per second of the pipeline's last successful large run in one stream.

    Runs in ranges of the key say how fast several processes, or a cluster, were.
    """
    row = connection.execute(
        """
        SELECT (rows_read / greatest(extract(epoch FROM finished_at - started_at), 0.001))::float8 AS rate
        FROM etl.etl_runs
        WHERE pipeline_id = %s AND status = 'SUCCESS' AND rows_read >= %s
          AND metrics ->> 'paging' IS DISTINCT FROM 'key ranges'
        ORDER BY started_at DESC LIMIT 1
        """,
        [pipeline_id, LARGE_ROWS],
    ).fetchone()
    return row["rate"] if row else None


def list_measured(connection: Connection, pipeline_id: UUID, check: str, *, limit: int) -> list[tuple[float, str]]:
    """List what a check measured in the latest successful runs, with its result, newest first."""
    rows = connection.execute(
        """
        SELECT (c ->> 'value')::float8 AS value, c ->> 'result' AS result
        FROM (SELECT started_at, metrics FROM etl.etl_runs
              WHERE pipeline_id = %(pipeline)s AND status = 'SUCCESS' AND jsonb_typeof(metrics -> 'checks') = 'array'
              ORDER BY started_at DESC, id DESC LIMIT %(limit)s) r,
             jsonb_array_elements(r.metrics -> 'checks') AS c
        WHERE c ->> 'name' = %(check)s AND jsonb_typeof(c -> 'value') = 'number'
        ORDER BY r.started_at DESC
        """,
        {"pipeline": pipeline_id, "check": check, "limit": limit},
    ).fetchall()
    return [(row["value"], row["result"]) for row in rows]


def record_progress(connection: Connection, run_id: UUID, counters: Counters, *, attempts: int) -> int | None:
    """Record a run's counters. Return the batch size of its version, while that is the pipeline's current version."""
    row = _RECORD_PROGRESS.fetch_one(connection, {**progress_of(counters, attempts=attempts), "run": run_id})
    return row["batch_size"] if row else None


# The values of `PROGRESS`, by name.
Progress = dict[str, Any]

PROGRESS = sql.SQL(
    """
    rows_read = %(rows_read)s, rows_written = %(rows_written)s, rows_deleted = %(rows_deleted)s,
    rows_rejected = %(rows_rejected)s, batches = %(batches)s, cursor_from = %(cursor_from)s, cursor_to = %(cursor_to)s,
    metrics = %(metrics)s, attempts = %(attempts)s
    """
)


def progress_of(counters: Counters, *, attempts: int) -> Progress:
    return vars(counters) | {"metrics": Jsonb(counters.metrics), "attempts": attempts}


RECORD = sql.SQL(
    "UPDATE etl.etl_runs SET {}, updated_at = clock_timestamp() WHERE id = %(run)s AND status = 'RUNNING'"
).format(PROGRESS)
BATCH_SIZE = sql.SQL(
    """
    (SELECT p.batch_size FROM etl.etl_pipelines p
     WHERE p.id = pipeline_id AND p.version = pipeline_version) AS batch_size
    """
)
_RECORD_PROGRESS = Statement(sql.SQL("{} RETURNING {}").format(RECORD, BATCH_SIZE).as_bytes())


def move_to_version(connection: Connection, pipeline_id: UUID, version: int) -> None:
    """Move the current run to another version of its pipeline, from its next batch."""
    connection.execute(
        "UPDATE etl.etl_runs SET pipeline_version = %s WHERE pipeline_id = %s AND status = 'RUNNING'",
        [version, pipeline_id],
    )


def find(connection: Connection, run_id: UUID) -> Row | None:
    return _FIND.fetch_one(connection, [run_id])


def find_latest_answer(connection: Connection, pipeline_id: UUID) -> datetime | None:
    """Find the request that the newest run answers, among the runs that answer one."""
    row = connection.execute(
        """
        SELECT answers_request FROM etl.etl_runs WHERE pipeline_id = %s AND answers_request IS NOT NULL
        ORDER BY started_at DESC LIMIT 1
        """,
        [pipeline_id],
    ).fetchone()
    return row["answers_request"] if row else None


def find_current(connection: Connection, pipeline_id: UUID) -> Row | None:
    """Find the current run, or else the latest one."""
    return _FIND_CURRENT.fetch_one(connection, [pipeline_id])


def is_load(run: Row) -> bool:
    """Return whether a run certainly reads the source, by its row."""
    return isinstance(run["metrics"], dict) and not run["metrics"].keys() & _CORRECTIONS


_CORRECTIONS = frozenset({"repair", "replay"})


def find_latest_load(connection: Connection, pipeline_id: UUID) -> Row | None:
    """Find the current or latest run that reads the source. Repairs and replays only correct some rows."""
    return _FIND_LATEST_LOAD.fetch_one(connection, [pipeline_id])


def find_cursor_type(connection: Connection, pipeline_id: UUID, key: str | None) -> str | None:
    """Find the type of the cursor column, as recorded by the latest run that determined it."""
    row = connection.execute(
        """
        SELECT metrics -> 'cursor' ->> 'type' AS type FROM etl.etl_runs
        WHERE pipeline_id = %s AND metrics -> 'cursor' ->> 'key' = %s ORDER BY started_at DESC LIMIT 1
        """,
        [pipeline_id, key],
    ).fetchone()
    return row["type"] if row else None


def find_last_success(connection: Connection, pipeline_id: UUID) -> Row | None:
    """Find the latest run that brought the target up to date. Repairs and replays only correct some rows."""
    return _FIND_LAST_SUCCESS.fetch_one(connection, [pipeline_id])


def list_data_as_of(connection: Connection, ids: Sequence[UUID]) -> dict[UUID, datetime]:
    """List how fresh targets are: when the oldest run began that the latest success of a pipeline is built on."""
    found = connection.execute(
        """
        SELECT p.id, least(done.started_at, done.data_as_of) AS data_as_of
        FROM etl.etl_pipelines p
        CROSS JOIN LATERAL (SELECT r.started_at, r.data_as_of FROM etl.etl_runs r
                            WHERE r.pipeline_id = p.id AND r.status = 'SUCCESS' AND NOT r.metrics ?| '{repair,replay}'
                            ORDER BY r.started_at DESC, r.id DESC LIMIT 1) done
        WHERE p.id = ANY(%s)
        """,
        [list(ids)],
    )
    return {row["id"]: row["data_as_of"] for row in found}


def list_page(
    connection: Connection,
    *,
    pipeline_id: UUID | None = None,
    status: Sequence[str] = (),
    trigger: Sequence[str] = (),
    since: datetime | None = None,
    until: datetime | None = None,
    labels: Sequence[str] = (),
    after: tuple[datetime, UUID] | None = None,
    oldest_first: bool = False,
    limit: int,
) -> list[Row]:
    """List runs after the given one, newest first unless requested otherwise.

    Unused conditions are left out: with all of them, one plan for every filter could use no index.
    """
    each_status = bool(status) and pipeline_id is None
    wanted = {
        "r.pipeline_id = %(pipeline)s": pipeline_id is not None,
        "r.status = s.status": each_status,
        "r.status = ANY(%(status)s)": bool(status) and not each_status,
        "r.trigger = ANY(%(trigger)s)": bool(trigger),
        "r.started_at >= %(since)s": since is not None,
        "r.started_at < %(until)s": until is not None,
        pipelines.OF_LABELLED: bool(labels),
        f"(r.started_at, r.id) {'>' if oldest_first else '<'} (%(after_at)s, %(after_id)s)": after is not None,
    }
    conditions = tuple(text for text, asked in wanted.items() if asked)
    return _list(conditions, each_status, oldest_first).fetch_all(
        connection,
        {
            "pipeline": pipeline_id,
            "status": list(dict.fromkeys(status)),
            "trigger": list(trigger),
            "since": since,
            "until": until,
            **pipelines.label_values(labels),
            "after_at": after[0] if after else None,
            "after_id": after[1] if after else None,
            "limit": limit,
        },
    )


@cache
def _list(conditions: tuple[LiteralString, ...], each_status: bool, oldest_first: bool) -> Statement:
    """Build the statement of a list once for each kind of list."""
    direction = sql.SQL("ASC" if oldest_first else "DESC")
    page = sql.SQL(
        "SELECT r.* FROM etl.etl_runs r WHERE {wanted}"
        " ORDER BY r.started_at {direction}, r.id {direction} LIMIT %(limit)s"
    ).format(wanted=_all_of(conditions), direction=direction)
    text = sql.SQL(
        """
        SELECT {columns}
        FROM {page} r JOIN etl.etl_pipelines p ON p.id = r.pipeline_id
        ORDER BY r.started_at {direction}, r.id {direction}
        LIMIT %(limit)s
        """
    ).format(
        columns=_COLUMNS,
        page=(_OF_EACH_STATUS if each_status else sql.SQL("({page})")).format(page=page),
        direction=direction,
    )
    return Statement(text.as_bytes())


# Each status from its own ordered part of the index, so that rare ones are found as fast as frequent ones.
_OF_EACH_STATUS = sql.SQL("unnest(%(status)s::text[]) AS s (status) CROSS JOIN LATERAL ({page})")


def _all_of(conditions: Iterable[LiteralString]) -> sql.Composable:
    return sql.SQL(" AND ").join([sql.SQL(text) for text in conditions] or [sql.SQL("true")])


# `seconds` is by the database's clock, also for the current run.
_COLUMNS = sql.SQL(
    """
    r.*, p.name AS pipeline, p.labels,
    extract(epoch FROM coalesce(r.finished_at, clock_timestamp()) - r.started_at)::float8 AS seconds
    """
)
_SELECT = sql.SQL("SELECT {} FROM etl.etl_runs r JOIN etl.etl_pipelines p ON p.id = r.pipeline_id").format(_COLUMNS)


def _selecting(condition: LiteralString) -> Statement:
    return Statement(sql.SQL("{} WHERE {}").format(_SELECT, sql.SQL(condition)).as_bytes())


# Runs that read the source: repairs and replays only correct some rows.
_IS_LOAD: LiteralString = "NOT r.metrics ?| '{repair,replay}'"
_NEWEST: LiteralString = "ORDER BY r.started_at DESC, r.id DESC LIMIT 1"
_FIND = _selecting("r.id = %s")
_FIND_CURRENT = _selecting("r.pipeline_id = %s " + _NEWEST)
_FIND_LATEST_LOAD = _selecting("r.pipeline_id = %s AND " + _IS_LOAD + " " + _NEWEST)
_FIND_LAST_SUCCESS = _selecting("r.pipeline_id = %s AND r.status = 'SUCCESS' AND " + _IS_LOAD + " " + _NEWEST)


def summarise(connection: Connection, pipeline_id: UUID, *, last: int = 50) -> Row:
    """Compute success rate, durations in seconds and rows of the latest finished runs, without repairs and replays.

    `now` is the time of the server's clock.
    """
    found = _SUMMARISE.fetch_one(connection, [pipeline_id, last])
    assert found is not None, "an aggregate has a row"
    return found


_SUMMARISE = Statement(
    b"""
    SELECT count(*) AS runs,
           count(*) FILTER (WHERE status = 'SUCCESS') AS succeeded,
           count(*) FILTER (WHERE status = 'FAILED') AS failed,
           percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds) AS p50_seconds,
           percentile_cont(0.95) WITHIN GROUP (ORDER BY seconds) AS p95_seconds,
           coalesce(sum(rows_read), 0)::bigint AS rows_read,
           coalesce(sum(rows_written), 0)::bigint AS rows_written,
           max(finished_at) FILTER (WHERE status = 'SUCCESS') AS last_success_at,
           clock_timestamp() AS now
    FROM (
        SELECT *, extract(epoch FROM finished_at - started_at)::float8 AS seconds
        FROM etl.etl_runs
        WHERE pipeline_id = %s AND finished_at IS NOT NULL AND NOT metrics ?| '{repair,replay}'
        ORDER BY started_at DESC, id DESC
        LIMIT %s
    ) recent
    """
)


@dataclass(frozen=True)
class Pruned:
    """Hold the result of one walk over old runs, and the last run it visited, or None if there are no more."""

    runs: int
    upto: tuple[datetime, UUID] | None


def prune(
    connection: Connection,
    *,
    older_than_days: int,
    after: tuple[datetime, UUID] | None = None,
    slices: int = 20,
    of_rows: int = 1000,
) -> Pruned:
    """Delete old finished runs, except a pipeline's latest run and its latest success, from which lag is counted.

    Each slice is committed separately. Runs that are kept are visited again by every walk, so a walk is bounded, and
    the next one continues `after` its end.
    """
    forgotten = 0
    for _ in range(slices):
        found = _prune_slice(connection, older_than_days, after, of_rows)
        forgotten += found["forgotten"]
        if found["seen"] < of_rows:
            return Pruned(forgotten, None)
        after = (found["finished_at"], found["id"])
    return Pruned(forgotten, after)


def _prune_slice(
    connection: Connection, older_than_days: int, after: tuple[datetime, UUID] | None, of_rows: int
) -> Row:
    return database.one(
        connection.execute(
            sql.SQL(
                """
            WITH old AS MATERIALIZED (
                SELECT r.id, r.pipeline_id, r.started_at, r.finished_at,
                       r.status = 'SUCCESS' AND NOT r.metrics ?| '{{repair,replay}}' AS is_success
                FROM etl.etl_runs r
                WHERE {wanted}
                ORDER BY r.finished_at, r.id LIMIT %(limit)s
            ), forgotten AS (
                DELETE FROM etl.etl_runs r USING old
                WHERE r.id = old.id
                  AND EXISTS (SELECT FROM etl.etl_runs n
                              WHERE n.pipeline_id = old.pipeline_id AND n.started_at > old.started_at)
                  AND (NOT old.is_success
                       OR EXISTS (SELECT FROM etl.etl_runs n
                                  WHERE n.pipeline_id = old.pipeline_id AND n.status = 'SUCCESS'
                                    AND n.finished_at > old.finished_at AND NOT n.metrics ?| '{{repair,replay}}'))
                RETURNING r.id
            )
            SELECT (SELECT count(*) FROM old) AS seen, (SELECT count(*) FROM forgotten) AS forgotten,
                   last.finished_at, last.id
            FROM (SELECT) AS one LEFT JOIN (SELECT finished_at, id FROM old ORDER BY finished_at DESC, id DESC LIMIT 1)
                 AS last ON true
            """
            ).format(
                wanted=_all_of(
                    (
                        "r.finished_at < now() - make_interval(days => %(days)s)",
                        *(["(r.finished_at, r.id) > (%(after_at)s, %(after_id)s)"] if after is not None else []),
                    )
                )
            ),
            {
                "days": older_than_days,
                "limit": of_rows,
                "after_at": after[0] if after else None,
                "after_id": after[1] if after else None,
            },
        )
    )
