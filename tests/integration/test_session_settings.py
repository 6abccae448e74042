"""Settings of servers, databases and logins: none of them changes a value on its way, or ends a session of ours."""

import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from pydantic import SecretStr

from tests.conftest import settings_for, url_of
from tests.support.locales import make_currency
from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina.embedded.temporary import TemporaryServer
from vitrina.store import database as postgres
from vitrina.store.migrate import migrate

PRICES = """
DROP TABLE IF EXISTS content.prices, analytics.prices CASCADE;
CREATE TABLE content.prices (id int PRIMARY KEY, price money, all_prices money[]);
INSERT INTO content.prices SELECT i, amount::money, ARRAY[amount::money, NULL]
FROM unnest(ARRAY[5.50, -1234567.89, 0.01, 0, 92233720368547758.07]) WITH ORDINALITY AS p(amount, i);
INSERT INTO content.prices VALUES (6);
"""
AMOUNTS = "SELECT id, price::numeric AS price, all_prices::numeric[] AS all_prices FROM {} ORDER BY id"


@pytest.fixture(scope="module")
def foreign_server() -> Iterator[TemporaryServer]:
    """A server with currencies of its own: `euro` has two digits behind a comma, `yen` has none."""
    with tempfile.TemporaryDirectory(prefix="vitrina-locales-") as name, pytest.MonkeyPatch.context() as patch:
        Path(name).chmod(0o755)  # the server may run as somebody else
        make_currency(Path(name), "euro", symbol="E", digits=2)
        make_currency(Path(name), "yen", symbol="Y", digits=0)
        patch.setenv("LOCPATH", name)
        with TemporaryServer() as running:
            with psycopg.connect(running.urls.admin, autocommit=True) as admin:
                admin.execute("CREATE SCHEMA content; CREATE SCHEMA ugc")
            migrate(settings_for(running, "vitrina"))
            yield running


@pytest.fixture
def foreign(foreign_server: TemporaryServer) -> Iterator[postgres.Connection]:
    """Its superuser."""
    with psycopg.connect(foreign_server.urls.admin, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS content.prices, analytics.prices")
    with postgres.connect(foreign_server.urls.admin, "vitrina:test") as connection:
        yield connection


@pytest.fixture
def bench(workbench: Workbench, foreign_server: TemporaryServer) -> Workbench:
    workbench.settings = workbench.settings.model_copy(
        update={
            "connections": {
                "warehouse": SecretStr(url_of(foreign_server.urls.app, "vitrina")),
                "shop": SecretStr(url_of(foreign_server.urls.reader, "vitrina")),
            }
        }
    )
    return workbench


def in_currency(server: TemporaryServer, name: str, statements: str) -> None:
    """The database's money is written so from now on."""
    with psycopg.connect(server.urls.admin, autocommit=True) as admin:
        admin.execute(sql.SQL("ALTER DATABASE vitrina SET lc_monetary = {}").format(name))
    with psycopg.connect(server.urls.admin, autocommit=True) as admin:
        admin.execute(statements)
        admin.execute("GRANT SELECT ON ALL TABLES IN SCHEMA content TO vitrina_reader")


def amounts(connection: postgres.Connection, table: str) -> list[dict[str, Any]]:
    return connection.execute(AMOUNTS.format(table).encode()).fetchall()


STEPS: dict[str, dict[str, Any]] = {
    "copy": {},
    "arrow": {
        "tasks": [
            {"order_index": 0, "task_type": "SQL", "body": "SELECT id, price, all_prices FROM content.prices"},
            {"order_index": 1, "task_type": "PYTHON", "body": "deduplicate", "params": {"by": ["id"]}},
        ]
    },
}


@pytest.mark.parametrize("route", ["copy", "arrow"])
@pytest.mark.parametrize("to", ["from there", "to there"])
def test_money_is_exact_between_databases_that_write_it_differently(
    bench: Workbench, foreign_server: TemporaryServer, foreign: postgres.Connection, to: str, route: str
) -> None:
    in_currency(foreign_server, "euro", PRICES if to == "from there" else "SELECT 1")
    if to == "to there":
        bench.source(PRICES)
    where = {"source_connection": "shop"} if to == "from there" else {"options": {"target_connection": "warehouse"}}
    bench.pipeline(
        "prices",
        "SELECT id, price, all_prices FROM content.prices",
        target_key=["id"],
        **where,
        **STEPS[route],
    )
    run = bench.run("prices")
    assert (run["status"], run["error_message"], run["metrics"]["plan"]["route"]) == ("SUCCESS", None, route)
    source, target = (foreign, bench.admin) if to == "from there" else (bench.admin, foreign)
    assert amounts(target, "analytics.prices") == amounts(source, "content.prices")
    assert bench.reconcile("prices")["equal"]


def test_money_that_counts_other_digits_is_refused_by_name(
    bench: Workbench, foreign_server: TemporaryServer, foreign: postgres.Connection
) -> None:
    in_currency(foreign_server, "yen", PRICES)
    bench.pipeline("prices", "SELECT id, all_prices FROM content.prices", target_key=["id"], source_connection="shop")
    run = bench.run("prices")
    assert run["status"] == "FAILED"
    for words in ("all_prices", "money[]", "-1.235 Y", "-$1,234.50", "cast it to numeric"):
        assert words in run["error_message"]
    # What its query casts is what the database itself says of it: 5.50 was 6 yen there from the beginning.
    bench.change("prices", source_query="SELECT id, price::numeric AS price FROM content.prices")
    assert bench.run("prices")["status"] == "SUCCESS"
    assert bench.sql("SELECT price FROM analytics.prices WHERE id = 1") == [{"price": 6}]


def test_nothing_that_a_login_is_set_to_changes_a_value(workbench: Workbench) -> None:
    workbench.source(
        """
        CREATE TABLE content.odd (
            id int PRIMARY KEY, born date, at timestamptz, took interval, ratio double precision, raw bytea,
            tags text[], name text);
        INSERT INTO content.odd VALUES (1, '2024-02-03', '2024-02-03 04:05:06.789+03', '1 mon -2 days 03:04:05.6',
            0.1 + 0.2, '\\x00ff5c', ARRAY['NULL', NULL], 'it''s \\ here');
        """
    )
    columns = "id, born, at, took, ratio, raw, tags, name"
    [name] = workbench.sql("SELECT current_database() AS name")
    for role in ("vitrina_app", "vitrina_reader"):
        for setting, value in OTHERWISE[role].items():
            workbench.admin.execute(
                sql.SQL("ALTER ROLE {} IN DATABASE {} SET {} = {}").format(
                    sql.Identifier(role), sql.Identifier(name["name"]), sql.Identifier(setting), value
                )
            )
    workbench.pipeline("odd", f"SELECT {columns} FROM content.odd", target_key=["id"])
    workbench.pipeline(
        "odd_steps",
        "SELECT 1",
        target_key=["id"],
        tasks=[
            {"order_index": 0, "task_type": "SQL", "body": f"SELECT {columns} FROM content.odd"},
            {"order_index": 1, "task_type": "PYTHON", "body": "deduplicate", "params": {"by": ["id"]}},
        ],
    )
    for pipeline in ("odd", "odd_steps"):
        run = workbench.run(pipeline)
        assert (run["status"], run["error_message"]) == ("SUCCESS", None)
        assert workbench.differences(f"SELECT {columns} FROM content.odd", f"analytics.{pipeline}", columns) == 0
        assert types(workbench, f"analytics.{pipeline}") == types(workbench, "content.odd")


def types(bench: Workbench, table: str) -> list[dict[str, Any]]:
    columns = f"SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = '{table}'::regclass"
    return bench.sql(f"{columns} AND attnum > 0 ORDER BY attnum")


OTHERWISE = {
    "vitrina_app": {
        "datestyle": "SQL, DMY",
        "timezone": "Asia/Kathmandu",
        "intervalstyle": "sql_standard",
        "array_nulls": "off",
        "xmloption": "document",
        "quote_all_identifiers": "on",
        "standard_conforming_strings": "off",
        "default_transaction_isolation": "serializable",
        "transform_null_equals": "on",
    },
    "vitrina_reader": {
        "datestyle": "German",
        "timezone": "America/St_Johns",
        "intervalstyle": "iso_8601",
        "extra_float_digits": "-15",
        "bytea_output": "escape",
        "xmlbinary": "hex",
        "quote_all_identifiers": "on",
        "backslash_quote": "on",
        "default_transaction_isolation": "serializable",
        "default_transaction_deferrable": "on",
    },
}


@pytest.mark.parametrize("role", ["vitrina_app", "vitrina_reader"])
def test_no_limit_of_a_login_ends_a_session_that_waits_for_another(workbench: Workbench, role: str) -> None:
    """While a source makes its reader wait, the metastore's session is idle; and the other way round."""
    workbench.source("CREATE TABLE content.films AS SELECT i AS id FROM generate_series(1, 100) AS i")
    limits = ["idle_session_timeout", "idle_in_transaction_session_timeout", "statement_timeout", "lock_timeout"]
    if workbench.admin.info.server_version >= 170000:
        limits.append("transaction_timeout")
    [name] = workbench.sql("SELECT current_database() AS name")
    for limit in limits:
        workbench.admin.execute(
            sql.SQL("ALTER ROLE {} IN DATABASE {} SET {} = '100ms'").format(
                sql.Identifier(role), sql.Identifier(name["name"]), sql.Identifier(limit)
            )
        )
    workbench.pipeline("films", "SELECT id FROM content.films", target_key=["id"])
    workbench.request("films")
    claim = workbench.claim()
    run = threading.Thread(target=workbench.perform, args=[claim], daemon=True)
    with workbench.admin.transaction():
        workbench.sql("LOCK TABLE content.films")
        run.start()
        until(lambda: bool(workbench.sql("SELECT 1 FROM pg_locks WHERE NOT granted")))
        time.sleep(0.5)  # longer than any of these limits
    run.join()
    done = workbench.last_run("films")
    assert (done["status"], done["error_message"], done["attempts"]) == ("SUCCESS", None, 1)
