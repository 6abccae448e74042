"""A target in a second database, set up with what the page says and nothing else."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from pydantic import SecretStr

from tests.conftest import admin, url_of
from tests.docs import blocks
from tests.support.workbench import Workbench
from vitrina.cli import doctor
from vitrina.embedded.temporary import TemporaryServer
from vitrina.errors import FatalError
from vitrina.runner import requests
from vitrina.store import database as postgres
from vitrina.store import target_schema
from vitrina.store.database import with_login

PAGE = Path(blocks.ROOT, "docs/how-to/other-source.md")
FILMS = """
CREATE TABLE content.films (id int PRIMARY KEY, title text);
INSERT INTO content.films SELECT i, 'Film ' || i FROM generate_series(1, 100) AS i;
"""
OF_LOGIN = "CREATE ROLE warehouse_writer LOGIN PASSWORD 'change-me'"


@pytest.fixture
def warehouse(server: TemporaryServer) -> Iterator[str]:
    """The URL of its administrator: a database as `CREATE DATABASE` makes it."""
    name = f"warehouse_{uuid4().hex[:12]}"
    admin(server, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    yield url_of(server.urls.admin, name)
    admin(server, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
    admin(server, sql.SQL("DROP ROLE warehouse_writer").format())


@pytest.fixture
def bench(workbench: Workbench, warehouse: str) -> Workbench:
    workbench.source(FILMS)
    url = SecretStr(with_login(warehouse, "warehouse_writer", "change-me"))
    workbench.settings = workbench.settings.model_copy(update={"connections": {"warehouse": url}})
    workbench.pipeline(
        "films", "SELECT id, title FROM content.films", target_key=["id"], options={"target_connection": "warehouse"}
    )
    return workbench


def run_there(warehouse: str, statements: str) -> list[Any]:
    with psycopg.connect(warehouse, autocommit=True) as connection:
        cursor = connection.execute(statements.encode())
        return cursor.fetchall() if cursor.description else []


def as_documented(warehouse: str) -> None:
    [block] = [block for block in blocks.of(PAGE) if block.title == "warehouse.sql"]
    run_there(warehouse, block.text)


def findings(bench: Workbench) -> list[tuple[str, str, str]]:
    found = doctor._check_targets(bench.metastore, bench.settings)
    return [(finding.status, finding.finding, finding.next_step) for finding in found]


def test_it_works_as_the_page_says(bench: Workbench, warehouse: str) -> None:
    as_documented(warehouse)
    assert findings(bench) == [("OK", "the next run creates its table of checkpoints", "")]
    for written in (100, 0):
        run = bench.run("films")
        assert (run["status"], run["error_message"], run["rows_written"]) == ("SUCCESS", None, written)
    assert run_there(warehouse, "SELECT count(*) FROM analytics.films") == [(100,)]
    assert findings(bench) == [("OK", "its table of checkpoints is at version 1", "")]


def test_a_plan_of_a_mart_there_leaves_it_as_it_is(bench: Workbench, warehouse: str) -> None:
    as_documented(warehouse)
    assert bench.run("films")["status"] == "SUCCESS"
    bench.sql("UPDATE content.films SET title = 'Other' WHERE id <= 7; DELETE FROM content.films WHERE id > 90")

    rows = bench.plan("films")["rows"]

    assert (rows["added"], rows["changed"], rows["removed"]) == (0, 7, 10)
    assert run_there(warehouse, "SELECT count(*), count(*) FILTER (WHERE title = 'Other') FROM analytics.films") == [
        (100, 0)
    ]
    assert run_there(warehouse, "SELECT relname FROM pg_class WHERE relname ~ '^d_'") == []
    run = bench.run("films")
    assert {name: run["metrics"][name] for name in ("updated", "deleted")} == {"updated": 7, "deleted": 10}


def test_a_login_that_may_create_schemas_needs_no_more(bench: Workbench, warehouse: str) -> None:
    run_there(warehouse, f"{OF_LOGIN}; CREATE SCHEMA analytics AUTHORIZATION warehouse_writer")
    [(name,)] = run_there(warehouse, "SELECT current_database()")
    run_there(warehouse, f"GRANT CREATE ON DATABASE {name} TO warehouse_writer")
    assert bench.run("films")["status"] == "SUCCESS"


def test_without_the_right_the_exact_statement_is_said(bench: Workbench, warehouse: str) -> None:
    run_there(warehouse, f"{OF_LOGIN}; CREATE SCHEMA analytics AUTHORIZATION warehouse_writer")
    statement = 'CREATE SCHEMA etl_stage AUTHORIZATION "warehouse_writer"'
    assert findings(bench) == [("PROBLEM", "its login may not create the table of checkpoints there", statement)]
    [row] = bench.sql("SELECT id FROM etl.etl_pipelines")
    with pytest.raises(FatalError, match="CREATE SCHEMA etl_stage"):
        requests.validate({"pipeline_id": row["id"], "payload": {}}, bench.metastore, bench.settings)
    run = bench.run("films")
    assert run["status"] == "FAILED"
    assert run["error_message"].endswith(f"have its administrator run there: {statement}")

    run_there(warehouse, statement)
    assert bench.run("films")["status"] == "SUCCESS"


def test_another_installation_s_ledger_is_shared_with_its_owner_s_rights(bench: Workbench, warehouse: str) -> None:
    theirs = "CREATE SCHEMA etl_stage AUTHORIZATION vitrina_app; SET ROLE vitrina_app; CREATE TABLE etl_stage.ledger ()"
    run_there(warehouse, f"{OF_LOGIN}; {theirs}")
    [(status, _, statement)] = findings(bench)
    assert (status, statement) == ("PROBLEM", 'GRANT "vitrina_app" TO "warehouse_writer"')


def test_an_older_ledger_is_brought_up_to_date_with_what_is_in_it(bench: Workbench, warehouse: str) -> None:
    """As the version before made it: without the columns that came since, and without a version."""
    as_documented(warehouse)
    assert bench.run("films")["status"] == "SUCCESS"
    run_there(warehouse, "DROP TABLE etl_stage.ledger_version; ALTER TABLE etl_stage.ledger DROP COLUMN identity")
    run = bench.run("films")
    assert (run["status"], run["error_message"], run["rows_written"]) == ("SUCCESS", None, 0)
    assert run_there(warehouse, "SELECT version FROM etl_stage.ledger_version") == [(1,)]


def test_a_newer_ledger_is_left_alone(bench: Workbench, warehouse: str) -> None:
    as_documented(warehouse)
    assert bench.run("films")["status"] == "SUCCESS"
    run_there(warehouse, "UPDATE etl_stage.ledger_version SET version = 99; ALTER TABLE etl_stage.ledger ADD later int")
    assert bench.run("films")["status"] == "SUCCESS"
    assert run_there(warehouse, "SELECT version FROM etl_stage.ledger_version") == [(99,)]


def test_the_ledger_has_the_columns_of_a_checkpoint(bench: Workbench, warehouse: str) -> None:
    as_documented(warehouse)
    with postgres.connect(warehouse, "vitrina:test") as there:
        target_schema.prepare(there)
        columns = "SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute"
        of = "WHERE attrelid = '{}'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attname"
        made = there.execute(f"{columns} {of.format('etl_stage.ledger')}".encode()).fetchall()
    assert made == bench.sql(f"{columns} {of.format('etl.etl_state')}")
