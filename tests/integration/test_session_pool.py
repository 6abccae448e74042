"""Sessions that runs have finished with serve other runs, and carry nothing from one to the other."""

import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from pydantic import SecretStr

from tests.support.fault_proxy import BlackHole, TcpFaultProxy
from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina.connectors.postgres.source import SqlReader
from vitrina.errors import CannotConnect
from vitrina.loads.context import RunContext
from vitrina.loads.control import RunControl
from vitrina.loads.run_sessions import RunSessions
from vitrina.settings import ConnectionLimits, Settings
from vitrina.store import database as store_database
from vitrina.store import databases, session_pool, sessions
from vitrina.store.database import Connection
from vitrina.store.prepared import Statement
from vitrina.store.session_pool import IDLE_NAME, SessionPool

LIMITS = {"lock_timeout": "30000"}


TAKEN: list[Connection] = []


@pytest.fixture
def pool() -> Iterator[SessionPool]:
    made = SessionPool(most=4, idle_seconds=60.0)
    yield made
    made.close()
    while TAKEN:
        TAKEN.pop().close()


def take(
    pool: SessionPool, database: Settings, name: str = "vitrina:a-run", *, seconds: int = 5, **more: str
) -> Connection:
    url = database.require_database_url()
    TAKEN.append(pool.connect(url, name, connect_timeout_seconds=seconds, settings=LIMITS | more))
    return TAKEN[-1]


def ask(connection: Connection, statement: str) -> Any:
    row = connection.execute(statement.encode()).fetchone()
    assert row is not None
    return next(iter(row.values()))


def pid(connection: Connection) -> int:
    return connection.info.backend_pid


# --- what the next one gets --------------------------------------------------------------------------------------


def test_the_next_one_gets_the_same_session_under_its_own_name(pool: SessionPool, database: Settings) -> None:
    first = take(pool, database, "vitrina:first")
    assert ask(first, "SHOW application_name") == "vitrina:first"
    pool.give_back(first, keep=True)
    second = take(pool, database, "vitrina:second")
    assert second is first
    assert ask(second, "SHOW application_name") == "vitrina:second"


def test_two_at_once_get_two(pool: SessionPool, database: Settings) -> None:
    assert pid(take(pool, database)) != pid(take(pool, database))


def test_other_settings_are_another_session(pool: SessionPool, database: Settings) -> None:
    first = take(pool, database)
    pool.give_back(first, keep=True)
    assert pid(take(pool, database, default_transaction_read_only="on")) != pid(first)


# What a run leaves, and how to see that it is there.
LEFT_BEHIND = {
    "a setting": ("SET work_mem = '9MB'", "SHOW work_mem"),
    "a setting of an extension": ("SET mine.own = 'x'", "SELECT coalesce(current_setting('mine.own', true), '')"),
    "a zone": ("SET timezone = 'Asia/Tokyo'", "SHOW timezone"),
    "a search path": ("SET search_path = content", "SHOW search_path"),
    "read only": ("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", "SHOW transaction_read_only"),
    "a table": ("CREATE TEMPORARY TABLE mine (id int)", "SELECT count(*) FROM pg_class WHERE relname = 'mine'"),
    "a lock": (
        "SELECT pg_advisory_lock(71)",
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()",
    ),
    "a cursor": (
        "DECLARE mine CURSOR WITH HOLD FOR SELECT 1",
        "SELECT count(*) FROM pg_cursors WHERE name = 'mine'",
    ),
    "an ear": ("LISTEN mine", "SELECT count(*) FROM pg_listening_channels()"),
    "money": ("SET lc_monetary = 'POSIX'", "SHOW lc_monetary"),
}


@pytest.mark.parametrize("left", LEFT_BEHIND, ids=lambda name: name.replace(" ", "-"))
def test_nothing_is_left_behind(left: str, pool: SessionPool, database: Settings) -> None:
    leave, look = LEFT_BEHIND[left]
    first = take(pool, database)
    before = ask(first, look)
    first.execute(leave.encode())
    assert ask(first, look) != before, "it must be there, or nothing is shown"
    pool.give_back(first, keep=True)
    second = take(pool, database)
    assert second is first
    assert ask(second, look) == before


def test_what_the_driver_says_of_transactions_is_forgotten(pool: SessionPool, database: Settings) -> None:
    first = take(pool, database)
    first.read_only, first.isolation_level = True, psycopg.IsolationLevel.SERIALIZABLE
    pool.give_back(first, keep=True)
    second = take(pool, database)
    assert second is first
    with second.transaction():
        shown = ask(
            second, "SELECT current_setting('transaction_read_only') || current_setting('transaction_isolation')"
        )
    assert shown == "offread committed"


def test_a_role_is_put_off(pool: SessionPool, database: Settings, workbench: Workbench) -> None:
    workbench.sql("CREATE ROLE put_off_later; GRANT put_off_later TO vitrina_app")
    try:
        first = take(pool, database)
        first.execute("SET ROLE put_off_later")
        pool.give_back(first, keep=True)
        assert ask(take(pool, database), "SELECT current_user") == "vitrina_app"
    finally:
        workbench.sql("DROP ROLE put_off_later")


# --- what is not kept ----------------------------------------------------------------------------------------------


def test_one_that_is_in_doubt_is_closed(pool: SessionPool, database: Settings) -> None:
    connection = take(pool, database)
    pool.give_back(connection, keep=False)
    assert connection.closed


def test_one_with_an_open_transaction_is_closed(pool: SessionPool, database: Settings) -> None:
    connection = take(pool, database)
    connection.execute("BEGIN")
    pool.give_back(connection, keep=True)
    assert connection.closed


def test_one_that_the_server_has_ended_is_replaced(
    pool: SessionPool, database: Settings, metastore: Connection
) -> None:
    first = take(pool, database)
    ended = pid(first)
    pool.give_back(first, keep=True)
    metastore.execute("SELECT pg_terminate_backend(%s, 5000)", [ended])
    second = take(pool, database)
    assert pid(second) != ended
    assert ask(second, "SELECT 1") == 1


@pytest.fixture
def proxy(database: Settings) -> Iterator[TcpFaultProxy]:
    with TcpFaultProxy(urlsplit(database.require_database_url()).port or 5432) as proxy:
        yield proxy


def through(proxy: TcpFaultProxy, database: Settings) -> Settings:
    url = urlsplit(database.require_database_url())
    netloc = url.netloc.replace(f":{url.port}", f":{proxy.port}")
    return database.model_copy(update={"database_url": SecretStr(urlunsplit(url._replace(netloc=netloc)))})


def test_one_whose_server_answers_no_more_is_given_up(
    pool: SessionPool, database: Settings, proxy: TcpFaultProxy
) -> None:
    """The kernel sees its packets acknowledged, and no run watches the session yet."""
    there = through(proxy, database)
    pool.give_back(take(pool, there, seconds=1), keep=True)
    proxy.fault = BlackHole()
    started = time.monotonic()
    with pytest.raises(CannotConnect):
        take(pool, there, seconds=1)
    assert time.monotonic() - started < 15
    proxy.heal()
    assert ask(take(pool, there, seconds=5), "SELECT 1") == 1


def test_one_whose_server_does_not_answer_its_reset_is_closed(
    pool: SessionPool, database: Settings, proxy: TcpFaultProxy
) -> None:
    connection = take(pool, through(proxy, database), seconds=1)
    proxy.fault = BlackHole()
    started = time.monotonic()
    pool.give_back(connection, keep=True)
    assert connection.closed
    assert time.monotonic() - started < 10


def test_idle_ones_make_room_for_one_with_other_settings(
    pool: SessionPool, database: Settings, workbench: Workbench
) -> None:
    """They count for the limits of the server, which would refuse the runner that has enough of them."""
    workbench.sql("CREATE ROLE one_at_a_time LOGIN PASSWORD 'x' CONNECTION LIMIT 1")
    url = urlsplit(database.require_database_url())
    netloc = f"one_at_a_time:x@{url.netloc.rpartition('@')[2]}"
    limited = database.model_copy(update={"database_url": SecretStr(urlunsplit(url._replace(netloc=netloc)))})
    first = take(pool, limited)
    with pytest.raises(CannotConnect, match="too many connections"):
        take(pool, limited, statement_timeout="7s")
    pool.give_back(first, keep=True)
    try:
        assert ask(take(pool, limited, statement_timeout="7s"), "SHOW statement_timeout") == "7s"
        assert first.closed
    finally:
        for connection in TAKEN:
            connection.close()
        workbench.sql("DROP ROLE one_at_a_time")


def test_no_more_than_may_be_kept(pool: SessionPool, database: Settings) -> None:
    taken = [take(pool, database) for _ in range(6)]
    for connection in taken:
        pool.give_back(connection, keep=True)
    assert sum(not connection.closed for connection in taken) == 4


def test_one_that_nobody_uses_is_closed(database: Settings) -> None:
    pool = SessionPool(most=4, idle_seconds=0.05)
    connection = take(pool, database)
    pool.give_back(connection, keep=True)
    assert not connection.closed

    def closed() -> bool:
        pool.close_unused()
        return connection.closed

    until(closed)


def test_one_that_is_old_is_closed(pool: SessionPool, database: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = take(pool, database)
    monkeypatch.setattr(session_pool, "MAX_AGE_SECONDS", 0.0)
    pool.give_back(connection, keep=True)
    assert connection.closed


def test_after_the_end_nothing_is_kept(pool: SessionPool, database: Settings) -> None:
    idle, held = take(pool, database), take(pool, database)
    pool.give_back(idle, keep=True)
    pool.close()
    assert idle.closed
    pool.give_back(held, keep=True)
    assert held.closed


# --- with a lease ----------------------------------------------------------------------------------------------------


def lender(database: Settings, pool: SessionPool, control: RunControl) -> RunSessions:
    context = RunContext(None, control, None, None, pool)  # type: ignore[arg-type]
    return RunSessions(database, "vitrina:a-run", context, pool)


def test_a_session_is_kept_when_its_part_of_the_run_is_done(pool: SessionPool, database: Settings) -> None:
    run = lender(database, pool, RunControl(60, threading.Event()))
    with run.lend(database.require_database_url(), None, {}) as first:
        pass
    with run.lend(database.require_database_url(), None, {}) as second:
        assert second is first


def test_a_session_is_not_kept_when_something_went_wrong(pool: SessionPool, database: Settings) -> None:
    run = lender(database, pool, RunControl(60, threading.Event()))
    with pytest.raises(ValueError, match="wrong"), run.lend(database.require_database_url(), None, {}) as first:
        raise ValueError("wrong")
    assert first.closed


def test_a_lease_that_ends_later_does_not_reach_the_next_run(pool: SessionPool, database: Settings) -> None:
    control = RunControl(60, threading.Event())
    with lender(database, pool, control).lend(database.require_database_url(), None, {}):
        pass
    next_run = lender(database, pool, RunControl(60, threading.Event()))
    with next_run.lend(database.require_database_url(), None, {}) as connection:
        control.lose()
        control.cancel()
        control.cut()
        assert ask(connection, "SELECT 1") == 1


def test_a_session_that_was_cut_is_not_kept(pool: SessionPool, database: Settings) -> None:
    control = RunControl(60, threading.Event())
    with lender(database, pool, control).lend(database.require_database_url(), None, {}) as connection:
        control.cut()
    assert connection.closed


def test_a_session_whose_statement_was_cancelled_is_not_kept(pool: SessionPool, database: Settings) -> None:
    control = RunControl(60, threading.Event())
    with lender(database, pool, control).lend(database.require_database_url(), None, {}) as connection:
        ticking = threading.Timer(0.3, control.cancel)
        ticking.start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute("SELECT pg_sleep(60)")
        ticking.join()
    assert connection.closed


def test_a_limited_connection_keeps_none(pool: SessionPool, database: Settings) -> None:
    limited = database.model_copy(update={"connection_limits": {"default": ConnectionLimits(max_connections=4)}})
    run = lender(limited, pool, RunControl(60, threading.Event()))
    with run.lend(limited.require_database_url(), None, {}) as connection:
        pass
    assert connection.closed


# --- with runs -----------------------------------------------------------------------------------------------------


def test_idle_sessions_are_spared_by_who_ends_those_of_older_runs(workbench: Workbench, metastore: Connection) -> None:
    workbench.pipeline("copied", "SELECT n AS id FROM generate_series(1, 10) n", target_key=["id"])
    assert workbench.run("copied")["status"] == "SUCCESS"
    kept = _kept(metastore)
    assert kept
    assert workbench.run("copied")["status"] == "SUCCESS"
    assert _kept(metastore) == kept


def test_sessions_of_a_lost_run_are_still_ended(workbench: Workbench, metastore: Connection) -> None:
    """They bear its name, also when they had served another run before."""
    workbench.pipeline("copied", "SELECT n AS id FROM generate_series(1, 10) n", target_key=["id"])
    workbench.run("copied")
    workbench.request("copied")
    claim = workbench.claim()
    held = workbench.pool.connect(
        workbench.settings.require_database_url(), claim.session_name, connect_timeout_seconds=5, settings={}
    )
    workbench.recover()
    newer = workbench.claim()
    assert sessions.end_older(metastore, newer) >= 1
    with pytest.raises(psycopg.Error), held:
        held.execute("SELECT 1")


def test_a_reader_that_called_a_function_of_somebody_is_closed(workbench: Workbench, metastore: Connection) -> None:
    workbench.sql("CREATE FUNCTION content.own(n integer) RETURNS integer LANGUAGE plpgsql AS 'BEGIN RETURN n; END'")
    workbench.sql("GRANT EXECUTE ON FUNCTION content.own TO PUBLIC")
    settings = workbench.settings
    workbench.settings = settings.model_copy(update={"allowed_functions": "content.own"})
    workbench.pipeline("plain", "SELECT n AS id FROM generate_series(1, 10) n", target_key=["id"])
    workbench.pipeline("calling", "SELECT content.own(n) AS id FROM generate_series(1, 10) n", target_key=["id"])
    assert workbench.run("plain")["status"] == "SUCCESS"
    reader = _kept(metastore, user="vitrina_reader")
    assert len(reader) == 1
    assert workbench.run("calling")["status"] == "SUCCESS"
    assert not _kept(metastore, user="vitrina_reader")


CALLS = {
    "by name": "SELECT content.own(n) AS id FROM generate_series(1, 10) n",
    "in a view": "SELECT id FROM content.calling",
    "in a view of a view": "SELECT id FROM content.outer_view",
    "by a domain": "SELECT n::content.positive AS id FROM content.plain",
}


@pytest.mark.parametrize("way", CALLS, ids=lambda way: way.replace(" ", "-"))
def test_a_reader_is_closed_in_whatever_way_it_called_a_function(
    workbench: Workbench, metastore: Connection, way: str
) -> None:
    """Require that nothing of the function's is left, also if the text of the query does not name it."""
    workbench.sql(
        """
        CREATE FUNCTION content.own(n integer) RETURNS integer LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM set_config('mine.own', 'left', false), pg_advisory_lock_shared(4711);
            RETURN n;
        END $$;
        GRANT EXECUTE ON FUNCTION content.own TO PUBLIC;
        CREATE TABLE content.plain AS SELECT n FROM generate_series(1, 10) n;
        CREATE VIEW content.calling AS SELECT content.own(n) AS id FROM content.plain;
        CREATE VIEW content.outer_view AS SELECT id FROM content.calling;
        CREATE DOMAIN content.positive AS integer CHECK (content.own(VALUE) > 0);
        GRANT SELECT ON ALL TABLES IN SCHEMA content TO vitrina_reader;
        """
    )
    workbench.settings = workbench.settings.model_copy(update={"allowed_functions": "content.own"})
    workbench.pipeline("calling", CALLS[way], target_key=["id"])
    assert workbench.run("calling")["status"] == "SUCCESS"
    assert not _kept(metastore, user="vitrina_reader")
    assert not workbench.sql("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711")


@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_a_run_notices_nothing_of_kept_sessions_that_the_server_has_ended(
    workbench: Workbench, metastore: Connection, mode: str
) -> None:
    """As after a failover or a restart between two runs."""
    workbench.source("CREATE TABLE content.films AS SELECT n AS id, now() AS at FROM generate_series(1, 10) n")
    cursor = {"mode": "incremental", "incremental_key": "at"} if mode == "incremental" else {}
    workbench.pipeline("copied", "SELECT id, at FROM content.films", target_key=["id"], **cursor)
    assert workbench.run("copied")["status"] == "SUCCESS"
    kept = _kept(metastore)
    assert kept
    workbench.sql(f"SELECT pg_terminate_backend(pid, 5000) FROM unnest(ARRAY{sorted(kept)}) AS pid")
    workbench.sql("INSERT INTO content.films VALUES (11, now())")
    run = workbench.run("copied")
    assert (run["status"], run["attempts"], run["error_code"]) == ("SUCCESS", 1, None)
    assert not _kept(metastore) & kept
    assert workbench.differences("SELECT id, at FROM content.films", "analytics.copied") == 0


@pytest.mark.parametrize("fails", [False, True])
def test_the_session_that_holds_a_snapshot_is_kept_unless_its_run_fails(
    workbench: Workbench, metastore: Connection, fails: bool
) -> None:
    workbench.source("CREATE TABLE content.films AS SELECT n AS id, now() AS at FROM generate_series(1, 10) n")
    cursor = {"mode": "incremental", "incremental_key": "at", "options": {"history": {}}}
    workbench.pipeline("copied", "SELECT id, at FROM content.films", target_key=["id"], **cursor)
    # The first run reads everything in one statement.
    for _ in range(2):
        assert workbench.run("copied")["status"] == "SUCCESS"
    held = _kept(metastore, user="vitrina_reader")
    assert len(held) == 2
    repeated = ", (11, now())" if fails else ""
    workbench.sql(f"INSERT INTO content.films VALUES (11, now()){repeated}")
    assert workbench.run("copied")["status"] == ("FAILED" if fails else "SUCCESS")
    if fails:
        assert len(_kept(metastore, user="vitrina_reader") & held) < 2
    else:
        assert _kept(metastore, user="vitrina_reader") == held
    assert not workbench.sql("SELECT 1 FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND state LIKE 'idle%'")


def _kept(metastore: Connection, user: str = "%") -> set[int]:
    rows = metastore.execute(
        """
        SELECT pid FROM pg_stat_activity
        WHERE application_name = %s AND datname = current_database() AND usename LIKE %s
        """,
        [IDLE_NAME, user],
    ).fetchall()
    return {row["pid"] for row in rows}


# --- prepared statements -------------------------------------------------------------------------------------------


def prepared_in(connection: Connection) -> int:
    return int(ask(connection, "SELECT count(*) FROM pg_catalog.pg_prepared_statements"))


def test_statements_of_ours_stay_prepared_whatever_a_run_does(pool: SessionPool, database: Settings) -> None:
    session = take(pool, database)
    statement = Statement(b"SELECT %s::text AS said")
    assert statement.fetch_one(session, ["once"]) == {"said": "once"}
    known = prepared_in(session)

    with session.transaction(force_rollback=True):
        session.execute("CREATE TABLE etl_stage.left_behind ()")
    session.execute("CREATE TEMPORARY TABLE gone (); DROP TABLE gone")
    session.execute("SELECT 1 AS users_own", prepare=True)
    pool.give_back(session, keep=True)
    again = take(pool, database, "vitrina:another-run")

    assert again is session
    assert prepared_in(again) == known, "and nothing of a user's is kept"
    assert statement.fetch_one(again, ["twice"]) == {"said": "twice"}


def test_users_sql_is_still_one_statement_in_a_kept_session(pool: SessionPool, database: Settings) -> None:
    session = take(pool, database)
    for _ in range(7):  # more often than the driver waits before it prepares
        with pytest.raises(psycopg.errors.SyntaxError, match="multiple commands"):
            session.execute("SELECT 1; SELECT 2", prepare=True)


def test_a_session_is_asked_once_which_database_it_is_on(pool: SessionPool, database: Settings) -> None:
    session, other = take(pool, database), take(pool, database)
    assert databases.look(session) == databases.look(other)
    assert store_database.place(session) == store_database.place(other)
    session.close()
    assert databases.look(session) == databases.look(other)
    assert store_database.place(session) == store_database.place(other)


@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_a_run_goes_well_after_tables_of_the_metastore_have_changed(workbench: Workbench, mode: str) -> None:
    """As a migration does while a runner of the release before goes on: its sessions have prepared statements."""
    workbench.source("CREATE TABLE content.films AS SELECT n AS id, now() AS at FROM generate_series(1, 10) n")
    more = {"incremental_key": "at"} if mode == "incremental" else {}
    workbench.pipeline("copied", "SELECT id, at FROM content.films", target_key=["id"], mode=mode, **more)
    assert workbench.run("copied")["status"] == "SUCCESS"
    tables = ("etl_pipelines", "etl_runs", "etl_state", "etl_events", "etl_dead_letters", "etl_requests")
    for number, table in enumerate(tables):
        workbench.sql(f"ALTER TABLE etl.{table} ADD COLUMN later_{number} text DEFAULT 'new'")
        try:
            run = workbench.run("copied")
            assert (run["status"], run["error_message"], run["attempts"]) == ("SUCCESS", None, 1), table
        finally:
            workbench.sql(f"ALTER TABLE etl.{table} DROP COLUMN later_{number}")
        run = workbench.run("copied")
        assert (run["status"], run["error_message"], run["attempts"]) == ("SUCCESS", None, 1), table


@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_a_run_goes_well_after_source_and_mart_have_changed(workbench: Workbench, mode: str) -> None:
    workbench.source("CREATE TABLE content.films AS SELECT n AS id, now() AS at FROM generate_series(1, 10) n")
    more = {"incremental_key": "at"} if mode == "incremental" else {}
    query = "SELECT id, at, id AS number FROM content.films"
    workbench.pipeline("copied", query, target_key=["id"], mode=mode, **more)
    for change in (
        "SELECT",
        "ALTER TABLE content.films ADD COLUMN title text DEFAULT 'x'",
        "ALTER TABLE content.films ALTER COLUMN id TYPE bigint; DROP TABLE analytics.copied",
        "ALTER TABLE analytics.copied ALTER COLUMN number TYPE numeric, ADD COLUMN own text DEFAULT 'mine'",
        "DROP TABLE analytics.copied",
    ):
        workbench.sql(change)
        workbench.sql("UPDATE content.films SET at = now(), id = id + 100 WHERE id % 2 = 0")
        run = workbench.run("copied")
        assert (run["status"], run["error_message"], run["attempts"]) == ("SUCCESS", None, 1), change


def test_runs_go_on_when_the_server_has_ended_every_kept_session(workbench: Workbench, metastore: Connection) -> None:
    workbench.pipeline("copied", "SELECT n AS id FROM generate_series(1, 10) n", target_key=["id"])
    assert workbench.run("copied")["status"] == "SUCCESS"
    for process in _kept(metastore):
        workbench.sql(f"SELECT pg_terminate_backend({process}, 5000)")
    run = workbench.run("copied")
    assert (run["status"], run["error_message"]) == ("SUCCESS", None)


def test_a_kept_session_keeps_the_name_of_its_run_when_it_is_reset(pool: SessionPool, database: Settings) -> None:
    """Require it for the next claim, which ends the sessions of a lost run by their names."""
    session = take(pool, database, "vitrina:run")
    reader = SqlReader(session, database.require_database_url(), "vitrina:run")
    session.execute("SET work_mem = '9MB'; SET application_name = 'mine'")
    reader.reset()
    assert ask(session, "SHOW application_name") == "vitrina:run"
    assert ask(session, "SHOW work_mem") != "9MB"
