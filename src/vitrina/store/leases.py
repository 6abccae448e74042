"""Manage a runner's right to work on a pipeline: claim, heartbeat, conclude, fail, release, cancel."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
import structlog
from psycopg import sql
from psycopg.types.json import Jsonb

from vitrina import status
from vitrina.errors import Conflict, LeaseLost, NotFound, TargetTaken
from vitrina.sentences import say
from vitrina.status import RunStatus, Status, Trigger
from vitrina.store import (
    coverage,
    database,
    migrate,
    notifications,
    pipelines,
    requests,
    run_after,
    runs,
    session_limits,
)
from vitrina.store.database import Connection
from vitrina.store.prepared import Statement
from vitrina.store.seizing import HELD_TARGET, seizing

MAX_ERROR_LENGTH = 4000


@dataclass(frozen=True)
class Claim:
    """Represent one runner's claim on one pipeline, pinned to the version that was claimed."""

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

    @property
    def is_backfill(self) -> bool:
        """Return whether the run reads a range again. A backfill does not answer a request for a run."""
        return self.row.get("requested_range") is not None and self.row.get("mode") == "incremental"

    @property
    def accepted_checks(self) -> frozenset[str]:
        """Return the checks that may fail in this run. The row may have been edited by hand."""
        found = self.row.get("accepted_checks")
        return frozenset(name for name in found if isinstance(name, str)) if isinstance(found, list) else frozenset()

    @property
    def is_live(self) -> bool:
        """Return whether the run follows its source.

        Then it waits for the end of an outage, however long that takes.
        """
        return self.row.get("mode") == "live" and not self.is_repair

    @property
    def is_repair(self) -> bool:
        """Return whether the run only corrects some rows of the target, and so leaves all requests to other runs."""
        return self.row.get("claim_returns") is not None


@dataclass(frozen=True)
class Waiting:
    """Hold what waits for a runner, even if this runner could not claim it."""

    runs: int
    # Requests of the API, such as previews, including those that a runner performs now.
    requests: bool


def look(connection: Connection, *, count_to: int) -> Waiting:
    """Return what waits for a runner. Searching for a claim costs many times as much.

    Raise `OtherVersion` if the metastore is of another version: asked together, this costs no statement.
    """
    try:
        row = database.one(connection.execute(_LOOK, [count_to]))
    except psycopg.errors.ProgrammingError:
        # A table may have been changed or removed.
        migrate.require_current(connection)
        raise
    migrate.require(row["version"])
    return Waiting(row["runs"], row["requests"])


_LOOK = b"""
    SELECT (SELECT version_num FROM etl.alembic_version) AS version,
           (SELECT count(*) FROM (SELECT FROM etl.etl_pipelines p WHERE p.status = 'RUN_REQUESTED' AND p.enabled
                                  LIMIT %s) waiting) AS runs,
           EXISTS (SELECT FROM etl.etl_requests r WHERE r.status IN ('QUEUED', 'WORKING')) AS requests
"""


def claim_next(
    connection: Connection,
    runner_id: UUID,
    ttl_seconds: float,
    *,
    only: UUID | None = None,
    per_source: int | None = None,
    max_connections: Mapping[str, int] | None = None,
    covers: Sequence[str] | None = None,
    follows: bool | None = None,
) -> Claim | None:
    """Claim the longest-waiting requested pipeline whose target is free, and open its run.

    `only` restricts the search to one pipeline. `per_source` is how many runs may read from one connection; pipelines
    beyond that wait. With `max_connections`, so do those that need more sessions on a connection than the current runs
    leave free. `covers` is what this runner can do (`coverage.covered`); pipelines that need more are left to other
    runners. `follows` selects live pipelines, or all but them; each kind has separate slots in a runner.
    """
    skipped: list[UUID] = []
    while True:
        found: dict[str, Any] | None = None
        try:
            with connection.transaction():
                if per_source is not None or max_connections:
                    # Without the lock, two runners that count at the same time would both find room for the last one.
                    connection.execute("SELECT pg_catalog.pg_advisory_xact_lock(%s)", [_COUNTING])
                found = _lock_next(
                    connection, only, per_source, max_connections or {}, skipped, covers=covers, follows=follows
                )
                return _take(connection, found, runner_id, ttl_seconds) if found else None
        except psycopg.errors.UniqueViolation:
            # Another runner claimed the same target at the same time and has committed; the next attempt sees that.
            continue
        except Exception as exc:
            # An invalid row must not keep the rows after it from being claimed.
            if found is None or (isinstance(exc, psycopg.Error) and database.is_passing(exc)):
                raise
            # A migration may refuse claims to runners of the previous version, which is not the row's fault.
            migrate.require_current(connection)
            # The others do not wait for this row, even if it cannot be set aside.
            skipped.append(found["id"])
            _set_aside(connection, found["id"], exc)


def _set_aside(connection: Connection, pipeline_id: UUID, problem: Exception) -> None:
    said = database.sql_message(problem) if isinstance(problem, psycopg.Error) else f"{problem}"
    reason = cut(say("attention.claim", kind=type(problem).__name__, message=said))
    log = structlog.get_logger().bind(pipeline_id=str(pipeline_id))
    log.error("pipeline.set_aside", error=reason)
    try:
        connection.execute(
            """
            UPDATE etl.etl_pipelines
            SET status = 'FAILED', last_error = %(reason)s, run_requested_at = NULL, attempts = 0,
                requested_range = NULL, range_requested_at = NULL, accepted_checks = NULL,
                needs_attention = needs_attention || jsonb_build_object('claim', %(reason)s::text)
            WHERE id = %(id)s AND status = ANY(%(from)s)
            """,
            {"id": pipeline_id, "reason": reason, "from": list(status.sources_of("set_aside"))},
        )
    except psycopg.Error as exc:
        if database.is_passing(exc):
            raise
        log.error("pipeline.not_set_aside", error=database.sql_message(exc))


# The checkpoint format of this version. The metastore gives no claim to a runner that does not declare it.
CHECKPOINT_FORMAT = 2

# Key of the lock under which runs of a source are counted.
_COUNTING = 0x5649_5452_434E_54


def _lock_next(
    connection: Connection,
    only: UUID | None,
    per_source: int | None,
    max_connections: Mapping[str, int],
    skipped: Sequence[UUID],
    *,
    covers: Sequence[str] | None,
    follows: bool | None,
) -> dict[str, Any] | None:
    return connection.execute(
        _LOCK_NEXT,
        {
            "covers": list(covers) if covers is not None else None,
            "only": only,
            "follows": follows,
            "per_source": per_source,
            "max_connections": Jsonb(dict(max_connections)),
            "sessions": Jsonb(session_limits.sessions()),
            "skipped": list(skipped),
        },
    ).fetchone()


# Composed once, because every tick of the runner executes it.
_LOCK_NEXT = (
    sql.SQL(
        """
        SELECT p.id, coalesce(p.requested_trigger, 'manual') AS trigger, p.requested_trace AS trace,
               p.requested_reason AS reason
        FROM etl.etl_pipelines p
        WHERE p.status = 'RUN_REQUESTED' AND p.enabled AND p.id <> ALL(%(skipped)s::uuid[])
          AND (%(only)s::uuid IS NULL OR p.id = %(only)s)
          AND NOT EXISTS (SELECT FROM etl.etl_pipelines h WHERE h.holds_target = {target})
          AND (%(follows)s::boolean IS NULL OR (p.mode = 'live') = %(follows)s)
          AND NOT (p.mode = 'live' AND {wanted})
          AND (%(per_source)s::integer IS NULL OR p.mode = 'live'
               OR %(per_source)s > (SELECT count(*) FROM etl.etl_pipelines b
                                    WHERE b.status IN ('RUNNING', 'PAUSE_REQUESTED') AND b.claim_id IS NOT NULL
                                      AND b.mode <> 'live' AND b.source_connection = p.source_connection))
          AND NOT EXISTS ({full})
          AND (%(covers)s::text[] IS NULL OR {needed} <@ %(covers)s::text[])
        ORDER BY p.waiting_since NULLS FIRST, p.id
        LIMIT 1
        FOR UPDATE OF p SKIP LOCKED
        """
    )
    .format(
        target=HELD_TARGET,
        full=session_limits.FULL_CONNECTIONS,
        needed=coverage.NEEDED,
        wanted=requests.IS_WANTED,
    )
    .as_bytes()
)


def refuse_beside_a_run(row: Mapping[str, Any], why: str = "pipeline.no_repair_now") -> None:
    """Refuse to correct single rows of a target that a run is writing to."""
    if not status.may_be_repaired(row):
        raise Conflict(say(why, name=row["name"], status=row["status"]))


def claim_idle(connection: Connection, pipeline_id: UUID, runner_id: UUID, ttl_seconds: float) -> Claim:
    """Claim a pipeline that no runner works on, to repair its target. A paused pipeline stays PAUSE_REQUESTED.

    A live pipeline that its follower has released for this follows its source again afterwards.
    """
    try:
        with connection.transaction():
            found = connection.execute(
                """
                SELECT id, name, status, mode, 'api' AS trigger, NULL AS trace, NULL AS reason
                FROM etl.etl_pipelines WHERE id = %s FOR UPDATE
                """,
                [pipeline_id],
            ).fetchone()
            if found is None:
                raise NotFound(say("pipeline.deleted", pipeline_id=pipeline_id))
            follows = found["mode"] == "live" and status.can_move("claim_followed", found["status"])
            if found["status"] not in status.sources_of("claim_idle") and not follows:
                raise Conflict(say("pipeline.became", name=found["name"], status=found["status"]))
            taken = Status.PAUSE_REQUESTED if found["status"] == Status.PAUSED else Status.RUNNING
            returns = Status.IDLE if follows else Status(found["status"])
            return _take(connection, found, runner_id, ttl_seconds, becomes=taken, returns=returns, follows=follows)
    except psycopg.errors.UniqueViolation as exc:
        raise Conflict(say("pipeline.target_busy")) from exc


def _take(
    connection: Connection,
    found: dict[str, Any],
    runner_id: UUID,
    ttl_seconds: float,
    *,
    becomes: Status = Status.RUNNING,
    returns: Status | None = None,
    follows: bool = False,
) -> Claim:
    """Claim the row in a separate statement, because its definition may have changed before the row was locked.

    With `follows`, the next run is requested already.
    """
    row = _CLAIM.get_one(
        connection,
        {
            "runner": runner_id,
            "ttl": ttl_seconds,
            "id": found["id"],
            "status": becomes,
            "returns": returns,
            "next": Trigger.FOLLOW_UP if follows else None,
            "format": CHECKPOINT_FORMAT,
            "trigger": found["trigger"],
            "reason": found["reason"],
            "trace": found["trace"],
        },
    )
    if returns is not None:
        row["requested_range"] = None  # of a paused backfill; this claim does not perform it
    row["requested_trigger"] = found["trigger"]
    return Claim(row["id"], row["name"], row["epoch"], row["claim_id"], row.pop("run_id"), row["version"], row)


# A target connection may lead to another database, or to a place that has to be held first; then the run seizes it.
_SEIZED_AT_ONCE = sql.SQL("c.options ->> 'target_connection' IS NULL")

# Claims the row, records the run and takes the checkpoint. No transaction of an older epoch has moved the checkpoint
# and can still commit: it would have locked the pipeline's row before, and this one holds that lock. Composed once,
# because every claim executes it.
_CLAIM = Statement(
    sql.SQL(
        """
        WITH claimed AS (
            UPDATE etl.etl_pipelines p
            SET status = %(status)s,
                -- Grows even when a failover loses the last commits: the clock is part of it.
                epoch = greatest(p.epoch + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint),
                claim_id = gen_random_uuid(),
                claim_format = %(format)s,
                runner_id = %(runner)s,
                lease_until = clock_timestamp() + make_interval(secs => %(ttl)s),
                lease_seconds = %(ttl)s,
                holds_target = {target},
                requested_trigger = %(next)s,
                requested_trace = NULL,
                requested_reason = NULL,
                needs_attention = p.needs_attention - '{{claim,recovery}}'::text[],
                attempts = p.attempts + 1,
                claim_returns = %(returns)s,
                hold = NULL
            WHERE p.id = %(id)s
            RETURNING {columns}
        ), begun AS (
            INSERT INTO etl.etl_runs
                (pipeline_id, pipeline_version, trigger, reason, backfill, answers_request, status, runner_id, epoch,
                 attempts, data_as_of, traceparent)
            SELECT c.id, c.version, %(trigger)s, %(reason)s, b.backfill,
                   -- Which plain request it answers is known when it begins to read.
                   CASE WHEN b.backfill IS NOT NULL THEN c.range_requested_at END,
                   'RUNNING', c.runner_id, c.epoch, 1,
                   (SELECT min(e.used_as_of) FROM etl.etl_run_after e WHERE e.downstream_id = c.id),
                   -- What goes on with an interrupted run belongs to the same trace.
                   CASE WHEN %(trigger)s::text = 'recovery' AND %(trace)s::text IS NULL
                        THEN (SELECT r.traceparent FROM etl.etl_runs r WHERE r.pipeline_id = c.id
                              ORDER BY r.started_at DESC, r.id DESC LIMIT 1)
                        ELSE %(trace)s END
            FROM claimed c CROSS JOIN LATERAL (
                SELECT CASE WHEN c.mode = 'incremental' AND c.claim_returns IS NULL
                            THEN nullif(c.requested_range, 'null') END
            ) AS b (backfill)
            RETURNING id AS run_id, traceparent
        ), seized AS (
            {seize}
        )
        SELECT claimed.*, begun.* FROM claimed CROSS JOIN begun
        """
    )
    .format(
        target=HELD_TARGET,
        columns=pipelines.WITH_PARTS,
        seize=seizing(
            sql.SQL("SELECT c.id, c.epoch, c.claim_id, b.run_id FROM claimed c CROSS JOIN begun b WHERE {}").format(
                _SEIZED_AT_ONCE
            )
        ),
    )
    .as_bytes()
)


def hold_database(connection: Connection, claim: Claim) -> None:
    """Hold the target by the database that is known now. At the claim, only its name may have been known."""
    try:
        row = connection.execute(
            sql.SQL(
                """
                UPDATE etl.etl_pipelines p SET holds_target = {target}
                WHERE p.id = %s AND p.claim_id = %s AND p.epoch = %s
                RETURNING p.holds_target
                """
            ).format(target=HELD_TARGET),
            [claim.pipeline_id, claim.claim_id, claim.epoch],
        ).fetchone()
    except psycopg.errors.UniqueViolation as exc:
        raise TargetTaken(f"another pipeline writes to the target of {claim.name} just now, by another name") from exc
    if row is None:
        raise LeaseLost(f"pipeline {claim.name}: another runner took over after epoch {claim.epoch}")
    claim.row["holds_target"] = row["holds_target"]


@dataclass(frozen=True)
class Heartbeat:
    """Hold what the database reports about a runner's claims. A claim that is held but not extended is locked now."""

    held: frozenset[UUID]
    extended: frozenset[UUID]


def extend(connection: Connection, claim_ids: Sequence[UUID], ttl_seconds: float) -> Heartbeat:
    """Extend the leases of all claims of a runner. A row that another session has locked must not delay the others."""
    rows = connection.execute(
        """
        WITH held AS (
            SELECT id, claim_id FROM etl.etl_pipelines
            WHERE status IN ('RUNNING', 'PAUSE_REQUESTED') AND claim_id = ANY(%(claims)s)
        ), free AS (
            SELECT p.id FROM etl.etl_pipelines p JOIN held USING (id)
            WHERE p.claim_id = held.claim_id AND p.status IN ('RUNNING', 'PAUSE_REQUESTED')
            FOR UPDATE OF p SKIP LOCKED
        ), extended AS (
            UPDATE etl.etl_pipelines p
            SET lease_until = clock_timestamp() + make_interval(secs => %(ttl)s), lease_seconds = %(ttl)s
            FROM free WHERE p.id = free.id
            RETURNING p.claim_id
        )
        SELECT held.claim_id, extended.claim_id IS NOT NULL AS extended
        FROM held LEFT JOIN extended USING (claim_id)
        """,
        {"claims": list(claim_ids), "ttl": ttl_seconds},
    ).fetchall()
    return Heartbeat(
        held=frozenset(row["claim_id"] for row in rows),
        extended=frozenset(row["claim_id"] for row in rows if row["extended"]),
    )


def still_held(connection: Connection, claim_ids: Sequence[UUID]) -> dict[UUID, Status]:
    """Return those of a runner's claims that are not voided, with the status of their pipelines."""
    rows = connection.execute(
        "SELECT claim_id, status FROM etl.etl_pipelines WHERE claim_id = ANY(%s)", [list(claim_ids)]
    ).fetchall()
    return {row["claim_id"]: Status(row["status"]) for row in rows}


def touch(connection: Connection, claim: Claim, *, progressed: bool = False) -> Status:
    """Lock the pipeline's row as a fence, and return its status. Raise `LeaseLost` if the claim is no longer held.

    The row is updated only if there is progress to record: a lock is a fence as well, and leaves no dead tuple.
    """
    values = {"id": claim.pipeline_id, "claim": claim.claim_id, "epoch": claim.epoch}
    row = (_NOTE_PROGRESS if progressed else _LOCK_CLAIMED).fetch_one(connection, values)
    if row is None:
        raise LeaseLost(f"pipeline {claim.name}: another runner took over after epoch {claim.epoch}")
    return Status(row["status"])


NOTE_PROGRESS = sql.SQL(
    """
    UPDATE etl.etl_pipelines SET attempts = 0
    WHERE id = %(id)s AND claim_id = %(claim)s AND epoch = %(epoch)s RETURNING status
    """
)
# Takes the same lock as an UPDATE.
LOCK_CLAIMED = sql.SQL(
    """
    SELECT status FROM etl.etl_pipelines
    WHERE id = %(id)s AND claim_id = %(claim)s AND epoch = %(epoch)s FOR NO KEY UPDATE
    """
)
_NOTE_PROGRESS, _LOCK_CLAIMED = Statement(NOTE_PROGRESS.as_bytes()), Statement(LOCK_CLAIMED.as_bytes())


def find_status(connection: Connection, claim: Claim) -> Status | None:
    """Return the requested status of the pipeline, or None if the claim is no longer held."""
    row = connection.execute(
        "SELECT status FROM etl.etl_pipelines WHERE id = %s AND claim_id = %s AND epoch = %s",
        [claim.pipeline_id, claim.claim_id, claim.epoch],
    ).fetchone()
    return Status(row["status"]) if row else None


def require_held(connection: Connection, claim: Claim) -> None:
    """Check the claim right before an action that no transaction can cover. Raise `LeaseLost` if it is lost."""
    if find_status(connection, claim) is None:
        raise LeaseLost(f"pipeline {claim.name}: another runner took over after epoch {claim.epoch}")


def answer_request(connection: Connection, claim: Claim) -> datetime:
    """Mark the request as answered before the first read, which sees all that was committed before the request.

    Return the time of the server's clock.

    A later request stays recorded, and so does one for which a continued load was too early. A backfill answers no
    request for a run: it reads a range, not what is new.
    """
    if claim.is_backfill:
        return database.now(connection)
    asked = claim.row["run_requested_at"]
    names = {"id": claim.pipeline_id, "claim": claim.claim_id, "epoch": claim.epoch, "run": claim.run_id}
    now: datetime = _ANSWER.get_one(connection, names | {"asked": asked})["now"]
    return now


# The condition on `answered` depends on no row, so the server evaluates it first and locks the pipeline's row before
# the run's row. The statements that cancel or end a run lock them in the same order. The result refers to `noted`:
# unreferenced, the two would be executed in an order that PostgreSQL does not promise.
_ANSWER = Statement(
    b"""
    WITH answered AS (
        UPDATE etl.etl_pipelines SET run_requested_at = NULL
        WHERE id = %(id)s AND claim_id = %(claim)s AND epoch = %(epoch)s AND run_requested_at = %(asked)s
        RETURNING 1
    ), noted AS (
        UPDATE etl.etl_runs SET answers_request = %(asked)s
        WHERE id = %(run)s AND status = 'RUNNING' AND (SELECT count(*) FROM answered) >= 0
        RETURNING 1
    )
    SELECT clock_timestamp() AS now, count(*) AS runs FROM noted
    """
)


@dataclass(frozen=True)
class Asked:
    """Hold what was requested of a pipeline while a runner follows its source."""

    status: Status
    enabled: bool
    run_requested_at: datetime | None
    version: int
    # A request waits until the follower releases the pipeline.
    is_wanted: bool


def find_asked(connection: Connection, claim: Claim) -> Asked:
    """Read the requests from the pipeline's row. Raise `LeaseLost` if the claim is no longer held."""
    row = connection.execute(
        sql.SQL(
            """
            SELECT p.status, p.enabled, p.run_requested_at, p.version, {wanted} AS is_wanted
            FROM etl.etl_pipelines p WHERE p.id = %s AND p.claim_id = %s AND p.epoch = %s
            """
        ).format(wanted=requests.IS_WANTED),
        [claim.pipeline_id, claim.claim_id, claim.epoch],
    ).fetchone()
    if row is None:
        raise LeaseLost(f"pipeline {claim.name}: another runner took over after epoch {claim.epoch}")
    return Asked(Status(row["status"]), row["enabled"], row["run_requested_at"], row["version"], row["is_wanted"])


def note_hold(connection: Connection, claim: Claim, hold: dict[str, Any] | None) -> None:
    """Record which session holds the checkpoint back (pid, user, since), for status and metrics.

    The claim itself has cleared what an earlier run recorded.
    """
    if hold is None and claim.row.get("hold") is None:
        return
    _NOTE_HOLD.execute(connection, [Jsonb(hold) if hold else None, claim.pipeline_id, claim.claim_id])
    claim.row["hold"] = hold


_NOTE_HOLD = Statement(b"UPDATE etl.etl_pipelines SET hold = %s WHERE id = %s AND claim_id = %s")


def conclude_run(
    connection: Connection,
    claim: Claim,
    *,
    boundary: bool = False,
    answered: bool = True,
    done: runs.Progress | None = None,
) -> Status:
    """Release the lease at the end of the data, or (`boundary`) at a batch boundary at which a pause was requested.

    Another run follows if one was requested that this one did not answer. Requests are compared for identity, never by
    time, because a clock may step. `done` is what the run did, if that is not recorded yet.
    """
    answers = answered and not boundary and not claim.is_backfill and not claim.is_repair
    seen = claim.row["run_requested_at"]
    values = {
        "boundary": boundary,
        "answered": answers,
        "seen": seen,
        "keeps_range": boundary or claim.is_repair,
        "follows": Trigger.FOLLOW_UP,
        "reason": _WHY_BEHIND_A_BACKFILL if claim.is_backfill else _WHY_BEHIND_A_LOAD,
        "id": claim.pipeline_id,
        "claim": claim.claim_id,
        "epoch": claim.epoch,
        **_ended(claim.run_id, RunStatus.PAUSED if boundary else RunStatus.SUCCESS, answers=seen if answers else None),
        **(done or {}),
    }
    conclude = _CONCLUDE_WITH_PROGRESS if done else _CONCLUDE
    # Most pipelines start no other: then one statement does it, without a transaction around it.
    row = conclude.fetch_one(connection, values | {"passes_on": boundary})
    if row is None:
        with connection.transaction():
            row = conclude.fetch_one(connection, values | {"passes_on": True})
            if row is None:
                raise LeaseLost(f"pipeline {claim.name}: another runner took over before the run could be concluded")
            if row["is_upstream"] and not boundary:
                run_after.pass_on(connection, claim.pipeline_id, claim.run_id)
    return Status(row["status"])


def begin_again(connection: Connection, claim: Claim, reason: str, *, loads: bool) -> Status:
    """End a run of a live pipeline and request the next one immediately, with a full load if `loads`.

    A pause or `disable` that was requested in between is respected, and so is a requested run.
    """
    with connection.transaction():
        row = connection.execute(
            """
            UPDATE etl.etl_pipelines p
            SET status = CASE WHEN p.status = 'PAUSE_REQUESTED' THEN 'PAUSED'
                              WHEN p.enabled THEN 'RUN_REQUESTED' ELSE 'IDLE' END,
                run_requested_at = CASE WHEN %(loads)s THEN coalesce(p.run_requested_at, clock_timestamp())
                                        ELSE p.run_requested_at END,
                requested_trigger = coalesce(p.requested_trigger, %(trigger)s),
                requested_reason = coalesce(p.requested_reason, %(reason)s), accepted_checks = NULL,
                claim_id = NULL, runner_id = NULL, lease_until = NULL, holds_target = NULL, claim_returns = NULL,
                attempts = 0, last_error = NULL
            WHERE p.id = %(id)s AND p.claim_id = %(claim)s AND p.epoch = %(epoch)s
            RETURNING p.status
            """,
            {
                "loads": loads,
                "trigger": Trigger.FOLLOW_UP,
                "reason": cut(reason),
                "id": claim.pipeline_id,
                "claim": claim.claim_id,
                "epoch": claim.epoch,
            },
        ).fetchone()
        if row is None:
            raise LeaseLost(f"pipeline {claim.name}: another runner took over before the run could be concluded")
        finish_run(connection, claim.run_id, RunStatus.SUCCESS)
        return Status(row["status"])


# For a live pipeline that is repaired between two batches: its next run is requested already.
FOLLOWS_AGAIN = sql.SQL("(p.mode = 'live' AND p.claim_returns IS NOT NULL AND p.requested_trigger = 'follow-up')")

# Postgres fills in the time.
_WHY_BEHIND_A_BACKFILL = say("run.behind_a_backfill", at="%s")
_WHY_BEHIND_A_LOAD = say("run.behind_a_load", at="%s")

_ANOTHER_RUN = sql.SQL(
    """
    (p.run_requested_at IS NOT NULL
     AND NOT (%(answered)s AND p.run_requested_at IS NOT DISTINCT FROM %(seen)s::timestamptz))
    """
)


def fail_run(connection: Connection, claim: Claim, code: str, message: str) -> bool:
    """Mark the pipeline FAILED until an operator acts, because retries did not help. Do nothing if the lease is lost.

    A failed backfill fails alone: the pipeline returns to the status it had before.
    """
    text = cut(say("run.backfill_failed", message=message) if claim.is_backfill else message)
    with connection.transaction():
        row = connection.execute(
            sql.SQL(
                """
                UPDATE etl.etl_pipelines p
                SET status = CASE WHEN %(backfill)s THEN {after_backfill} ELSE 'FAILED' END,
                    run_requested_at = CASE WHEN %(backfill)s AND p.failing_since IS NULL THEN p.run_requested_at END,
                    requested_trigger = CASE WHEN %(backfill)s AND p.run_requested_at IS NOT NULL
                                             THEN coalesce(p.requested_trigger, %(follows)s)
                                             ELSE p.requested_trigger END,
                    requested_reason = CASE WHEN %(backfill)s AND p.run_requested_at IS NOT NULL
                                             AND p.requested_trigger IS NULL
                                            THEN format(%(reason)s, p.run_requested_at)
                                            ELSE p.requested_reason END,
                    requested_range = NULL, range_requested_at = NULL, accepted_checks = NULL,
                    last_error = %(error)s, attempts = 0, claim_returns = NULL,
                    claim_id = NULL, runner_id = NULL, lease_until = NULL, holds_target = NULL
                WHERE id = %(id)s AND claim_id = %(claim)s AND epoch = %(epoch)s AND status = ANY(%(from)s)
                RETURNING p.status
                """
            ).format(after_backfill=AFTER_FAILED_BACKFILL),
            {
                "backfill": claim.is_backfill,
                "follows": Trigger.FOLLOW_UP,
                "reason": _WHY_BEHIND_A_BACKFILL,
                "error": text,
                "id": claim.pipeline_id,
                "claim": claim.claim_id,
                "epoch": claim.epoch,
                "from": list(status.sources_of("fail_run")),
            },
        ).fetchone()
        if row is not None:
            # Includes a request that it had not begun to answer: nothing else will answer it.
            answers = None if claim.is_backfill or claim.is_repair else claim.row["run_requested_at"]
            finish_run(connection, claim.run_id, RunStatus.FAILED, code, text, answers=answers)
            if row["status"] != Status.FAILED:
                notifications.tell_failed(connection, claim.pipeline_id, claim.run_id, text or code)
        return row is not None


# A pipeline that was FAILED becomes FAILED again: its schedule was stopped, and nothing has shown that it works.
AFTER_FAILED_BACKFILL = sql.SQL(
    """
    CASE WHEN p.failing_since IS NOT NULL THEN 'FAILED'
         WHEN p.status = 'PAUSE_REQUESTED' THEN 'PAUSED'
         WHEN p.enabled AND p.run_requested_at IS NOT NULL THEN 'RUN_REQUESTED'
         ELSE 'IDLE' END
    """
)


def give_back(
    connection: Connection, claim: Claim, code: str = "runner_stopped", message: str = say("run.runner_stopped")
) -> bool:
    """Release the claim of a runner that stops.

    The next runner continues immediately, and this is not counted as a loss.
    """
    with connection.transaction():
        changed = connection.execute(
            """
            UPDATE etl.etl_pipelines
            SET status = CASE WHEN status = 'PAUSE_REQUESTED' OR NOT enabled THEN 'PAUSED' ELSE 'RUN_REQUESTED' END,
                requested_trigger = 'recovery', attempts = greatest(attempts - 1, 0), claim_returns = NULL,
                claim_id = NULL, runner_id = NULL, lease_until = NULL, holds_target = NULL
            WHERE id = %s AND claim_id = %s AND epoch = %s
            """,
            [claim.pipeline_id, claim.claim_id, claim.epoch],
        ).rowcount
        if changed:
            finish_run(connection, claim.run_id, RunStatus.CANCELLED, code, message)
        return bool(changed)


def cancel_run(connection: Connection, pipeline_id: UUID, message: str) -> bool:
    """End the current run now. Its claim is void, so nothing more of it commits; what has committed stays."""
    with connection.transaction():
        row = connection.execute(
            """
            UPDATE etl.etl_pipelines
            SET status = CASE WHEN status = 'PAUSE_REQUESTED' THEN 'PAUSED' ELSE 'IDLE' END,
                run_requested_at = NULL, requested_trigger = NULL, requested_reason = NULL,
                requested_range = NULL, range_requested_at = NULL, accepted_checks = NULL, claim_returns = NULL,
                attempts = 0,
                claim_id = NULL, runner_id = NULL, lease_until = NULL, holds_target = NULL
            WHERE id = %s AND status = ANY(%s) AND claim_id IS NOT NULL
            RETURNING id
            """,
            [pipeline_id, list(status.sources_of("cancel_run"))],
        ).fetchone()
        if row is None:
            return False
        connection.execute(
            """
            UPDATE etl.etl_runs
            SET status = 'CANCELLED', finished_at = clock_timestamp(), updated_at = clock_timestamp(),
                error_code = 'cancelled', error_message = %s
            WHERE pipeline_id = %s AND status = 'RUNNING'
            """,
            [cut(message), pipeline_id],
        )
        # Makes the runner check immediately which of its claims are still held.
        connection.execute("SELECT pg_catalog.pg_notify('vitrina_wake', '')")
        return True


def finish_run(
    connection: Connection,
    run_id: UUID,
    outcome: RunStatus,
    code: str | None = None,
    message: str | None = None,
    *,
    answers: datetime | None = None,
) -> None:
    _FINISH.execute(connection, _ended(run_id, outcome, code, message, answers=answers))


def _ended(
    run_id: UUID,
    outcome: RunStatus,
    code: str | None = None,
    message: str | None = None,
    *,
    answers: datetime | None = None,
) -> dict[str, Any]:
    return {"outcome": outcome, "code": code, "message": cut(message), "answers": answers, "run": run_id}


_END = sql.SQL(
    """
    status = %(outcome)s, finished_at = clock_timestamp(), updated_at = clock_timestamp(),
    error_code = %(code)s, error_message = %(message)s, answers_request = coalesce(answers_request, %(answers)s)
    """
)
_FINISH = Statement(sql.SQL("UPDATE etl.etl_runs SET {} WHERE id = %(run)s").format(_END).as_bytes())


_CONCLUDED = """
    WITH concluded AS (
        UPDATE etl.etl_pipelines p
        SET status = CASE WHEN p.status = 'PAUSE_REQUESTED' THEN 'PAUSED'
                          WHEN p.enabled AND (%(boundary)s OR {another} OR {follows}) THEN 'RUN_REQUESTED'
                          ELSE 'IDLE' END,
            run_requested_at = CASE WHEN {another} THEN p.run_requested_at END,
            -- Whoever asked gave their trigger to the run that just ended: this one follows it.
            requested_trigger = CASE WHEN {another} AND NOT %(boundary)s
                                     THEN coalesce(p.requested_trigger, %(follows)s)
                                     ELSE p.requested_trigger END,
            requested_reason = CASE WHEN {another} AND NOT %(boundary)s AND p.requested_trigger IS NULL
                                    THEN format(%(reason)s, p.run_requested_at)
                                    ELSE p.requested_reason END,
            requested_range = CASE WHEN %(keeps_range)s THEN p.requested_range END,
            range_requested_at = CASE WHEN %(keeps_range)s THEN p.range_requested_at END,
            accepted_checks = CASE WHEN %(keeps_range)s THEN p.accepted_checks END,
            claim_id = NULL, runner_id = NULL, lease_until = NULL, holds_target = NULL, claim_returns = NULL,
            attempts = 0, last_error = NULL
        WHERE p.id = %(id)s AND p.claim_id = %(claim)s AND p.epoch = %(epoch)s
          AND (%(passes_on)s OR NOT EXISTS (SELECT FROM etl.etl_run_after e WHERE e.upstream_id = p.id))
        RETURNING p.status, EXISTS (SELECT FROM etl.etl_run_after e WHERE e.upstream_id = p.id) AS is_upstream
    ), finished AS (
        -- After the pipeline's row, in the order of those who cancel or end the run; the opposite order would deadlock.
        UPDATE etl.etl_runs r SET {ended} FROM concluded WHERE r.id = %(run)s
        RETURNING 1
    )
    SELECT concluded.*, (SELECT count(*) FROM finished) AS runs FROM concluded
"""


def _concluded(ended: sql.Composable) -> Statement:
    return Statement(sql.SQL(_CONCLUDED).format(another=_ANOTHER_RUN, follows=FOLLOWS_AGAIN, ended=ended).as_bytes())


_CONCLUDE = _concluded(_END)
_CONCLUDE_WITH_PROGRESS = _concluded(sql.SQL("{}, {}").format(runs.PROGRESS, _END))


def cut(message: str | None) -> str | None:
    if message is None or len(message) <= MAX_ERROR_LENGTH:
        return message
    return message[: MAX_ERROR_LENGTH - 1] + "…"
