"""What housekeeping does on the search server: removes unfinished generations that no run comes back to."""

from dataclasses import replace
from functools import partial

import structlog

from vitrina.connectors.search import abandoned
from vitrina.connectors.search.client import SearchClient
from vitrina.connectors.search.target import connection_options
from vitrina.errors import VitrinaError
from vitrina.settings import Settings
from vitrina.store import left_generations
from vitrina.store.database import Connection

# A pipeline's row is locked meanwhile.
TIMEOUT_SECONDS = 5.0


def remove_left_generations(metastore: Connection, settings: Settings) -> None:
    """One look at each; a server that does not answer is asked again in the next round."""
    try:
        client = SearchClient(replace(connection_options(settings), timeout_seconds=TIMEOUT_SECONDS))
        try:
            left_generations.settle(metastore, partial(abandoned.remove, client))
        finally:
            client.close()
    except VitrinaError as exc:
        structlog.get_logger().warning("housekeeping.search_skipped", error=exc.message)
