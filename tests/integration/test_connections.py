"""Sources and targets in other databases: both routes, both server versions, the checkpoint beside the data."""

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from pydantic import SecretStr

from tests.conftest import settings_for, url_of
from tests.support.workbench import Workbench
from vitrina.embedded.temporary import TemporaryServer
from vitrina.services import pipelines as service
from vitrina.services.callers import Caller, Role
from vitrina.store import database as postgres
from vitrina.store.migrate import migrate

DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")
QUERY = "SELECT id, title, rating, genres, modified FROM content.film_work"
FILMS = """
CREATE TABLE content.film_work (
    id int PRIMARY KEY, title text, rating numeric(3,1), genres text[], modified timestamptz NOT NULL DEFAULT now());
INSERT INTO content.film_work
SELECT i, 'Film ' || i, i % 10, ARRAY['g' || i % 3], timestamptz '2024-01-01' + make_interval(mins => i)
FROM generate_series(1, 500) AS i;
"""


@pytest.fixture(scope="module")
def other_server() -> Iterator[TemporaryServer]:
    """A second server: PostgreSQL 15 beside the embedded 18 (and the other way round), where it is installed."""
    other_is_15 = DEBIAN_15.exists() and not os.environ.get("VITRINA_TEST_PG_BINDIR")
    with TemporaryServer(DEBIAN_15 if other_is_15 else None) as running:
        with psycopg.connect(running.urls.admin, autocommit=True) as admin:
            admin.execute("CREATE SCHEMA content; CREATE SCHEMA ugc")
        migrate(settings_for(running, "vitrina"))
        yield running


@pytest.fixture
def bench(workbench: Workbench, other_server: TemporaryServer) -> Workbench:
    with psycopg.connect(other_server.urls.admin, autocommit=True) as admin:
        admin.execute("DROP TABLE IF EXISTS content.film_work, analytics.films; TRUNCATE etl_stage.ledger")
    workbench.settings = workbench.settings.model_copy(
        update={
            "connections": {
                "warehouse": SecretStr(url_of(other_server.urls.app, "vitrina")),
                "films": SecretStr(url_of(other_server.urls.reader, "vitrina")),
            }
        }
    )
    return workbench


@pytest.fixture
def warehouse(other_server: TemporaryServer) -> Iterator[postgres.Connection]:
    with postgres.connect(other_server.urls.admin, "vitrina:test") as connection:
        yield connection


@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_a_target_in_another_database_keeps_its_checkpoint_there(
    bench: Workbench, warehouse: postgres.Connection, mode: str
) -> None:
    bench.source(FILMS)
    bench.pipeline(
        "films",
        QUERY,
        target_key=["id"],
        mode=mode,
        incremental_key="modified" if mode == "incremental" else None,
        incremental_id_key="id" if mode == "incremental" else None,
        batch_size=100,
        options={"target_connection": "warehouse"},
    )
    run = bench.run("films")
    assert (run["status"], run["error_message"], run["rows_written"]) == ("SUCCESS", None, 500)

    bench.sql("UPDATE content.film_work SET title = 'New', modified = now() WHERE id <= 250")
    run = bench.run("films")

    assert (run["status"], run["metrics"]["updated"], run["metrics"]["route"]) == ("SUCCESS", 250, "copy")
    source = bench.sql(f"{QUERY} ORDER BY id")
    assert warehouse.execute("SELECT * FROM analytics.films ORDER BY id").fetchall() == source
    [ledger] = warehouse.execute("SELECT safe_upto, epoch, batch_no FROM etl_stage.ledger").fetchall()
    [mirror] = bench.sql("SELECT safe_upto, epoch, batch_no FROM etl.etl_state")
    assert ledger == mirror


@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_a_source_in_another_database(bench: Workbench, warehouse: postgres.Connection, mode: str) -> None:
    warehouse.execute(FILMS)
    warehouse.execute("GRANT SELECT ON ALL TABLES IN SCHEMA content TO vitrina_reader")
    bench.pipeline(
        "films",
        QUERY,
        source_connection="films",
        target_key=["id"],
        mode=mode,
        incremental_key="modified" if mode == "incremental" else None,
        batch_size=100,
    )

    run = bench.run("films")

    assert (run["status"], run["error_message"], run["metrics"]["route"]) == ("SUCCESS", None, "copy")
    assert (
        bench.sql("SELECT * FROM analytics.films ORDER BY id") == warehouse.execute(f"{QUERY} ORDER BY id").fetchall()
    )


@pytest.mark.parametrize("cursor", [None, "2024-01-01 08:00:00+00"])
def test_reset_state_reaches_a_ledger_in_another_database(bench: Workbench, cursor: str | None) -> None:
    bench.source(FILMS)
    fields = {"mode": "incremental", "incremental_key": "modified", "incremental_id_key": "id", "target_key": ["id"]}
    bench.pipeline(
        "films", QUERY, batch_size=100, options={"target_connection": "warehouse", "cursor_clock": "database"}, **fields
    )
    assert bench.run("films")["rows_read"] == 500
    bench.sql("UPDATE content.film_work SET title = 'Corrected'")  # unseen: `modified` has not moved
    assert bench.run("films")["rows_read"] == 0

    service.reset_state(bench.metastore, Caller("somebody", Role.OPERATOR), "films", cursor=cursor)

    run = bench.run("films")
    expected = 500 if cursor is None else 21  # minutes 480 to 500
    assert (run["status"], run["rows_read"]) == ("SUCCESS", expected)
    assert bench.run("films")["rows_read"] == 0


def test_rows_refused_by_a_mart_in_another_database_are_read_again(
    bench: Workbench, warehouse: postgres.Connection
) -> None:
    bench.source(FILMS)
    bench.pipeline("films", QUERY, target_key=["rating"], options={"target_connection": "warehouse"})
    assert bench.run("films")["error_message"].endswith("the next run reads the source again")

    bench.sql("DELETE FROM content.film_work WHERE id > 10")

    assert (bench.run("films")["status"], bench.last_run("films")["rows_read"]) == ("SUCCESS", 10)
    [row] = warehouse.execute("SELECT count(*) AS rows FROM analytics.films").fetchall()
    assert row["rows"] == 10


def test_a_connection_nobody_configured_is_named(bench: Workbench) -> None:
    bench.pipeline("films", "SELECT 1 AS id", source_connection="nowhere", target_key=["id"])

    run = bench.run("films")

    assert run["status"] == "FAILED"
    assert "VITRINA_CONN_NOWHERE" in run["error_message"]


@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_a_mart_on_another_server_is_reconciled_and_repaired(
    bench: Workbench, warehouse: postgres.Connection, mode: str
) -> None:
    bench.source(FILMS + "ALTER TABLE content.film_work ADD ratio double precision, ADD note bytea, ADD took interval;")
    bench.sql(
        "UPDATE content.film_work SET ratio = id / 3.0, note = decode(md5(id::text), 'hex'),"
        " took = make_interval(mins => id)"
    )
    bench.pipeline(
        "films",
        QUERY.replace("modified", "modified, ratio, note, took"),
        target_key=["id"],
        mode=mode,
        incremental_key="modified" if mode == "incremental" else None,
        options={"target_connection": "warehouse", "cursor_clock": "database"},
    )
    assert bench.run("films")["status"] == "SUCCESS"
    equal = bench.reconcile("films")
    assert (equal["equal"], equal["source"]["rows"]) == (True, 500)
    warehouse.execute("DELETE FROM analytics.films WHERE id = 1")
    warehouse.execute("UPDATE analytics.films SET modified = modified + interval '1 microsecond' WHERE id = 2")
    warehouse.execute("UPDATE analytics.films SET rating = NULL WHERE id = 3")
    warehouse.execute("UPDATE analytics.films SET id = 1000 WHERE id = 4")

    found = bench.reconcile("films", repair=True)

    assert (found["missing"], found["extra"], found["differing"], found["remaining"]) == (2, 1, 2, 0)
    assert bench.reconcile("films")["equal"]
    [ledger] = warehouse.execute("SELECT epoch, batch_no FROM etl_stage.ledger").fetchall()
    [mirror] = bench.sql("SELECT epoch, batch_no FROM etl.etl_state")
    assert ledger == mirror
