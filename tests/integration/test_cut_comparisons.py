"""A comparison whose sides are asked by several sessions finds what one session finds, and leaves no session behind."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.sql import SQL

from tests.integration.test_ranged_keys import KEYS, make_table
from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina.connectors.postgres import cut_sides
from vitrina.connectors.postgres.compare import Field, TableSide
from vitrina.connectors.postgres.cut_sides import CutSide, Cutting, cut_side
from vitrina.errors import BadKey, VitrinaError
from vitrina.settings import ConnectionLimits
from vitrina.store import database

ROWS = 1_500
CUT = {"parallel": 3, "checkpoint_rows": 150}
FILMS = f"""
CREATE TABLE content.films (id int PRIMARY KEY, title text, rating numeric(3, 1), modified timestamptz);
INSERT INTO content.films
SELECT i, 'Film ' || i, (i % 100) / 10.0, '2026-01-01'::timestamptz + i * interval '1 s'
FROM generate_series(1, {ROWS}) AS i;
ANALYZE content.films;
"""
QUERY = "SELECT id, title, rating, modified FROM content.films"
# What a report says of the way, and not of the rows.
OF_THE_WAY = ("started_at", "duration_seconds", "sessions", "not_cut_because")


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    workbench.sql("CREATE TYPE content.genre AS ENUM ('noir', 'drama', 'arthouse')")
    workbench.sql("GRANT USAGE ON SCHEMA content TO vitrina_app")
    workbench.sql("CREATE DOMAIN content.code AS text CHECK (VALUE LIKE 'c%')")
    return workbench


def films(bench: Workbench, query: str = QUERY, **fields: Any) -> None:
    bench.source(FILMS)
    options = {**CUT, "cursor_clock": "database", **fields.pop("options", {})}
    bench.pipeline("films", query, **{"target_key": ["id"], "options": options, **fields})
    assert bench.run("films")["status"] == "SUCCESS"


def found(report: dict[str, Any]) -> dict[str, Any]:
    """Return what a report says of the rows."""
    plain = {name: value for name, value in report.items() if name not in OF_THE_WAY}
    for side in ("source", "target"):
        plain[side] = {name: value for name, value in report[side].items() if name not in OF_THE_WAY}
    return plain


def sessions(report: dict[str, Any]) -> tuple[int, int]:
    return report["source"]["sessions"], report["target"]["sessions"]


def reasons(report: dict[str, Any]) -> tuple[str | None, str | None]:
    return report["source"]["not_cut_because"], report["target"]["not_cut_because"]


def require_same(bench: Workbench, name: str, *, cut: tuple[int, int] = (3, 3)) -> dict[str, Any]:
    """Compare with several sessions and with one; return the report of the first."""
    report = bench.reconcile(name)
    row = bench.sql(f"SELECT options FROM etl.etl_pipelines WHERE name = '{name}'")
    bench.change(name, options=row[0]["options"] | {"parallel": 1})
    alone = bench.reconcile(name)
    bench.change(name, options=row[0]["options"])
    assert found(report) == found(alone)
    assert "sessions" not in alone["source"]
    assert sessions(report) == cut, reasons(report)
    return report


# --- the same as in one session ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_every_type_are_compared_as_in_one_session(bench: Workbench, kind: str) -> None:
    names = make_table(bench, KEYS[kind])
    bench.sql("ANALYZE content.things")
    query = f"SELECT {', '.join([*names, 'number'])} FROM content.things"
    bench.pipeline("things", query, target_key=names, options=CUT | {"checkpoint_rows": 100})
    assert bench.run("things")["status"] == "SUCCESS"
    chosen = random.Random(kind)  # the same rows each time
    changed, lacking = chosen.sample(range(1, 600), 5), chosen.sample(range(600, 1200), 7)

    assert require_same(bench, "things")["equal"]

    bench.sql(f"UPDATE analytics.things SET number = -number WHERE number = ANY(ARRAY{changed})")
    bench.sql(f"DELETE FROM analytics.things WHERE number = ANY(ARRAY{lacking})")
    bench.sql(f"DELETE FROM content.things WHERE number = ANY(ARRAY{[one + 1 for one in changed]})")
    report = require_same(bench, "things")
    gone = {one + 1 for one in changed} - set(changed)
    assert report["missing"] == len(lacking)
    assert report["extra"] >= len(gone)
    assert report["extra"] + report["differing"] == len({*changed, *gone})


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        pytest.param({"deletes": {"soft": "gone_at"}}, "DELETE FROM content.films WHERE id % 100 = 0", id="soft"),
        pytest.param({"history": {}}, "UPDATE content.films SET title = 'New' WHERE id % 100 = 0", id="history"),
        pytest.param({"table": {"partition_by": {"hash": "id", "partitions": 3}}}, "SELECT", id="partitions"),
    ],
)
def test_marts_of_every_form_are_cut(bench: Workbench, options: dict[str, Any], changes: str) -> None:
    films(bench, options=options)
    bench.sql(changes)
    assert bench.run("films")["status"] == "SUCCESS"
    assert require_same(bench, "films")["equal"]

    bench.sql("UPDATE analytics.films SET title = 'Changed' WHERE id % 500 = 1")
    assert require_same(bench, "films")["differing"] == 3


def test_rows_of_steps_are_cut_where_they_are_staged(bench: Workbench) -> None:
    step = {"order_index": 1, "task_type": "PYTHON", "body": "arena_drop"}
    bench.settings = bench.settings.model_copy(update={"transforms": "tests.chaos.steps"})
    query = "SELECT id, title, id AS version, 0 AS applied FROM content.films"
    films(bench, query, source_query=None, tasks=[{"order_index": 0, "task_type": "SQL", "body": query}, step])
    assert require_same(bench, "films")["equal"]
    bench.sql("DELETE FROM analytics.films WHERE id <= 20")
    report = require_same(bench, "films")
    assert report["missing"] == report["source"]["rows"] - report["target"]["rows"] > 0


def test_rows_in_flight_are_told_apart(bench: Workbench) -> None:
    films(bench, mode="incremental", incremental_key="modified", incremental_id_key="id")
    bench.sql("UPDATE content.films SET title = 'New', modified = clock_timestamp() WHERE id = 7")
    bench.sql("UPDATE content.films SET title = 'Unsaid' WHERE id = 8")
    report = require_same(bench, "films")
    assert (report["differing"], report["in_flight"]) == (1, 1)


def test_a_repair_and_a_scan_follow_from_it(bench: Workbench) -> None:
    films(bench, mode="incremental", incremental_key="modified", options={"deletes": {"scan": "1h"}})
    bench.sql("DELETE FROM content.films WHERE id % 500 = 1")
    assert bench.scan_deletes("films")["found"] == 3
    bench.sql("UPDATE analytics.films SET title = 'Changed' WHERE id % 500 = 2")
    assert bench.reconcile("films", repair=True)["remaining"] == 0
    assert bench.differences(QUERY, "analytics.films") == 0


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(st.sampled_from(["a", "A", "ä", "z", "", None]), st.integers(-3, 3) | st.none()), max_size=40
    ),
    bounds=st.lists(st.integers(0, 5), max_size=4, unique=True),
    sessions=st.integers(2, 4),
    mask=st.sampled_from([0, 1, 63]),
)
def test_parts_add_up_to_the_whole(
    bench: Workbench, rows: list[tuple[str | None, int | None]], bounds: list[int], sessions: int, mask: int
) -> None:
    bench.sql("DROP TABLE IF EXISTS content.parts; CREATE TABLE content.parts (name text, number numeric, wide text)")
    with bench.admin.cursor() as cursor:
        cursor.executemany("INSERT INTO content.parts VALUES (%s, %s, repeat('x', 2000))", rows)
    key = (Field("name", SQL("q.name"), "text"), Field("number", SQL("q.number"), "numeric"))
    cutting = Cutting(sessions, lambda: beside(bench), table=SQL("content.parts"))
    whole = TableSide(bench.admin, SQL(""), SQL("content.parts"), key, (), lambda exc: exc)
    with whole.snapshot():
        expected: Any = whole.sums(), whole.buckets(mask)
    with cut_side(whole, cutting).snapshot():
        side = cut_side(whole, cutting)
        assert side.buckets(mask) == expected[1]
        if expected[0][2]:
            with pytest.raises(BadKey, match=f"{expected[0][2]} row"):
                side.total()
        else:
            assert side.total() == expected[0][:2]


def beside(bench: Workbench) -> Any:
    assert bench.settings.admin_url
    return database.connect(bench.settings.admin_url.get_secret_value(), "vitrina:beside")


# --- one snapshot -----------------------------------------------------------------------------------------------------


def test_all_sessions_of_a_side_see_one_state(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What changes after the snapshot is not seen, and the mart is not rewritten between two parts."""
    films(bench)
    opening = CutSide._open

    def after_changes(self: CutSide, *given: Any) -> Any:
        if self.cutting.table is None:
            bench.sql("UPDATE content.films SET title = title || '!'; DELETE FROM content.films WHERE id % 100 = 0")
            return opening(self, *given)
        bench.sql("UPDATE analytics.films SET title = title || '?'")
        bench.sql("VACUUM analytics.films")
        bench.sql("SET lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            bench.sql("VACUUM FULL analytics.films")
        return opening(self, *given)

    counting = TableSide.sums

    def slowly(self: TableSide) -> Any:
        time.sleep(0.05)  # every session gets parts
        return counting(self)

    monkeypatch.setattr(CutSide, "_open", after_changes)
    monkeypatch.setattr(TableSide, "sums", slowly)
    # Rows are listed by one session, which would find no difference between sums that differ.
    monkeypatch.setattr(CutSide, "buckets", lambda self, mask: pytest.fail("the sums differ"))
    report = bench.reconcile("films")
    assert (report["equal"], report["looks"], sessions(report)) == (True, 1, (3, 3))


# --- ends -------------------------------------------------------------------------------------------------------------

# Each row takes a tenth of a second and more, inside the server.
SLOW = """
SELECT f.id, f.title, (SELECT count(*) FROM generate_series(1, 300000) AS g WHERE g <> f.id) AS others
FROM content.films AS f
"""


@contextmanager
def slow_comparison(bench: Workbench) -> Iterator[list[BaseException]]:
    """Begin a comparison that takes minutes, and wait for its end at the end of the block."""
    bench.source(FILMS)
    bench.pipeline("films", SLOW, target_key=["id"], options=CUT)
    bench.sql("CREATE TABLE analytics.films (id int PRIMARY KEY, title text, others bigint)")
    bench.sql("INSERT INTO analytics.films SELECT id, title, 300000 FROM content.films")
    bench.sql("ALTER TABLE analytics.films OWNER TO vitrina_app")
    ended: list[BaseException] = []

    def compare() -> None:
        try:
            bench.reconcile("films")
        except Exception as exc:  # noqa: BLE001 - the test looks at it
            ended.append(exc)

    thread = threading.Thread(target=compare)
    thread.start()
    try:
        until(lambda: len(active(bench)) >= 3)
        yield ended
    finally:
        thread.join(20)
        assert not thread.is_alive()


def active(bench: Workbench) -> list[int]:
    """Return the server processes that count the slow rows."""
    rows = bench.sql(
        "SELECT pid FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%generate_series(1, 300000)%'"
        " AND query LIKE '%hashtextextended%' AND pid <> pg_backend_pid() AND usename = 'vitrina_reader'"
    )
    return [row["pid"] for row in rows]


@pytest.mark.parametrize("ending", ["pg_terminate_backend", "pg_cancel_backend"])
def test_no_session_goes_on_when_one_has_ended(bench: Workbench, ending: str) -> None:
    with slow_comparison(bench) as ended:
        began = time.monotonic()
        [first, *_] = active(bench)
        bench.sql(f"SELECT {ending}({first})")
    assert time.monotonic() - began < 10
    assert isinstance(ended[0], VitrinaError)
    until(lambda: not active(bench))
    # The session of the mart, which is that of the metastore, is as good as before.
    assert bench.metastore.execute("SELECT 1 AS one").fetchone() == {"one": 1}


# --- where it does not apply ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "options", "why"),
    [
        (QUERY, {"checkpoint_rows": None}, ("compared quickly", "compared quickly")),
        (f"{QUERY} ORDER BY title LIMIT 2000", {}, ("the query sorts", None)),
    ],
)
def test_a_report_says_why_a_side_is_not_cut(
    bench: Workbench, query: str, options: dict[str, Any], why: tuple[str | None, str | None]
) -> None:
    films(bench, query, options=options)
    report = bench.reconcile("films")
    assert report["equal"]
    for said, wanted, count in zip(reasons(report), why, sessions(report), strict=True):
        assert (wanted in (said or "")) if wanted else said is None
        assert count == (1 if wanted else 3)


def test_a_connection_with_a_limit_gets_no_more_sessions(bench: Workbench) -> None:
    assert bench.settings.database_url
    update = {
        "connections": {"marts": bench.settings.database_url},
        "connection_limits": {"marts": ConnectionLimits(max_connections=20)},
    }
    bench.settings = bench.settings.model_copy(update=update)
    films(bench, options={"target_connection": "marts"})
    report = bench.reconcile("films")
    assert (report["equal"], sessions(report)) == (True, (1, 1))
    assert "VITRINA_CONN_MARTS_MAX_CONNECTIONS" in str(reasons(report)[1])


def test_sessions_that_the_server_refuses_are_done_without(bench: Workbench) -> None:
    films(bench)
    bench.sql("DELETE FROM analytics.films WHERE id = 7")
    bench.pool.close()
    until(lambda: not bench.sql("SELECT FROM pg_stat_activity WHERE usename = 'vitrina_reader'"))
    bench.sql("ALTER ROLE vitrina_reader CONNECTION LIMIT 2")
    try:
        report = bench.reconcile("films")
    finally:
        bench.sql("ALTER ROLE vitrina_reader CONNECTION LIMIT -1")
    assert (report["missing"], sessions(report)) == (1, (2, 3))
    assert "no connections left" in str(reasons(report)[0])


def test_the_server_counts_by_itself_if_it_uses_as_many_processes(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    films(bench)
    monkeypatch.setattr(cut_sides.CutSide, "_workers_of_server", lambda self: 2)
    report = bench.reconcile("films")
    assert (report["equal"], sessions(report)) == (True, (1, 1))
    assert "2 parallel workers" in str(reasons(report)[0])
