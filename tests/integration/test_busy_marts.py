"""Marts that are not ours alone: somebody reads them while they are filled, or has put triggers and rules on them."""

import threading
from typing import Any

import pytest

from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina.connectors.postgres import bulk_load, catalog
from vitrina.connectors.postgres.bulk_load import WORTHWHILE_ROWS
from vitrina.store import database
from vitrina.targets import PostgresTarget

pytestmark = pytest.mark.usefixtures("either_way")

FILMS = """
CREATE TABLE content.films (id int PRIMARY KEY, title text, modified timestamptz NOT NULL DEFAULT now());
"""
ROWS = "INSERT INTO content.films SELECT i, 'Film ' || i FROM generate_series({}, {}) AS i"
QUERY = "SELECT id, title, modified FROM content.films"
SKIP_SEVEN = """
CREATE FUNCTION public.skip_seven() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN IF NEW.id % 100 = 7 THEN RETURN NULL; END IF; RETURN NEW; END $$;
CREATE TRIGGER no_sevens BEFORE INSERT OR UPDATE ON analytics.films FOR EACH ROW EXECUTE FUNCTION public.skip_seven()
"""


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    """With a mart that is there and empty."""
    workbench.source(FILMS)
    workbench.pipeline("films", QUERY, target_key=["id"])
    assert workbench.run("films")["status"] == "SUCCESS"
    return workbench


def indexes(bench: Workbench) -> list[dict[str, Any]]:
    return bench.sql("SELECT indexdef FROM pg_indexes WHERE schemaname = 'analytics' ORDER BY 1")


def test_who_has_read_an_empty_mart_does_not_stop_its_first_load(bench: Workbench) -> None:
    bench.sql(ROWS.format(1, WORTHWHILE_ROWS))
    before = indexes(bench)
    with bench.admin.transaction():
        assert bench.sql("SELECT count(*) AS rows FROM analytics.films") == [{"rows": 0}]
        run = bench.run("films")
    assert (run["status"], run["error_message"], run["rows_written"]) == ("SUCCESS", None, WORTHWHILE_ROWS)
    assert indexes(bench) == before


def test_indexes_come_off_only_while_nobody_uses_the_table(bench: Workbench) -> None:
    target, before = PostgresTarget("analytics", "films"), indexes(bench)
    with database.connect(bench.settings.require_database_url(), "vitrina:test") as session:
        table = catalog.find_table(session, target)
        assert table is not None
        detached = bulk_load.plan_detachment(session, table)
        with bench.admin.transaction(), session.transaction():
            bench.sql("SELECT FROM analytics.films")
            assert not detached.detach(session)  # at once: a session that waits makes others wait behind it
            assert session.execute("SELECT count(*) AS rows FROM analytics.films").fetchall() == [{"rows": 0}]
        with session.transaction():
            assert detached.detach(session)
            detached.restore(session)
    assert indexes(bench) == before


def test_readers_of_an_empty_mart_do_not_wait_for_its_first_load(bench: Workbench) -> None:
    """The load waits inside its publish, with every lock that it takes; a reader answers meanwhile."""
    bench.sql(ROWS.format(1, WORTHWHILE_ROWS))
    bench.sql(
        """
        CREATE FUNCTION public.hold() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END $$;
        CREATE TRIGGER hold AFTER INSERT ON analytics.films FOR EACH STATEMENT EXECUTE FUNCTION public.hold()
        """
    )
    bench.request("films")
    run = threading.Thread(target=bench.perform, args=[bench.claim()], daemon=True)
    with bench.admin.transaction():
        bench.sql("SELECT pg_advisory_xact_lock(1)")
        run.start()
        until(lambda: bool(bench.sql("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")))
        bench.sql("SET LOCAL lock_timeout = '5s'")
        assert bench.sql("SELECT count(*) AS rows FROM analytics.films") == [{"rows": 0}]
    run.join()
    assert bench.last_run("films")["status"] == "SUCCESS"
    assert bench.differences(QUERY, "analytics.films") == 0


@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_a_trigger_that_leaves_a_row_out_is_named(bench: Workbench, mode: str, filled: bool) -> None:
    if mode == "incremental":
        bench.change("films", mode="incremental", incremental_key="modified", incremental_id_key="id")
    if filled:
        bench.sql(ROWS.format(1, 5))
        assert bench.run("films")["status"] == "SUCCESS"
    bench.sql(SKIP_SEVEN)
    bench.sql(ROWS.format(6 if filled else 1, 200))
    run = bench.run("films")
    assert run["status"] == "FAILED"
    assert f"analytics.films took {193 if filled else 198} of {195 if filled else 200} rows" in run["error_message"]
    assert "trigger no_sevens" in run["error_message"]
    assert bench.sql("SELECT count(*) AS rows FROM analytics.films") == [{"rows": 5 if filled else 0}]

    bench.sql("DROP TRIGGER no_sevens ON analytics.films")
    assert bench.run("films")["status"] == "SUCCESS"
    assert bench.differences(QUERY, "analytics.films") == 0


def test_a_rule_that_leaves_rows_out_is_named(bench: Workbench) -> None:
    bench.sql(ROWS.format(1, 200))
    bench.sql("CREATE RULE no_sevens AS ON INSERT TO analytics.films WHERE NEW.id = 7 DO INSTEAD NOTHING")
    run = bench.run("films")
    assert run["status"] == "FAILED"
    assert "took 199 of 200 rows" in run["error_message"]
    assert "rule no_sevens" in run["error_message"]


def test_a_trigger_that_leaves_an_update_out_is_named(bench: Workbench) -> None:
    bench.settings = bench.settings.model_copy(update={"backoff_seconds": (0.01,)})
    bench.sql(ROWS.format(1, 200))
    assert bench.run("films")["status"] == "SUCCESS"
    bench.sql(SKIP_SEVEN)
    bench.sql("UPDATE content.films SET title = 'New'")
    run = bench.run("films")
    assert run["status"] == "FAILED"
    assert "or trigger no_sevens leaves out rows of an UPDATE" in run["error_message"]
