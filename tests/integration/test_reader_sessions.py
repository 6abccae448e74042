"""Sessions of users' SQL: read-only whatever the login says, forgetful, limited, and silent about where they are."""

import io
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
import structlog
from psycopg.sql import SQL
from pydantic import SecretStr

from tests.support.fault_proxy import Slow, TcpFaultProxy
from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina import sqlguard
from vitrina.connectors.postgres.copy import copy_out
from vitrina.connectors.postgres.source import Bounds, SqlReader
from vitrina.definition import Definition
from vitrina.errors import CannotConnect, Disconnected, RunError, SourceQueryFailed
from vitrina.observe import logs
from vitrina.runner import dispatcher
from vitrina.runner import requests as runner_requests
from vitrina.sqlguard import SqlPolicy
from vitrina.store import database

FILMS = """
CREATE TABLE content.films (id int PRIMARY KEY, title text);
INSERT INTO content.films SELECT i, 'Film ' || i FROM generate_series(1, 100) AS i;
"""
CANARY = "canary-place"


@contextmanager
def careless_reader(bench: Workbench, **session: str) -> Iterator[SqlReader]:
    """A login that may write and was never told to be read-only, as one of a named connection might be."""
    url = admin_url(bench)
    with database.connect(url, "vitrina:test", settings=database.READ_ONLY | session) as connection:
        yield SqlReader(connection, url, "vitrina:test")


@contextmanager
def reader_through(bench: Workbench, proxy: TcpFaultProxy) -> Iterator[SqlReader]:
    url = admin_url(bench).replace(f":{urlsplit(admin_url(bench)).port}", f":{proxy.port}")
    with database.connect(url, "vitrina:test", settings=database.READ_ONLY) as connection:
        yield SqlReader(connection, url, "vitrina:test")


def admin_url(bench: Workbench) -> str:
    assert bench.settings.admin_url
    return bench.settings.admin_url.get_secret_value()


def test_looking_at_a_query_writes_nothing_whoever_logs_in(workbench: Workbench) -> None:
    workbench.source(FILMS + "CREATE SEQUENCE content.numbers")
    with careless_reader(workbench) as reader:
        # The session's own default is changed by a query first: the next transaction is read-only all the same.
        reader.value(SQL("SELECT set_config({}, {}, false)").format("default_transaction_read_only", "off"))
        for statement in ("SELECT nextval('content.numbers')", "SELECT id FROM content.films FOR UPDATE"):
            with pytest.raises(SourceQueryFailed, match="read-only transaction"):
                reader.value(SQL("{}").format(SQL(statement)))
            with pytest.raises(RunError, match="read-only transaction"), reader.stream(SQL(statement)) as rows:
                list(rows)


def test_what_a_query_sets_is_forgotten(workbench: Workbench) -> None:
    with careless_reader(workbench) as reader:
        for name, value in (("search_path", "etl"), ("statement_timeout", "7s"), ("role", "vitrina_app")):
            reader.value(SQL("SELECT set_config({}, {}, false)").format(name, value))
            assert reader.value(SQL("SELECT current_setting({})").format(name)) != value


@pytest.mark.parametrize(
    "text", ["SELECT 1 AS a; SELECT 2 AS a", "SELECT 1 AS a); DROP TABLE content.films; SELECT (1"]
)
def test_one_statement_never_two(workbench: Workbench, text: str) -> None:
    workbench.source(FILMS)
    with careless_reader(workbench) as reader:
        statement = SQL("SELECT * FROM ({}) AS q").format(SQL(text))
        for attempt in (reader.value, reader.explain):
            with pytest.raises(RunError):
                attempt(statement)
        for whole in (SQL(text), statement):
            with pytest.raises(RunError), reader.stream(whole) as rows:
                list(rows)
    assert workbench.sql("SELECT count(*) AS films FROM content.films") == [{"films": 100}]


def test_streams_have_the_timeouts_of_their_session(workbench: Workbench) -> None:
    with (
        careless_reader(workbench, statement_timeout="300") as reader,
        pytest.raises(RunError, match="statement timeout"),
        reader.stream(SQL("SELECT pg_sleep(30)::text AS slept")) as rows,
    ):
        list(rows)


def test_a_stream_beside_a_session_that_was_ended_is_a_lost_connection(workbench: Workbench) -> None:
    with careless_reader(workbench) as reader:
        reader.connection.close()

        with pytest.raises(Disconnected), reader.stream(SQL("SELECT 1 AS id")):
            pass


def test_who_reads_everything_in_order_counts_on_a_small_cache(workbench: Workbench) -> None:
    """So that a random key is sorted by, and not looked up row by row; an index along the table is taken as before."""
    asked = SQL("SELECT current_setting({}) AS size").format("effective_cache_size")
    with careless_reader(workbench) as reader:
        default = reader.value(asked)
        for bounds, size in (
            (Bounds(after=("7",)), "64MB"),
            (Bounds(since="7"), default),
            (Bounds(only=SQL("true")), default),
        ):
            with reader.stream(asked, bounds.settings) as rows:
                assert [row["size"] for batch in rows for row in batch.to_pylist()] == [size]
            with copy_out(reader, asked, bounds.settings) as pieces:
                assert b"".join(line for piece in pieces for line in piece) == f"{size}\n".encode()
        assert reader.value(asked) == default


def test_positions_are_those_of_the_authors_text(workbench: Workbench) -> None:
    workbench.source(FILMS)
    text = "-- films\n  SELECT id FROM content.films\n  WHERE title > :since\n    AND title < :since AND missing = 1"
    judged = sqlguard.check(text, SqlPolicy(workbench.settings.source_schemas))
    with careless_reader(workbench) as reader, pytest.raises(SourceQueryFailed, match="line 4, column 28") as refused:
        reader.describe(judged)
    assert text.splitlines()[3][27:].startswith("missing")
    assert "missing" in refused.value.message


@pytest.mark.parametrize("question", ["_prepare", "_describe_prepared"])
def test_a_server_that_falls_while_it_is_asked_says_nothing_about_the_query(
    workbench: Workbench, question: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It once read as a query without columns, and the run was FAILED for good."""
    workbench.source(FILMS)
    judged = sqlguard.check("SELECT id FROM content.films", SqlPolicy(workbench.settings.source_schemas))
    ask = getattr(SqlReader, question)

    def fall_first(reader: SqlReader, *text: str) -> Any:
        workbench.sql(f"SELECT pg_terminate_backend({reader.connection.info.backend_pid}, 10000)")
        return ask(reader, *text)

    monkeypatch.setattr(SqlReader, question, fall_first)
    with careless_reader(workbench) as reader, pytest.raises(Disconnected), database.translated("looking"):
        reader.describe(judged)


def test_other_threads_go_on_while_a_server_is_slow_to_describe_a_query(workbench: Workbench) -> None:
    """The driver's own call kept the GIL: the heartbeats of all runs stopped until the server answered."""
    workbench.source(FILMS)
    judged = sqlguard.check("SELECT id FROM content.films", SqlPolicy(workbench.settings.source_schemas))
    pauses, is_over = [0.0], threading.Event()

    def beat() -> None:
        last = time.monotonic()
        while not is_over.wait(0.01):
            last, before = time.monotonic(), last
            pauses.append(last - before)

    with (
        TcpFaultProxy(urlsplit(admin_url(workbench)).port or 5432) as proxy,
        reader_through(workbench, proxy) as reader,
    ):
        proxy.fault = Slow(1.0)
        threading.Thread(target=beat, daemon=True).start()
        started = time.monotonic()
        columns = reader.describe(judged)
        took = time.monotonic() - started
        is_over.set()
    assert [column.name for column in columns] == ["id"]
    assert took > 2, "a server that was not slow shows nothing"
    assert max(pauses) < 0.7


# --- the plan ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (
            "SELECT token_hash FROM content.leak",
            "reads etl.etl_api_tokens by way of content.leak, outside",
        ),
        ("SELECT name FROM content.settings", "reads pg_catalog.pg_settings by way of content.settings"),
        ("SELECT f.id FROM content.films AS f, content.waiting", "calls pg_sleep by way of content.waiting"),
        ("SELECT f.id FROM content.films AS f, content.films AS g, content.films AS h", "more than options.max_cost"),
    ],
)
def test_a_view_may_not_lead_where_its_text_does_not(workbench: Workbench, query: str, words: str) -> None:
    """The guard accepts each of them, rightly: it knows names only. Preview, validation and run refuse alike."""
    workbench.source(
        FILMS
        + """
        CREATE VIEW content.leak AS SELECT token_hash FROM etl.etl_api_tokens;
        CREATE VIEW content.settings AS SELECT name FROM pg_settings;
        CREATE VIEW content.waiting AS SELECT pg_sleep(10)::text AS slept FROM content.films;
        """
    )
    sqlguard.check(query, SqlPolicy(workbench.settings.source_schemas))
    workbench.pipeline("films", query, options={"max_cost": 5000.0})
    run = workbench.run("films")
    assert run["status"] == "FAILED"
    assert words in run["error_message"]
    if "max_cost" not in words:
        request = {"id": 1, "kind": "preview", "payload": {}, "pipeline_id": run["pipeline_id"]}
        with pytest.raises(SourceQueryFailed, match=words):
            runner_requests.preview(request, workbench.metastore, workbench.settings)


def test_a_query_that_only_computes_is_not_slowed_down(workbench: Workbench) -> None:
    workbench.source(FILMS)
    workbench.pipeline(
        "films",
        "SELECT id, lower(title) AS title, coalesce(length(title), 0)::numeric(5,1) AS letters,"
        " row_number() OVER (ORDER BY title) AS place FROM content.films WHERE title ~~ 'Film%'",
        target_key=["id"],
    )
    run = workbench.run("films")
    assert run["status"] == "SUCCESS", run["error_message"]
    if workbench.admin.info.server_version >= 180_000:
        assert "read-only first" not in json.dumps(run["metrics"])


def test_a_source_that_is_away_is_waited_for_and_the_run_says_so(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = {"crm": SecretStr("postgresql://crm@127.0.0.1:1/crm")}
    workbench.settings = workbench.settings.model_copy(update={"connections": away, "backoff_seconds": (0.2,)})
    workbench.pipeline("films", "SELECT 1 AS id", target_key=["id"], source_connection="crm")
    monkeypatch.setattr(dispatcher, "OUTAGE_PATIENCE_SECONDS", 3600.0)
    running = threading.Thread(target=workbench.run, args=["films"])
    running.start()
    try:
        # By another session than the run's own, which shows what is not committed.
        until(lambda: "'crm'" in str(workbench.sql("SELECT metrics ->> 'waiting' FROM etl.etl_runs")))
    finally:
        monkeypatch.setattr(dispatcher, "OUTAGE_PATIENCE_SECONDS", 0.0)
        running.join(timeout=30)
    run = workbench.last_run("films")
    assert (run["status"], run["metrics"]["waiting"]) == ("FAILED", None)


# --- what errors tell ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1:1", f"{CANARY}-host.invalid:5432"])
def test_errors_name_the_connection_and_nothing_of_its_address(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, host: str
) -> None:
    url = f"postgresql://{CANARY}-user:{CANARY}-password@{host}/{CANARY}-database?connect_timeout=2"
    workbench.settings = workbench.settings.model_copy(update={"connections": {"crm": SecretStr(url)}})
    workbench.pipeline("films", "SELECT 1 AS id", target_key=["id"], source_connection="crm")
    definition = Definition.model_validate(
        {"name": "films", "source_query": "SELECT 1 AS id", "target_table": "analytics.f", "source_connection": "crm"}
    )
    said = io.StringIO()
    configured = structlog.get_config()
    logs.configure(workbench.settings, stream=said)
    request.addfinalizer(lambda: structlog.configure(**configured))
    asked = {"id": 1, "kind": "preview", "payload": {"definition": definition.model_dump()}, "pipeline_id": None}
    with pytest.raises(CannotConnect, match="cannot open the connection 'crm': ") as refused:
        runner_requests.preview(asked, workbench.metastore, workbench.settings)
    monkeypatch.setattr(dispatcher, "OUTAGE_PATIENCE_SECONDS", 0.0)
    run = workbench.run("films")
    assert run["status"] == "FAILED"
    for told in (refused.value.message, run["error_message"], json.dumps(run["metrics"])):
        assert CANARY not in told
    assert "connection.failed" in said.getvalue()
    assert f"{CANARY}-password" not in said.getvalue()
