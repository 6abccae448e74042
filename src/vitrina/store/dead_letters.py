"""Statements on `etl_dead_letters`: documents that a target refused."""

from typing import Any
from uuid import UUID

from vitrina.store.database import Connection

Row = dict[str, Any]


def list_page(
    connection: Connection, *, pipeline_id: UUID | None, resolved: bool, before_id: int | None, limit: int
) -> list[Row]:
    """Newest first."""
    return connection.execute(
        """
        SELECT d.*, p.name AS pipeline
        FROM etl.etl_dead_letters d JOIN etl.etl_pipelines p ON p.id = d.pipeline_id
        WHERE (%(pipeline)s::uuid IS NULL OR d.pipeline_id = %(pipeline)s)
          AND (d.resolved_at IS NOT NULL) = %(resolved)s
          AND (%(before)s::bigint IS NULL OR d.id < %(before)s)
        ORDER BY d.id DESC LIMIT %(limit)s
        """,
        {"pipeline": pipeline_id, "resolved": resolved, "before": before_id, "limit": limit},
    ).fetchall()


def count_open(connection: Connection, pipeline_id: UUID) -> int:
    row = connection.execute(
        "SELECT count(*) AS letters FROM etl.etl_dead_letters WHERE pipeline_id = %s AND resolved_at IS NULL",
        [pipeline_id],
    ).fetchone()
    return int(row["letters"]) if row else 0
