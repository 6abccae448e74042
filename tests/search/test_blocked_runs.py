"""Runs that begin while the server takes nothing: they say so, wait, and go on when the block is lifted."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from pydantic import SecretStr

from tests.search.conftest import Target
from tests.support.http_fault_proxy import Answer, Forward, HttpFault, HttpFaultProxy, Request
from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina.connectors.search.client import SearchClient
from vitrina.loads.control import RunControl
from vitrina.runner.dispatcher import PipelineDispatcher

pytestmark = pytest.mark.two_servers

FILMS = """
CREATE TABLE content.film_work (
    id int PRIMARY KEY, title text, payload jsonb, modified timestamptz NOT NULL DEFAULT clock_timestamp());
INSERT INTO content.film_work (id, title) SELECT i, 'Film ' || i FROM generate_series(1, 50) AS i;
"""
QUERY = "SELECT id, title, modified FROM content.film_work"
INCREMENTAL = {"mode": "incremental", "incremental_key": "modified", "incremental_id_key": "id"}


@pytest.fixture
def bench(workbench: Workbench, search: Target) -> Workbench:
    workbench.source(FILMS)
    workbench.settings = workbench.settings.model_copy(
        update={"elasticsearch_url": SecretStr(search.url), "allowed_targets": "es:vitrina-test-*"}
    )
    return workbench


def pipeline(bench: Workbench, index: str, **fields: Any) -> None:
    bench.pipeline("films", QUERY, **{"target_table": f"es:{index}", "target_key": ["id"]} | fields)


@contextmanager
def blocked_index(client: SearchClient, index: str) -> Iterator[None]:
    client.put_settings(index, {"index.blocks.read_only_allow_delete": True})
    try:
        yield
    finally:
        client.put_settings(index, {"index.blocks.read_only_allow_delete": None})


@contextmanager
def blocked_cluster(client: SearchClient, setting: str) -> Iterator[None]:
    def put(value: bool | None) -> None:
        reply = client.request("PUT", "/_cluster/settings", body={"persistent": {f"cluster.blocks.{setting}": value}})
        assert reply.status == 200, reply.reason

    put(True)
    try:
        yield
    finally:
        put(None)


def run_until_it_waits(
    bench: Workbench, shutdown: threading.Event | None = None, *, because: str = "flood-stage"
) -> threading.Thread:
    bench.request("films")
    control = RunControl(3600, shutdown or threading.Event())
    dispatcher = PipelineDispatcher(bench.settings)
    running = threading.Thread(target=dispatcher.work, args=[bench.claim(), control])
    running.start()
    until(lambda: because in str(bench.last_run("films")["metrics"].get("waiting")))
    return running


def test_an_index_that_is_blocked_when_a_pass_begins(bench: Workbench, client: SearchClient, index: str) -> None:
    pipeline(bench, index, **INCREMENTAL, options={"on_schema_change": "add_columns"})
    bench.run("films")
    # A new field as well: the mapping has to be extended before anything is sent.
    bench.change("films", source_query=QUERY.replace(" FROM", ", payload FROM"))
    bench.sql("UPDATE content.film_work SET title = 'New', payload = '{}', modified = clock_timestamp()")
    with blocked_index(client, index):
        running = run_until_it_waits(bench)
    running.join(timeout=120)

    run = bench.last_run("films")
    assert (run["status"], run["error_message"], run["metrics"]["waiting"]) == ("SUCCESS", None, None)
    assert run["rows_written"] == 50


@pytest.mark.parametrize("mode", [{"mode": "full"}, INCREMENTAL], ids=["full", "incremental"])
def test_a_cluster_that_takes_no_new_index(
    bench: Workbench, client: SearchClient, search: Target, index: str, mode: dict[str, Any]
) -> None:
    pipeline(bench, index, **mode)
    # Only OpenSearch has a block for this alone.
    setting = "create_index" if "opensearch" in search.kind else "read_only_allow_delete"
    with blocked_cluster(client, setting):
        running = run_until_it_waits(bench)
    running.join(timeout=120)

    run = bench.last_run("films")
    assert (run["status"], run["rows_written"], run["metrics"]["waiting"]) == ("SUCCESS", 50, None)


def test_a_generation_that_is_blocked_when_it_is_to_be_shown(
    bench: Workbench, client: SearchClient, index: str
) -> None:
    """Elasticsearch moves aliases of a blocked index, OpenSearch does not: both end with the new generation."""
    pipeline(bench, index)
    bench.run("films")
    [first] = client.find_index(index) or {}
    bench.sql("UPDATE content.film_work SET title = 'New'")
    client.put_settings(first, {"index.blocks.read_only_allow_delete": True})
    lifting = threading.Timer(1, lambda: client.put_settings(first, {"index.blocks.read_only_allow_delete": None}))
    lifting.start()

    run = bench.run("films")

    lifting.join()
    [second] = client.find_index(index) or {}
    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert second != first


# --- blocks and replicas that somebody set by hand -------------------------------------------------------------------


@pytest.mark.parametrize("block", ["write", "read_only", "metadata"])
def test_a_block_that_somebody_set_is_named_and_waited_for(
    bench: Workbench, client: SearchClient, index: str, block: str
) -> None:
    pipeline(bench, index, **INCREMENTAL)
    bench.run("films")
    bench.sql("UPDATE content.film_work SET title = 'New', modified = clock_timestamp()")
    setting = f"index.blocks.{block}"
    client.put_settings(index, {setting: True})
    try:
        running = run_until_it_waits(bench, because=f"a user set {setting}: clear it")
    finally:
        client.put_settings(index, {setting: None})
    running.join(timeout=120)

    run = bench.last_run("films")
    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert run["rows_written"] == 50


@pytest.mark.parametrize("mode", [{"mode": "full"}, INCREMENTAL], ids=["full", "incremental"])
def test_replicas_that_find_no_node_hold_nothing_up(
    bench: Workbench, client: SearchClient, index: str, mode: dict[str, Any]
) -> None:
    """One node, which never has both copies of a shard."""
    pipeline(bench, index, **mode, options={"index": {"settings": {"number_of_replicas": 1}}})

    assert bench.run("films")["status"] == "SUCCESS"

    assert client.count(index) == 50
    assert client.get_settings(index)["index.number_of_replicas"] == "1"


def test_a_generation_is_filled_whose_writes_are_to_wait_for_replicas(
    bench: Workbench, client: SearchClient, index: str
) -> None:
    """They count from when it is shown: until then it has no replica that a write could wait for."""
    settings = {"number_of_replicas": 1, "write": {"wait_for_active_shards": "2"}}
    pipeline(bench, index, options={"index": {"settings": settings}})

    run = bench.run("films")

    assert (run["status"], run["error_message"], run["attempts"]) == ("SUCCESS", None, 1)
    assert client.count(index) == 50
    found = client.get_settings(index)
    assert (found["index.number_of_replicas"], found["index.write.wait_for_active_shards"]) == ("1", "2")


class AskForHaste(HttpFault):
    """The server answers a write that waits for copies after a second, not after a minute."""

    def spoil(self, request: Request, forward: Forward) -> Answer:
        return forward(replace(request, path=f"{request.path}&timeout=1s"))


def test_a_pass_whose_writes_wait_for_replicas_says_so_and_goes_on(
    bench: Workbench, client: SearchClient, index: str, proxy: HttpFaultProxy
) -> None:
    bench.settings = bench.settings.model_copy(update={"elasticsearch_url": SecretStr(proxy.url)})
    proxy.fault = AskForHaste()
    settings = {"number_of_replicas": 1, "write": {"wait_for_active_shards": "2"}}
    pipeline(bench, index, **INCREMENTAL, options={"index": {"settings": settings}})

    running = run_until_it_waits(bench, because="Not enough active copies to meet shard count of [2]")
    client.put_settings(index, {"index.write.wait_for_active_shards": "1"})
    running.join(timeout=120)

    assert bench.last_run("films")["status"] == "SUCCESS"
    assert client.count(index) == 50


@pytest.fixture
def spoilt(bench: Workbench, client: SearchClient, index: str) -> str:
    """An index with one document too few and one too many; both are found by a comparison."""
    pipeline(bench, index)
    bench.run("films")
    [concrete] = client.find_index(index) or {}
    client.request("DELETE", f"/{concrete}/_doc/1")
    client.request("PUT", f"/{concrete}/_doc/0", {"refresh": "true"}, body={"id": 0})
    return concrete


def repairing(bench: Workbench) -> tuple[threading.Thread, dict[str, Any]]:
    """A repair that has said that it waits, and what it reports in the end."""
    found: dict[str, Any] = {}
    running = threading.Thread(target=lambda: found.update(bench.reconcile("films", repair=True)))
    running.start()
    repair = "SELECT metrics FROM etl.etl_runs WHERE metrics ? 'repair'"
    until(lambda: "flood-stage" in str(bench.sql(repair)))
    return running, found


def test_a_repair_waits_as_well(bench: Workbench, client: SearchClient, spoilt: str, index: str) -> None:
    with blocked_index(client, spoilt):
        running, found = repairing(bench)
    running.join(timeout=120)

    assert (found["repair"]["inserted"], found["repair"]["deleted"], found["remaining"]) == (1, 1, 0)
    assert bench.last_run("films")["metrics"]["waiting"] is None
    assert bench.reconcile("films")["equal"]


@pytest.mark.one_server
def test_a_run_that_waits_obeys_a_pause(bench: Workbench, client: SearchClient, index: str) -> None:
    pipeline(bench, index)
    with blocked_cluster(client, "read_only_allow_delete"):
        running = run_until_it_waits(bench)
        bench.sql("UPDATE etl.etl_pipelines SET status = 'PAUSE_REQUESTED'")
        running.join(timeout=120)

        assert bench.last_run("films")["status"] == "PAUSED"


@pytest.mark.one_server
def test_a_runner_that_leaves_does_not_wait(bench: Workbench, client: SearchClient, index: str) -> None:
    pipeline(bench, index)
    shutdown = threading.Event()
    with blocked_cluster(client, "read_only_allow_delete"):
        running = run_until_it_waits(bench, shutdown)
        shutdown.set()
        running.join(timeout=120)

        assert bench.last_run("films")["status"] == "CANCELLED"
