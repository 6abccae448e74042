"""First loads into another database, whose ledger is not the metastore: runners are lost at each step."""

import pytest

from tests.integration.test_second_database import as_documented, bench, run_there, warehouse
from tests.support.workbench import Workbench
from vitrina.connectors.postgres import bulk_load

__all__ = ["bench", "warehouse"]

POINTS = ["load.fenced", "load.begun", "batch.filled", "batch.fenced", "batch.committed", "publish.applied",
          "publish.fenced", "publish.committed", "run.concluding"]  # fmt: skip
MART = """
SET ROLE warehouse_writer;
CREATE TABLE analytics.films (id int PRIMARY KEY, title text);
CREATE INDEX titles ON analytics.films (title);
"""


@pytest.mark.parametrize("mode", ["full", "incremental"])
@pytest.mark.parametrize("at", POINTS)
def test_nothing_is_lost_or_doubled(
    bench: Workbench, warehouse: str, monkeypatch: pytest.MonkeyPatch, at: str, mode: str
) -> None:
    monkeypatch.setattr(bulk_load, "WORTHWHILE_ROWS", 1)
    bench.settings = bench.settings.model_copy(update={"backoff_seconds": (0.01,)})
    as_documented(warehouse)
    run_there(warehouse, MART)
    if mode == "incremental":
        bench.change("films", mode="incremental", incremental_key="id")
    [(old,)] = run_there(warehouse, "SELECT 'analytics.films'::regclass::oid")
    bench.request("films")
    bench.lose_a_runner(f"{at}:crash:1")
    bench.sql("UPDATE content.films SET title = 'New' WHERE id = 7")
    bench.recover()
    while (claim := bench.claim_or_none()) is not None:
        bench.perform(claim)
    bench.run("films")

    assert bench.last_run("films")["status"] == "SUCCESS"
    assert run_there(warehouse, "SELECT count(*), count(DISTINCT id) FROM analytics.films") == [(100, 100)]
    if mode == "full":
        assert run_there(warehouse, "SELECT title FROM analytics.films WHERE id = 7") == [("New",)]
    assert run_there(warehouse, "SELECT 'analytics.films'::regclass::oid") != [(old,)]
    assert run_there(warehouse, "SELECT relname FROM pg_class WHERE relname LIKE 'p\\_%' AND relkind = 'r'") == []
    indexes = run_there(warehouse, "SELECT indexname FROM pg_indexes WHERE schemaname = 'analytics' ORDER BY 1")
    assert indexes == [("films_pkey",), ("titles",)]
