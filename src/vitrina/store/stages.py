"""Find and drop stage tables that are no longer needed, of all pipelines in a database."""

from typing import Any
from uuid import UUID

import psycopg
import structlog
from psycopg import sql

from vitrina.store.database import Connection


def drop_orphans(metastore: Connection, target: Connection, *, remote: bool = False) -> list[str]:
    """Drop stages whose pipeline was removed, and those that no checkpoint names and no runner works on.

    In another database than the metastore's, drop only those of known pipelines: it may serve several metastores.
    """
    dropped = drop_left_plans(target)
    for stage in list_all(target):
        try:
            if _drop_if_orphan(metastore, target, stage, remote=remote):
                dropped.append(stage["name"])
        except psycopg.errors.LockNotAvailable:
            continue  # the stage is in use; the next round tries again
    if dropped:
        structlog.get_logger().info("stages.dropped", stages=dropped)
    return dropped


def hold_plans(target: Connection, pipeline_id: UUID) -> None:
    """Keep the stages of plans of this pipeline from being dropped, as long as the session lasts."""
    target.execute(
        "SELECT pg_catalog.pg_advisory_lock_shared(pg_catalog.hashtextextended(%s, 0))", [f"d_{pipeline_id.hex}"]
    )


def drop_left_plans(target: Connection) -> list[str]:
    """Drop the stages of plans whose runner was lost: no session holds them any more."""
    rows = target.execute(
        """
        SELECT left(c.relname, 34) AS plan, c.relname AS name,
               CASE c.relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END AS kind
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'etl_stage' AND c.relkind IN ('r', 'v') AND c.relname ~ '^d_[0-9a-f]{32}_'
        ORDER BY c.relkind DESC, c.relname
        """
    ).fetchall()
    return [row["name"] for row in rows if _drop_left_plan(target, row)]


def _drop_left_plan(target: Connection, row: dict[str, Any]) -> bool:
    with target.transaction():
        held = target.execute(
            "SELECT pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended(%s, 0)) AS ours", [row["plan"]]
        ).fetchone()
        if not (held and held["ours"]):
            return False
        name = sql.Identifier("etl_stage", row["name"])
        target.execute(sql.SQL("DROP {} IF EXISTS {}").format(sql.SQL(row["kind"]), name))
        return True


def list_all(target: Connection) -> list[dict[str, Any]]:
    """List every stage with its pipeline's id and its size in bytes."""
    rows = target.execute(
        """
        SELECT c.relname AS name, substr(c.relname, 3, 32)::uuid AS pipeline_id,
               pg_catalog.pg_total_relation_size(c.oid) AS bytes,
               CASE c.relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END AS kind
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'etl_stage' AND c.relkind IN ('r', 'v') AND c.relname ~ '^p_[0-9a-f]{32}_'
        ORDER BY c.relname
        """
    ).fetchall()
    return list(rows)


def list_orphans(metastore: Connection) -> list[str]:
    """List the stages in the metastore's own database that the next round of housekeeping will drop."""
    return [
        stage["name"]
        for stage in list_all(metastore)
        if _is_orphan(metastore, metastore, stage, remote=False, lock=False)
    ]


def list_target_connections(metastore: Connection) -> list[str]:
    """List the named databases that pipelines write to."""
    rows = metastore.execute(
        """
        SELECT DISTINCT lower(options ->> 'target_connection') AS name FROM etl.etl_pipelines
        WHERE jsonb_typeof(options -> 'target_connection') = 'string' ORDER BY 1
        """
    ).fetchall()
    return [row["name"] for row in rows]


def _drop_if_orphan(metastore: Connection, target: Connection, stage: dict[str, Any], *, remote: bool) -> bool:
    """Drop an orphan. The pipeline's row is locked, so no runner claims it between the second check and the drop."""
    if not _is_orphan(metastore, target, stage, remote=remote, lock=False):
        return False
    with metastore.transaction():
        if not _is_orphan(metastore, target, stage, remote=remote, lock=True):
            return False
        name = sql.Identifier("etl_stage", stage["name"])
        target.execute(sql.SQL("DROP {} IF EXISTS {}").format(sql.SQL(stage["kind"]), name))
        return True


def _is_orphan(metastore: Connection, target: Connection, stage: dict[str, Any], *, remote: bool, lock: bool) -> bool:
    pipeline_id: UUID = stage["pipeline_id"]
    owner = metastore.execute(
        sql.SQL("SELECT claim_id FROM etl.etl_pipelines WHERE id = %s {}").format(
            sql.SQL("FOR UPDATE" if lock else "")
        ),
        [pipeline_id],
    ).fetchone()
    if owner is None:
        # A pipeline of another metastore keeps its checkpoint in this database's ledger.
        return not remote and _named_in(target, "ledger", pipeline_id) is None
    if owner["claim_id"] is not None:
        return False
    named = [_named_in(metastore, "etl_state", pipeline_id), _named_in(target, "ledger", pipeline_id)]
    return not any(row and row["stage"] == stage["name"] for row in named)


def _named_in(connection: Connection, table: str, pipeline_id: UUID) -> dict[str, Any] | None:
    identifier = sql.Identifier("etl", table) if table == "etl_state" else sql.Identifier("etl_stage", table)
    return connection.execute(
        sql.SQL("SELECT stage FROM {} WHERE pipeline_id = %s").format(identifier), [pipeline_id]
    ).fetchone()
