"""A cluster of two nodes, one of which is killed in the middle of loads and comes back."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.search.conftest import Target
from tests.search.test_run_faults import LOADS, QUERY, HoldInMidLoad, bench, change_source, violations, watch
from tests.support.http_fault_proxy import HttpFaultProxy
from tests.support.search_servers import EXISTING, QUICK_START, kinds
from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina.connectors.search.client import SearchClient
from vitrina.embedded import search_server
from vitrina.embedded.search_server import SearchServer
from vitrina.runner import dispatcher

__all__ = ["bench"]

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(1800),
    pytest.mark.takes_long,  # two servers more
]

# A part of each index on each node, and a copy of it on the other.
SPREAD = {"settings": {"number_of_shards": 2, "number_of_replicas": 1}}


@pytest.fixture(scope="module", params=[kind for kind in kinds() if kind != EXISTING])
def nodes(request: pytest.FixtureRequest) -> Iterator[tuple[SearchServer, SearchServer]]:
    """The first one decides for both, so that it needs no second to go on; the second one holds documents only."""
    kind: str = request.param
    together = {"discovery.type": "zen" if kind.startswith("opensearch") else "multi-node"}
    with ExitStack() as servers:
        first = servers.enter_context(
            search_server.running(
                kind,
                settings=together | {"node.name": "first", "cluster.initial_master_nodes": "first"},
                java_options=QUICK_START,
            )
        )
        joining = {"node.name": "second", "node.roles": "data,ingest"}
        joining["discovery.seed_hosts"] = f"127.0.0.1:{first.transport_port}"
        second = servers.enter_context(
            search_server.running(kind, settings=together | joining, java_options=QUICK_START)
        )
        yield first, second


@pytest.fixture
def search(nodes: tuple[SearchServer, SearchServer]) -> Target:
    return Target(nodes[0].kind, nodes[0].url, nodes[0])


def test_a_node_that_is_killed_in_mid_load_costs_no_document(
    *,
    bench: Workbench,
    client: SearchClient,
    index: str,
    nodes: tuple[SearchServer, SearchServer],
    proxy: HttpFaultProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatcher, "OUTAGE_PATIENCE_SECONDS", 600.0)
    _, second = nodes
    until(lambda: health(client)["number_of_nodes"] == 2, seconds=240)
    indexes = {name: f"{index}-{name}" for name in LOADS}
    for name, fields in LOADS.items():
        options = {**fields.get("options", {}), "index": SPREAD}
        bench.pipeline(
            name,
            QUERY,
            **{"target_table": f"es:{indexes[name]}", "target_key": ["id"], "batch_size": 20, **fields}
            | {"options": options},
        )
        assert bench.run(name)["status"] == "SUCCESS"
    # What is shown now has a copy on the node that stays.
    until(lambda: health(client)["status"] == "green", seconds=240)
    change_source(bench, 2)
    fault = proxy.fault = HoldInMidLoad(taken=15)
    for name in LOADS:
        bench.request(name)
    running = [threading.Thread(target=bench.perform, args=[bench.claim()]) for _ in LOADS]
    done, complaints = threading.Event(), list[str]()
    watching = [threading.Thread(target=watch, args=(client, *one, done, complaints)) for one in indexes.items()]
    for thread in (*watching, *running):
        thread.start()
    try:
        until(lambda: fault.held == set(indexes.values()), seconds=240)
        second.kill()
        fault.go_on.set()
        until(lambda: health(client)["number_of_nodes"] == 1, seconds=240)
        # Whoever searches finds everything on the node that stayed.
        until(lambda: all(shown(client, of) == 300 for of in indexes.values()), seconds=240)
        second.start()
        for thread in running:
            thread.join(timeout=600)
    finally:
        fault.go_on.set()
        done.set()
        for thread in watching:
            thread.join()

    assert {name: bench.last_run(name)["status"] for name in LOADS} == dict.fromkeys(LOADS, "SUCCESS")
    until(lambda: health(client)["status"] == "green", seconds=240)
    assert {name: violations(bench, client, of) for name, of in indexes.items()} == {name: [] for name in LOADS}
    assert complaints == []
    left = {name: len(client.list_indexes(f"{of}*")) for name, of in indexes.items()}
    assert left == {"full": 2, "shared": 1, "incremental": 1}


def health(client: SearchClient) -> dict[str, object]:
    found = client.request("GET", "/_cluster/health").body
    assert isinstance(found, dict)
    return found


def shown(client: SearchClient, index: str) -> int:
    found = client.request("POST", f"/{index}/_search", body={"size": 0, "track_total_hits": True}).body
    if not isinstance(found, dict) or found.get("_shards", {}).get("failed", 1):
        return 0
    return int(found["hits"]["total"]["value"])
