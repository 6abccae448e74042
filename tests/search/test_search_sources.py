"""Python sources into search indexes: the source's checkpoint moves when every document is accounted for."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr

from tests.search.conftest import Target
from tests.search.test_search_runs import documents
from tests.support.workbench import Workbench
from vitrina import failpoints
from vitrina.connectors.search.client import SearchClient
from vitrina.transforms import SourceContext, source

pytestmark = pytest.mark.one_server

# What the outside world holds, and from where it was asked.
WORLD: dict[str, Any] = {}


@source("search_feed")
def feed(context: SourceContext) -> Iterator[Any]:
    """Events from the checkpoint on, five at a time."""
    start = (context.checkpoint or {}).get("after", 0)
    WORLD.setdefault("asked", []).append(start)
    while start < WORLD["end"]:
        stop = min(start + 5, WORLD["end"])
        context.checkpoint = {"after": stop}
        yield [
            {"n": n, "name": f"event {n}", "tags": ["a", "b"], "day": WORLD.get(f"day {n}", "2024-01-01")}
            for n in range(start, stop)
        ]
        start = stop


@source("search_forgetful_feed")
def forgetful_feed(context: SourceContext) -> Iterator[Any]:
    """The same without a checkpoint."""
    WORLD.setdefault("asked", []).append(None)
    for n in range(WORLD["end"]):
        yield [{"n": n}]


@pytest.fixture
def bench(workbench: Workbench, search: Target) -> Workbench:
    WORLD.clear()
    WORLD["end"] = 12
    workbench.settings = workbench.settings.model_copy(
        update={
            "elasticsearch_url": SecretStr(search.url),
            "allowed_targets": "es:vitrina-test-*",
            "backoff_seconds": (0.01,),
        }
    )
    return workbench


def make(bench: Workbench, index: str, mode: str, task: str = "search_feed", **fields: Any) -> None:
    fields = {"target_table": f"es:{index}", "target_key": ["n"]} | fields
    bench.pipeline("feed", "", type="PYTHON", python_task=task, mode=mode, **fields)


def interrupted(bench: Workbench, where: str) -> dict[str, Any]:
    failpoints.configure(f"{where}:error:2")
    try:
        return bench.run("feed")
    finally:
        failpoints.configure("")


def test_a_rebuild_from_a_source(bench: Workbench, client: SearchClient, index: str) -> None:
    make(bench, index, "full")

    run = bench.run("feed")

    assert (run["status"], run["error_message"], run["rows_written"]) == ("SUCCESS", None, 12)
    found = documents(client, index)
    assert found["11"] == {"n": 11, "name": "event 11", "tags": ["a", "b"], "day": "2024-01-01"}
    WORLD["end"] = 11
    assert bench.run("feed")["status"] == "SUCCESS"
    assert len(documents(client, index)) == 11


def test_an_interrupted_rebuild_asks_the_source_from_its_checkpoint(
    bench: Workbench, client: SearchClient, index: str
) -> None:
    make(bench, index, "full")

    run = interrupted(bench, "batch.committed")

    assert (run["status"], run["attempts"]) == ("SUCCESS", 2)
    assert WORLD["asked"][-1] == 10
    assert len(documents(client, index)) == 12


def test_a_source_without_a_checkpoint_starts_over(bench: Workbench, client: SearchClient, index: str) -> None:
    make(bench, index, "full", "search_forgetful_feed")

    run = interrupted(bench, "batch.committed")

    assert (run["status"], run["metrics"]["started_over"]) == ("SUCCESS", "the source sets no checkpoint")
    assert len(documents(client, index)) == 12


def test_passes_go_on_where_the_source_stood(bench: Workbench, client: SearchClient, index: str) -> None:
    make(bench, index, "incremental")
    assert bench.run("feed")["status"] == "SUCCESS"
    WORLD["end"] = 20

    run = interrupted(bench, "batch.fenced")  # rolled back with the checkpoint: the batch is sent again

    assert (run["status"], run["attempts"]) == ("SUCCESS", 2)
    assert WORLD["asked"] == [0, 12, 17]
    assert len(documents(client, index)) == 20
    assert bench.run("feed")["rows_read"] == 0


def test_refused_documents_of_a_source(bench: Workbench, client: SearchClient, index: str) -> None:
    mappings = {"properties": {"day": {"type": "date"}}}
    make(bench, index, "incremental", options={"index": {"mappings": mappings}})
    WORLD["day 3"] = "no date"

    run = bench.run("feed")

    assert (run["status"], run["rows_rejected"]) == ("SUCCESS", 1)
    assert "3" not in documents(client, index)
    assert [letter["document_id"] for letter in bench.sql("SELECT * FROM etl.etl_dead_letters")] == ["3"]


def test_a_source_without_rows_empties_the_index_only_if_it_may(
    bench: Workbench, client: SearchClient, index: str
) -> None:
    make(bench, index, "full")
    bench.run("feed")
    WORLD["end"] = 0

    assert bench.run("feed")["error_code"] == "shrink_refused"
    assert len(documents(client, index)) == 12

    bench.change("feed", options={"allow_empty": True, "allow_shrink": True})
    assert bench.run("feed")["status"] == "SUCCESS"
    assert documents(client, index) == {}
