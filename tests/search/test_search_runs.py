"""Pipelines into search indexes: rebuilt by generations, kept up to date by passes, every document accounted for."""

import socket
from typing import Any

import pytest
from pydantic import SecretStr

from tests.search.conftest import Target
from tests.support.workbench import Workbench
from vitrina import failpoints
from vitrina.connectors.search.client import SearchClient

FILMS = """
CREATE TABLE content.film_work (
    id int PRIMARY KEY, title text, rating numeric(3,1), genres text[], gone boolean NOT NULL DEFAULT false,
    modified timestamptz NOT NULL DEFAULT clock_timestamp());
INSERT INTO content.film_work (id, title, rating, genres, modified)
SELECT i, CASE i WHEN 7 THEN 'Star Wars: A New Hope' ELSE 'Film ' || i END, i % 10, ARRAY['g' || i % 3],
       timestamptz '2024-01-01' + make_interval(secs => i)
FROM generate_series(1, 200) AS i;
"""
QUERY = "SELECT id, title, rating, genres, modified FROM content.film_work"
INCREMENTAL = {"mode": "incremental", "incremental_key": "modified", "incremental_id_key": "id"}


@pytest.fixture
def bench(workbench: Workbench, search: Target) -> Workbench:
    workbench.source(FILMS)
    workbench.settings = workbench.settings.model_copy(
        update={"elasticsearch_url": SecretStr(search.url), "allowed_targets": "analytics.*,es:vitrina-test-*"}
    )
    return workbench


def pipeline(bench: Workbench, index: str, query: str = QUERY, **fields: Any) -> None:
    bench.pipeline("films", query, **{"target_table": f"es:{index}", "target_key": ["id"], "batch_size": 50} | fields)


def documents(client: SearchClient, index: str) -> dict[str, Any]:
    client.refresh(index)
    hits = client.search(index, {"size": 1000, "query": {"match_all": {}}})["hits"]["hits"]
    return {hit["_id"]: hit["_source"] for hit in hits}


def test_a_full_load_builds_a_generation_and_shows_it(bench: Workbench, client: SearchClient, index: str) -> None:
    pipeline(bench, index)

    run = bench.run("films")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert (run["rows_read"], run["rows_written"], run["batches"]) == (200, 200, 4)
    found = client.search(index, {"query": {"match": {"title": "star wars"}}})["hits"]["hits"]
    assert [hit["_source"]["title"] for hit in found] == ["Star Wars: A New Hope"]
    assert found[0]["_source"]["genres"] == ["g1"]
    [first] = client.find_index(index) or {}

    bench.sql("DELETE FROM content.film_work WHERE id > 150")
    assert bench.run("films")["status"] == "SUCCESS"

    [second] = client.find_index(index) or {}
    assert second != first
    assert len(documents(client, index)) == 150


def test_a_rebuild_that_would_lose_most_documents_is_refused(
    bench: Workbench, client: SearchClient, index: str
) -> None:
    pipeline(bench, index)
    bench.run("films")
    bench.sql("DELETE FROM content.film_work WHERE id > 20")

    run = bench.run("films")

    assert run["error_code"] == "shrink_refused"
    assert len(documents(client, index)) == 200


def test_passes_keep_an_index_up_to_date(bench: Workbench, client: SearchClient, index: str) -> None:
    query = f"{QUERY.replace(' FROM', ', gone FROM')}"
    pipeline(bench, index, query, **INCREMENTAL, options={"delete_when": "gone", "cursor_clock": "database"})
    assert bench.run("films")["metrics"]["inserted"] == 200
    bench.sql(
        "UPDATE content.film_work SET title = 'New', modified = clock_timestamp() WHERE id <= 60;"
        "UPDATE content.film_work SET gone = true, modified = clock_timestamp() WHERE id = 100"
    )

    run = bench.run("films")

    assert (run["status"], run["rows_read"]) == ("SUCCESS", 61)
    assert (run["metrics"]["updated"], run["rows_deleted"]) == (60, 1)
    found = documents(client, index)
    assert len(found) == 199
    assert found["1"]["title"] == "New"
    assert "gone" not in found["1"]


@pytest.mark.one_server
def test_a_scan_removes_the_documents_of_rows_that_left(bench: Workbench, client: SearchClient, index: str) -> None:
    pipeline(bench, index, **INCREMENTAL, options={"deletes": {"scan": "1h"}})
    assert bench.run("films")["status"] == "SUCCESS"
    bench.sql("DELETE FROM content.film_work WHERE id % 50 = 0")
    found = bench.scan_deletes("films")
    assert (found["found"], found["deleted"]) == (4, 4)
    assert documents(client, index).keys() == {str(number) for number in range(1, 201) if number % 50}
    assert bench.scan_deletes("films") == {"found": 0}


@pytest.mark.one_server
def test_a_full_load_keeps_what_left_when_asked(bench: Workbench, client: SearchClient, index: str) -> None:
    pipeline(bench, index, options={"deletes": "none"})
    assert bench.run("films")["status"] == "SUCCESS"
    bench.sql("DELETE FROM content.film_work WHERE id > 20; UPDATE content.film_work SET title = 'New' WHERE id = 1")
    assert bench.run("films")["status"] == "SUCCESS"
    found = documents(client, index)
    assert (len(found), found["1"]["title"]) == (200, "New")
    assert bench.reconcile("films", level="full")["equal"]


def test_two_pipelines_fill_one_document(bench: Workbench, client: SearchClient, index: str) -> None:
    shared = {"options": {"shared_target": True, "on_schema_change": "add_columns"}}
    pipeline(bench, index, "SELECT id, title FROM content.film_work", **shared)
    bench.run("films")
    bench.pipeline(
        "ratings", "SELECT id, rating FROM content.film_work", target_table=f"es:{index}", target_key=["id"], **shared
    )

    assert bench.run("ratings")["status"] == "SUCCESS"

    assert documents(client, index)["7"] == {"id": 7, "title": "Star Wars: A New Hope", "rating": 7.0}


def test_refused_documents_become_dead_letters(bench: Workbench, client: SearchClient, index: str) -> None:
    mappings = {"properties": {"title": {"type": "date"}}}
    bench.sql("UPDATE content.film_work SET title = '2024-01-01' WHERE id <> 7")
    pipeline(bench, index, **INCREMENTAL, options={"index": {"mappings": mappings}})

    run = bench.run("films")

    assert (run["status"], run["rows_rejected"]) == ("SUCCESS", 1)
    [letter] = bench.sql("SELECT document_id, error, document FROM etl.etl_dead_letters")
    assert letter["document_id"] == "7"
    assert "title" in letter["error"]
    assert "Star Wars" in str(letter["document"])
    assert len(documents(client, index)) == 199


def test_a_rebuild_does_not_leave_documents_behind(bench: Workbench, index: str) -> None:
    mappings = {"properties": {"title": {"type": "date"}}}
    pipeline(bench, index, options={"index": {"mappings": mappings}})

    run = bench.run("films")

    assert run["status"] == "FAILED"
    assert "max_dead_letters" in run["error_message"]


def test_an_interrupted_rebuild_goes_on(bench: Workbench, client: SearchClient, index: str) -> None:
    bench.settings = bench.settings.model_copy(update={"backoff_seconds": (0.01,)})
    pipeline(bench, index)
    failpoints.configure("batch.committed:error:2")
    try:
        run = bench.run("films")
    finally:
        failpoints.configure("")

    assert (run["status"], run["attempts"]) == ("SUCCESS", 2)
    assert run["metrics"]["continued"] == [{"rows": 100, "batches": 2, "after": '["100"]'}]
    assert len(documents(client, index)) == 200


@pytest.mark.one_server
def test_a_rebuild_leaves_out_rows_that_are_gone(bench: Workbench, client: SearchClient, index: str) -> None:
    bench.sql("UPDATE content.film_work SET gone = id % 2 = 0")
    pipeline(bench, index, QUERY.replace(" FROM", ", gone FROM"), options={"delete_when": "gone"})

    run = bench.run("films")

    assert (run["status"], run["error_message"], run["rows_written"]) == ("SUCCESS", None, 100)
    assert set(documents(client, index)) == {str(number) for number in range(1, 201, 2)}


@pytest.mark.one_server
@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_rebuild_that_is_interrupted_among_rows_without_a_key(
    bench: Workbench, client: SearchClient, index: str, batch_size: int
) -> None:
    query = "SELECT CASE WHEN id <= 3 THEN id END AS id, title FROM content.film_work WHERE id <= 6"
    options = {"max_dead_letters": 3, "max_attempts": 20}
    pipeline(bench, index, query, batch_size=batch_size, options=options)

    run = bench.run_interrupted("films")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert set(documents(client, index)) == {"1", "2", "3"}
    letters = bench.sql("SELECT document ->> 'title' AS title FROM etl.etl_dead_letters ORDER BY title")
    assert [letter["title"] for letter in letters] == ["Film 4", "Film 5", "Film 6"]


@pytest.mark.one_server
def test_one_host_that_is_down_disturbs_no_run(bench: Workbench, index: str, search: Target) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        hosts = f"http://127.0.0.1:{reserved.getsockname()[1]},{search.url}"
        bench.settings = bench.settings.model_copy(update={"elasticsearch_url": SecretStr(hosts)})
        pipeline(bench, index)

        run = bench.run("films")

    assert (run["status"], run["attempts"], run["rows_written"]) == ("SUCCESS", 1, 200)


@pytest.mark.one_server
def test_without_a_server_the_setting_is_named(bench: Workbench, index: str) -> None:
    pipeline(bench, index)
    bench.settings = bench.settings.model_copy(update={"elasticsearch_url": None})

    run = bench.run("films")

    assert run["status"] == "FAILED"
    assert "ELASTICSEARCH_URL" in run["error_message"]


def test_the_time_of_a_run_is_told_by_stages(bench: Workbench, client: SearchClient, index: str) -> None:
    pipeline(bench, index)

    loaded = bench.run("films")["metrics"]["stage_seconds"]
    bench.change("films", **INCREMENTAL)
    passed = bench.run("films")["metrics"]["stage_seconds"]

    assert loaded.keys() == {"plan", "read", "index", "publish", "wait"}
    assert passed.keys() == {"plan", "read", "index", "wait"}
    assert min(*loaded.values(), *passed.values()) > 0
