"""Checks of rows on their way to a search index: a generation that breaks one is never shown."""

from typing import Any

import pytest
from pydantic import SecretStr

from tests.search.conftest import Target
from tests.search.test_search_runs import FILMS, INCREMENTAL, documents, pipeline
from tests.support.workbench import Workbench
from vitrina.connectors.search.client import SearchClient
from vitrina.store import dead_letters, pipelines

pytestmark = pytest.mark.one_server

NOT_NULL = {"kind": "not_null", "column": "title"}
COUNT = {"kind": "row_count", "min": 150}
FRESH = {"kind": "freshness", "column": "modified", "max_age": "1d"}


@pytest.fixture
def bench(workbench: Workbench, search: Target) -> Workbench:
    workbench.source(FILMS)
    workbench.sql("UPDATE content.film_work SET modified = now() - make_interval(secs => 1000 - id)")
    workbench.settings = workbench.settings.model_copy(
        update={"elasticsearch_url": SecretStr(search.url), "allowed_targets": "analytics.*,es:vitrina-test-*"}
    )
    return workbench


@pytest.mark.parametrize(
    ("check", "breaking"),
    [
        (NOT_NULL, "UPDATE content.film_work SET title = NULL WHERE id = 120"),
        (COUNT, "DELETE FROM content.film_work WHERE id > 140"),
        (FRESH, "UPDATE content.film_work SET modified = now() - interval '3 days'"),
    ],
    ids=["not_null", "row_count", "freshness"],
)
def test_a_generation_that_breaks_a_check_is_not_shown_until_it_is_accepted(
    bench: Workbench, client: SearchClient, index: str, check: dict[str, Any], breaking: str
) -> None:
    pipeline(bench, index, checks=[check])
    assert bench.run("films")["status"] == "SUCCESS"
    before = documents(client, index)
    bench.sql(breaking)

    run = bench.run("films")

    assert (run["status"], run["error_code"]) == ("FAILED", "check_failed"), run["error_message"]
    assert documents(client, index) == before
    [found] = run["metrics"]["checks"]
    assert bench.run("films", accepts=[found["name"]])["status"] == "SUCCESS"
    assert documents(client, index) != before


@pytest.mark.parametrize("mode", [{}, INCREMENTAL], ids=["full", "incremental"])
def test_rejected_rows_do_not_count_against_the_budget_of_the_index(
    bench: Workbench, client: SearchClient, index: str, mode: dict[str, Any]
) -> None:
    pipeline(bench, index, checks=[NOT_NULL | {"severity": "reject"}], **mode)
    bench.sql("UPDATE content.film_work SET title = NULL WHERE id IN (3, 77)")

    run = bench.run("films")

    assert (run["status"], run["rows_rejected"]) == ("SUCCESS", 2), run["error_message"]
    assert documents(client, index).keys() == {str(i) for i in range(1, 201)} - {"3", "77"}
    row = pipelines.find(bench.metastore, "films")
    assert row is not None
    assert {letter["document_id"] for letter in dead_letters.list_open(bench.metastore, row["id"])} == {"3", "77"}
    bench.sql("UPDATE content.film_work SET title = 'mended' WHERE title IS NULL")
    assert bench.replay("films")["sent"] == 2
    assert len(documents(client, index)) == 200
