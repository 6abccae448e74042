"""Query `etl_run_after`: what a pipeline waits for, what has arrived, and the request when all of it has.

Locks are taken in one order everywhere: the pipeline's row, then edges by downstream and upstream. A session that
concludes an upstream holds edges, and never waits for the row of a downstream, which a merge may lock for minutes.
"""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from psycopg import sql

from vitrina import status
from vitrina.definition import Definition
from vitrina.errors import InvalidField
from vitrina.sentences import say
from vitrina.status import Trigger
from vitrina.store.database import Connection

Row = dict[str, Any]

# The definition's field, with the current names of the upstreams.
OF_PIPELINE = sql.SQL(
    """
    coalesce((
        SELECT jsonb_agg(jsonb_build_object('pipeline', u.name, 'only_if_changed', e.only_if_changed)
                         ORDER BY e.position, u.name)
        FROM etl.etl_run_after e JOIN etl.etl_pipelines u ON u.id = e.upstream_id
        WHERE e.downstream_id = p.id), '[]')
    """
)

# A run that ended early may have changed more than its counters show: its last commit was not recorded.
_CHANGED = sql.SQL(
    """
    (r.rows_written > 0 OR r.rows_deleted > 0 OR EXISTS (
        SELECT FROM etl.etl_runs b
        WHERE b.pipeline_id = r.pipeline_id AND b.id <> r.id AND b.status <> 'SUCCESS'
          AND (b.rows_written > 0 OR b.rows_deleted > 0 OR b.error_code IN ('lease_lost', 'too_many_losses'))
          AND b.started_at > coalesce((SELECT max(s.started_at) FROM etl.etl_runs s
                                       WHERE s.pipeline_id = r.pipeline_id AND s.id <> r.id AND s.status = 'SUCCESS'),
                                      '-infinity')))
    """
)


def replace(connection: Connection, pipeline_id: UUID, definition: Definition) -> None:
    """Make the edges match the definition. One that stays keeps what has arrived; a new one waits for the next run."""
    names = [edge.pipeline for edge in definition.run_after]
    found = connection.execute("SELECT id, name FROM etl.etl_pipelines WHERE name = ANY(%s)", [names])
    ids = {row["name"]: row["id"] for row in found}
    for place, name in enumerate(names):
        if name not in ids:
            raise InvalidField(
                f"run_after.{place}.pipeline",
                say("definition.after_nobody", name=definition.name, after=name),
            )
    lock_edges(connection, [pipeline_id])
    connection.execute(
        "DELETE FROM etl.etl_run_after WHERE downstream_id = %s AND upstream_id <> ALL(%s)",
        [pipeline_id, list(ids.values())],
    )
    for place, edge in enumerate(definition.run_after):
        connection.execute(
            """
            INSERT INTO etl.etl_run_after (downstream_id, upstream_id, position, only_if_changed)
            VALUES (%s, %s, %s, %s)
            ON CONFLICT (downstream_id, upstream_id) DO UPDATE
            SET position = excluded.position, only_if_changed = excluded.only_if_changed
            """,
            [pipeline_id, ids[edge.pipeline], place, edge.only_if_changed],
        )


def list_edges(connection: Connection) -> list[Row]:
    """List every edge by the names of its ends."""
    return connection.execute(
        """
        SELECT d.name AS downstream, u.name AS upstream, e.only_if_changed, e.arrived_run_id IS NOT NULL AS arrived
        FROM etl.etl_run_after e
        JOIN etl.etl_pipelines d ON d.id = e.downstream_id
        JOIN etl.etl_pipelines u ON u.id = e.upstream_id
        ORDER BY d.name, e.position, u.name
        """
    ).fetchall()


def list_edges_of(connection: Connection, downstreams: Sequence[UUID]) -> list[Row]:
    """List the edges that lead to these pipelines, with what the graph shows of their upstreams."""
    return connection.execute(
        """
        SELECT e.downstream_id, e.upstream_id, e.only_if_changed, e.arrived_run_id IS NOT NULL AS arrived,
               u.name AS upstream, u.status AS upstream_status, u.enabled AS upstream_enabled
        FROM etl.etl_run_after e
        JOIN etl.etl_pipelines d ON d.id = e.downstream_id
        JOIN etl.etl_pipelines u ON u.id = e.upstream_id
        WHERE e.downstream_id = ANY(%s)
        ORDER BY d.name, e.position, u.name
        """,
        [list(downstreams)],
    ).fetchall()


def list_upstreams(connection: Connection, pipeline_id: UUID) -> list[Row]:
    """List what a pipeline waits for, with what an operator needs to know if it does not arrive."""
    return connection.execute(
        """
        SELECT u.name AS pipeline, u.status, u.enabled, e.only_if_changed, e.arrived_run_id, e.used_run_id
        FROM etl.etl_run_after e JOIN etl.etl_pipelines u ON u.id = e.upstream_id
        WHERE e.downstream_id = %s ORDER BY e.position, u.name
        """,
        [pipeline_id],
    ).fetchall()


def list_downstreams(connection: Connection, pipeline_id: UUID) -> list[Row]:
    return connection.execute(
        """
        SELECT d.id, d.name FROM etl.etl_run_after e JOIN etl.etl_pipelines d ON d.id = e.downstream_id
        WHERE e.upstream_id = %s ORDER BY d.name
        """,
        [pipeline_id],
    ).fetchall()


def pass_on(connection: Connection, pipeline_id: UUID, run_id: UUID) -> None:
    """Record a successful run on its outgoing edges, in its transaction, and request the pipelines that waited."""
    downstreams = [row["id"] for row in list_downstreams(connection, pipeline_id)]
    # If two upstreams end at the same moment, the second sees what the first recorded.
    lock_edges(connection, downstreams)
    connection.execute(
        sql.SQL(
            """
            UPDATE etl.etl_run_after e
            SET arrived_run_id = r.id, arrived_as_of = least(r.started_at, r.data_as_of)
            FROM etl.etl_runs r
            WHERE r.id = %s AND e.upstream_id = %s AND (NOT e.only_if_changed OR {changed})
            """
        ).format(changed=_CHANGED),
        [run_id, pipeline_id],
    )
    request_ready(connection, downstreams)


def request_ready(connection: Connection, among: Sequence[UUID] | None = None) -> int:
    """Request the pipelines (`among` these, or all) for which everything has arrived, and consume the arrivals.

    A pipeline whose row is locked now is left to the next check of any runner.
    """
    with connection.transaction():
        ready = connection.execute(
            """
            SELECT p.id FROM etl.etl_pipelines p
            WHERE p.id IN (SELECT e.downstream_id FROM etl.etl_run_after e WHERE e.arrived_run_id IS NOT NULL)
              AND NOT EXISTS (SELECT FROM etl.etl_run_after w WHERE w.downstream_id = p.id AND w.arrived_run_id IS NULL)
              AND (%(among)s::uuid[] IS NULL OR p.id = ANY(%(among)s))
              AND p.enabled AND (p.status <> 'FAILED' OR p.options -> 'schedule_after_failure' = 'true')
            ORDER BY p.id
            FOR NO KEY UPDATE OF p SKIP LOCKED
            """,
            {"among": list(among) if among is not None else None},
        ).fetchall()
        if not ready:
            return 0
        ids = [row["id"] for row in ready]
        lock_edges(connection, ids)
        return _request(connection, ids)


def _request(connection: Connection, ids: Sequence[UUID]) -> int:
    """Request runs while the rows and their edges are locked: an earlier caller may have consumed the arrivals."""
    return connection.execute(
        sql.SQL(
            """
            WITH {used}, waves AS (
                SELECT used.downstream_id, string_agg(u.name, ', ' ORDER BY u.name) AS upstreams
                FROM used JOIN etl.etl_pipelines u ON u.id = used.upstream_id GROUP BY 1
            )
            UPDATE etl.etl_pipelines p
            SET status = CASE WHEN p.status = ANY(%(from)s) THEN 'RUN_REQUESTED' ELSE p.status END,
                -- As when a person asks (store.pipelines.request_run): a run at work or to be continued is no answer.
                run_requested_at = CASE WHEN p.status = 'RUN_REQUESTED'
                                        THEN coalesce(p.run_requested_at, clock_timestamp())
                                        ELSE clock_timestamp() END,
                requested_trigger = CASE WHEN p.status = 'RUN_REQUESTED' THEN p.requested_trigger ELSE %(trigger)s END,
                requested_reason = CASE WHEN p.status = 'RUN_REQUESTED' THEN p.requested_reason
                                        ELSE left('after ' || waves.upstreams, 1000) END,
                requested_trace = CASE WHEN p.status = 'RUN_REQUESTED' THEN p.requested_trace END,
                requested_range = CASE WHEN p.status NOT IN ('IDLE', 'FAILED') THEN p.requested_range END,
                range_requested_at = CASE WHEN p.status NOT IN ('IDLE', 'FAILED') THEN p.range_requested_at END,
                attempts = CASE WHEN p.status = ANY(%(from)s) THEN 0 ELSE p.attempts END
            FROM waves WHERE p.id = waves.downstream_id
            """
        ).format(used=_USED),
        {"ids": list(ids), "from": list(status.sources_of("request_ready")), "trigger": Trigger.RUN_AFTER},
    ).rowcount


def use_up(connection: Connection, pipeline_id: UUID) -> None:
    """Consume what has arrived for a pipeline: a run that was requested otherwise will read all of it."""
    lock_edges(connection, [pipeline_id])
    connection.execute(sql.SQL("WITH {used} SELECT FROM used").format(used=_USED), {"ids": [pipeline_id]})


_USED = sql.SQL(
    """
    used AS (
        UPDATE etl.etl_run_after e
        SET used_run_id = e.arrived_run_id, used_as_of = e.arrived_as_of, arrived_run_id = NULL, arrived_as_of = NULL
        WHERE e.downstream_id = ANY(%(ids)s)
          AND NOT EXISTS (SELECT FROM etl.etl_run_after w
                          WHERE w.downstream_id = e.downstream_id AND w.arrived_run_id IS NULL)
        RETURNING e.downstream_id, e.upstream_id
    )
    """
)


def lock_edges(connection: Connection, downstreams: Sequence[UUID]) -> None:
    """Lock the edges that lead to these pipelines. Pass all of them at once, so that all callers lock in one order."""
    connection.execute(
        """
        SELECT FROM etl.etl_run_after WHERE downstream_id = ANY(%s)
        ORDER BY downstream_id, upstream_id FOR UPDATE
        """,
        [list(downstreams)],
    )
