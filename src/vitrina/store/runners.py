"""Query `etl_runners`: the registered runners."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from vitrina.store.database import Connection


def heartbeat(
    connection: Connection,
    runner_id: UUID,
    *,
    host: str,
    pid: int,
    version: str,
    capacity: int,
    running: int,
    transforms: list[dict[str, Any]],
    sealing_keys: Sequence[bytes] = (),
    connectors: Sequence[Mapping[str, Any]] = (),
    covers: Sequence[str] = (),
) -> None:
    connection.execute(
        """
        INSERT INTO etl.etl_runners
            (id, host, pid, version, capacity, running, transforms, sealing_keys, connectors, covers)
        VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
        ON CONFLICT (id) DO UPDATE
        SET heartbeat_at = clock_timestamp(), running = excluded.running, capacity = excluded.capacity
        """,
        [
            runner_id,
            host,
            pid,
            version,
            capacity,
            running,
            Jsonb(transforms),
            list(sealing_keys),
            Jsonb(list(connectors)),
            list(covers),
        ],
    )


def list_all(connection: Connection, *, stale_after_seconds: float) -> list[dict[str, Any]]:
    """List runners with the pipelines they run; `alive` is computed by the database's clock."""
    return connection.execute(
        """
        SELECT r.*, r.heartbeat_at > clock_timestamp() - make_interval(secs => %s) AS alive,
               coalesce((SELECT jsonb_agg(jsonb_build_object('id', p.id, 'name', p.name) ORDER BY p.name)
                         FROM etl.etl_pipelines p WHERE p.runner_id = r.id), '[]') AS pipelines
        FROM etl.etl_runners r ORDER BY r.started_at, r.id
        """,
        [stale_after_seconds],
    ).fetchall()


def find(connection: Connection, runner_id: UUID, *, stale_after_seconds: float) -> dict[str, Any] | None:
    return connection.execute(
        """
        SELECT *, heartbeat_at > clock_timestamp() - make_interval(secs => %s) AS alive
        FROM etl.etl_runners WHERE id = %s
        """,
        [stale_after_seconds, runner_id],
    ).fetchone()


def count_alive(connection: Connection, *, stale_after_seconds: float) -> int:
    row = connection.execute(
        """
        SELECT count(*) AS alive FROM etl.etl_runners
        WHERE heartbeat_at > clock_timestamp() - make_interval(secs => %s)
        """,
        [stale_after_seconds],
    ).fetchone()
    return int(row["alive"]) if row else 0


def list_sealing_keys(connection: Connection, *, stale_after_seconds: float) -> list[list[bytes]]:
    """List the public keys of each live runner, its preferred key first."""
    rows = connection.execute(
        """
        SELECT sealing_keys AS keys FROM etl.etl_runners
        WHERE heartbeat_at > clock_timestamp() - make_interval(secs => %s) ORDER BY started_at DESC, id
        """,
        [stale_after_seconds],
    )
    return [[bytes(key) for key in row["keys"]] for row in rows]


def list_transforms(connection: Connection, *, stale_after_seconds: float) -> list[dict[str, Any]]:
    """List each registered step once, as a live runner describes it, with the number of live runners that have it."""
    return connection.execute(
        """
        SELECT t ->> 'name' AS name, (array_agg(t ORDER BY r.started_at DESC))[1] AS described, count(*) AS runners
        FROM etl.etl_runners r, jsonb_array_elements(r.transforms) t
        WHERE r.heartbeat_at > clock_timestamp() - make_interval(secs => %s)
        GROUP BY 1 ORDER BY 1
        """,
        [stale_after_seconds],
    ).fetchall()


def list_connectors(connection: Connection, *, stale_after_seconds: float) -> list[dict[str, Any]]:
    """List each connector once, as a live runner describes it, with the number of live runners that have it."""
    return connection.execute(
        """
        SELECT c ->> 'name' AS name, (array_agg(c ORDER BY r.started_at DESC))[1] AS described, count(*) AS runners
        FROM etl.etl_runners r, jsonb_array_elements(r.connectors) c
        WHERE r.heartbeat_at > clock_timestamp() - make_interval(secs => %s)
        GROUP BY 1 ORDER BY 1
        """,
        [stale_after_seconds],
    ).fetchall()


def remove(connection: Connection, runner_id: UUID) -> None:
    connection.execute("DELETE FROM etl.etl_runners WHERE id = %s", [runner_id])


def forget_stale(connection: Connection, *, older_than_seconds: float) -> int:
    return connection.execute(
        "DELETE FROM etl.etl_runners WHERE heartbeat_at < clock_timestamp() - make_interval(secs => %s)",
        [older_than_seconds],
    ).rowcount
