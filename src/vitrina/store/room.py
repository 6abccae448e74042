"""Connections that the operator limits: how many sessions runs take there, and which pipelines wait for room."""

from collections.abc import Mapping
from typing import Any

from psycopg.sql import SQL, Composed, Identifier
from psycopg.types.json import Jsonb

from vitrina.definition import Definition
from vitrina.errors import ConfigError
from vitrina.settings import Settings, limit_variable
from vitrina.store.database import Connection

# One session asks and another streams where a run reads; one merges and another fills stages where it writes.
_SESSIONS_OF_A_SIDE = 2


def require_room(definition: Definition, settings: Settings) -> None:
    """What needs more than there can ever be is not left to wait: it says so."""
    for name, most in settings.max_connections.items():
        needed = _sessions_needed(definition, name)
        if needed > most:
            raise ConfigError(
                f"a run of {definition.name} needs {needed} sessions at once on the connection {name!r}, more than the"
                f" {most} of {limit_variable(name, 'max_connections')}: the operator sets it to {needed} or more"
            )


def _sessions_needed(definition: Definition, connection: str) -> int:
    """All at once: a run begins only when there is room for all of them, so none waits for one in the middle."""
    sides = (definition.source_connection, definition.options.target_connection)
    return _SESSIONS_OF_A_SIDE * sum((side or "").lower() == connection for side in sides)


def _sessions_of(pipeline: str) -> Composed:
    """The same of a row of etl_pipelines, on the connection `l.name`."""
    return SQL(
        "{each} * ((lower({row}.source_connection) = l.name)::integer"
        " + (coalesce(lower({row}.options ->> 'target_connection'), '') = l.name)::integer)"
    ).format(each=_SESSIONS_OF_A_SIDE, row=Identifier(pipeline))


# The connections that have no room for a run of `p` just now. One that never will is taken, and fails.
FULL_CONNECTIONS = SQL(
    """
    SELECT l.name
    FROM jsonb_each_text(%(max_connections)s) AS l(name, sessions)
    WHERE {needed} BETWEEN 1 AND l.sessions::integer
      AND {needed} + (SELECT coalesce(sum({taken}), 0) FROM etl.etl_pipelines b
                      WHERE b.status IN ('RUNNING', 'PAUSE_REQUESTED') AND b.claim_id IS NOT NULL)
          > l.sessions::integer
    """
).format(needed=_sessions_of("p"), taken=_sessions_of("b"))


def list_waiting(connection: Connection, max_connections: Mapping[str, int]) -> list[dict[str, Any]]:
    """Requested pipelines, each with a connection that has no room for its run."""
    return connection.execute(
        SQL(
            """
            SELECT p.name AS pipeline, f.name AS connection
            FROM etl.etl_pipelines p CROSS JOIN LATERAL ({full}) AS f
            WHERE p.status = 'RUN_REQUESTED' AND p.enabled
            ORDER BY 1, 2
            """
        ).format(full=FULL_CONNECTIONS),
        {"max_connections": Jsonb(dict(max_connections))},
    ).fetchall()
