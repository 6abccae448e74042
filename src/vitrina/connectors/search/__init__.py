"""Describe the connector for Elasticsearch and OpenSearch targets. Functions import the client when they need it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from vitrina.connectors.search import urls
from vitrina.ports.connector import Connector, Finding, Opening

if TYPE_CHECKING:
    from vitrina.ports.target import Target
    from vitrina.settings import Settings
    from vitrina.store.database import Connection

# What Elasticsearch and OpenSearch accept as an index name, without the dot prefix of system indexes.
INDEX_NAME = r"[a-z0-9][a-z0-9_.\-]{0,126}"


def _open_target(opening: Opening) -> "Target":
    from vitrina.connectors.search.opening import open_target

    return open_target(opening)


def _check(url: str, settings: "Settings") -> Iterator[Finding]:
    from vitrina.connectors.search.health import check

    yield from check(url, settings)


def _dataset(url: str | None, index: str) -> tuple[str, str]:
    """Return the lineage name of the index. The namespace is the address of the cluster's first server."""
    first = (urls.parse(url).addresses if url and urls.is_of_cluster(url) else url or "").split(",")[0]
    server = urlsplit(first)
    return f"elasticsearch://{server.hostname or 'localhost'}:{server.port or 9200}", index


def _open_client(settings: "Settings") -> Any:
    from vitrina.connectors.search.target import open_client

    return open_client(settings)


def _place(settings: "Settings", connection: str | None) -> str | None:
    from vitrina.connectors.search.health import cluster_of

    return cluster_of(settings, connection)


def _tidy_up(metastore: "Connection", settings: "Settings") -> None:
    from vitrina.store import left_generations

    if left_generations.exist(metastore):
        # Imported here, because most runners need no search client.
        from vitrina.connectors.search.housekeeping import remove_left_generations

        remove_left_generations(metastore, settings)


connector = Connector(
    name="search",
    summary="Elasticsearch 8 and 9, OpenSearch 2 and 3: indexes as targets (`es:index`).",
    schemes=urls.SCHEMES,
    prefix="es",
    target_name=INDEX_NAME,
    secrets=urls.SECRETS,
    open_target=_open_target,
    takes_delete_when=True,
    removes_rows=True,
    url_problem=urls.problem,
    kept_url_problem=urls.kept_problem,
    check=_check,
    dataset=_dataset,
    tidy_up=_tidy_up,
    place=_place,
    open_client=_open_client,
)
