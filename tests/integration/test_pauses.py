"""A pause of a load in one statement: there is no batch boundary to wait for, so the statement is cancelled."""

import threading
from collections.abc import Iterator

import psycopg
import pytest

from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina.runner.manager import PipelineManager
from vitrina.services import pipelines as service
from vitrina.services.callers import Caller, Role

OPERATOR = Caller("ann", Role.OPERATOR)
NUMBERS = "SELECT id, title FROM content.numbers"
# Nothing in it is forbidden; it merely takes hours.
ENDLESS = "SELECT count(*)::int AS id, min(title) AS title FROM content.numbers, generate_series(1, 1000000000) AS n"
READING = "usename = 'vitrina_reader' AND state = 'active' AND query LIKE '%content.numbers%'"
PUBLISHING = "usename = 'vitrina_app' AND wait_event_type = 'Lock'"


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    workbench.source("CREATE TABLE content.numbers (id int PRIMARY KEY, title text)")
    workbench.sql("INSERT INTO content.numbers SELECT n, 'number ' || n FROM generate_series(1, 1000) n")
    return workbench


@pytest.fixture
def runner(bench: Workbench) -> Iterator[PipelineManager]:
    manager = PipelineManager(bench.settings.model_copy(update={"poll_seconds": 30.0}))
    thread = threading.Thread(target=manager.run_forever)
    thread.start()
    yield manager
    manager.stop()
    thread.join(timeout=60)
    manager._bell.close()
    manager._ringer.close()


def sessions(bench: Workbench, which: str) -> int:
    [row] = bench.sql(f"SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database() AND {which}")
    return int(row["n"])


def is_idle(bench: Workbench, name: str) -> bool:
    return bench.status(name) == "IDLE"


def test_a_pause_cancels_the_one_statement_of_a_load_and_a_run_begins_it_again(
    bench: Workbench, runner: PipelineManager
) -> None:
    bench.pipeline("endless", ENDLESS, target_key=["id"])
    bench.request("endless")
    until(lambda: sessions(bench, READING) > 0)
    service.request_pause(bench.metastore, OPERATOR, "endless")
    until(lambda: bench.status("endless") == "PAUSED")
    until(lambda: sessions(bench, READING) == 0)
    run = bench.last_run("endless")
    assert (run["status"], run["error_code"]) == ("PAUSED", None)

    bench.change("endless", source_query=NUMBERS)
    bench.request("endless")
    until(lambda: is_idle(bench, "endless"))
    assert bench.sql("SELECT count(*) AS n FROM analytics.endless") == [{"n": 1000}]


def test_a_pause_cancels_a_publish_and_a_run_only_publishes(bench: Workbench, runner: PipelineManager) -> None:
    bench.pipeline("films", NUMBERS, target_key=["id"])
    bench.request("films")
    until(lambda: is_idle(bench, "films"))
    bench.sql("UPDATE content.numbers SET title = title || '!'")
    assert bench.settings.admin_url
    with psycopg.connect(bench.settings.admin_url.get_secret_value()) as somebody:
        somebody.execute("LOCK TABLE analytics.films IN SHARE MODE")
        bench.request("films")
        until(lambda: sessions(bench, PUBLISHING) > 0)
        service.request_pause(bench.metastore, OPERATOR, "films")
        until(lambda: bench.status("films") == "PAUSED")
    assert bench.last_run("films")["status"] == "PAUSED"
    assert bench.sql("SELECT count(*) AS n FROM analytics.films WHERE title LIKE '%!'") == [{"n": 0}]

    bench.request("films")
    until(lambda: is_idle(bench, "films"))
    assert bench.sql("SELECT count(*) AS n FROM analytics.films WHERE title LIKE '%!'") == [{"n": 1000}]


def test_the_plan_says_why_there_is_one_batch(bench: Workbench) -> None:
    bench.pipeline("films", NUMBERS, target_key=["id"])
    run = bench.run("films")
    [reason] = [reason for reason in run["metrics"]["plan"]["reasons"] if reason.startswith("one batch, because")]
    assert "a pause cancels it" in reason
