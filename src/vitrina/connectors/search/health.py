"""Whether a named search cluster can be used: address, login, make and version, each with its next step."""

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

# Somebody waits, and a server that is there answers this at once.
TIMEOUT_SECONDS = 10.0


def cluster_of(settings: "Settings", connection: str | None) -> str | None:
    """Return the uuid that the servers of a cluster share; None when it does not tell."""
    client = SearchClient(replace(connection_options(settings, connection), timeout_seconds=TIMEOUT_SECONDS))
    try:
        found = client.request("GET", "/").body
    finally:
        client.close()
    uuid = found.get("cluster_uuid") if isinstance(found, dict) else None
    return uuid if isinstance(uuid, str) and uuid not in ("", "_na_") else None


def check(url: str, settings: "Settings") -> Iterator[Finding]:
    """Log in and ask the cluster what it is; nothing is written."""
    try:
        client = SearchClient(replace(ConnectionOptions.of_cluster(url), timeout_seconds=TIMEOUT_SECONDS))
        try:
            server = client.request("GET", "/").body
        finally:
            client.close()
    except VitrinaError as exc:
        yield Finding("PROBLEM", exc.message, "start that server, open its port to this machine, or correct its URL")
        return
    version = server.get("version", {}) if isinstance(server, dict) else {}
    make = "OpenSearch" if version.get("distribution") == "opensearch" else "Elasticsearch"
    if not version.get("number"):
        yield Finding("PROBLEM", "it answers, but not as a search server does", "correct its URL, login or API key")
        return
    yield Finding("OK", f"{make} {version['number']}")
