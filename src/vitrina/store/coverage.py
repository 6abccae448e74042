"""Find what a pipeline needs of its runner, and which pipelines wait because no live runner has it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from psycopg import sql

from vitrina.ports.connector import Connector
from vitrina.store import pipelines
from vitrina.store.database import Connection
from vitrina.store.prepared import Statement

SOURCE, TARGET, STEP = "source", "target", "step"


def covered(connectors: Iterable[Connector], steps: Iterable[Mapping[str, Any]]) -> list[str]:
    """List what a runner with these connectors and steps can do, as stored in `etl_runners.covers`."""
    found = [*connectors]
    return [
        *(f"{SOURCE}:{each.name}" for each in found if each.is_source),
        *(f"{TARGET}:{each.prefix or ''}" for each in found if each.is_target),
        *(f"{STEP}:{step['name']}" for step in steps),
    ]


# Whether the rows of `p` come from a Python source, because there is nothing else to read. Its tasks are steps then.
_MADE_BY_PYTHON = sql.SQL(
    """
    (p.type = 'PYTHON' AND p.source_table IS NULL AND coalesce(btrim(p.source_query), '') = ''
     AND coalesce((SELECT t.task_type FROM etl.etl_pipeline_tasks t
                   WHERE t.pipeline_id = p.id ORDER BY t.order_index LIMIT 1), '') <> 'SQL')
    """
)

# What `p` needs, in the same words. An invalid name is not a need: such a row is claimed and fails with the reason,
# instead of waiting for a runner that cannot exist.
CONNECTORS_NEEDED = sql.SQL(
    """
    ARRAY(SELECT need FROM (VALUES
        ('source:' || CASE WHEN {made} THEN 'python' ELSE p.source_type END),
        ('target:' || CASE WHEN strpos({target}, ':') > 0 THEN split_part({target}, ':', 1) ELSE '' END)
    ) AS needed (need) WHERE need ~ '^(source:[a-z][a-z0-9_]{{0,30}}|target:([a-z][a-z0-9_]{{0,30}})?)$')
    """
).format(target=pipelines.FINAL_TARGET, made=_MADE_BY_PYTHON)

NEEDED = sql.SQL(
    """
    {connectors} || ARRAY(
        SELECT 'step:' || t.body FROM etl.etl_pipeline_tasks t
        WHERE t.pipeline_id = p.id AND t.task_type = 'PYTHON' AND t.body ~ '^[a-z][a-z0-9_]{{0,62}}$'
        UNION
        SELECT 'step:' || p.python_task
        WHERE p.type = 'PYTHON' AND p.python_task ~ '^[a-z][a-z0-9_]{{0,62}}$'
          AND ({made} OR NOT EXISTS (SELECT FROM etl.etl_pipeline_tasks t WHERE t.pipeline_id = p.id))
    )
    """
).format(connectors=CONNECTORS_NEEDED, made=_MADE_BY_PYTHON)


def list_waiting(
    connection: Connection, *, stale_after_seconds: float, only: Sequence[UUID] | None = None
) -> dict[UUID, list[str]]:
    """Find requested pipelines that no live runner covers, with what is missing.

    If no runner is alive at all, list none.
    """
    values = {"silence": stale_after_seconds, "only": list(only) if only is not None else None}
    rows = _LIST_WAITING.fetch_all(connection, values)
    # If each need is covered by some runner, but no runner covers all, then all of them are missing.
    return {row["id"]: row["missing"] or sorted(row["needed"]) for row in rows}


_LIST_WAITING = Statement(
    sql.SQL(
        """
        WITH alive AS (
            SELECT covers FROM etl.etl_runners
            WHERE heartbeat_at > clock_timestamp() - make_interval(secs => %(silence)s)
        ), waiting AS (
            SELECT p.id, {needed} AS needed FROM etl.etl_pipelines p
            WHERE p.status = 'RUN_REQUESTED' AND p.enabled AND (%(only)s::uuid[] IS NULL OR p.id = ANY(%(only)s))
        )
        SELECT w.id, w.needed,
               ARRAY(SELECT n FROM unnest(w.needed) AS n
                     WHERE NOT EXISTS (SELECT FROM alive a WHERE n = ANY(a.covers)) ORDER BY 1) AS missing
        FROM waiting w
        WHERE EXISTS (SELECT FROM alive)
          -- One that says nothing of itself may be able to do anything.
          AND NOT EXISTS (SELECT FROM alive a WHERE w.needed <@ a.covers OR a.covers = '{{}}')
        """
    )
    .format(needed=NEEDED)
    .as_bytes()
)
