"""A delete or a document that meets a higher version is applied, or somebody hears of it; it is never passed over."""

import pytest
from pydantic import SecretStr

from tests.search.conftest import Target
from tests.search.test_bulk import Writing, indexings, writing
from tests.search.test_run_faults import bench
from tests.support.workbench import Workbench
from vitrina.connectors.search.batch import Actions
from vitrina.connectors.search.client import SearchClient
from vitrina.connectors.search.versions import write_version

__all__ = ["bench", "writing"]

# A row's history, each line a change that the next pass sees in a batch of its own.
HISTORY = """
CREATE TABLE content.history (
    n int PRIMARY KEY, id int NOT NULL, payload jsonb, gone boolean NOT NULL, modified timestamptz NOT NULL);
INSERT INTO content.history
SELECT n, 1, CASE WHEN n % 2 = 0 THEN '{"a": 1, "b": 2}' ELSE '{"a": 1}' END::jsonb, n IN (1, 9),
       timestamptz '2024-01-01' + make_interval(secs => n)
FROM generate_series(0, 9) AS n;
"""


@pytest.mark.parametrize("action", ["update", "index"])
def test_a_row_that_is_deleted_again_in_one_pass_is_deleted(
    bench: Workbench, client: SearchClient, index: str, search: Target, action: str
) -> None:
    """Between its two deletes objects in it are cleared, each of which lifts the document's version."""
    bench.settings = bench.settings.model_copy(update={"elasticsearch_url": SecretStr(search.url)})
    bench.source(HISTORY)
    bench.pipeline(
        "history",
        "SELECT n, id, payload, gone, modified FROM content.history",
        target_table=f"es:{index}",
        target_key=["id"],
        mode="incremental",
        incremental_key="modified",
        incremental_id_key="n",
        batch_size=1,
        options={"delete_when": "gone", "action": action},
    )

    run = bench.run("history")

    assert (run["status"], run["rows_read"]) == ("SUCCESS", 10)
    client.refresh(index)
    assert client.count(index) == 0
    assert run["rows_deleted"] == 2


def test_a_version_that_was_lifted_under_the_same_claim_does_not_stop_a_delete(writing: Writing) -> None:
    """Somebody's update of a document lifts its version by one, past the claim's next batch."""
    engine = writing.engine()
    engine.send(indexings(1, version=write_version(7, 1)))
    for n in range(5):
        engine.send(Actions(["film-0"], [b'{"update":{"_id":"film-0"}}\n{"doc":{"n":%d}}\n' % n]))

    outcome = engine.send(Actions(["film-0"], [_deletion(write_version(7, 2))]))

    assert outcome.deleted == 1
    assert writing.stored() == {}


def test_a_document_of_a_later_claim_is_not_written_over_and_not_passed_over(writing: Writing) -> None:
    engine = writing.engine()
    engine.send(indexings(1, version=write_version(8, 1)))

    outcome = engine.send(indexings(2, version=write_version(7, 2)))

    assert outcome.created == 1
    assert [letter.id for letter in outcome.rejected] == ["film-0"]
    assert "later claim" in outcome.rejected[0].reason


def _deletion(version: int) -> bytes:
    return b'{"delete":{"_id":"film-0","version":%d,"version_type":"external_gte"}}\n' % version
