"""Remove unfinished generations from search servers that no run will resume."""

from contextlib import ExitStack
from dataclasses import replace

import structlog

from vitrina.connectors.search import abandoned
from vitrina.connectors.search.client import SearchClient
from vitrina.connectors.search.target import connection_options
from vitrina.errors import VitrinaError
from vitrina.ports import registry
from vitrina.settings import Settings
from vitrina.store import left_generations
from vitrina.store.database import Connection

# Short, because a pipeline's row is locked during the request.
TIMEOUT_SECONDS = 5.0


def clusters(settings: Settings) -> list[str | None]:
    """Return the names of all search clusters; None stands for that of ELASTICSEARCH_URL."""
    default: list[str | None] = [None] if settings.elasticsearch_url else []
    return default + [name for name in settings.connections if settings.connector_of(name) == registry.SEARCH]


def remove_left_generations(metastore: Connection, settings: Settings) -> None:
    """Try to remove each abandoned generation once. A server that does not answer is asked again in the next round."""
    if not clusters(settings):
        return
    with ExitStack() as opened:
        clients = [_client(settings, name, opened) for name in clusters(settings)]

        def remove(generation: str, pipeline: str) -> bool:
            """Return True only if all clusters agree, because the record does not name the cluster."""
            settled = [client is not None and _removed(client, generation, pipeline) for client in clients]
            return all(settled)

        left_generations.settle(metastore, remove)


def _client(settings: Settings, name: str | None, opened: ExitStack) -> SearchClient | None:
    try:
        client = SearchClient(replace(connection_options(settings, name), timeout_seconds=TIMEOUT_SECONDS))
    except VitrinaError as exc:
        _skip(exc)
        return None
    opened.callback(client.close)
    return client


def _removed(client: SearchClient, generation: str, pipeline: str) -> bool:
    try:
        return abandoned.remove(client, generation, pipeline)
    except VitrinaError as exc:
        _skip(exc)
        return False


def _skip(exc: VitrinaError) -> None:
    structlog.get_logger().warning("housekeeping.search_skipped", error=exc.message)
