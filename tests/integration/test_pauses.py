"""A pause of a load in one statement: there is no batch boundary to wait for, so the statement is cancelled."""

import threading
from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from pydantic import SecretStr

from tests.conftest import admin, url_of
from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina.embedded.temporary import TemporaryServer
from vitrina.runner.manager import PipelineManager
from vitrina.services import pipelines as service
from vitrina.services.callers import Caller, Role

OPERATOR = Caller("ann", Role.OPERATOR)
NUMBERS = "SELECT id, title FROM content.numbers"
# Nothing in it is forbidden; it merely takes hours.
ENDLESS = "SELECT count(*)::int AS id, min(title) AS title FROM content.numbers, generate_series(1, 1000000000) AS n"
AGGREGATED = "SELECT id, max(title) AS title FROM content.numbers GROUP BY id"
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
    manager._wakeup_recv.close()
    manager._wakeup_send.close()


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


def test_a_pause_cancels_a_pass_in_one_statement_and_a_run_begins_it_again(
    bench: Workbench, runner: PipelineManager
) -> None:
    """Nothing is checkpointed of a pass that was cancelled: the next one reads the same rows."""
    bench.sql("ALTER TABLE content.numbers ADD at timestamptz NOT NULL DEFAULT now()")
    grouped = "SELECT id, max(title) AS title, max(at) AS at FROM content.numbers GROUP BY id"
    bench.pipeline("films", grouped, target_key=["id"], mode="incremental", incremental_key="at")
    bench.request("films")
    until(lambda: is_idle(bench, "films"))
    bench.sql("UPDATE content.numbers SET title = title || '!', at = clock_timestamp()")
    assert bench.settings.admin_url
    with psycopg.connect(bench.settings.admin_url.get_secret_value()) as somebody:
        somebody.execute("LOCK TABLE analytics.films IN SHARE MODE")
        bench.request("films")
        until(lambda: sessions(bench, PUBLISHING) > 0)
        service.request_pause(bench.metastore, OPERATOR, "films")
        until(lambda: bench.status("films") == "PAUSED")
    run = bench.last_run("films")
    assert (run["status"], run["error_code"]) == ("PAUSED", None)
    assert run["metrics"]["plan"]["paging"] == "one statement"
    assert bench.sql("SELECT count(*) AS n FROM analytics.films WHERE title LIKE '%!'") == [{"n": 0}]

    bench.request("films")
    until(lambda: is_idle(bench, "films"))
    assert bench.differences(grouped, "analytics.films") == 0


# --- a pause that comes while the target commits ---------------------------------------------------------------------

# What is deferred runs in COMMIT; ours asks for constraints before it moves the checkpoint, so it is armed behind that.
SLOW_COMMIT = """
CREATE TABLE analytics.waits (n int);
CREATE FUNCTION analytics.wait() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_catalog.pg_advisory_xact_lock(20); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON analytics.waits DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION analytics.wait();
CREATE FUNCTION analytics.arm() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN SET CONSTRAINTS ALL DEFERRED; INSERT INTO analytics.waits VALUES (1); RETURN NULL; END $$;
GRANT INSERT ON analytics.waits TO vitrina_app;
CREATE TRIGGER arm AFTER UPDATE ON etl_stage.ledger FOR EACH ROW WHEN (NEW.stage IS NULL AND OLD.stage IS NOT NULL)
EXECUTE FUNCTION analytics.arm();
"""
COMMITTING = "query = 'COMMIT' AND wait_event = 'advisory'"


@pytest.fixture
def warehouse(workbench: Workbench, server: TemporaryServer, template: str) -> Iterator[psycopg.Connection]:
    """A second database, whose COMMIT behind a load waits for whoever holds the lock 20."""
    name = f"other_{uuid4().hex[:12]}"
    admin(server, sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template)))
    url = SecretStr(url_of(server.urls.app, name))
    workbench.settings = workbench.settings.model_copy(update={"connections": {"warehouse": url}})
    with psycopg.connect(url_of(server.urls.admin, name), autocommit=True) as connection:
        connection.execute(SLOW_COMMIT)
        yield connection
    admin(server, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def commits_waiting(warehouse: psycopg.Connection) -> bool:
    row = warehouse.execute(f"SELECT count(*) FROM pg_stat_activity WHERE {COMMITTING}").fetchone()
    return row is not None and row[0] > 0


def test_a_pause_that_arrives_during_commit_leaves_all_or_nothing(
    warehouse: psycopg.Connection, bench: Workbench, runner: PipelineManager
) -> None:
    bench.pipeline("films", AGGREGATED, target_key=["id"], options={"target_connection": "warehouse"})
    with psycopg.connect(warehouse.info.dsn, password=warehouse.info.password) as somebody:
        somebody.execute("SELECT pg_advisory_lock(20)")
        bench.request("films")
        until(lambda: commits_waiting(warehouse))
        service.request_pause(bench.metastore, OPERATOR, "films")
        until(lambda: bench.status("films") == "PAUSED")
        assert bench.last_run("films")["status"] == "PAUSED"
        assert warehouse.execute("SELECT count(*) FROM analytics.films").fetchone() == (0,), "COMMIT was cancelled"

    bench.request("films")
    until(lambda: is_idle(bench, "films"))
    assert warehouse.execute("SELECT count(*), count(DISTINCT id) FROM analytics.films").fetchone() == (1000, 1000)


def test_the_plan_says_why_there_is_one_batch(bench: Workbench) -> None:
    bench.pipeline("films", NUMBERS, target_key=["id"])
    run = bench.run("films")
    [reason] = [reason for reason in run["metrics"]["plan"]["reasons"] if reason.startswith("one batch, because")]
    assert "a pause cancels it" in reason
