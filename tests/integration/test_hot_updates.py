"""Count the updates of a run that write to every index of a table. Only a change of the status may be one of them."""

from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina.store import leases

QUERY = "SELECT id, name, modified FROM content.item"
INCREMENTAL: dict[str, Any] = {"mode": "incremental", "incremental_key": "modified", "incremental_id_key": "id"}
KINDS: dict[str, dict[str, Any]] = {
    "full": {"mode": "full"},
    "incremental": INCREMENTAL,
    "many batches": INCREMENTAL | {"batch_size": 50},
}


@dataclass(frozen=True)
class Updates:
    """Hold how many updates a table has had. The others than the HOT ones wrote to each of its indexes."""

    all: int
    hot: int

    @property
    def others(self) -> int:
        return self.all - self.hot


@pytest.fixture(params=KINDS)
def bench(request: pytest.FixtureRequest, workbench: Workbench) -> Workbench:
    workbench.source("""
        CREATE TABLE content.item (id int PRIMARY KEY, name text NOT NULL, modified timestamptz NOT NULL DEFAULT now());
        INSERT INTO content.item (id, name) SELECT n, 'item ' || n FROM generate_series(1, 300) n;
    """)
    workbench.pipeline("items", QUERY, target_key=["id"], **KINDS[request.param])
    assert workbench.run("items")["status"] == "SUCCESS"
    workbench.sql("UPDATE content.item SET name = name || '.', modified = clock_timestamp()")
    return workbench


def test_a_run_writes_to_the_indexes_of_pipelines_only_with_the_status(bench: Workbench) -> None:
    """Require that heartbeats, the answer to the request and fences of batches write to none."""
    before = _updates(bench, "etl_pipelines")
    bench.request("items")
    claim = bench.claim()
    for _ in range(10):
        assert leases.extend(bench.metastore, [claim.claim_id], 30).extended == {claim.claim_id}
    bench.perform(claim)
    run, after = bench.last_run("items"), _updates(bench, "etl_pipelines")
    assert (run["status"], run["rows_written"]) == ("SUCCESS", 300)
    assert after.others - before.others == 3
    assert after.all - before.all >= 3 + 10 + 1 + run["batches"]


def test_batches_do_not_write_to_the_indexes_of_runs_and_checkpoints(bench: Workbench) -> None:
    """Require it of all but the end of the run, and the begin and end of an unfinished load.

    Pages cannot be cleaned while the run reads from its snapshot, so one of them may become full.
    """
    tables = ("etl_runs", "etl_state")
    before = [_updates(bench, table) for table in tables]
    bench.run("items")
    of_runs, of_state = (_updates(bench, table).others - one.others for table, one in zip(tables, before, strict=True))
    assert of_runs <= 2
    assert of_state <= 2


def test_a_place_in_the_queue_is_kept_while_a_run_reads(workbench: Workbench) -> None:
    """A run that is asked for while another one reads waits since then, not since it was its turn."""
    for name in ("first", "second"):
        workbench.source(f"CREATE TABLE content.{name} AS SELECT 1 AS id")
        workbench.pipeline(name, f"SELECT id FROM content.{name}", target_key=["id"])
    workbench.request("first")
    claim = workbench.claim()
    workbench.request("first")
    workbench.request("second")
    leases.conclude_run(workbench.metastore, claim)
    assert [workbench.claim().name, workbench.claim().name] == ["first", "second"]


def test_an_interrupted_run_comes_before_those_that_wait(workbench: Workbench) -> None:
    for name in ("first", "second"):
        workbench.source(f"CREATE TABLE content.{name} AS SELECT 1 AS id")
        workbench.pipeline(name, f"SELECT id FROM content.{name}", target_key=["id"])
    workbench.request("second")
    claim = workbench.claim()
    leases.answer_request(workbench.metastore, claim)
    workbench.request("first")
    assert leases.give_back(workbench.metastore, claim)
    assert [workbench.claim().name, workbench.claim().name] == ["second", "first"]


def _updates(bench: Workbench, table: str) -> Updates:
    """Read the counters after all sessions of runs have ended. Until then a session may not have reported all."""
    bench.pool.close()
    until(
        lambda: (
            bench.sql(
                "SELECT FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
                f" AND pid NOT IN (pg_backend_pid(), {bench.metastore.info.backend_pid})"
            )
            == []
        )
    )
    for session in (bench.metastore, bench.admin):
        session.execute("SELECT pg_stat_force_next_flush()")
        session.execute("SELECT 1")
    [row] = bench.sql(f"SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'etl.{table}'::regclass")
    return Updates(row["n_tup_upd"], row["n_tup_hot_upd"])
