"""What people and servers do to an index between runs and in the middle of one: noticed, and made good."""

import json
from typing import Any

import pytest
from pydantic import SecretStr

from tests.search.conftest import Target
from tests.search.test_search_runs import FILMS, INCREMENTAL, documents, pipeline
from tests.support.http_fault_proxy import Answer, DropConnection, Forward, HttpFault, HttpFaultProxy, Request
from tests.support.workbench import Workbench
from vitrina.connectors.search.client import SearchClient
from vitrina.connectors.search.generations import Generations
from vitrina.store import recovery

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


def run_again(bench: Workbench) -> dict[str, Any]:
    """What a runner does that finds the lease of a lost run."""
    bench.sql("UPDATE etl.etl_pipelines SET lease_until = 'epoch' WHERE claim_id IS NOT NULL")
    recovery.recover_expired(bench.metastore, max_attempts=5)
    bench.perform(bench.claim())
    return bench.last_run("films")


# --- an index that is gone -----------------------------------------------------------------------------------------


@pytest.mark.one_server
def test_an_index_that_was_deleted_between_passes_is_filled_anew(
    bench: Workbench, client: SearchClient, index: str
) -> None:
    pipeline(bench, index, **INCREMENTAL)
    bench.run("films")
    [concrete] = client.find_index(index) or {}
    client.delete_index(concrete)
    bench.sql("UPDATE content.film_work SET title = 'New', modified = clock_timestamp() WHERE id = 1")

    run = bench.run("films")

    assert (run["status"], run["rows_read"]) == ("SUCCESS", 200)
    assert "deleted or replaced by hand" in run["metrics"]["started_over"]
    assert len(documents(client, index)) == 200
    assert bench.run("films")["rows_read"] < 200, "only once"


@pytest.mark.one_server
def test_an_index_that_another_pipeline_made_anew_is_filled_anew(
    bench: Workbench, client: SearchClient, index: str
) -> None:
    shared = {"options": {"shared_target": True, "on_schema_change": "add_columns"}, **INCREMENTAL}
    titles, ratings = ("SELECT id, title, modified", "SELECT id, rating, modified")
    pipeline(bench, index, f"{titles} FROM content.film_work", **shared)
    bench.pipeline(
        "ratings", f"{ratings} FROM content.film_work", target_table=f"es:{index}", target_key=["id"], **shared
    )
    for name in ("films", "ratings", "films"):
        assert bench.run(name)["metrics"].get("started_over") is None, "both have written to it"
    [concrete] = client.find_index(index) or {}
    client.delete_index(concrete)

    bench.run("ratings")
    bench.run("films")

    found = documents(client, index)
    assert len(found) == 200
    assert all({"title", "rating"} <= document.keys() for document in found.values())


@pytest.mark.one_server
def test_a_backfill_into_an_index_that_was_deleted_does_not_hide_that(
    bench: Workbench, client: SearchClient, index: str
) -> None:
    pipeline(bench, index, **INCREMENTAL)
    bench.run("films")
    [concrete] = client.find_index(index) or {}
    client.delete_index(concrete)
    bench.run("films", since="2024-01-01 00:00:00+00", until="2024-01-01 00:00:11+00")
    assert len(documents(client, index)) == 10

    bench.run("films")

    assert len(documents(client, index)) == 200


class DeleteIndex(HttpFault):
    """Somebody deletes the index right before a bulk request reaches it."""

    def __init__(self, client: SearchClient, index: str) -> None:
        super().__init__(times=1)
        self._client, self._index = client, index

    def spoil(self, request: Request, forward: Forward) -> Answer:
        for concrete in self._client.list_indexes(f"{self._index}-*"):
            self._client.delete_index(concrete)
        return forward(request)


@pytest.mark.one_server
@pytest.mark.parametrize("mode", [{"mode": "full"}, INCREMENTAL], ids=["full", "incremental"])
def test_an_index_that_is_deleted_in_the_middle_of_a_run(
    bench: Workbench, client: SearchClient, index: str, proxy: HttpFaultProxy, mode: dict[str, Any]
) -> None:
    pipeline(bench, index, **mode)
    bench.run("films")
    bench.sql("UPDATE content.film_work SET title = 'New', modified = clock_timestamp() WHERE id > 50")
    proxy.fault = DeleteIndex(client, index)
    bench.run("films")
    assert client.find_index(index) is None, "a bulk must not make an index"

    run = run_again(bench)

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert len(documents(client, index)) == 200


@pytest.mark.one_server
@pytest.mark.parametrize("mode", [{"mode": "full"}, INCREMENTAL], ids=["full", "incremental"])
def test_an_alias_of_two_indexes_is_named(
    bench: Workbench, client: SearchClient, index: str, mode: dict[str, Any]
) -> None:
    pipeline(bench, index, **mode)
    for part in ("-a", "-b"):
        client.create_index(index + part, {"aliases": {index: {}}})

    run = bench.run("films")

    assert (run["status"], run["error_code"]) == ("FAILED", "target_mismatch")
    assert f"{index}-a, {index}-b" in run["error_message"]


# --- generations ---------------------------------------------------------------------------------------------------


class FailSwap(HttpFault):
    """The server goes away when the alias of the target is moved: before it is, or behind it."""

    def __init__(self, index: str, *, applied: bool) -> None:
        super().__init__(times=1)
        self._index, self._applied = index, applied

    def handle(self, request: Request, forward: Forward) -> Answer:
        if request.path != "/_aliases" or not self._shows_index(request) or not self._takes():
            return forward(request)
        if self._applied:
            forward(request)
        raise DropConnection

    def _shows_index(self, request: Request) -> bool:
        actions = json.loads(request.body)["actions"]
        return any(action.get("add", {}).get("alias") == self._index for action in actions)


@pytest.mark.parametrize("applied", [False, True], ids=["before the swap", "behind the swap"])
def test_a_server_that_goes_away_during_the_swap(
    bench: Workbench, client: SearchClient, index: str, proxy: HttpFaultProxy, applied: bool
) -> None:
    """The generation that was filled for hours is gone on with, and shown."""
    pipeline(bench, index)
    bench.run("films")
    [first] = client.find_index(index) or {}
    fault = proxy.fault = FailSwap(index, applied=applied)
    bench.run("films")
    assert fault.happened
    built = bench.checkpoint("films").stage

    run = run_again(bench)

    assert (run["status"], run["rows_read"]) == ("SUCCESS", 0), "nothing is read again"
    assert set(client.find_index(index) or {}) == {built}
    assert set(client.list_indexes(f"{index}-*")) == {first, built}, "the one before is kept, for going back"
    assert len(documents(client, index)) == 200


@pytest.mark.one_server
def test_loads_that_fail_leave_one_generation_at_most(bench: Workbench, client: SearchClient, index: str) -> None:
    """A pipeline that fails every hour must not fill the disk."""
    dates = {"index": {"mappings": {"properties": {"title": {"type": "date"}}}}}
    pipeline(bench, index, options=dates)

    for _ in range(3):
        assert bench.run("films")["status"] == "FAILED"

    assert len(client.list_indexes(f"{index}-*")) == 1


@pytest.mark.one_server
def test_a_source_that_was_empty_for_a_while(bench: Workbench, client: SearchClient, index: str) -> None:
    """What the guard refused is not gone on with, and does not take the place of the generation that is kept."""
    pipeline(bench, index)
    bench.run("films")
    bench.run("films")
    before = set(client.list_indexes(f"{index}-*"))
    bench.sql("CREATE TABLE content.kept AS TABLE content.film_work; DELETE FROM content.film_work WHERE id > 20")
    assert bench.run("films")["error_code"] == "shrink_refused"
    bench.sql("INSERT INTO content.film_work SELECT * FROM content.kept WHERE id > 20")

    run = bench.run("films")

    assert (run["status"], run["rows_read"]) == ("SUCCESS", 200)
    [shown] = client.find_index(index) or {}
    assert set(client.list_indexes(f"{index}-*")) == {shown, max(before)}


# --- ids -----------------------------------------------------------------------------------------------------------


def test_keys_that_servers_do_not_take_as_they_are(bench: Workbench, client: SearchClient, index: str) -> None:
    bench.source("""
        CREATE TABLE content.strange (k text, l text, PRIMARY KEY (k, l));
        INSERT INTO content.strange VALUES
            ('a', 'b|c'), ('a|b', 'c'), (E'a\\\\', 'b'), ('a', E'\\\\|b'), ('', 'x'), ('x', ''), ('', ''), (' ', ' '),
            ('sha256:', 'x'), (repeat('é', 255), 'x'), (repeat('é', 256), 'x'), (repeat('é', 256), 'y'), ('"', E'\\n');
    """)
    query = "SELECT k, l FROM content.strange"
    bench.pipeline("films", query, target_table=f"es:{index}", target_key=["k", "l"])

    run = bench.run("films")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    rows = {(row["k"], row["l"]) for row in bench.sql(query)}
    found = documents(client, index)
    assert {(document["k"], document["l"]) for document in found.values()} == rows
    assert run["metrics"]["hashed_ids"] == 3
    assert len(found) == len(rows)


@pytest.mark.parametrize("action", ["update", "index"])
def test_an_empty_key_is_a_dead_letter(bench: Workbench, client: SearchClient, index: str, action: str) -> None:
    bench.source("CREATE TABLE content.strange (k text PRIMARY KEY); INSERT INTO content.strange VALUES (''), ('a')")
    bench.pipeline(
        "films",
        "SELECT k FROM content.strange",
        target_table=f"es:{index}",
        target_key=["k"],
        options={"action": action, "max_dead_letters": 1},
    )

    run = bench.run("films")

    assert (run["status"], run["rows_rejected"]) == ("SUCCESS", 1)
    assert set(documents(client, index)) == {"a"}
    assert Generations(client, index).standing().concrete


@pytest.mark.parametrize("mode", [{"mode": "full"}, INCREMENTAL | {"incremental_id_key": "k"}], ids=["full", "passes"])
def test_an_empty_key_is_a_difference_that_a_comparison_names(
    bench: Workbench, client: SearchClient, index: str, mode: dict[str, Any]
) -> None:
    """No document can have it: the comparison says so, and a repair goes on to the others."""
    bench.source("""
        CREATE TABLE content.strange (k text PRIMARY KEY, modified timestamptz NOT NULL DEFAULT '2024-01-01');
        INSERT INTO content.strange VALUES (''), ('a'), ('b')
    """)
    target = {"target_table": f"es:{index}", "target_key": ["k"]}
    options = {"max_dead_letters": 1}
    bench.pipeline("films", "SELECT k, modified FROM content.strange", **target, **mode, options=options)
    assert bench.run("films")["status"] == "SUCCESS"
    [concrete] = client.find_index(index) or {}
    client.request("DELETE", f"/{concrete}/_doc/a", {"refresh": "true"})

    for level in ("quick", "sample", "full"):
        assert bench.reconcile("films", level=level)["equal"] is False, level

    found = bench.reconcile("films", repair=True)

    assert {one["key"]["_id"]: one["kind"] for one in found["keys"]} == {"": "missing", "a": "missing"}
    assert (found["repair"]["inserted"], found["repair"]["rejected"]) == (1, 1)
    assert set(documents(client, index)) == {"a", "b"}
