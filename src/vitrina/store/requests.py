"""Query `etl_requests`: what the API asks of a runner because it needs a source or a target."""

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from psycopg.sql import SQL, Literal
from psycopg.types.json import Jsonb

from vitrina.store import coverage, database, pruning
from vitrina.store.database import Connection

Row = dict[str, Any]

# Key of a payload: the runner that performs the request waits for the lease of a live pipeline.
_WANTS_LEASE = "wants_lease"
# Whether the follower of `p` has to release it, and no runner may follow it, until a request is performed.
IS_WANTED = SQL(
    """
    EXISTS (SELECT FROM etl.etl_requests r
            WHERE r.pipeline_id = p.id AND r.status = 'WORKING' AND r.lease_until > clock_timestamp()
              AND r.payload -> {} IS NOT NULL)
    """
).format(Literal(_WANTS_LEASE))

# A request that takes down its runner is tried by this many runners, then given up.
MAX_TRIES = 3


def insert(
    connection: Connection, kind: str, pipeline_id: UUID | None, payload: dict[str, Any], requested_by: str
) -> UUID:
    row = database.one(
        connection.execute(
            "INSERT INTO etl.etl_requests (kind, pipeline_id, payload, requested_by)"
            " VALUES (%s, %s, %s, %s) RETURNING id",
            [kind, pipeline_id, Jsonb(payload), requested_by],
        )
    )
    request_id: UUID = row["id"]
    return request_id


def insert_done(
    connection: Connection,
    kind: str,
    pipeline_id: UUID,
    payload: dict[str, Any],
    *,
    requested_by: str,
    result: dict[str, Any],
) -> None:
    """Record a result that a run produced without a request."""
    connection.execute(
        """
        INSERT INTO etl.etl_requests (kind, pipeline_id, payload, requested_by, status, result, finished_at)
        VALUES (%s, %s, %s, %s, 'DONE', %s, clock_timestamp())
        """,
        [kind, pipeline_id, Jsonb(payload), requested_by, Jsonb(result, dumps=_dumps_in_pieces)],
    )


def withdraw_typing(connection: Connection, kinds: Sequence[str], requested_by: str, error: dict[str, Any]) -> None:
    """Close requests about a draft that no runner has begun, because the draft has changed since."""
    connection.execute(
        """
        UPDATE etl.etl_requests SET status = 'FAILED', finished_at = clock_timestamp(), error = %s
        WHERE status = 'QUEUED' AND pipeline_id IS NULL AND kind = ANY(%s) AND requested_by = %s
        """,
        [Jsonb(error), list(kinds), requested_by],
    )


def find(connection: Connection, request_id: UUID) -> Row | None:
    return connection.execute("SELECT * FROM etl.etl_requests WHERE id = %s", [request_id]).fetchone()


def find_latest(connection: Connection, pipeline_id: UUID, kind: str) -> Row | None:
    return connection.execute(
        "SELECT * FROM etl.etl_requests WHERE pipeline_id = %s AND kind = %s ORDER BY created_at DESC LIMIT 1",
        [pipeline_id, kind],
    ).fetchone()


def find_latest_result(connection: Connection, pipeline_id: UUID, kind: str) -> Row | None:
    """Find the latest request of a kind that ended with a result."""
    return connection.execute(
        """
        SELECT * FROM etl.etl_requests WHERE pipeline_id = %s AND kind = %s AND status = 'DONE'
        ORDER BY created_at DESC LIMIT 1
        """,
        [pipeline_id, kind],
    ).fetchone()


def find_shared(
    connection: Connection, kind: str, payload: dict[str, Any], *, younger_than_seconds: float
) -> Row | None:
    """Find the latest request with this payload and without a pipeline that is answered, or may still be."""
    return connection.execute(
        """
        SELECT * FROM etl.etl_requests
        WHERE pipeline_id IS NULL AND kind = %s AND payload = %s AND status <> 'FAILED'
          AND created_at > clock_timestamp() - make_interval(secs => %s)
        ORDER BY created_at DESC LIMIT 1
        """,
        [kind, Jsonb(payload), younger_than_seconds],
    ).fetchone()


def list_reconciles(connection: Connection, pipeline_id: UUID, *, limit: int) -> list[Row]:
    """List comparisons of a pipeline, newest first, without the keys that they list."""
    return connection.execute(
        """
        SELECT id, created_at, finished_at, status, requested_by, error ->> 'message' AS error,
               coalesce(payload ->> 'level', 'full') AS level,
               coalesce((payload -> 'repair')::boolean, false) AS repair,
               (result ->> 'differences')::bigint AS differences, (result ->> 'remaining')::bigint AS remaining
        FROM etl.etl_requests WHERE pipeline_id = %s AND kind = 'reconcile' ORDER BY created_at DESC LIMIT %s
        """,
        [pipeline_id, limit],
    ).fetchall()


def list_reconcile_schedules(connection: Connection) -> list[Row]:
    """List enabled pipelines that are compared regularly, with the time of the latest comparison.

    Those with a comparison that waits or runs are left out.
    """
    return connection.execute(
        """
        SELECT p.id, p.name, p.options -> 'reconcile' AS asked, coalesce(latest.created_at, p.created_at) AS last_at,
               clock_timestamp() AS now
        FROM etl.etl_pipelines p
        LEFT JOIN LATERAL (SELECT r.created_at, r.finished_at FROM etl.etl_requests r
                           WHERE r.pipeline_id = p.id AND r.kind = 'reconcile'
                           ORDER BY r.created_at DESC LIMIT 1) latest ON true
        WHERE p.enabled AND jsonb_typeof(p.options -> 'reconcile') = 'object'
          AND (latest.created_at IS NULL OR latest.finished_at IS NOT NULL)
        """
    ).fetchall()


def list_scan_schedules(connection: Connection, kind: str) -> list[Row]:
    """List enabled pipelines whose source is regularly searched for deleted rows, with the time of the latest scan."""
    return connection.execute(
        """
        SELECT p.id, p.name, p.options -> 'deletes' AS asked, coalesce(latest.created_at, p.created_at) AS last_at,
               clock_timestamp() AS now
        FROM etl.etl_pipelines p
        LEFT JOIN LATERAL (SELECT r.created_at, r.finished_at FROM etl.etl_requests r
                           WHERE r.pipeline_id = p.id AND r.kind = %s
                           ORDER BY r.created_at DESC LIMIT 1) latest ON true
        WHERE p.enabled AND jsonb_typeof(p.options -> 'deletes' -> 'scan') = 'string'
          AND (latest.created_at IS NULL OR latest.finished_at IS NOT NULL)
        """,
        [kind],
    ).fetchall()


def expire(connection: Connection, *, older_than_seconds: float) -> int:
    """Give up requests that no runner claimed in time, and those whose runners were all lost."""
    return connection.execute(
        """
        UPDATE etl.etl_requests
        SET status = 'FAILED', finished_at = clock_timestamp(), lease_until = NULL,
            error = CASE status WHEN 'QUEUED' THEN %(expired)s::jsonb ELSE %(lost)s::jsonb END
        WHERE (status = 'QUEUED' AND created_at < clock_timestamp() - make_interval(secs => %(age)s))
           OR (status = 'WORKING' AND lease_until < clock_timestamp() AND attempts >= %(tries)s)
        """,
        {
            "expired": Jsonb(
                {"code": "expired", "message": "no runner performed it: start one (`vitrina runner`) and ask again"}
            ),
            "lost": Jsonb(
                {
                    "code": "lease_lost",
                    "message": f"{MAX_TRIES} runners were lost while performing it; see their logs",
                }
            ),
            "age": older_than_seconds,
            "tries": MAX_TRIES,
        },
    ).rowcount


def prune(connection: Connection, *, older_than_days: int) -> int:
    """Delete old answers, but never the latest of its kind for a pipeline, because reports are looked up."""
    old = """
        r.finished_at < now() - make_interval(days => %s)
        AND (r.pipeline_id IS NULL
             OR EXISTS (SELECT FROM etl.etl_requests n
                        WHERE n.pipeline_id = r.pipeline_id AND n.kind = r.kind AND n.created_at > r.created_at))
    """
    return pruning.delete(connection, "etl_requests", old, [older_than_days])


def reserve_key(connection: Connection, key: str, pipeline_id: UUID) -> Row | None:
    """Insert the key and return None: the caller does the work. A second caller waits, then gets the first's answer."""
    reserved = connection.execute(
        """
        INSERT INTO etl.etl_idempotency_keys (key, pipeline_id, response) VALUES (%s, %s, '{}')
        ON CONFLICT (key) DO NOTHING
        """,
        [key, pipeline_id],
    ).rowcount
    if reserved:
        return None
    return connection.execute("SELECT * FROM etl.etl_idempotency_keys WHERE key = %s", [key]).fetchone()


def remember_response(connection: Connection, key: str, response: dict[str, Any]) -> None:
    connection.execute("UPDATE etl.etl_idempotency_keys SET response = %s WHERE key = %s", [Jsonb(response), key])


def forget_keys(connection: Connection, *, older_than_hours: int) -> int:
    return connection.execute(
        "DELETE FROM etl.etl_idempotency_keys WHERE created_at < now() - make_interval(hours => %s)", [older_than_hours]
    ).rowcount


def claim_next(
    connection: Connection, runner_id: UUID, ttl_seconds: float, *, covers: Sequence[str] | None = None
) -> Row | None:
    """Claim the oldest request, or one whose runner fell silent.

    `covers` is what this runner can do; requests for pipelines of other connectors are left to other runners. A missing
    step is no obstacle: the answer lists the available ones.
    """
    return connection.execute(
        _CLAIM_NEXT,
        {
            "runner": runner_id,
            "ttl": ttl_seconds,
            "tries": MAX_TRIES,
            "wants": _WANTS_LEASE,
            "covers": list(covers) if covers is not None else None,
        },
    ).fetchone()


# Composed once, because every tick of the runner executes it.
_CLAIM_NEXT = (
    SQL(
        """
        UPDATE etl.etl_requests
        SET status = 'WORKING', runner_id = %(runner)s, attempts = attempts + 1,
            payload = payload - %(wants)s,  -- that was the runner before
            lease_until = clock_timestamp() + make_interval(secs => %(ttl)s)
        WHERE id = (
            SELECT r.id FROM etl.etl_requests r
            WHERE r.status IN ('QUEUED', 'WORKING')
              AND (r.status = 'QUEUED' OR r.lease_until < clock_timestamp() AND r.attempts < %(tries)s
                   -- A repair whose runner is gone still holds the pipeline, until recovery has taken it away.
                   AND NOT EXISTS (SELECT FROM etl.etl_pipelines p
                                   WHERE p.id = r.pipeline_id AND p.claim_id IS NOT NULL
                                     AND p.runner_id = r.runner_id AND p.claim_returns IS NOT NULL))
              AND (%(covers)s::text[] IS NULL
                   OR NOT EXISTS (SELECT FROM etl.etl_pipelines p
                                  WHERE p.id = r.pipeline_id AND NOT {needed} <@ %(covers)s::text[]))
            ORDER BY r.created_at LIMIT 1 FOR UPDATE OF r SKIP LOCKED)
        RETURNING *
        """
    )
    .format(needed=coverage.CONNECTORS_NEEDED)
    .as_bytes()
)


def want_lease(connection: Connection, request_id: UUID) -> None:
    """Ask the follower of a live pipeline to release it, and all other runners not to claim it."""
    connection.execute(
        "UPDATE etl.etl_requests SET payload = payload || %s WHERE id = %s AND status = 'WORKING'",
        [Jsonb({_WANTS_LEASE: True}), request_id],
    )


def have_lease(connection: Connection, request_id: UUID) -> None:
    """Withdraw that request once the lease is held, so that the pipeline is followed as soon as it is released."""
    connection.execute("UPDATE etl.etl_requests SET payload = payload - %s WHERE id = %s", [_WANTS_LEASE, request_id])


def extend(connection: Connection, request_ids: Sequence[UUID], runner_id: UUID, ttl_seconds: float) -> None:
    """Extend the leases of the requests that a runner performs."""
    connection.execute(
        """
        UPDATE etl.etl_requests SET lease_until = clock_timestamp() + make_interval(secs => %s)
        WHERE id = ANY(%s) AND runner_id = %s AND status = 'WORKING'
        """,
        [ttl_seconds, list(request_ids), runner_id],
    )


def _dumps_in_pieces(value: Any) -> str:
    """Encode like `json.dumps`, but lists item by item: it blocks other threads, and lists may be long."""
    if isinstance(value, dict):
        parts = [f"{json.dumps(name)}: {_dumps_in_pieces(item)}" for name, item in value.items()]
        return "{" + ", ".join(parts) + "}"
    if isinstance(value, list):
        return "[" + ", ".join([json.dumps(item) for item in value]) + "]"
    return json.dumps(value)


def finish(
    connection: Connection,
    request_id: UUID,
    runner_id: UUID,
    *,
    result: dict[str, Any] | None,
    error: dict[str, Any] | None,
) -> bool:
    """Record the answer, unless another runner has taken over the request."""
    return bool(
        connection.execute(
            """
            UPDATE etl.etl_requests
            SET status = CASE WHEN %(error)s::jsonb IS NULL THEN 'DONE' ELSE 'FAILED' END,
                result = %(result)s, error = %(error)s, finished_at = clock_timestamp(), lease_until = NULL
            WHERE id = %(id)s AND runner_id = %(runner)s AND status = 'WORKING'
            """,
            {
                "id": request_id,
                "runner": runner_id,
                "result": Jsonb(result, dumps=_dumps_in_pieces) if result is not None else None,
                "error": Jsonb(error) if error is not None else None,
            },
        ).rowcount
    )
