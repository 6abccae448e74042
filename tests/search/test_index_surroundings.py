"""What else the owner of a server has set up around an index: templates, aliases, data streams, logins."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr

from tests.search.conftest import Target
from tests.search.test_search_runs import FILMS, INCREMENTAL, documents, pipeline
from tests.support.http_fault_proxy import Answer, AnswerInstead, Forward, HttpFault, HttpFaultProxy, Request
from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina import errors
from vitrina.connectors.search.client import SearchClient

pytestmark = pytest.mark.two_servers


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


def begin_load(bench: Workbench, batches: int = 2) -> None:
    """A full load that is interrupted, so that the next run may go on with it."""
    bench.request("films")
    bench.lose_a_runner(f"batch.committed:crash:{batches}")
    bench.recover()


def go_on(bench: Workbench) -> dict[str, Any]:
    bench.perform(bench.claim())
    return bench.last_run("films")


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
    begin_load(bench)
    assert len(client.list_indexes(f"{index}-2*")) == 2
    assert client.list_aliases(f"{index}.all")[f"{index}.all"] == {shown(client, index)[0]}

    assert go_on(bench)["status"] == "SUCCESS"

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
def test_a_data_stream_is_no_target(
    bench: Workbench, search: Target, client: SearchClient, index: str, mode: dict[str, Any]
) -> None:
    body = {"index_patterns": [index], "data_stream": {}, "priority": 500}
    client.request("PUT", f"/_index_template/{index}", body=body)
    try:
        if client.request("PUT", f"/_data_stream/{index}").status != 200:
            assert search.kind.startswith("elasticsearch")  # there they are a module that the embedded server lacks
            return
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


# --- what is left of loads that nobody goes on with ------------------------------------------------------------------


@pytest.mark.parametrize("fields", [INCREMENTAL, {"options": {"shared_target": True}}], ids=["passes", "shared"])
def test_a_paused_load_leaves_no_generation_when_the_mode_changes(
    bench: Workbench, client: SearchClient, index: str, fields: dict[str, Any]
) -> None:
    pipeline(bench, index)
    bench.run("films")
    begin_load(bench)
    assert len(client.list_indexes(f"{index}-*")) == 2
    bench.change("films", **fields)

    run = go_on(bench)

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert list(client.list_indexes(f"{index}-*")) == [shown(client, index)[0]]
    assert len(documents(client, index)) == 200


@pytest.mark.parametrize("mode", [{"mode": "full"}, INCREMENTAL], ids=["full", "incremental"])
def test_a_paused_load_leaves_no_generation_when_the_target_changes(
    bench: Workbench, client: SearchClient, index: str, mode: dict[str, Any]
) -> None:
    pipeline(bench, index, target_table=f"es:{index}.before")
    bench.run("films")
    begin_load(bench)
    assert len(client.list_indexes(f"{index}.before-*")) == 2
    bench.change("films", target_table=f"es:{index}.after", **mode)

    run = go_on(bench)

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert list(client.list_indexes(f"{index}.before-*")) == [shown(client, f"{index}.before")[0]]
    assert len(documents(client, f"{index}.after")) == 200


# --- what SUCCESS promises -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [{"mode": "full"}, INCREMENTAL, {"options": {"shared_target": True}}],
    ids=["full", "incremental", "shared"],
)
def test_a_search_right_after_success_finds_what_the_run_delivered(
    bench: Workbench, client: SearchClient, index: str, fields: dict[str, Any]
) -> None:
    options = {"index": {"settings": {"refresh_interval": "1h"}}} | fields.get("options", {})
    pipeline(bench, index, **fields | {"options": options})
    assert bench.run("films")["status"] == "SUCCESS"
    assert client.count(index) == 200
    bench.sql("INSERT INTO content.film_work (id, title) VALUES (201, 'The last one')")

    assert bench.run("films")["status"] == "SUCCESS"

    assert client.count(index) == 201


@pytest.mark.one_server
def test_a_replay_is_found_by_searches_at_once(bench: Workbench, client: SearchClient, index: str) -> None:
    bench.sql("UPDATE content.film_work SET title = CASE id WHEN 3 THEN 'no date' ELSE '2024-01-01' END")
    dates = {"settings": {"refresh_interval": "1h"}, "mappings": {"properties": {"title": {"type": "date"}}}}
    pipeline(bench, index, **INCREMENTAL, options={"index": dates})
    bench.run("films")
    bench.sql("UPDATE content.film_work SET title = '2024-01-01' WHERE id = 3")

    assert bench.replay("films")["sent"] == 1

    assert client.count(index) == 200


def test_an_index_with_a_part_missing_is_not_counted(client: SearchClient, index: str) -> None:
    """A count of what is left would pass for a loss of documents, or let a guard pass."""
    settings = {"number_of_shards": 2, "number_of_replicas": 0, "routing.allocation.total_shards_per_node": 1}
    parameters = {"wait_for_active_shards": "0"}
    assert client.request("PUT", f"/{index}", parameters, body={"settings": {"index": settings}}).status == 200

    until(lambda: client.request("GET", f"/{index}/_count").status == 200)

    with pytest.raises(errors.TransientError, match="did not answer"):
        client.count(index)
    with pytest.raises(errors.TransientError, match="did not answer"):
        client.search(index, {"size": 1})


# --- logins that end ----------------------------------------------------------------------------------------------


class Forbid(HttpFault):
    """From some request on, whatever it asks: the key was revoked, or lost a right."""

    def __init__(self, status: int, *, passing: int) -> None:
        super().__init__(passing=passing)
        self._answer = AnswerInstead(status, 1, error_type="security_exception")

    def handle(self, request: Request, forward: Forward) -> Answer:
        return self._answer.spoil(request, forward) if self._takes() else forward(request)


@pytest.mark.one_server
@pytest.mark.parametrize("passing", [0, 7, 11])
@pytest.mark.parametrize(("mode", "status"), [({"mode": "full"}, 401), (INCREMENTAL, 403)], ids=["full", "incremental"])
def test_a_login_that_ends_in_mid_run_stops_it_at_once_and_costs_nothing(
    *,
    bench: Workbench,
    client: SearchClient,
    index: str,
    proxy: HttpFaultProxy,
    mode: dict[str, Any],
    passing: int,
    status: int,
) -> None:
    pipeline(bench, index, **mode)
    bench.run("films")
    bench.sql("UPDATE content.film_work SET title = 'New ' || id, modified = clock_timestamp()")
    proxy.fault = Forbid(status, passing=passing)

    run = bench.run("films")

    if proxy.fault.happened:
        assert (run["status"], run["attempts"]) == ("FAILED", 1)
        assert "ELASTICSEARCH_API_KEY" in run["error_message"]
    assert client.count(index) == 200, "searches go on"
    proxy.fault = None
    run = bench.run("films")
    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    found = documents(client, index)
    assert {int(number): document["title"] for number, document in found.items()} == {
        row["id"]: row["title"] for row in bench.sql("SELECT id, title FROM content.film_work")
    }
    assert len(client.list_indexes(f"{index}-*")) <= 2
