"""Take pipelines away from runners that fell silent, and end runs that no runner would end."""

from typing import Any, LiteralString
from uuid import UUID

import psycopg
import structlog
from psycopg import sql

from vitrina.sentences import say
from vitrina.status import RunStatus, Status
from vitrina.store import database, leases, migrate, notifications
from vitrina.store.database import Connection
from vitrina.store.leases import Claim


def recover_expired(connection: Connection, *, max_attempts: int) -> list[dict[str, Any]]:
    """Take pipelines away from runners that fell silent. Any runner may do this at any time."""
    if not connection.execute(_EXPIRED).rowcount:
        return []  # every runner checks this every second, so do not open a transaction for nothing
    with connection.transaction():
        lost = connection.execute(f"{_EXPIRED} FOR UPDATE SKIP LOCKED").fetchall()
        if not lost:
            return []
        reason = say("run.runner_silent")
        return [row for found in lost for row in _take_one_away(connection, found["id"], max_attempts, reason)]


_EXPIRED: LiteralString = """
SELECT id FROM etl.etl_pipelines
WHERE status IN ('RUNNING', 'PAUSE_REQUESTED')
  AND (status = 'RUNNING' OR claim_id IS NOT NULL)
  AND (lease_until IS NULL
       OR lease_until < clock_timestamp()
       -- The clock stepped back: a lease that far ahead would never end.
       OR lease_until > clock_timestamp() + 2 * make_interval(
            secs => CASE WHEN lease_seconds BETWEEN 0 AND 86400 THEN lease_seconds ELSE 60 END))
"""


def _take_one_away(connection: Connection, pipeline_id: UUID, max_attempts: int, reason: str) -> list[dict[str, Any]]:
    """Take one claim away in a separate transaction: a row that fails must not leave the others with a dead runner."""
    try:
        with connection.transaction():
            return _take_away(connection, [pipeline_id], max_attempts, reason)
    except psycopg.Error as exc:
        if database.is_passing(exc):
            raise
        migrate.require_current(connection)
        _note_unrecoverable(connection, pipeline_id, exc)
        return []


def _note_unrecoverable(connection: Connection, pipeline_id: UUID, problem: psycopg.Error) -> None:
    reason = say("attention.recovery", message=database.sql_message(problem))
    log = structlog.get_logger().bind(pipeline_id=str(pipeline_id))
    log.error("pipeline.unrecoverable", error=reason)
    try:
        with connection.transaction():
            connection.execute(
                """
                UPDATE etl.etl_pipelines
                SET needs_attention = needs_attention || jsonb_build_object('recovery', left(%(reason)s, 1000))
                WHERE id = %(id)s AND needs_attention ->> 'recovery' IS DISTINCT FROM left(%(reason)s, 1000)
                """,
                {"id": pipeline_id, "reason": reason},
            )
    except psycopg.Error as exc:
        if database.is_passing(exc):
            raise
        log.error("pipeline.not_set_aside", error=database.sql_message(exc))


def surrender(connection: Connection, claim: Claim, *, max_attempts: int, reason: str) -> Status | None:
    """Give up a claim whose run lost a connection: as when the runner is lost, but without waiting for the lease.

    Return None if the claim was no longer held. Then the last COMMIT was recorded, or another runner took over.
    """
    with connection.transaction():
        ours = connection.execute(
            "SELECT id FROM etl.etl_pipelines WHERE id = %s AND claim_id = %s AND epoch = %s FOR UPDATE",
            [claim.pipeline_id, claim.claim_id, claim.epoch],
        ).fetchone()
        if ours is None:
            return None
        [row] = _take_away(connection, [claim.pipeline_id], max_attempts, reason)
        return Status(row["status"])


def _take_away(connection: Connection, ids: list[UUID], max_attempts: int, reason: str) -> list[dict[str, Any]]:
    """Take claims away whose rows are locked. Losses are counted from one committed batch to the next."""
    rows = connection.execute(
        sql.SQL(
            """
            WITH lost AS (
                SELECT id, claim_id, runner_id, epoch, claim_returns AS returns,
                       requested_range IS NOT NULL AND mode = 'incremental' AS is_backfill,
                       status = 'PAUSE_REQUESTED' OR NOT enabled AS pauses,
                       -- A row may have been edited by hand: one bad value must not stop the recovery of the others.
                       attempts >= CASE WHEN jsonb_typeof(options -> 'max_attempts') = 'number'
                                        THEN (options ->> 'max_attempts')::numeric ELSE %(max)s END AS gives_up
                FROM etl.etl_pipelines WHERE id = ANY(%(ids)s)
            ), next AS (
                SELECT *, returns IS NULL AND gives_up AND NOT pauses AS fails FROM lost
            )
            UPDATE etl.etl_pipelines p
            SET status = CASE WHEN next.returns = 'PAUSED' THEN 'PAUSED'
                              -- What was repaired half is not continued by a run that nobody asked for.
                              WHEN next.returns = 'IDLE' AND p.status = 'PAUSE_REQUESTED' THEN 'PAUSED'
                              WHEN next.returns = 'IDLE' AND p.enabled AND (p.run_requested_at IS NOT NULL OR {follows})
                                  THEN 'RUN_REQUESTED'
                              WHEN next.returns = 'IDLE' THEN 'IDLE'
                              WHEN next.pauses THEN 'PAUSED'
                              WHEN next.fails AND next.is_backfill THEN {after_backfill}
                              WHEN next.fails THEN 'FAILED'
                              ELSE 'RUN_REQUESTED' END,
                last_error = CASE WHEN next.fails
                                  THEN left(format('lost %%s runners in a row without a committed batch, the last time'
                                                   ' because %%s; look at the runners'' logs, then run it again',
                                                   p.attempts, %(reason)s::text), %(length)s)
                                  ELSE p.last_error END,
                attempts = CASE WHEN next.fails OR next.returns IS NOT NULL THEN 0 ELSE p.attempts END,
                requested_trigger = CASE WHEN next.returns IS NULL THEN 'recovery' ELSE p.requested_trigger END,
                requested_range = CASE WHEN next.fails THEN NULL ELSE p.requested_range END,
                range_requested_at = CASE WHEN next.fails THEN NULL ELSE p.range_requested_at END,
                accepted_checks = CASE WHEN next.fails THEN NULL ELSE p.accepted_checks END,
                needs_attention = p.needs_attention - 'recovery', hold = NULL,
                claim_id = NULL, runner_id = NULL, lease_until = NULL, holds_target = NULL, claim_returns = NULL
            FROM next
            WHERE p.id = next.id
            RETURNING p.id, p.name, p.status, p.attempts, p.last_error, next.epoch, next.claim_id, next.runner_id,
                      next.fails
            """
        ).format(after_backfill=leases.AFTER_FAILED_BACKFILL, follows=leases.FOLLOWS_AGAIN),
        {"ids": ids, "max": max_attempts, "reason": reason, "length": leases.MAX_ERROR_LENGTH},
    ).fetchall()
    for row in rows:
        _close_lost_runs(connection, row, reason)
    return rows


def _close_lost_runs(connection: Connection, taken: dict[str, Any], reason: str) -> None:
    failed = taken["fails"]
    closed = connection.execute(
        """
        UPDATE etl.etl_runs
        SET status = %s, finished_at = clock_timestamp(), updated_at = clock_timestamp(),
            error_code = %s, error_message = %s
        WHERE pipeline_id = %s AND status = 'RUNNING'
        RETURNING id
        """,
        [
            RunStatus.PAUSED if taken["status"] == Status.PAUSED else RunStatus.FAILED,
            "too_many_losses" if failed else "lease_lost",
            taken["last_error"] if failed else leases.cut(reason),
            taken["id"],
        ],
    ).fetchall()
    if failed and taken["status"] != Status.FAILED:
        for run in closed:
            notifications.tell_failed(connection, taken["id"], run["id"], taken["last_error"])


def pause_unclaimed(connection: Connection) -> int:
    """Complete pauses of pipelines that no runner works on: no runner would perform them."""
    return connection.execute(
        """
        UPDATE etl.etl_pipelines SET status = 'PAUSED', lease_until = NULL, holds_target = NULL
        WHERE status = 'PAUSE_REQUESTED' AND claim_id IS NULL
        """
    ).rowcount


def close_abandoned_runs(connection: Connection) -> int:
    """Close runs and release targets whose pipeline's status was edited by hand; nothing else would."""
    released = connection.execute(
        """
        UPDATE etl.etl_pipelines SET claim_id = NULL, runner_id = NULL, lease_until = NULL, holds_target = NULL
        WHERE status NOT IN ('RUNNING', 'PAUSE_REQUESTED') AND holds_target IS NOT NULL
        """
    ).rowcount
    closed = connection.execute(
        """
        UPDATE etl.etl_runs r
        SET status = 'CANCELLED', finished_at = clock_timestamp(), updated_at = clock_timestamp(),
            error_code = 'abandoned', error_message = 'the pipeline''s status was changed under the run'
        WHERE r.status = 'RUNNING'
          AND NOT EXISTS (SELECT FROM etl.etl_pipelines p
                          WHERE p.id = r.pipeline_id AND p.claim_id IS NOT NULL AND p.epoch = r.epoch)
        """
    ).rowcount
    return released + closed
