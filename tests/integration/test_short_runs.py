"""Lose runners in loads and passes of one part, which one transaction publishes, counts and ends."""

from typing import Any

import pytest

from tests.support.workbench import Workbench
from vitrina import failpoints

SOURCE = """
    CREATE TABLE content.item (id int PRIMARY KEY, name text NOT NULL, modified timestamptz NOT NULL DEFAULT now());
    INSERT INTO content.item (id, name) SELECT n, 'item ' || n FROM generate_series(1, 50) n;
    GRANT SELECT ON content.item TO vitrina_reader;
"""
QUERY = "SELECT id, name, modified FROM content.item"
CHANGE = "UPDATE content.item SET name = name || '.', modified = clock_timestamp() WHERE id % 5 = 0"
MODES: dict[str, dict[str, Any]] = {
    "full": {"mode": "full"},
    "incremental": {"mode": "incremental", "incremental_key": "modified", "incremental_id_key": "id"},
}
POINTS = {
    "full": ["load.fenced", "load.begun", "batch.filled", "publish.applied", "batch.fenced", "publish.fenced",
             "batch.committed", "publish.committed", "run.concluding"],
    "incremental": ["pass.begun", "batch.filled", "merge.applied", "batch.fenced", "pass.fenced", "batch.committed",
                    "pass.ended", "run.concluding"],
}  # fmt: skip


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def bench(workbench: Workbench, mode: str) -> Workbench:
    workbench.sql(SOURCE)
    workbench.pipeline("items", QUERY, target_key=["id"], **MODES[mode])
    assert workbench.run("items")["status"] == "SUCCESS"
    workbench.sql(CHANGE)
    return workbench


CASES = [(mode, point) for mode, points in POINTS.items() for point in points]


@pytest.mark.parametrize(("mode", "point"), CASES, indirect=["mode"])
def test_a_lost_runner_loses_and_doubles_nothing(bench: Workbench, point: str) -> None:
    bench.request("items")
    bench.lose_a_runner(f"{point}:crash:1")
    bench.recover()
    while (claim := bench.claim_or_none()) is not None:
        bench.perform(claim)
    assert bench.last_run("items")["status"] == "SUCCESS"
    assert bench.differences(QUERY, "analytics.items") == 0
    assert left(bench) == []

    # Nothing is left to be done: neither a load to resume nor rows to write.
    run = bench.run("items")
    assert (run["status"], run["rows_written"], run["rows_deleted"]) == ("SUCCESS", 0, 0)
    assert left(bench) == []


def test_rows_are_counted_once(bench: Workbench, mode: str) -> None:
    run = bench.run("items")
    assert (run["status"], run["batches"]) == ("SUCCESS", 1)
    assert run["rows_written"] == 10
    # A pass reads again what was written shortly before the previous one.
    assert run["rows_read"] == 50 if mode == "full" else 10 <= run["rows_read"] <= 50


IN_THE_TRANSACTION = ("batch.fenced", "pass.fenced", "publish.fenced", "publish.applied", "merge.applied")


@pytest.mark.parametrize(
    ("mode", "point"), [case for case in CASES if case[1] in IN_THE_TRANSACTION], indirect=["mode"]
)
def test_rows_are_counted_once_by_a_run_that_tries_again(bench: Workbench, mode: str, point: str) -> None:
    """Require that what a transaction counted before it was rolled back is not counted a second time."""
    bench.settings = bench.settings.model_copy(update={"backoff_seconds": (0.01,)})
    plain = bench.run("items")
    bench.sql(CHANGE)
    failpoints.configure(f"{point}:error:1")
    try:
        run = bench.run("items")
    finally:
        failpoints.configure("")
    assert (run["status"], run["attempts"], run["batches"]) == ("SUCCESS", 2, 1)
    assert (run["rows_read"], run["rows_written"]) == (plain["rows_read"], plain["rows_written"])
    assert bench.differences(QUERY, "analytics.items") == 0


@pytest.mark.parametrize("mode", ["full"], indirect=True)
def test_what_was_read_is_published_later_if_the_mart_was_locked(bench: Workbench) -> None:
    bench.settings = bench.settings.model_copy(update={"backoff_seconds": (0.01,), "max_attempts": 2})
    failpoints.configure("publish.applied:error:1,publish.applied:error:2")
    try:
        failed = bench.run("items")
    finally:
        failpoints.configure("")
    assert (failed["status"], failed["rows_read"], failed["batches"]) == ("FAILED", 50, 1)
    assert "the next run publishes what was read at" in failed["error_message"]
    bench.sql("UPDATE content.item SET name = 'after' WHERE id = 5")
    resumed = bench.run("items")
    assert (resumed["status"], resumed["rows_read"]) == ("SUCCESS", 0)
    assert bench.sql("SELECT name FROM analytics.items WHERE id = 5") == [{"name": "item 5."}]


def test_the_successor_reads_again_what_was_not_published(bench: Workbench, mode: str) -> None:
    """Require rows that changed after the loss: what the lost runner read does not count."""
    bench.request("items")
    bench.lose_a_runner("batch.filled:crash:1")
    bench.sql("UPDATE content.item SET name = 'after', modified = clock_timestamp() WHERE id = 5")
    bench.recover()
    bench.perform(bench.claim())
    assert bench.last_run("items")["status"] == "SUCCESS"
    assert bench.sql("SELECT name FROM analytics.items WHERE id = 5") == [{"name": "after"}]


def test_a_cancelled_publication_shows_nothing(bench: Workbench, mode: str) -> None:
    """Require that a claim that was lost before the fence changes neither rows nor checkpoint."""
    before = bench.sql("SELECT id, name FROM analytics.items ORDER BY id")
    checkpoint = bench.sql("SELECT safe_upto, last_processed_key, stage FROM etl.etl_state")
    bench.request("items")
    bench.lose_a_runner("batch.fenced:crash:1")
    assert bench.sql("SELECT id, name FROM analytics.items ORDER BY id") == before
    if mode == "incremental":
        assert bench.sql("SELECT safe_upto, last_processed_key, stage FROM etl.etl_state") == checkpoint


@pytest.mark.parametrize("mode", ["full"], indirect=True)
def test_a_run_that_could_not_publish_says_what_it_read(bench: Workbench) -> None:
    bench.sql("ALTER TABLE analytics.items ADD CONSTRAINT no_dots CHECK (name NOT LIKE '%.')")
    failed = bench.run("items")
    assert (failed["status"], failed["rows_read"], failed["batches"]) == ("FAILED", 50, 1)


def left(bench: Workbench) -> list[dict[str, Any]]:
    return bench.sql(
        "SELECT relname FROM pg_class WHERE relnamespace = 'etl_stage'::regnamespace AND relname LIKE 'p\\_%'"
    )
