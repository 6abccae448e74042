"""A search cluster with a name of its own: pipelines write there, and never ask the one of ELASTICSEARCH_URL."""

from typing import Any

import pytest
from pydantic import SecretStr

from tests.search.conftest import Target
from tests.search.test_interrupted_loads import interrupt
from tests.search.test_search_runs import FILMS, INCREMENTAL, documents, pipeline
from tests.support.workbench import Workbench
from vitrina.connectors.search.client import SearchClient
from vitrina.connectors.search.health import check
from vitrina.runner import housekeeping
from vitrina.store import pipelines

pytestmark = pytest.mark.one_server

NAMED: dict[str, Any] = {"target_connection": "logs"}


@pytest.fixture
def bench(workbench: Workbench, search: Target) -> Workbench:
    """`logs` and `archive` lead to the same server; where ELASTICSEARCH_URL leads, nobody answers."""
    workbench.source(FILMS)
    named = SecretStr(search.url.replace("http", "elasticsearch+http", 1))
    workbench.settings = workbench.settings.model_copy(
        update={
            "elasticsearch_url": SecretStr("http://127.0.0.1:1"),
            "connections": {"logs": named, "archive": named},
            "allowed_targets": "analytics.*,es:vitrina-test-*",
        }
    )
    return workbench


def test_a_full_load_goes_to_the_named_cluster(bench: Workbench, client: SearchClient, index: str) -> None:
    pipeline(bench, index, options=NAMED)
    run = bench.run("films")
    assert (run["status"], run["error_message"], run["rows_written"]) == ("SUCCESS", None, 200)
    assert len(documents(client, index)) == 200
    report = bench.reconcile("films")
    assert (report["equal"], report["target"]["rows"]) == (True, 200)


def test_passes_go_on_there_and_begin_again_elsewhere(bench: Workbench, client: SearchClient, index: str) -> None:
    options = NAMED | {"cursor_clock": "database"}
    pipeline(bench, index, **INCREMENTAL, options=options)
    assert bench.run("films")["rows_read"] == 200
    bench.sql("UPDATE content.film_work SET title = 'Alien', modified = clock_timestamp() WHERE id = 3")
    assert bench.run("films")["rows_read"] < 10
    assert documents(client, index)["3"]["title"] == "Alien"

    bench.change("films", options=options | {"target_connection": "archive"})
    assert bench.run("films")["rows_read"] == 200  # nobody says that the rows are there, too


def test_two_names_of_one_cluster_are_one_place(bench: Workbench, client: SearchClient, index: str) -> None:
    """A full load deletes what the other pipeline wrote, by whatever name it goes there."""
    pipeline(bench, index, options=NAMED)
    assert bench.run("films")["status"] == "SUCCESS"
    other = {"target_table": f"es:{index}", "target_key": ["id"], "options": {"target_connection": "archive"}}
    bench.pipeline("others", "SELECT id, title FROM content.film_work WHERE id < 5", **other)
    run = bench.run("others")
    assert run["status"] == "FAILED"
    assert "the connections 'archive' and 'logs' are one" in run["error_message"]
    assert len(documents(client, index)) == 200


def test_a_name_of_the_default_cluster_is_that_one(
    bench: Workbench, client: SearchClient, index: str, search: Target
) -> None:
    bench.settings = bench.settings.model_copy(update={"elasticsearch_url": SecretStr(search.url)})
    pipeline(bench, index)
    assert bench.run("films")["status"] == "SUCCESS"
    other = {"target_table": f"es:{index}", "target_key": ["id"], "options": NAMED}
    bench.pipeline("others", "SELECT id, title FROM content.film_work WHERE id < 5", **other)
    run = bench.run("others")
    assert (run["status"], "the connections 'logs' and 'default' are one" in run["error_message"]) == ("FAILED", True)


def test_what_is_left_behind_there_is_removed(bench: Workbench, client: SearchClient, index: str) -> None:
    pipeline(bench, index, options=NAMED)
    interrupt(bench)
    bench.recover()
    bench.sql("UPDATE etl.etl_pipelines SET status = 'PAUSED'")
    row = pipelines.find(bench.metastore, "films")
    assert row
    assert pipelines.delete(bench.metastore, row["id"])
    housekeeping.tidy_up(bench.settings)  # the default one does not answer, so it is looked at again
    assert client.list_indexes(f"{index}-*") == {}
    assert len(bench.sql("SELECT generation FROM etl.etl_left_generations")) == 1
    bench.settings = bench.settings.model_copy(update={"elasticsearch_url": None})
    housekeeping.tidy_up(bench.settings)
    assert bench.sql("SELECT generation FROM etl.etl_left_generations") == []


def test_doctor_says_what_is_there(bench: Workbench, search: Target) -> None:
    url = bench.settings.connection_url("logs")
    [found] = check(url, bench.settings)
    assert found.status == "OK"
    assert found.finding.startswith(("Elasticsearch ", "OpenSearch ", "a search cluster"))
    [lost] = check("elasticsearch+http://ada:hidden@127.0.0.1:1", bench.settings)
    assert lost.status == "PROBLEM"
    assert "hidden" not in lost.finding
