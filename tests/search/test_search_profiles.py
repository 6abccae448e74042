"""What an index holds: documents, size, and what a sample of them has in its fields."""

from typing import Any

import pytest

from tests.search.test_search_checks import bench
from tests.search.test_search_runs import pipeline
from tests.support.workbench import Workbench
from vitrina.connectors.search import index_profile
from vitrina.connectors.search.client import SearchClient
from vitrina.errors import FatalError, NotFound

__all__ = ["bench"]


def test_documents_size_and_fields_are_told(bench: Workbench, client: SearchClient, index: str) -> None:
    bench.sql("UPDATE content.film_work SET title = NULL WHERE id > 190")
    pipeline(bench, index, options={"profile": True})
    with pytest.raises(NotFound, match=f"es:{index} does not exist yet"):
        bench.profile("films")
    assert bench.run("films")["status"] == "SUCCESS"

    found = bench.profile("films")

    assert (found["rows"], found["profiled_rows"], found["target"]) == (200, 200, f"es:{index}")
    assert found["size_bytes"] > 0
    columns = {column["name"]: column for column in found["columns"]}
    assert _ends(columns["id"]) == ("long", "1", "200", 200, 0)
    assert (columns["title"]["type"], columns["title"]["nulls"], columns["title"]["distinct"]) == ("text", 10, 190)
    assert columns["rating"]["top_values"][0]["rows"] == 20
    assert columns["genres"]["distinct"] == 3
    [kept] = bench.sql("SELECT result FROM etl.etl_requests WHERE kind = 'profile'")
    assert kept["result"]["rows"] == 200


def _ends(column: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(column[name] for name in ("type", "min_value", "max_value", "distinct", "nulls"))


def test_an_index_that_does_not_keep_its_documents_is_refused(bench: Workbench, index: str) -> None:
    pipeline(bench, index, options={"profile": True, "index": {"mappings": {"_source": {"excludes": ["title"]}}}})
    assert bench.run("films")["status"] == "SUCCESS"
    [warning] = bench.last_run("films")["metrics"]["plan"]["warnings"]
    assert "does not keep its documents as they were written" in warning
    with pytest.raises(FatalError, match=f"es:{index} does not keep its documents"):
        bench.profile("films")


def test_a_large_index_is_looked_at_in_a_sample(bench: Workbench, index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline(bench, index)
    assert bench.run("films")["status"] == "SUCCESS"
    monkeypatch.setattr(index_profile, "MOST_DOCUMENTS", 50)
    found = bench.profile("films")
    assert found["rows"] == 200
    assert 10 < found["profiled_rows"] < 120
    assert bench.profile("films") == found
