"""Real search servers, one of each kind at a time, and the fault proxy in front of them."""

import os
from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.chaos.conftest import LONG
from tests.support.http_fault_proxy import HttpFaultProxy
from tests.support.search_servers import EXISTING, NOT_RUN, Target, kinds, newest_of_each
from vitrina.connectors.search.client import SearchClient
from vitrina.connectors.search.connection import ConnectionOptions
from vitrina.connectors.search.generations import Generations

__all__ = ["Target"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if NOT_RUN and not os.environ.get(EXISTING):
        terminalreporter.write_line(
            f"search tests did not run on {', '.join(NOT_RUN)}: no Java 21 or later; "
            "apt-get install -y openjdk-21-jre-headless",
            yellow=True,
        )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = [item for item in items if "tests/search/" in item.nodeid]
    for item in ours:
        item.add_marker(pytest.mark.search)
        # The first test of each kind waits for its server, and the very first one for Maven as well.
        item.add_marker(pytest.mark.timeout(600))
    more_than_needed = [item for item in ours if not _is_wanted(item)]
    config.hook.pytest_deselected(items=more_than_needed)
    items[:] = [item for item in items if item not in more_than_needed]


def _is_wanted(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    kind = callspec.params.get("search") if callspec else None
    if kind is None:
        return True
    if item.get_closest_marker("one_server"):
        return bool(kind == kinds()[0])
    return bool(LONG or not item.get_closest_marker("two_servers") or kind in newest_of_each())


@pytest.fixture
def client(search: Target) -> Iterator[SearchClient]:
    client = SearchClient(ConnectionOptions.from_url(search.url))
    yield client
    client.close()


@pytest.fixture
def index(client: SearchClient) -> Iterator[str]:
    """A name of the test's own; everything made under it is removed."""
    name = f"vitrina-test-{uuid4().hex[:12]}"
    yield name
    for concrete in client.list_indexes(f"{name}*"):
        client.delete_index(concrete)


@pytest.fixture
def generations(client: SearchClient, index: str) -> Generations:
    return Generations(client, index)


@pytest.fixture
def proxy(search: Target) -> Iterator[HttpFaultProxy]:
    with HttpFaultProxy(search.port) as proxy:
        yield proxy
