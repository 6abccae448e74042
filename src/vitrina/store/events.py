"""Query `etl_events`, which listeners read. A trigger writes status changes, this module the rest."""

from typing import Any

from psycopg.types.json import Jsonb

from vitrina.store import pruning
from vitrina.store.database import Connection
from vitrina.store.prepared import Statement


def publish(connection: Connection, topic: str, payload: dict[str, Any]) -> None:
    _PUBLISH.execute(connection, [topic, Jsonb(payload)])


_PUBLISH = Statement(b"INSERT INTO etl.etl_events (topic, payload) VALUES (%s, %s)")


def list_after(connection: Connection, event_id: int, *, limit: int = 500) -> list[dict[str, Any]]:
    """List events after an id, with their `age` in seconds by the database's clock."""
    return connection.execute(
        """
        SELECT id, at, topic, payload, extract(epoch FROM clock_timestamp() - at)::float8 AS age
        FROM etl.etl_events WHERE id > %s ORDER BY id LIMIT %s
        """,
        [event_id, limit],
    ).fetchall()


def list_by_id(connection: Connection, ids: list[int]) -> list[dict[str, Any]]:
    return connection.execute(
        "SELECT id, at, topic, payload FROM etl.etl_events WHERE id = ANY(%s) ORDER BY id", [ids]
    ).fetchall()


def newest_id(connection: Connection) -> int:
    row = connection.execute("SELECT coalesce(max(id), 0) AS id FROM etl.etl_events").fetchone()
    return int(row["id"]) if row else 0


def prune(connection: Connection, *, older_than_hours: int) -> int:
    return pruning.delete(connection, "etl_events", "r.at < now() - make_interval(hours => %s)", [older_than_hours])
