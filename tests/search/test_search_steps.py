"""Python steps on the way into a search index: documents are what the steps make, and failures become dead letters."""

from typing import Any
from uuid import UUID

import pytest
from pydantic import SecretStr

from tests.search.conftest import Target
from tests.search.test_search_runs import documents
from tests.support.workbench import Workbench
from vitrina.connectors.search.client import SearchClient
from vitrina.transforms import transform

FILMS = """
CREATE TABLE content.film_work (
    id uuid PRIMARY KEY, title text, rating numeric(3,1), genres text[], payload jsonb, modified timestamptz NOT NULL);
INSERT INTO content.film_work
SELECT lpad(to_hex(i), 32, '0')::uuid, ' film  ' || i, i % 10 + 0.5, ARRAY['b', 'a'], '{"n": 1.10}',
       timestamptz '2024-01-01 12:00:00.123456+00'
FROM generate_series(1, 60) AS i;
"""
QUERY = "SELECT id, title, rating, genres, payload, modified FROM content.film_work"


@transform("search_fail_on_nine", rows=True)
def fail_on_nine(row: dict[str, Any]) -> dict[str, Any]:
    """Fails on one film."""
    if row["id"] == UUID(int=9):
        raise ValueError("nine")
    return row | {"made": {"by": "step", "of": row["rating"]}}


@pytest.fixture
def bench(workbench: Workbench, search: Target) -> Workbench:
    workbench.source(FILMS)
    workbench.settings = workbench.settings.model_copy(
        update={"elasticsearch_url": SecretStr(search.url), "allowed_targets": "analytics.*,es:vitrina-test-*"}
    )
    return workbench


def test_documents_are_what_the_steps_make(bench: Workbench, client: SearchClient, index: str) -> None:
    bench.pipeline(
        "films",
        "SELECT 1",
        target_table=f"es:{index}",
        target_key=["id"],
        batch_size=20,
        options={"max_dead_letters": 5},
        tasks=[
            {"order_index": 0, "task_type": "SQL", "body": QUERY},
            {"order_index": 1, "task_type": "PYTHON", "body": "demo_film_dim"},
            {
                "order_index": 2,
                "task_type": "PYTHON",
                "body": "search_fail_on_nine",
                "params": {"on_error": "dead_letter"},
            },
        ],
    )

    run = bench.run("films")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    found = documents(client, index)
    assert len(found) == 59
    assert found[str(UUID(int=10))] == {
        "id": str(UUID(int=10)),
        "title": "film 10",
        "rating": 0.5,
        "genres": ["a", "b"],
        "payload": {"n": 1.1},
        "modified": "2024-01-01T12:00:00.123456Z",
        "made": {"by": "step", "of": 0.5},
    }
    [letter] = bench.sql("SELECT document_id FROM etl.etl_dead_letters")
    assert letter["document_id"] == str(UUID(int=9))
