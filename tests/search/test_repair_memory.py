"""What a comparison and a repair of an index need of memory: bounded, however many and however large its documents."""

import tracemalloc
from pathlib import Path

import pytest
from pydantic import SecretStr

from tests.chaos.conftest import say
from tests.search.conftest import Target
from tests.search.test_search_runs import pipeline
from tests.support.processes import runner_process
from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina.connectors.postgres import stream
from vitrina.connectors.search import index_comparison
from vitrina.connectors.search.client import SearchClient
from vitrina.ports import corrections, documents
from vitrina.store import pipelines, requests

QUERY = "SELECT id, title FROM content.film_work"


@pytest.fixture
def bench(workbench: Workbench, search: Target) -> Workbench:
    workbench.source("CREATE TABLE content.film_work (id int PRIMARY KEY, title text)")
    workbench.settings = workbench.settings.model_copy(
        update={"elasticsearch_url": SecretStr(search.url), "allowed_targets": "es:vitrina-test-*"}
    )
    return workbench


@pytest.mark.one_server
def test_large_documents_are_compared_and_repaired_some_at_a_time(
    bench: Workbench, client: SearchClient, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limits of a 32nd, so that 20 MB stand for 600."""
    limits = (
        (stream, "MAX_BATCH_BYTES"),
        (index_comparison, "PAGE_BYTES"),
        (corrections, "BATCH_BYTES"),
        (documents, "KEPT_BYTES"),
    )
    for module, name in limits:
        monkeypatch.setattr(module, name, getattr(module, name) >> 5)
    rows, size = 1_000, 20_000
    bench.sql(f"INSERT INTO content.film_work SELECT i, repeat('x', {size}) FROM generate_series(1, {rows}) AS i")
    pipeline(bench, index, QUERY, mode="full", batch_size=1_000)
    assert bench.run("films")["status"] == "SUCCESS"
    bench.sql("UPDATE content.film_work SET title = repeat('y', length(title))")

    tracemalloc.start()
    report = bench.reconcile("films", repair=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert (report["differing"], report["remaining"]) == (rows, 0)
    say(f"a repair of {rows * size // 1_000_000} MB took {peak / 1e6:.1f} MB at most")
    assert peak < rows * size * 2, "a page or a batch that held all of them took 14 times their size"
    assert bench.reconcile("films")["equal"]


@pytest.mark.one_server
@pytest.mark.takes_long
@pytest.mark.timeout(3600)
def test_many_documents_that_all_differ_are_repaired_in_bounded_memory(
    bench: Workbench, client: SearchClient, index: str, tmp_path: Path
) -> None:
    """In a real runner: twice the documents take hardly more of it, because no more than a part is listed at once."""
    bench.sql("INSERT INTO content.film_work SELECT i, 'Film ' || i FROM generate_series(1, 200000) AS i")
    pipeline(bench, index, QUERY, mode="full", batch_size=1_000)
    assert bench.run("films")["status"] == "SUCCESS"
    bench.sql("UPDATE content.film_work SET title = 'The ' || title")
    found = pipelines.find(bench.metastore, "films")
    assert found
    assert bench.settings.elasticsearch_url
    environment = {
        "ELASTICSEARCH_URL": bench.settings.elasticsearch_url.get_secret_value(),
        "VITRINA_ALLOWED_TARGETS": bench.settings.allowed_targets,
    }
    with runner_process(bench.settings, tmp_path, **environment) as runner:
        until(lambda: bool(bench.sql("SELECT 1 FROM etl.etl_runners")))
        before, repaired = high_water(runner.pid), 0
        while True:
            wish = {"level": "full", "repair": True, "limit": 10}
            asked = requests.insert(bench.metastore, "reconcile", found["id"], wish, "test")
            finished = f"SELECT 1 FROM etl.etl_requests WHERE id = '{asked}' AND finished_at IS NOT NULL"
            until(lambda: bool(bench.sql(finished)), seconds=1800)  # noqa: B023
            [row] = bench.sql(f"SELECT status, result FROM etl.etl_requests WHERE id = '{asked}'")
            assert row["status"] == "DONE", row
            repaired += row["result"]["repair"]["keys"] if row["result"]["repair"] else 0
            left = row["result"]["remaining"]
            say(f"{repaired} repaired, {left} left: {high_water(runner.pid)} MB, {before} MB at first")
            if not left:
                break
        assert high_water(runner.pid) < 700
    assert repaired == 200_000


def high_water(pid: int) -> int:
    """The most memory that the process ever had, in MB."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) // 1024
