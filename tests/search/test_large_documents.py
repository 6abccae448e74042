"""Documents past the usual measure: very large, very deep, refused for their size."""

import tracemalloc
from typing import Any

import pytest
from pydantic import SecretStr

from tests.search.conftest import Target
from tests.search.test_search_runs import INCREMENTAL, documents, pipeline
from tests.support.search_servers import REQUESTS_MEGABYTES
from tests.support.workbench import Workbench
from vitrina.connectors.search.client import SearchClient

NOTES = """
CREATE TABLE content.notes (
    id int PRIMARY KEY, body text, payload json, modified timestamptz NOT NULL DEFAULT clock_timestamp());
INSERT INTO content.notes (id, body, modified)
SELECT i, 'Note ' || i, timestamptz '2024-01-01' + make_interval(secs => i) FROM generate_series(1, 9) AS i;
"""
QUERY = "SELECT id, body, payload, modified FROM content.notes"
LEVELS = 450
CHANGED = '{"y": 4}'
DATES = {"index": {"mappings": {"properties": {"body": {"type": "date"}}}}}


@pytest.fixture
def bench(workbench: Workbench, search: Target) -> Workbench:
    workbench.source(NOTES)
    workbench.settings = workbench.settings.model_copy(
        update={"elasticsearch_url": SecretStr(search.url), "allowed_targets": "es:vitrina-test-*"}
    )
    return workbench


def nested(levels: int, innermost: str) -> str:
    return '{"a":' * levels + innermost + "}" * levels


def put(bench: Workbench, number: int, payload: str) -> None:
    bench.sql(f"UPDATE content.notes SET payload = $${payload}$$, modified = clock_timestamp() WHERE id = {number}")


def innermost(client: SearchClient, index: str, number: int) -> Any:
    value = documents(client, index)[str(number)]["payload"]
    while isinstance(value, dict) and "a" in value:
        value = value["a"]
    return value


# --- deep ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [{"mode": "full"}, INCREMENTAL], ids=["full", "incremental"])
def test_json_of_hundreds_of_levels_is_delivered_and_compared(
    bench: Workbench, client: SearchClient, index: str, mode: dict[str, Any]
) -> None:
    put(bench, 1, nested(LEVELS, '{"x": 1, "y": 2}'))
    put(bench, 2, '{"x": 1}')
    pipeline(bench, index, QUERY, **mode)
    assert bench.run("films")["status"] == "SUCCESS"
    put(bench, 1, nested(LEVELS, '{"y": 3}'))

    run = bench.run("films")

    assert (run["status"], run["attempts"], run["rows_rejected"]) == ("SUCCESS", 1, 0)
    assert innermost(client, index, 1) == {"y": 3}, "a member that is gone is gone"
    assert bench.reconcile("films")["equal"]
    bench.sql(f"UPDATE content.notes SET payload = $${nested(LEVELS, CHANGED)}$$, modified = '2024-02-02' WHERE id = 1")
    assert bench.reconcile("films", repair=True)["repair"]["updated"] == 1
    assert innermost(client, index, 1) == {"y": 4}


@pytest.mark.parametrize("mode", [{"mode": "full"}, INCREMENTAL], ids=["full", "incremental"])
def test_json_of_thousands_of_levels_is_a_dead_letter_before_it_can_harm_the_server(
    bench: Workbench, client: SearchClient, index: str, mode: dict[str, Any]
) -> None:
    """Servers take it, and one ends, as a process, when somebody asks for a part of such a document."""
    put(bench, 1, nested(3_000, "1"))
    pipeline(bench, index, QUERY, **mode, options={"max_dead_letters": 1})

    run = bench.run("films")

    assert (run["status"], run["attempts"], run["rows_rejected"]) == ("SUCCESS", 1, 1)
    assert len(documents(client, index)) == 8
    [letter] = bench.sql("SELECT document_id, error FROM etl.etl_dead_letters")
    assert (letter["document_id"], "500 levels deep" in letter["error"]) == ("1", True)
    put(bench, 1, "{}")
    assert bench.replay("films")["sent"] == 1


# --- large ---------------------------------------------------------------------------------------------------------


def test_a_large_document_that_is_refused_costs_little_memory_and_is_kept_cut(
    bench: Workbench, client: SearchClient, index: str
) -> None:
    size = 4_000_000
    bench.sql(f"UPDATE content.notes SET body = repeat('\"\\{{x', {size} / 4) WHERE id = 3")
    bench.sql("UPDATE content.notes SET body = '2024-01-01' WHERE id <> 3")
    pipeline(bench, index, QUERY, **INCREMENTAL, options=DATES)

    tracemalloc.start()
    run = bench.run("films")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert (run["status"], run["rows_rejected"]) == ("SUCCESS", 1)
    assert peak < 20 * size, "nothing grows with the hundredfold of the document"
    [letter] = bench.sql("SELECT document_id, document FROM etl.etl_dead_letters")
    assert letter["document_id"] == "3"
    assert len(letter["document"]) < 110_000
    assert "bytes in all" in letter["document"]
    bench.sql("UPDATE content.notes SET body = '2024-01-01' WHERE id = 3")
    assert bench.replay("films")["sent"] == 1


def test_a_document_that_no_request_can_hold_is_a_dead_letter_at_once(
    bench: Workbench, client: SearchClient, index: str, search: Target
) -> None:
    """The server says 429, as when it is busy, but it is not: the document alone is past its limit."""
    megabytes = REQUESTS_MEGABYTES * 5 // 4 if search.process else 60
    bench.sql(f"UPDATE content.notes SET body = repeat('x', {megabytes} * 1000000) WHERE id = 3")
    pipeline(bench, index, QUERY, options={"max_dead_letters": 1})

    run = bench.run("films")

    assert (run["status"], run["rows_rejected"]) == ("SUCCESS", 1)
    [letter] = bench.sql("SELECT document_id, error FROM etl.etl_dead_letters")
    assert letter["document_id"] == "3"
    assert "the server accepts no document of" in letter["error"]
    assert len(documents(client, index)) == 8


@pytest.mark.one_server
def test_a_refused_row_that_grows_has_one_letter(bench: Workbench, index: str) -> None:
    """The reason quotes where in the document it is, or how large it is."""
    bench.sql("UPDATE content.notes SET body = '2024-01-01'")
    options = {"index": {"mappings": {"properties": {"payload": {"type": "long"}}}}}
    put(bench, 3, '{"unknown": 1}')
    pipeline(bench, index, QUERY, **INCREMENTAL, options=options)
    bench.run("films")
    bench.sql("UPDATE content.notes SET body = body || repeat('x', 300), modified = clock_timestamp() WHERE id = 3")

    bench.run("films")

    [letter] = bench.sql("SELECT error, document FROM etl.etl_dead_letters WHERE resolved_at IS NULL")
    assert "xxx" in str(letter["document"]), "and it holds the row as it is now"
    assert (bench.replay("films")["refused"], bench.replay("films")["refused"]) == (1, 1)
