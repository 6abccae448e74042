"""Named connections keep limits of their own: how long a statement may take, how many sessions runs may have."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from uuid import uuid4

import pytest
from psycopg.rows import DictRow
from structlog.testing import capture_logs

from tests.support.workbench import Workbench
from vitrina.connectors.postgres import sessions as source_sessions
from vitrina.loads import opening
from vitrina.runner.manager import PipelineManager
from vitrina.settings import ConnectionLimits
from vitrina.store import database, leases, pipelines, session_limits

# Takes about a second, in some rows.
SLOW = """
SELECT i AS id, (SELECT count(*) FROM generate_series(1, 2000000) AS b WHERE b <> i) AS others
FROM generate_series(1, 5) AS i
"""
PATIENCE_SECONDS = 60.0


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    """`shop` and `archive` are read from, `marts` is written to."""
    reader, app = workbench.settings.reader_url, workbench.settings.database_url
    assert reader
    assert app
    connections = {"shop": reader, "archive": reader, "marts": app}
    workbench.settings = workbench.settings.model_copy(update={"connections": connections})
    return workbench


def limit(bench: Workbench, connection: str, **limits: float) -> None:
    limited = {connection: ConnectionLimits.model_validate(limits)}
    bench.settings = bench.settings.model_copy(update={"connection_limits": limited})


def test_a_statement_is_cancelled_on_the_connection_that_limits_it(bench: Workbench) -> None:
    limit(bench, "shop", statement_timeout_seconds=0.1)
    bench.pipeline("shop", SLOW, source_connection="shop", target_key=["id"])
    bench.pipeline("archive", SLOW, source_connection="archive", target_key=["id"])
    bench.pipeline(
        "patient", SLOW, source_connection="shop", target_key=["id"], options={"statement_timeout_seconds": 600}
    )

    run = bench.run("shop")

    assert run["status"] == "FAILED"
    assert "canceling statement due to statement timeout (SQLSTATE 57014)" in run["error_message"]
    # No pipeline gets more patience than the operator has.
    assert [bench.run(name)["status"] for name in ("archive", "patient")] == ["SUCCESS", "FAILED"]


def test_each_side_of_a_run_has_the_limit_of_its_connection(bench: Workbench) -> None:
    limit(bench, "marts", statement_timeout_seconds=7)
    fields = {"source_connection": "shop", "target_key": ["id"], "options": {"target_connection": "marts"}}
    bench.pipeline("films", "SELECT 1 AS id", **fields)
    row = pipelines.find(bench.metastore, "films")
    assert row

    with ExitStack() as sessions:
        job = opening.open_for_inspection(row, bench.settings, bench.metastore, sessions)
        assert job.target.session is not None
        assert [_timeout(job.reader.connection), _timeout(job.target.session)] == ["1h", "7s"]
    with source_sessions.waited_for("marts", bench.settings, "vitrina:test") as reader:
        assert _timeout(reader.connection) == "7s"
    with source_sessions.waited_for("shop", bench.settings, "vitrina:test") as reader:
        assert _timeout(reader.connection) == "30s"
    # The watch over silent servers waits for the most patient of them.
    assert opening.statement_timeout(job.definition, bench.settings, None, "shop", "marts") == 3600


def test_runs_wait_until_a_connection_has_room_for_all_their_sessions(bench: Workbench) -> None:
    limits = {"shop": 5, "marts": 4}
    names = ("both", "one", "other", "elsewhere")
    for name in names:
        source = "archive" if name == "elsewhere" else "shop"
        options = {"target_connection": "shop" if name == "both" else None}
        bench.pipeline(name, "SELECT 1 AS id", source_connection=source, target_key=["id"], options=options)
        bench.request(name)

    def claim() -> leases.Claim:
        found = leases.claim_next(bench.metastore, uuid4(), 30, max_connections=limits)
        assert found
        return found

    both, elsewhere = claim(), claim()
    assert (both.name, elsewhere.name) == ("both", "elsewhere")
    assert leases.claim_next(bench.metastore, uuid4(), 30, max_connections=limits) is None
    waiting = [{"pipeline": name, "connection": "shop"} for name in ("one", "other")]
    assert session_limits.list_waiting(bench.metastore, limits) == waiting
    leases.conclude_run(bench.metastore, both)
    assert [claim().name, claim().name] == ["one", "other"]
    assert session_limits.list_waiting(bench.metastore, limits) == []


def test_sessions_never_exceed_the_limit_and_every_run_has_its_turn(bench: Workbench) -> None:
    """Two sessions each, and room for three: one at a time."""
    limit(bench, "shop", max_connections=3)
    names = ("one", "two")
    for name in names:
        bench.pipeline(name, SLOW, source_connection="shop", target_key=["id"], options={"route": "arrow"})
        bench.request(name)

    with capture_logs() as lines, counted_sessions(bench) as seen, runner(bench):
        wait_until_idle(bench, names)

    assert [bench.last_run(name)["status"] for name in names] == ["SUCCESS", "SUCCESS"]
    assert max(seen) in (2, 3)
    [waiting] = [line for line in lines if line["event"] == "pipeline.waiting"]
    assert (waiting["pipeline"] in names, waiting["connection"], waiting["max_connections"]) == (True, "shop", 3)


def test_a_run_that_can_never_have_room_says_what_it_needs(bench: Workbench) -> None:
    limit(bench, "marts", max_connections=3)
    fields = {"source_connection": "marts", "target_key": ["id"], "options": {"target_connection": "marts"}}
    bench.pipeline("films", "SELECT 1 AS id", **fields)
    bench.request("films")
    claim = leases.claim_next(bench.metastore, uuid4(), 30, max_connections=bench.settings.max_connections)
    assert claim

    bench.perform(claim)

    run = bench.last_run("films")
    assert run["status"] == "FAILED"
    assert run["error_message"] == (
        "a run of films needs 4 sessions at once on the connection 'marts', more than the 3 of"
        " VITRINA_CONN_MARTS_MAX_CONNECTIONS: the operator sets it to 4 or more"
    )


def _timeout(connection: database.Connection) -> str:
    row: DictRow | None = connection.execute("SHOW statement_timeout").fetchone()
    assert row
    return str(row["statement_timeout"])


@contextmanager
def counted_sessions(bench: Workbench) -> Iterator[list[int]]:
    """Those of runs' readers, counted again and again by a thread of its own."""
    assert bench.settings.admin_url
    seen: list[int] = [0]
    over = threading.Event()

    def count() -> None:
        with database.connect(url, "vitrina:count") as connection:
            while not over.wait(0.002):
                row = connection.execute(
                    "SELECT count(*) AS sessions FROM pg_stat_activity WHERE datname = current_database()"
                    " AND usename = 'vitrina_reader' AND application_name LIKE 'vitrina:%-%'"
                ).fetchone()
                assert row
                seen.append(row["sessions"])

    url = bench.settings.admin_url.get_secret_value()
    thread = threading.Thread(target=count)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join(PATIENCE_SECONDS)


@contextmanager
def runner(bench: Workbench) -> Iterator[None]:
    manager = PipelineManager(bench.settings)
    thread = threading.Thread(target=manager.run_forever)
    thread.start()
    try:
        yield
    finally:
        manager.stop()
        thread.join(PATIENCE_SECONDS)
        manager._wakeup_recv.close()
        manager._wakeup_send.close()


def wait_until_idle(bench: Workbench, names: tuple[str, ...]) -> None:
    waited = threading.Event()
    for _ in range(int(PATIENCE_SECONDS / 0.05)):
        if all(bench.status(name) in ("IDLE", "FAILED") for name in names):
            return
        waited.wait(0.05)
    raise AssertionError([bench.status(name) for name in names])
