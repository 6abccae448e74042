"""Query generations of search indexes that no checkpoint names any more, as recorded by triggers of `etl_state`."""

from collections.abc import Callable
from typing import Any

import psycopg

from vitrina.store.database import Connection

# Maximum per round; the next round handles the rest.
AT_ONCE = 100


def exist(metastore: Connection) -> bool:
    return metastore.execute("SELECT 1 FROM etl.etl_left_generations LIMIT 1").fetchone() is not None


def settle(metastore: Connection, remove: Callable[[str, str], bool]) -> None:
    """Pass each generation that no runner works on, and its pipeline's id, to `remove`. Forget those it removes."""
    left = metastore.execute(
        "SELECT generation, pipeline_id FROM etl.etl_left_generations ORDER BY left_at LIMIT %s", [AT_ONCE]
    ).fetchall()
    for row in left:
        try:
            _settle(metastore, row, remove)
        except psycopg.errors.LockNotAvailable:
            continue  # the pipeline is being changed; the next round tries again


def _settle(metastore: Connection, row: dict[str, Any], remove: Callable[[str, str], bool]) -> None:
    """Remove a generation that is no longer needed. The pipeline's row is locked, so no runner claims it meanwhile."""
    with metastore.transaction():
        if _is_needed(metastore, row) or not remove(row["generation"], str(row["pipeline_id"])):
            return
        metastore.execute("DELETE FROM etl.etl_left_generations WHERE generation = %s", [row["generation"]])


def _is_needed(metastore: Connection, row: dict[str, Any]) -> bool:
    owner = metastore.execute(
        "SELECT claim_id FROM etl.etl_pipelines WHERE id = %s FOR UPDATE", [row["pipeline_id"]]
    ).fetchone()
    if owner and owner["claim_id"]:
        return True
    named = metastore.execute("SELECT 1 FROM etl.etl_state WHERE stage = %s", [row["generation"]]).fetchone()
    return named is not None
