"""A run that somebody asked for is done, whatever else goes first; and none is done that nobody asked for."""

from typing import Any
from uuid import uuid4

import pytest

from tests.support.workbench import Workbench
from vitrina.status import Status, Trigger
from vitrina.store import leases, notifications, pipelines, recovery, requests, schedules

QUERY = "SELECT id, title, seen FROM content.films"


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    workbench.source(
        "CREATE TABLE content.films (id bigint PRIMARY KEY, title text, seen bigint NOT NULL);"
        "INSERT INTO content.films SELECT i, 'Film ' || i, i FROM generate_series(1, 300) AS i"
    )
    workbench.pipeline(
        "films", QUERY, target_key=["id"], mode="incremental", incremental_key="seen", batch_size=50,
        options={"cursor_clock": "database"},
    )  # fmt: skip
    workbench.run("films")
    return workbench


def row(bench: Workbench) -> dict[str, Any]:
    found = pipelines.find(bench.metastore, "films")
    assert found is not None
    return found


def history(bench: Workbench) -> list[tuple[str, str]]:
    """Trigger and outcome of the runs since the first, oldest first."""
    found = bench.sql("SELECT trigger, status FROM etl.etl_runs ORDER BY started_at, id OFFSET 1")
    return [(run["trigger"], run["status"]) for run in found]


def perform_all(bench: Workbench) -> None:
    while claim := bench.claim_or_none():
        bench.perform(claim)


def add_a_film(bench: Workbench) -> None:
    bench.sql("INSERT INTO content.films VALUES (1000, 'New', 1000)")


def is_in_mart(bench: Workbench) -> bool:
    return bool(bench.sql("SELECT id FROM analytics.films WHERE id = 1000"))


# --- backfills and runs --------------------------------------------------------------------------------------------


def test_a_run_asked_for_while_a_backfill_waits_is_done_after_it(bench: Workbench) -> None:
    bench.request("films", since="1", until="100")
    add_a_film(bench)
    bench.request("films")

    perform_all(bench)

    assert history(bench) == [("api", "SUCCESS"), ("follow-up", "SUCCESS")]
    assert "did not answer that request" in bench.last_run("films")["reason"]
    assert is_in_mart(bench)
    assert (row(bench)["status"], row(bench)["run_requested_at"]) == ("IDLE", None)


def test_a_run_asked_for_while_a_backfill_is_paused_is_done_after_it(bench: Workbench) -> None:
    bench.request("films", since="1", until="300")
    claim = bench.claim()
    assert pipelines.request_pause(bench.metastore, claim.pipeline_id)
    bench.perform(claim)
    assert bench.status("films") == Status.PAUSED
    add_a_film(bench)
    bench.request("films")

    perform_all(bench)

    assert history(bench) == [("api", "PAUSED"), ("api", "SUCCESS"), ("follow-up", "SUCCESS")]
    assert is_in_mart(bench)


def test_a_run_asked_for_after_a_backfills_runner_was_killed_is_done(bench: Workbench) -> None:
    bench.request("films", since="1", until="300")
    bench.lose_a_runner("batch.committed:crash:2")
    add_a_film(bench)
    bench.request("films")
    expire_and_recover(bench)

    perform_all(bench)

    assert [trigger for trigger, _ in history(bench)] == ["api", "recovery", "follow-up"]
    assert is_in_mart(bench)


def expire_and_recover(bench: Workbench) -> None:
    bench.sql("UPDATE etl.etl_pipelines SET lease_until = now() - interval '1 s' WHERE claim_id IS NOT NULL")
    assert len(recovery.recover_expired(bench.metastore, max_attempts=3)) == 1


def test_a_failed_backfill_stops_neither_the_schedule_nor_a_run_that_waits_behind_it(bench: Workbench) -> None:
    bench.sql("UPDATE etl.etl_pipelines SET schedule_interval = '1h', next_run_at = now() - interval '1 minute'")
    bench.request("films", since="nonsense")
    bench.perform(bench.claim())

    assert history(bench) == [("api", "FAILED")]
    assert (row(bench)["status"], row(bench)["requested_range"]) == ("IDLE", None)
    assert "the backfill failed" in row(bench)["last_error"]
    assert [due["name"] for due in schedules.list_due(bench.metastore)] == ["films"]
    [told] = notifications.list_of_pipeline(bench.metastore, row(bench)["id"], ["failed"])
    assert told["run_id"] == bench.last_run("films")["id"]

    bench.request("films", since="nonsense")
    bench.request("films")
    perform_all(bench)
    assert history(bench)[1:] == [("api", "FAILED"), ("follow-up", "SUCCESS")]


def test_a_failed_backfill_of_a_failed_pipeline_leaves_it_failed(bench: Workbench) -> None:
    bench.sql("UPDATE etl.etl_pipelines SET status = 'FAILED'")
    bench.request("films", since="nonsense")
    bench.perform(bench.claim())
    assert bench.status("films") == Status.FAILED


def test_a_backfill_that_loses_all_its_runners_stops_nothing_else(bench: Workbench) -> None:
    bench.request("films", since="1")
    bench.claim()
    bench.sql("UPDATE etl.etl_pipelines SET attempts = 3")
    expire_and_recover(bench)
    assert (row(bench)["status"], row(bench)["requested_range"]) == ("IDLE", None)
    assert bench.last_run("films")["error_code"] == "too_many_losses"


# --- pause, resume, run --------------------------------------------------------------------------------------------


def paused_load(bench: Workbench) -> None:
    """In the middle of a pass."""
    bench.sql("UPDATE content.films SET seen = seen + 1000")
    bench.request("films")
    claim = bench.claim()
    assert pipelines.request_pause(bench.metastore, claim.pipeline_id)
    bench.perform(claim)
    assert bench.status("films") == Status.PAUSED


def test_resume_is_one_run(bench: Workbench) -> None:
    paused_load(bench)
    found = row(bench)
    assert pipelines.resume(bench.metastore, found["id"], trigger=Trigger.API, traceparent=None)

    perform_all(bench)

    assert history(bench) == [("api", "PAUSED"), ("api", "SUCCESS")]
    assert bench.differences(QUERY, "analytics.films") == 0


def test_run_on_a_paused_load_is_a_second_run_that_says_why(bench: Workbench) -> None:
    paused_load(bench)
    bench.sql("INSERT INTO content.films VALUES (1000, 'New', 2000)")
    bench.request("films")

    perform_all(bench)

    assert history(bench) == [("api", "PAUSED"), ("api", "SUCCESS"), ("follow-up", "SUCCESS")]
    assert "interrupted load" in bench.last_run("films")["reason"]
    assert is_in_mart(bench)


# --- repairs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "enabled", "after"),
    [("IDLE", True, "IDLE"), ("IDLE", False, "IDLE"), ("PAUSED", True, "PAUSED"), ("PAUSED", False, "PAUSED")],
)
def test_a_killed_repair_is_followed_by_no_run_and_taken_up_again(
    bench: Workbench, before: str, enabled: bool, after: str
) -> None:
    bench.sql("DELETE FROM analytics.films WHERE id = 7")
    bench.sql(f"UPDATE etl.etl_pipelines SET status = '{before}', enabled = {enabled}")
    wish = {"repair": True, "level": "full"}
    requests.insert(bench.metastore, "reconcile", row(bench)["id"], wish, "test")
    lost = requests.claim_next(bench.metastore, uuid4(), 30)
    assert lost is not None
    leases.claim_idle(bench.metastore, lost["pipeline_id"], lost["runner_id"], 30)
    bench.sql("UPDATE etl.etl_requests SET lease_until = now() - interval '1 s'")
    assert requests.claim_next(bench.metastore, uuid4(), 30) is None, "its pipeline is still held"

    expire_and_recover(bench)

    assert bench.status("films") == after
    assert bench.claim_or_none() is None
    again = requests.claim_next(bench.metastore, uuid4(), 30)
    assert again is not None
    report = bench.reconcile("films", **wish)
    assert (report["repair"]["done"], bench.status("films")) == (True, after)


def test_a_repair_leaves_a_paused_backfill_and_a_waiting_request_alone(bench: Workbench) -> None:
    bench.request("films", since="1", until="300")
    claim = bench.claim()
    assert pipelines.request_pause(bench.metastore, claim.pipeline_id)
    bench.perform(claim)
    bench.sql("DELETE FROM analytics.films WHERE id = 7")

    bench.reconcile("films", repair=True)

    assert row(bench)["requested_range"] == {"since": "1", "until": "300"}


@pytest.mark.parametrize(("point", "is_answered"), [("load.fenced", False), ("load.begun", True)])
def test_a_request_is_answered_together_with_the_beginning_of_the_load(
    bench: Workbench, point: str, is_answered: bool
) -> None:
    """A run that is lost in between has begun no load, and answered nothing; the next run answers the request."""
    bench.change("films", mode="full", incremental_key=None)
    bench.request("films")
    asked = row(bench)["run_requested_at"]
    bench.lose_a_runner(f"{point}:crash:1")

    [lost] = bench.sql("SELECT answers_request FROM etl.etl_runs WHERE status = 'RUNNING'")
    assert (lost["answers_request"] == asked) == is_answered
    assert (row(bench)["run_requested_at"] is None) == is_answered
    bench.recover()
    perform_all(bench)

    answered = bench.sql(f"SELECT status FROM etl.etl_runs WHERE answers_request = '{asked}' ORDER BY started_at")
    assert [run["status"] for run in answered] == (["FAILED"] if is_answered else ["SUCCESS"])
    assert (row(bench)["status"], row(bench)["run_requested_at"]) == ("IDLE", None)
