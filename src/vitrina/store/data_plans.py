"""Query `etl_plans`: what definitions would change, as computed by runners."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from vitrina.store import pruning
from vitrina.store.database import Connection

Row = dict[str, Any]


def insert(connection: Connection, plan: Row) -> None:
    """Store a plan. A second runner that took over the request overwrites the plan of the first."""
    connection.execute(
        """
        INSERT INTO etl.etl_plans (id, pipeline_id, pipeline, fingerprint, base_version, result, created_by)
        VALUES (%(id)s, %(pipeline_id)s, %(pipeline)s, %(fingerprint)s, %(base_version)s, %(result)s, %(created_by)s)
        ON CONFLICT (id) DO UPDATE
        SET fingerprint = excluded.fingerprint, base_version = excluded.base_version, result = excluded.result,
            created_at = excluded.created_at
        """,
        plan | {"result": Jsonb(plan["result"])},
    )


def find(connection: Connection, plan_id: UUID) -> Row | None:
    return connection.execute("SELECT * FROM etl.etl_plans WHERE id = %s", [plan_id]).fetchone()


def list_newest(connection: Connection, pipeline_id: UUID, *, limit: int) -> list[Row]:
    """List plans of a pipeline, newest first, without their sample rows."""
    return connection.execute(
        """
        SELECT id, pipeline, base_version, created_at, created_by, applied_at, applied_by, applied_version,
               (result -> 'rows' ->> 'added')::bigint AS added, (result -> 'rows' ->> 'changed')::bigint AS changed,
               (result -> 'rows' ->> 'removed')::bigint AS removed,
               jsonb_array_length(result -> 'refusals') > 0 AS refused
        FROM etl.etl_plans
        WHERE pipeline_id = %s ORDER BY created_at DESC LIMIT %s
        """,
        [pipeline_id, limit],
    ).fetchall()


def find_all(connection: Connection, plan_ids: Sequence[UUID]) -> list[Row]:
    return connection.execute("SELECT * FROM etl.etl_plans WHERE id = ANY(%s) FOR UPDATE", [list(plan_ids)]).fetchall()


def mark_applied(connection: Connection, plan_id: UUID, pipeline_id: UUID, version: int, applied_by: str) -> None:
    """Record who applied a plan, and the version that it became."""
    connection.execute(
        """
        UPDATE etl.etl_plans
        SET pipeline_id = %s, applied_at = clock_timestamp(), applied_by = %s, applied_version = %s WHERE id = %s
        """,
        [pipeline_id, applied_by, version, plan_id],
    )


def prune(connection: Connection, *, older_than_days: int) -> int:
    return pruning.delete(
        connection, "etl_plans", "r.created_at < now() - make_interval(days => %s)", [older_than_days]
    )
