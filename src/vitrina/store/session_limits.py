"""Limit the sessions of runs on a connection, and find the pipelines that wait for room."""

from collections.abc import Mapping
from typing import Any

from psycopg.sql import SQL, Composed, Identifier
from psycopg.types.json import Jsonb

from vitrina import targets
from vitrina.definition import Definition
from vitrina.errors import ConfigError
from vitrina.ports import registry
from vitrina.settings import DEFAULT_CONNECTION, Settings, limit_variable
from vitrina.store import pipelines
from vitrina.store.database import Connection


def require_room(definition: Definition, settings: Settings) -> None:
    """Refuse a pipeline that needs more sessions than a connection can ever have, instead of letting it wait."""
    for name, most in settings.max_connections.items():
        needed = _sessions_needed(definition, name)
        if needed > most:
            raise ConfigError(
                f"a run of {definition.name} needs {needed} sessions at once on the connection {name!r}, more than the"
                f" {most} of {limit_variable(name, 'max_connections')}: the operator sets it to {needed} or more"
            )


def _sessions_needed(definition: Definition, connection: str) -> int:
    """Count the sessions of a run on a connection. It begins only when all are free, so it never waits halfway."""
    installed = registry.installed().connectors
    source = installed.get(definition.source_type)
    target = installed.get(targets.connector_of(definition.final_target) or "")
    sides = (
        (definition.source_connection, source.source_sessions if source else 0),
        (definition.options.target_connection, target.target_sessions if target else 0),
    )
    return sum(sessions for name, sessions in sides if (name or "").lower() == connection)


def find_limited(definition: Definition, settings: Settings) -> str | None:
    """Return a connection of the pipeline whose sessions are limited."""
    names = (definition.source_connection, definition.options.target_connection or DEFAULT_CONNECTION)
    return next((name for name in names if name.lower() in settings.max_connections), None)


def workers_with_room(definition: Definition, settings: Settings, asked: int) -> int:
    """Return how many workers may load ranges of the key in parallel, or 1 if only the run itself fits.

    Each worker holds as many sessions as the run. A claim waits until there is room for all of them
    (`FULL_CONNECTIONS`); it cannot know how many `auto` means.
    """
    workers = asked
    for name, most in settings.max_connections.items():
        base = _sessions_needed(definition, name)
        if base:
            is_told = definition.options.parallel not in (1, "auto")
            counted = asked if is_told and definition.mode == "full" else 1
            workers = min(workers, counted, (most - base) // base)
    return max(workers, 1)


def sessions() -> dict[str, dict[str, int]]:
    """Count the sessions that a run opens at once, by `source_type` and by the prefix of its target."""
    installed = registry.installed().connectors.values()
    return {
        "source": {each.name: each.source_sessions for each in installed if each.is_source},
        "target": {each.prefix or "": each.target_sessions for each in installed if each.is_target},
    }


def _sessions_of(pipeline: str) -> Composed:
    """Build the expression for the sessions of a row of etl_pipelines on the connection `l.name`.

    Each worker that loads ranges of the key holds as many as the run, up to the limit of the connection.
    """
    alone = _sessions_alone(pipeline)
    return SQL(
        """
        ({alone} * (1 + CASE
            WHEN {alone} > 0 AND {row}.mode = 'full' AND {row}.source_type = 'postgres' AND strpos({target}, ':') = 0
             AND jsonb_typeof({row}.options -> 'parallel') = 'number' AND ({row}.options ->> 'parallel')::integer > 1
             AND (l.sessions::integer - {alone}) / {alone} > 1
            THEN least(({row}.options ->> 'parallel')::integer, (l.sessions::integer - {alone}) / {alone})
            ELSE 0 END))
        """
    ).format(alone=alone, row=Identifier(pipeline), target=pipelines.final_target(pipeline))


def _sessions_alone(pipeline: str) -> Composed:
    """Build the same for a run without workers."""
    return SQL(
        """
        (coalesce((%(sessions)s::jsonb -> 'source' ->> {row}.source_type)::integer, 0)
           * (lower({row}.source_connection) = l.name)::integer
         + coalesce((%(sessions)s::jsonb -> 'target'
                     ->> CASE WHEN strpos({target}, ':') > 0 THEN split_part({target}, ':', 1) ELSE '' END)::integer, 0)
           * (coalesce(lower({row}.options ->> 'target_connection'), '') = l.name)::integer)
        """
    ).format(row=Identifier(pipeline), target=pipelines.final_target(pipeline))


# The connections that have no room for a run of `p` now. A run for which there will never be room is claimed and fails.
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
    """List requested pipelines, each with a connection that has no room for its run."""
    return connection.execute(
        SQL(
            """
            SELECT p.name AS pipeline, f.name AS connection
            FROM etl.etl_pipelines p CROSS JOIN LATERAL ({full}) AS f
            WHERE p.status = 'RUN_REQUESTED' AND p.enabled
            ORDER BY 1, 2
            """
        ).format(full=FULL_CONNECTIONS),
        {"max_connections": Jsonb(dict(max_connections)), "sessions": Jsonb(sessions())},
    ).fetchall()
