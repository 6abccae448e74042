"""A runner's right to work on a pipeline: claim, heartbeat, give back, conclude, fail, recover."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from vitrina import status
from vitrina.errors import LeaseLost
from vitrina.status import RunStatus, Status
from vitrina.store import pipelines
from vitrina.store.database import Connection

MAX_ERROR_LENGTH = 4000


@dataclass(frozen=True)
class Claim:
    """One runner's hold on one pipeline, pinned to the version that it was claimed with."""

    pipeline_id: UUID
    name: str
    epoch: int
    claim_id: UUID
    run_id: UUID
    version: int
    row: dict[str, Any]

    @property
    def session_name(self) -> str:
        return f"vitrina:{self.pipeline_id}:{self.epoch}"


def claim_next(connection: Connection, runner_id: UUID, ttl_seconds: float) -> Claim | None:
    """Take the longest-waiting requested pipeline whose target nobody holds, and open its run."""
    passed_over: list[UUID] = []
    while True:
        try:
            with connection.transaction():
                row = _claim(connection, runner_id, ttl_seconds, passed_over)
                return _open_run(connection, row, runner_id) if row else None
        except psycopg.errors.UniqueViolation:
            # Another runner took a pipeline with the same target in the same instant: look past it.
            passed_over.append(_oldest_requested(connection, passed_over))


def _claim(
    connection: Connection, runner_id: UUID, ttl_seconds: float, passed_over: list[UUID]
) -> dict[str, Any] | None:
    return connection.execute(
        """
        WITH requested AS (
            SELECT p.id, coalesce(p.options ->> 'target_connection', '') || '|' || coalesce((
                       SELECT t.target_table FROM etl.etl_pipeline_tasks t
                       WHERE t.pipeline_id = p.id ORDER BY t.order_index DESC LIMIT 1), p.target_table) AS target
            FROM etl.etl_pipelines p
            WHERE p.status = 'RUN_REQUESTED' AND p.enabled AND p.id <> ALL(%(passed_over)s)
        ), chosen AS (
            SELECT p.id, r.target
            FROM etl.etl_pipelines p JOIN requested r USING (id)
            WHERE p.status = 'RUN_REQUESTED'
              AND NOT EXISTS (SELECT FROM etl.etl_pipelines h WHERE h.holds_target = r.target)
            ORDER BY p.run_requested_at NULLS FIRST, p.id
            LIMIT 1
            FOR UPDATE OF p SKIP LOCKED
        )
        UPDATE etl.etl_pipelines p
        SET status = 'RUNNING',
            -- Grows even when a failover loses the last commits: the clock is part of it.
            epoch = greatest(p.epoch + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint),
            claim_id = gen_random_uuid(),
            runner_id = %(runner)s,
            lease_until = clock_timestamp() + make_interval(secs => %(ttl)s),
            holds_target = chosen.target,
            attempts = p.attempts + 1,
            hold = NULL
        FROM chosen
        WHERE p.id = chosen.id
        RETURNING p.*
        """,
        {"runner": runner_id, "ttl": ttl_seconds, "passed_over": passed_over},
    ).fetchone()


def _open_run(connection: Connection, claimed: dict[str, Any], runner_id: UUID) -> Claim:
    row = pipelines.find(connection, claimed["id"])
    assert row is not None
    run = connection.execute(
        """
        INSERT INTO etl.etl_runs (pipeline_id, pipeline_version, trigger, status, runner_id, epoch, attempts)
        VALUES (%s, %s, %s, 'RUNNING', %s, %s, 1)
        RETURNING id
        """,
        [row["id"], row["version"], row["requested_trigger"] or "manual", runner_id, row["epoch"]],
    ).fetchone()
    assert run is not None
    return Claim(row["id"], row["name"], row["epoch"], row["claim_id"], run["id"], row["version"], row)


def _oldest_requested(connection: Connection, passed_over: list[UUID]) -> UUID:
    row = connection.execute(
        """
        SELECT id FROM etl.etl_pipelines
        WHERE status = 'RUN_REQUESTED' AND enabled AND id <> ALL(%s)
        ORDER BY run_requested_at NULLS FIRST, id LIMIT 1
        """,
        [passed_over],
    ).fetchone()
    # Gone meanwhile: passing over nobody lets the next look decide.
    return row["id"] if row else UUID(int=0)


def extend(connection: Connection, claim_ids: list[UUID], ttl_seconds: float) -> set[UUID]:
    """Heartbeat of all claims of a runner; the ones that are missing from the answer are lost."""
    rows = connection.execute(
        """
        UPDATE etl.etl_pipelines
        SET lease_until = clock_timestamp() + make_interval(secs => %s)
        WHERE claim_id = ANY(%s) AND status = ANY(%s)
        RETURNING claim_id
        """,
        [ttl_seconds, claim_ids, list(status.ACTIVE)],
    ).fetchall()
    return {row["claim_id"] for row in rows}


def touch(connection: Connection, claim: Claim, *, progressed: bool = False) -> Status:
    """The fence on the pipeline's row: our claim still stands, and this is what was asked for meanwhile."""
    row = connection.execute(
        """
        UPDATE etl.etl_pipelines SET attempts = CASE WHEN %s THEN 0 ELSE attempts END
        WHERE id = %s AND claim_id = %s AND epoch = %s
        RETURNING status
        """,
        [progressed, claim.pipeline_id, claim.claim_id, claim.epoch],
    ).fetchone()
    if row is None:
        raise LeaseLost(f"pipeline {claim.name}: another runner took over after epoch {claim.epoch}")
    return Status(row["status"])


def conclude_run(connection: Connection, claim: Claim, *, boundary: bool = False) -> Status:
    """End of data, or a batch boundary at which a pause was asked for: release the lease, move on."""
    with connection.transaction():
        row = connection.execute(
            """
            UPDATE etl.etl_pipelines p
            SET status = CASE WHEN p.status = 'PAUSE_REQUESTED' THEN 'PAUSED'
                              WHEN p.run_requested_at > r.started_at AND p.enabled THEN 'RUN_REQUESTED'
                              ELSE 'IDLE' END,
                requested_range = CASE WHEN p.run_requested_at > r.started_at THEN p.requested_range END,
                claim_id = NULL, runner_id = NULL, lease_until = NULL, holds_target = NULL,
                attempts = 0, last_error = NULL
            FROM etl.etl_runs r
            WHERE p.id = %s AND p.claim_id = %s AND p.epoch = %s AND r.id = %s
            RETURNING p.status
            """,
            [claim.pipeline_id, claim.claim_id, claim.epoch, claim.run_id],
        ).fetchone()
        if row is None:
            raise LeaseLost(f"pipeline {claim.name}: another runner took over before the run could be concluded")
        finish_run(connection, claim.run_id, RunStatus.PAUSED if boundary else RunStatus.SUCCESS)
        return Status(row["status"])


def fail_run(connection: Connection, claim: Claim, code: str, message: str) -> None:
    """An error that retries did not cure: FAILED until a person acts. A lost lease leaves everything alone."""
    text = _cut(message)
    with connection.transaction():
        changed = connection.execute(
            """
            UPDATE etl.etl_pipelines
            SET status = 'FAILED', last_error = %s,
                claim_id = NULL, runner_id = NULL, lease_until = NULL, holds_target = NULL
            WHERE id = %s AND claim_id = %s AND epoch = %s AND status = ANY(%s)
            """,
            [text, claim.pipeline_id, claim.claim_id, claim.epoch, list(status.sources_of("fail_run"))],
        ).rowcount
        if changed:
            finish_run(connection, claim.run_id, RunStatus.FAILED, code, text)


def give_back(connection: Connection, claim: Claim) -> None:
    """The runner is leaving: whoever comes next continues from the checkpoint, at once."""
    with connection.transaction():
        changed = connection.execute(
            """
            UPDATE etl.etl_pipelines
            SET status = CASE WHEN status = 'PAUSE_REQUESTED' OR NOT enabled THEN 'PAUSED' ELSE 'RUN_REQUESTED' END,
                requested_trigger = 'recovery', attempts = greatest(attempts - 1, 0),
                claim_id = NULL, runner_id = NULL, lease_until = NULL, holds_target = NULL
            WHERE id = %s AND claim_id = %s AND epoch = %s
            """,
            [claim.pipeline_id, claim.claim_id, claim.epoch],
        ).rowcount
        if changed:
            finish_run(connection, claim.run_id, RunStatus.CANCELLED, "runner_stopped", "the runner was stopped")


def recover_expired(connection: Connection, *, ttl_seconds: float, max_attempts: int) -> list[dict[str, Any]]:
    """Take pipelines away from runners that fell silent; also pauses that nobody is there to perform."""
    with connection.transaction():
        recovered = connection.execute(
            """
            WITH lost AS (
                SELECT id, claim_id, runner_id, epoch FROM etl.etl_pipelines
                WHERE (status = 'RUNNING' OR status = 'PAUSE_REQUESTED')
                  AND (lease_until IS NULL
                       OR lease_until < clock_timestamp()
                       -- The clock stepped back: a lease that far ahead would never end.
                       OR lease_until > clock_timestamp() + 2 * make_interval(secs => %(ttl)s))
                FOR UPDATE SKIP LOCKED
            )
            UPDATE etl.etl_pipelines p
            SET status = CASE WHEN p.status = 'PAUSE_REQUESTED' OR NOT p.enabled THEN 'PAUSED'
                              WHEN p.attempts >= coalesce((p.options ->> 'max_attempts')::int, %(max)s) THEN 'FAILED'
                              ELSE 'RUN_REQUESTED' END,
                last_error = CASE WHEN p.status = 'RUNNING' AND p.enabled
                                   AND p.attempts >= coalesce((p.options ->> 'max_attempts')::int, %(max)s)
                             THEN format('lost %%s runners in a row without a committed batch;'
                                         ' look at the runners'' logs, then run it again', p.attempts)
                             ELSE p.last_error END,
                requested_trigger = 'recovery',
                run_requested_at = coalesce(p.run_requested_at, clock_timestamp()),
                claim_id = NULL, runner_id = NULL, lease_until = NULL, holds_target = NULL
            FROM lost
            WHERE p.id = lost.id
            RETURNING p.id, p.name, p.status, p.attempts, p.last_error, lost.epoch, lost.claim_id, lost.runner_id
            """,
            {"ttl": ttl_seconds, "max": max_attempts},
        ).fetchall()
        for row in recovered:
            _close_lost_runs(connection, row)
        return recovered


def _close_lost_runs(connection: Connection, recovered: dict[str, Any]) -> None:
    connection.execute(
        """
        UPDATE etl.etl_runs
        SET status = %s, finished_at = clock_timestamp(), error_code = 'lease_lost', error_message = %s
        WHERE pipeline_id = %s AND status = 'RUNNING'
        """,
        [
            RunStatus.PAUSED if recovered["status"] == Status.PAUSED else RunStatus.FAILED,
            recovered["last_error"] or "the runner fell silent; another one continues from the checkpoint",
            recovered["id"],
        ],
    )


def finish_run(
    connection: Connection, run_id: UUID, outcome: RunStatus, code: str | None = None, message: str | None = None
) -> None:
    connection.execute(
        """
        UPDATE etl.etl_runs
        SET status = %s, finished_at = clock_timestamp(), updated_at = clock_timestamp(),
            error_code = %s, error_message = %s
        WHERE id = %s
        """,
        [outcome, code, _cut(message), run_id],
    )


def note_hold(connection: Connection, claim: Claim, hold: dict[str, Any] | None) -> None:
    """Who holds the checkpoint back (pid, user, since), for status and metrics."""
    connection.execute(
        "UPDATE etl.etl_pipelines SET hold = %s WHERE id = %s AND claim_id = %s",
        [Jsonb(hold) if hold else None, claim.pipeline_id, claim.claim_id],
    )


def _cut(message: str | None) -> str | None:
    if message is None or len(message) <= MAX_ERROR_LENGTH:
        return message
    return message[: MAX_ERROR_LENGTH - 1] + "…"
