"""Delete old rows in slices, each committed separately: one statement for a large backlog would never end in time."""

from collections.abc import Sequence
from typing import Any

from psycopg import sql

from vitrina.store.database import Connection

ROWS = 5000
# Other duties wait meanwhile. What is left is deleted in the next round.
SLICES = 100


def delete(connection: Connection, table: str, old: str, values: Sequence[Any]) -> int:
    """Delete the rows `r` of a table to which the condition `old` applies. Return how many there were."""
    deleted = 0
    for _ in range(SLICES):
        found = _delete_slice(connection, table, old, [*values, ROWS])
        deleted += found
        if found < ROWS:
            break
    return deleted


def _delete_slice(connection: Connection, table: str, old: str, values: Sequence[Any]) -> int:
    # A row that is changed meanwhile has another ctid, and is kept until the next slice.
    return connection.execute(
        sql.SQL(
            """
            DELETE FROM {table} WHERE ctid = ANY(ARRAY(SELECT r.ctid FROM {table} r WHERE {old} LIMIT %s))
            """
        ).format(table=sql.Identifier("etl", table), old=sql.SQL(old)),
        values,
    ).rowcount
