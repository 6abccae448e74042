"""Check whether a named search cluster can be used: address, login, product and version."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from vitrina.connectors.search.client import SearchClient
from vitrina.connectors.search.connection import ConnectionOptions
from vitrina.connectors.search.target import connection_options
from vitrina.errors import VitrinaError
from vitrina.ports.connector import Finding

if TYPE_CHECKING:
    from vitrina.settings import Settings

# A user waits for the result, and a running server answers at once.
TIMEOUT_SECONDS = 10.0


def cluster_of(settings: "Settings", connection: str | None) -> str | None:
    """Return the uuid that the servers of a cluster share; None if they do not report it."""
    client = SearchClient(replace(connection_options(settings, connection), timeout_seconds=TIMEOUT_SECONDS))
    try:
        # A login may have permission for only one of these.
        answers = (client.request("GET", path).body for path in ("/", "/_cluster/state/version"))
        uuids = (answer.get("cluster_uuid") for answer in answers if isinstance(answer, dict))
        return next((uuid for uuid in uuids if isinstance(uuid, str) and uuid not in ("", "_na_")), None)
    finally:
        client.close()


def check(url: str, settings: "Settings") -> Iterator[Finding]:
    """Log in and identify the cluster; write nothing."""
    try:
        client = SearchClient(replace(ConnectionOptions.of_cluster(url), timeout_seconds=TIMEOUT_SECONDS))
        try:
            found = _make(client) or f"a search cluster, {client.health()['status']}"
        finally:
            client.close()
    except VitrinaError as exc:
        advice = "start that server, open its port to this machine, or correct its URL, login or API key"
        yield Finding("PROBLEM", exc.message, advice)
        return
    yield Finding("OK", found)


def _make(client: SearchClient) -> str | None:
    """Return product and version of the server, if the login may read them."""
    answer = client.request("GET", "/").body
    version = answer.get("version") if isinstance(answer, dict) else None
    if not isinstance(version, dict) or not version.get("number"):
        return None
    make = "OpenSearch" if version.get("distribution") == "opensearch" else "Elasticsearch"
    return f"{make} {version['number']}"
