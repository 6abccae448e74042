"""What else the owner of a server has set up around an index: templates, aliases, data streams, logins."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr

from tests.search.conftest import Target
from tests.search.test_search_runs import FILMS, INCREMENTAL, documents, pipeline
from tests.support.http_fault_proxy import HttpFaultProxy
from tests.support.workbench import Workbench
from vitrina.adapters.writers.search.client import SearchClient


@pytest.fixture
def bench(workbench: Workbench, search: Target, proxy: HttpFaultProxy) -> Workbench:
    workbench.source(FILMS)
    workbench.settings = workbench.settings.model_copy(
        update={
            "elasticsearch_url": SecretStr(proxy.url),
            "allowed_targets": "es:vitrina-test-*",
            "backoff_seconds": (0.01,),
        }
    )
    return workbench


@pytest.fixture
def index_template(client: SearchClient, index: str) -> Iterator[str]:
    """The name of an index template of the test's own, which is removed."""
    name = f"{index}-template"
    yield name
    client.request("DELETE", f"/_index_template/{name}")


def put_template(client: SearchClient, index_template: str, index: str, **body: Any) -> None:
    body |= {"index_patterns": [f"{index}-2*"]}
    reply = client.request("PUT", f"/_index_template/{index_template}", body=body)
    assert reply.status == 200, reply.reason


def shown(client: SearchClient, index: str) -> tuple[str, dict[str, Any]]:
    """The concrete index behind the name, and its aliases but for those of writers."""
    [(concrete, entry)] = (client.find_index(index) or {}).items()
    return concrete, {name: what for name, what in entry["aliases"].items() if ".w." not in name}


# --- templates -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [{"mode": "full"}, INCREMENTAL], ids=["full", "incremental"])
def test_an_index_has_the_settings_of_its_template(
    bench: Workbench, client: SearchClient, index: str, index_template: str, mode: dict[str, Any]
) -> None:
    settings = {"index": {"number_of_replicas": 2, "refresh_interval": "7s", "max_result_window": 5000}}
    put_template(client, index_template, index, template={"settings": settings})
    pipeline(bench, index, **mode)

    assert bench.run("films")["status"] == "SUCCESS"

    found = client.get_settings(index)
    assert (found["index.number_of_replicas"], found["index.refresh_interval"]) == ("2", "7s")
    assert found["index.max_result_window"] == "5000"


@pytest.mark.one_server
def test_what_the_pipeline_asks_for_goes_before_the_template(
    bench: Workbench, client: SearchClient, index: str, index_template: str
) -> None:
    settings = {"number_of_replicas": 2, "refresh_interval": "7s"}
    put_template(client, index_template, index, template={"settings": settings})
    pipeline(bench, index, options={"index": {"settings": {"number_of_replicas": 1}}})

    assert bench.run("films")["status"] == "SUCCESS"

    found = client.get_settings(index)
    assert (found["index.number_of_replicas"], found["index.refresh_interval"]) == ("1", "7s")


def test_an_alias_of_the_template_never_shows_a_generation_that_is_being_filled(
    bench: Workbench, client: SearchClient, index: str, index_template: str
) -> None:
    put_template(client, index_template, index, template={"aliases": {f"{index}.all": {}, index: {}}})
    pipeline(bench, index)
    bench.run("films")
    bench.run_interrupted("films", batches=2)
    assert len(client.list_indexes(f"{index}-2*")) == 2
    assert client.list_aliases(f"{index}.all")[f"{index}.all"] == {shown(client, index)[0]}

    assert bench.run("films")["status"] == "SUCCESS"

    concrete, aliases = shown(client, index)
    assert aliases.keys() == {index, f"{index}.all"}
    assert client.list_aliases(f"{index}.all")[f"{index}.all"] == {concrete}


# --- aliases -------------------------------------------------------------------------------------------------------


def test_aliases_that_somebody_added_and_their_filters_are_carried_over(
    bench: Workbench, client: SearchClient, index: str
) -> None:
    pipeline(bench, index)
    bench.run("films")
    concrete, _ = shown(client, index)
    good = {"filter": {"range": {"rating": {"gte": 8}}}}
    client.update_aliases(
        [
            {"add": {"index": concrete, "alias": index, "filter": {"term": {"genres": "g1"}}}},
            {"add": {"index": concrete, "alias": f"{index}.good", "search_routing": "5", **good}},
        ]
    )
    before = shown(client, index)[1]

    run = bench.run("films")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    after, aliases = shown(client, index)
    assert after != concrete
    assert aliases[f"{index}.good"] == before[f"{index}.good"]
    assert aliases[index]["filter"] == before[index]["filter"]
    assert client.list_aliases(f"{index}.good")[f"{index}.good"] == {after}, "no reader sees two generations"
    assert f"{index}.good" in run["metrics"]["published"]
    assert client.count(index) < client.count(after) == 200
    assert bench.reconcile("films")["equal"], "what is written is all of it, whatever the name shows"


@pytest.mark.one_server
def test_aliases_of_an_index_that_is_taken_over_are_carried_over(
    bench: Workbench, client: SearchClient, index: str
) -> None:
    client.create_index(index, {"aliases": {f"{index}.old": {}}})
    pipeline(bench, index)

    assert bench.run("films")["status"] == "SUCCESS"

    concrete, _ = shown(client, index)
    assert client.list_aliases(f"{index}.old")[f"{index}.old"] == {concrete}


# --- data streams --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [{"mode": "full"}, INCREMENTAL], ids=["full", "incremental"])
def test_a_data_stream_is_no_target(bench: Workbench, client: SearchClient, index: str, mode: dict[str, Any]) -> None:
    body = {"index_patterns": [index], "data_stream": {}, "priority": 500}
    if client.request("PUT", f"/_index_template/{index}", body=body).status != 200:
        pytest.skip("this server has no data streams")
    try:
        assert client.request("PUT", f"/_data_stream/{index}").status == 200
        pipeline(bench, index, **mode)

        run = bench.run("films")

        assert (run["status"], run["error_code"]) == ("FAILED", "target_mismatch")
        assert f"{index} is a data stream" in run["error_message"]
    finally:
        client.request("DELETE", f"/_data_stream/{index}")
        client.request("DELETE", f"/_index_template/{index}")


@pytest.mark.one_server
def test_an_alias_that_was_rolled_over_is_filled_from_the_first_row(
    bench: Workbench, client: SearchClient, index: str
) -> None:
    """As life-cycle policies do it: the name goes on to a new, empty index."""
    pipeline(bench, index, **INCREMENTAL)
    bench.run("films")
    body = {"mappings": client.get_mapping(index) | {"_meta": {}}}
    assert client.request("POST", f"/{index}/_rollover/{index}-000002", body=body).status == 200

    run = bench.run("films")

    assert (run["status"], run["rows_read"]) in {("SUCCESS", 200), ("FAILED", 0)}
    if run["status"] == "SUCCESS":
        assert len(documents(client, index)) == 200
    else:
        assert "several indexes" in run["error_message"]
