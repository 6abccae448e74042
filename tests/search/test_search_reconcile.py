"""An index is held against its source: documents are compared as the writer makes them, and repaired in bulk."""

import threading
import time
from typing import Any

import orjson
import psycopg
import pytest
from pydantic import SecretStr

from tests.integration.test_reconcile import counts
from tests.search.conftest import Target
from tests.search.test_search_runs import documents
from tests.support.workbench import Workbench
from vitrina.connectors.search.client import SearchClient
from vitrina.errors import Conflict, FatalError, ShrinkRefused
from vitrina.ports import documents as sides
from vitrina.settings import Settings
from vitrina.store import database as postgres
from vitrina.transforms import transform

ROWS = 2_000
FILMS = f"""
CREATE TABLE content.film_work (
    id int PRIMARY KEY, title text, rating numeric(3,1), price numeric, genres text[], payload jsonb,
    size double precision, span int4range, gone boolean NOT NULL DEFAULT false,
    modified timestamptz NOT NULL DEFAULT clock_timestamp());
INSERT INTO content.film_work (id, title, rating, price, genres, payload, size, span, modified)
SELECT i, CASE i WHEN 4 THEN '' ELSE 'Film "' || i || '"' END, i % 10 + 0.5, i / 8.0, ARRAY['g' || i % 3, 'h' || i % 7],
       jsonb_build_object('n', i / 10.0, 'big', 12345678901234567890::numeric), i * 1e15 / 3,
       int4range(i, i + 5), timestamptz '2024-01-01 00:00:00.123456+00' + make_interval(secs => i)
FROM generate_series(1, {ROWS}) AS i;
"""
COLUMNS = "id, title, rating, price, genres, payload, size, span, modified"
QUERY = f"SELECT {COLUMNS} FROM content.film_work"
INCREMENTAL: dict[str, Any] = {"mode": "incremental", "incremental_key": "modified", "incremental_id_key": "id"}


@pytest.fixture
def bench(workbench: Workbench, search: Target) -> Workbench:
    workbench.settings = workbench.settings.model_copy(
        update={"elasticsearch_url": SecretStr(search.url), "allowed_targets": "analytics.*,es:vitrina-test-*"}
    )
    return workbench


def films(bench: Workbench, index: str, query: str = QUERY, *, rows: int = 300, **fields: Any) -> None:
    options = {"cursor_clock": "database"} | fields.pop("options", {})
    bench.source(FILMS.replace(str(ROWS), str(rows)))
    bench.pipeline("films", query, **{"target_table": f"es:{index}", "target_key": ["id"], "options": options} | fields)
    run = bench.run("films")
    assert (run["status"], run["error_message"]) == ("SUCCESS", None)


def write(client: SearchClient, index: str, *actions: dict[str, Any]) -> None:
    """Somebody writes to the index by hand."""
    name = f"{index}.w.somebody"
    (concrete,) = client.find_index(index) or {}
    client.update_aliases([{"add": {"index": concrete, "alias": name}}])
    reply = client.bulk(name, b"".join(orjson.dumps(action) + b"\n" for action in actions))
    assert all(item["status"] < 300 for entry in reply.body["items"] for item in entry.values()), reply.body
    client.update_aliases([{"remove": {"index": concrete, "alias": name}}])


def change(client: SearchClient, index: str, **documents: dict[str, Any]) -> None:
    lines: list[dict[str, Any]] = []
    for name, values in documents.items():
        lines += [{"update": {"_id": name.removeprefix("_")}}, {"doc": values, "doc_as_upsert": True}]
    write(client, index, *lines)


def spoil(client: SearchClient, index: str) -> None:
    """One document of each kind of difference; the moved one counts twice."""
    there = client.search(index, {"query": {"ids": {"values": ["3", "5", "6"]}}})["hits"]["hits"]
    found = {hit["_id"]: hit["_source"] for hit in there}
    write(
        client,
        index,
        {"delete": {"_id": "2"}},
        {"delete": {"_id": "3"}},
        {"index": {"_id": "-3"}},
        found["3"],
        {"index": {"_id": "0"}},
        {"id": 0, "title": "Extra"},
    )
    change(
        client,
        index,
        _1={"title": "Changed"},
        _4={"title": None},
        _5={"modified": found["5"]["modified"].replace("456Z", "457Z")},
        _6={"genres": found["6"]["genres"][::-1]},
    )


def test_every_kind_of_difference_is_found_and_repaired(bench: Workbench, client: SearchClient, index: str) -> None:
    check_every_kind(bench, client, index)


@pytest.mark.one_server
def test_in_incremental_pipelines_as_well(bench: Workbench, client: SearchClient, index: str) -> None:
    check_every_kind(bench, client, index, **INCREMENTAL)


def check_every_kind(bench: Workbench, client: SearchClient, index: str, **fields: Any) -> None:
    films(bench, index, rows=ROWS, **fields)
    equal = bench.reconcile("films")
    assert (equal["equal"], equal["source"]["rows"], equal["target"]["rows"]) == (True, ROWS, ROWS)
    before = documents_all(client, index)

    spoil(client, index)
    found = bench.reconcile("films")

    assert counts(found) == (2, 2, 4, 0)
    assert (found["differences"], found["repair"]) == (8, {"done": False, "upserts": 6, "deletes": 2})
    columns = {
        name: values for one in found["keys"] if one["kind"] == "differing" for name, values in one["columns"].items()
    }
    assert set(columns) == {"title", "modified", "genres"}
    assert columns["genres"] == {"source": '["g0","h6"]', "target": '["h6","g0"]'}
    assert {one["key"]["_id"] for one in found["keys"]} == {"-3", "0", "1", "2", "3", "4", "5", "6"}

    repaired = bench.reconcile("films", repair=True)

    assert repaired["repair"] | {"run_id": None} == {
        "done": True, "inserted": 2, "updated": 4, "deleted": 2, "unchanged": 0, "rejected": 0, "keys": 8,
        "paused": False, "remaining": 0, "run_id": None,
    }  # fmt: skip
    assert documents_all(client, index) == before
    assert bench.reconcile("films")["equal"]
    assert (bench.status("films"), bench.run("films")["status"]) == ("IDLE", "SUCCESS")


def documents_all(client: SearchClient, index: str) -> dict[str, Any]:
    client.refresh(index)
    return {hit["_id"]: hit["_source"] for hits in client.scroll(index, {"size": 1000}) for hit in hits}


@pytest.mark.one_server
def test_quick_tells_counts_and_ends(bench: Workbench, client: SearchClient, index: str) -> None:
    films(bench, index, **INCREMENTAL)
    equal = bench.reconcile("films", level="quick")
    assert (equal["equal"], equal["source"]["rows"], equal["target"]["rows"]) == (True, 300, 300)
    assert equal["target"]["least"] == {"id": "1", "modified": "2024-01-01T00:00:01.123456Z"}

    # Not refreshed by anybody: the comparison itself makes it visible.
    write(client, index, {"delete": {"_id": "300"}})
    found = bench.reconcile("films", level="quick")

    assert found["findings"] == [
        "the mart has 299 rows, but the source has 300 that must be in it",
        "the greatest id is 300 in the source, 299 in the mart",
        "the greatest modified is 2024-01-01T00:05:00.123456Z in the source, 2024-01-01T00:04:59.123456Z in the mart",
    ]


@pytest.mark.one_server
def test_a_sample_of_all_keys_misses_nothing(bench: Workbench, client: SearchClient, index: str) -> None:
    films(bench, index)
    assert bench.reconcile("films", level="sample", keys=50)["equal"]

    spoil(client, index)

    assert counts(bench.reconcile("films", level="sample", keys=2000)) == (2, 2, 4, 0)


@pytest.mark.one_server
def test_documents_are_listed_in_groups_that_fit_the_memory(
    bench: Workbench, client: SearchClient, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    films(bench, index, rows=500)
    bench.sql("UPDATE content.film_work SET title = 'Other' WHERE id > 20")
    monkeypatch.setattr(sides.DocumentSide, "listed_at_once", 40)

    found = bench.reconcile("films")

    assert counts(found) == (0, 0, 480, 0)
    assert len({one["key"]["_id"] for one in found["keys"]}) == 100


@pytest.mark.one_server
def test_rows_behind_the_checkpoint_are_in_flight_and_not_drift(
    bench: Workbench, client: SearchClient, index: str
) -> None:
    query = QUERY.replace(" FROM", ", gone FROM")
    films(bench, index, query, options={"delete_when": "gone"}, **INCREMENTAL)
    bench.sql(
        """
        UPDATE content.film_work SET title = 'New', modified = clock_timestamp() WHERE id = 1;
        UPDATE content.film_work SET gone = true, modified = clock_timestamp() WHERE id = 2;
        INSERT INTO content.film_work (id, title) VALUES (301, 'New');
        -- Changed without saying so: no pass will ever read it.
        UPDATE content.film_work SET title = 'Unsaid' WHERE id = 3;
        UPDATE content.film_work SET gone = true WHERE id = 4
        """
    )
    change(client, index, _5={"title": "Drifted"})

    found = bench.reconcile("films")

    assert counts(found) == (0, 1, 2, 3)
    assert {one["key"]["_id"] for one in found["keys"]} == {"3", "4", "5"}
    assert counts(bench.reconcile("films", repair=True))[:3] == (0, 1, 2)
    assert bench.run("films")["status"] == "SUCCESS"
    assert bench.reconcile("films")["equal"]


@pytest.mark.one_server
def test_fields_of_other_pipelines_are_left_alone(bench: Workbench, client: SearchClient, index: str) -> None:
    shared = {"shared_target": True, "on_schema_change": "add_columns"}
    films(bench, index, "SELECT id, title FROM content.film_work", options=shared)
    bench.pipeline(
        "ratings",
        "SELECT id, rating, payload FROM content.film_work WHERE id <= 200",
        target_table=f"es:{index}",
        target_key=["id"],
        options=shared,
    )
    assert bench.run("ratings")["status"] == "SUCCESS"
    change(client, index, _1={"rating": 0.1}, _2={"title": "Changed"}, _3={"payload": {"more": 1}})

    assert counts(bench.reconcile("films")) == (0, 0, 1, 0)
    found = bench.reconcile("ratings", repair=True)

    assert (counts(found), found["remaining"]) == ((0, 0, 2, 0), 0)
    assert documents(client, index)["2"]["title"] == "Changed"
    assert documents(client, index)["1"]["rating"] == 1.5
    # An update merges objects: what nobody asked for must not stay inside.
    assert set(documents(client, index)["3"]["payload"]) == {"n", "big"}
    assert client.count(index) == 300


@pytest.mark.one_server
def test_whole_documents_are_compared_when_they_are_replaced(
    bench: Workbench, client: SearchClient, index: str
) -> None:
    mappings = {"properties": {"note": {"type": "keyword"}}}
    films(bench, index, options={"action": "index", "index": {"mappings": mappings}}, **INCREMENTAL)
    assert bench.reconcile("films")["equal"]
    change(client, index, _7={"note": "by hand"})

    found = bench.reconcile("films", repair=True)

    assert found["keys"] == [
        {"kind": "differing", "key": {"_id": "7"}, "columns": {"note": {"source": None, "target": '"by hand"'}}}
    ]
    assert "note" not in documents(client, index)["7"]


@transform("search_reconcile_shout", rows=True)
def shout(row: dict[str, Any]) -> dict[str, Any] | None:
    """Drops one film, forgets when it changed, and makes another key."""
    made = {"film": f"film-{row['id']}", "title": row["title"].upper(), "rating": row["rating"]}
    return made if row["id"] != 9 else None


@pytest.mark.one_server
def test_what_python_steps_make_is_compared(bench: Workbench, client: SearchClient, index: str) -> None:
    tasks = [
        {"order_index": 0, "task_type": "SQL", "body": QUERY},
        {"order_index": 1, "task_type": "PYTHON", "body": "search_reconcile_shout"},
    ]
    films(bench, index, tasks=tasks, target_key=["film"], batch_size=100, **INCREMENTAL)
    assert bench.reconcile("films", level="quick")["equal"]
    assert bench.reconcile("films")["source"]["rows"] == 299
    write(client, index, {"delete": {"_id": "film-8"}})
    change(client, index, **{"_film-7": {"title": "quiet"}, "_film-9": {"film": "film-9"}})
    bench.sql("UPDATE content.film_work SET title = 'New', modified = clock_timestamp() WHERE id = 1")

    assert counts(bench.reconcile("films", level="sample", keys=2000)) == (1, 1, 1, 1)
    found = bench.reconcile("films", repair=True)

    assert (counts(found), found["remaining"]) == ((1, 1, 1, 1), 0)
    assert bench.run("films")["status"] == "SUCCESS"
    assert bench.reconcile("films")["equal"]


@pytest.mark.one_server
def test_a_python_source_that_starts_over_each_time_is_compared(
    bench: Workbench, client: SearchClient, index: str
) -> None:
    planets: dict[str, Any] = {"type": "PYTHON", "python_task": "reconcile_planets", "source_query": None}
    bench.pipeline("planets", "", **planets, target_table=f"es:{index}", target_key=["n"])
    assert bench.run("planets")["status"] == "SUCCESS"
    write(client, index, {"delete": {"_id": "1"}})
    change(client, index, _7={"name": "Pluto"}, _9={"n": 9})

    assert bench.reconcile("planets", level="quick")["equal"], "as many as there should be"
    assert counts(bench.reconcile("planets", level="sample")) == (1, 1, 1, 0)
    assert counts(bench.reconcile("planets", repair=True)) == (1, 1, 1, 0)
    assert bench.reconcile("planets")["equal"]


@pytest.mark.one_server
def test_a_repair_keeps_the_rules_of_a_run(bench: Workbench, client: SearchClient, index: str) -> None:
    films(bench, index)
    spoil(client, index)
    bench.request("films")
    with pytest.raises(Conflict, match="RUN_REQUESTED"):
        bench.reconcile("films", repair=True)
    # A load at work will bring all of it.
    assert bench.reconcile("films")["in_flight"] == 8
    bench.sql("UPDATE etl.etl_pipelines SET status = 'IDLE', run_requested_at = NULL")

    bench.sql("DELETE FROM content.film_work WHERE id > 100")
    with pytest.raises(ShrinkRefused):
        bench.reconcile("films", repair=True)
    assert client.count(index) >= 299

    bench.change("films", options={"allow_shrink": True, "cursor_clock": "database"})
    assert bench.reconcile("films", repair=True)["remaining"] == 0
    assert set(documents(client, index)) == {str(number) for number in range(1, 101)}


@pytest.mark.one_server
def test_a_repair_can_be_paused_between_batches(bench: Workbench, client: SearchClient, index: str) -> None:
    films(bench, index)
    change(client, index, **{f"_{number}": {"title": "Changed"} for number in (1, 150, 290)})
    # Somebody asks for a pause while the first batch is counted, which has read the pipeline's row by then: whoever
    # is not in its transaction waits for that row, and either way the second batch is the one that obeys.
    bench.sql(
        """
        CREATE FUNCTION public.pause() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            UPDATE etl.etl_pipelines SET status = 'PAUSE_REQUESTED' WHERE status = 'RUNNING'; RETURN NULL; END $$;
        CREATE TRIGGER pause AFTER UPDATE ON etl.etl_runs EXECUTE FUNCTION public.pause();
        GRANT USAGE ON SCHEMA public TO vitrina_app;
        """
    )
    bench.change("films", batch_size=1)

    found = bench.reconcile("films", repair=True)

    assert (found["repair"]["keys"], found["repair"]["paused"], found["remaining"]) == (2, True, 1)
    assert bench.status("films") == "PAUSED"


@pytest.mark.one_server
def test_what_no_document_can_hold_stays_different_and_is_told(
    bench: Workbench, client: SearchClient, index: str
) -> None:
    films(bench, index, **INCREMENTAL)
    bench.sql("UPDATE content.film_work SET span = 'empty' WHERE id = 7")

    found = bench.reconcile("films", repair=True)

    assert (counts(found), found["repair"]["rejected"], found["remaining"]) == ((0, 0, 1, 0), 1, 1)
    assert "an empty range cannot be indexed" in found["keys"][0]["columns"]["(cannot be a document)"]["source"]
    [letter] = bench.sql("SELECT document_id FROM etl.etl_dead_letters")
    assert letter == {"document_id": "7"}


@pytest.mark.one_server
def test_what_cannot_be_reconciled_is_named(bench: Workbench, index: str) -> None:
    bench.source(FILMS)
    bench.pipeline("fresh", QUERY, target_table=f"es:{index}", target_key=["id"])
    with pytest.raises(FatalError, match=f"es:{index} does not exist yet: run the pipeline first"):
        bench.reconcile("fresh")
    mappings = {"_source": {"excludes": ["title"]}}
    bench.change("fresh", options={"index": {"mappings": mappings}, "action": "index"})
    assert bench.run("fresh")["status"] == "SUCCESS"
    with pytest.raises(FatalError, match="does not keep its documents as they were written"):
        bench.reconcile("fresh")


@pytest.mark.one_server
def test_no_false_alarm_while_the_source_is_written_to(bench: Workbench, client: SearchClient, index: str) -> None:
    films(bench, index, **INCREMENTAL)
    stop = threading.Event()
    failures: list[str] = []
    assert bench.settings.admin_url is not None
    threads = [
        threading.Thread(target=_write, args=(bench.settings.admin_url.get_secret_value(), stop)),
        threading.Thread(target=_load, args=(bench.settings, stop, failures)),
    ]
    for thread in threads:
        thread.start()
    try:
        reports = [bench.reconcile("films") for _ in range(4)]
        end = time.monotonic() + 60
        # However slowly the writers begin: something has to be on its way once.
        while not sum(report["in_flight"] for report in reports) and time.monotonic() < end:
            reports.append(bench.reconcile("films"))
    finally:
        stop.set()
        for thread in threads:
            thread.join()

    assert failures == []
    assert [report["differences"] for report in reports] == [0] * len(reports), [report["keys"] for report in reports]
    assert sum(report["in_flight"] for report in reports) > 0, "nothing was on its way: the test proves nothing"


def _write(url: str, stop: threading.Event) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        number = 0
        while not stop.wait(0.005):
            number += 1
            connection.execute(
                "INSERT INTO content.film_work (id, title) SELECT max(id) + 1, 'Written' FROM content.film_work"
                if number % 3 == 0
                else "UPDATE content.film_work SET title = title || '!', modified = clock_timestamp()"
                f" WHERE id = {1 + number % 300}"
            )


def _load(settings: Settings, stop: threading.Event, failures: list[str]) -> None:
    with postgres.connect(settings.require_database_url(), "vitrina:test") as connection:
        bench = Workbench(settings, connection, connection)
        while not stop.is_set():
            run = bench.run("films")
            if run["status"] != "SUCCESS":
                failures.append(run["error_message"])
        bench.pool.close()
