"""What a checkpoint is worth when something else changed meanwhile: the cursor, the mart, the patience of a run."""

from contextlib import closing
from datetime import datetime
from typing import Any
from uuid import uuid4

import psycopg
import psycopg.conninfo
import pytest
from pydantic import SecretStr

from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina.connectors.postgres import cursor as cursors
from vitrina.loads.run import Run
from vitrina.services import pipelines as service
from vitrina.services.callers import Caller, Role
from vitrina.store import pipelines

EVENTS = """
CREATE TABLE content.events (id int PRIMARY KEY, at {kind} NOT NULL, rev int NOT NULL DEFAULT 0, note text);
INSERT INTO content.events SELECT i, {value}, 0, 'first' FROM generate_series(1, 50) AS i;
"""
QUERY = "SELECT id, at, rev, note FROM content.events"
FIELDS = {"target_key": ["id"], "mode": "incremental", "incremental_key": "at", "batch_size": 10}
ROUTES = pytest.mark.parametrize("route", ["auto", "copy", "arrow"])


def make(bench: Workbench, *, kind: str = "int", value: str = "1000 + i", query: str = QUERY, **fields: Any) -> None:
    bench.settings = bench.settings.model_copy(update={"backoff_seconds": (0.01,)})
    bench.source(EVENTS.format(kind=kind, value=value))
    bench.pipeline("events", query, **FIELDS | fields)


def run(bench: Workbench, **asked: Any) -> dict[str, Any]:
    found = bench.run("events", **asked)
    assert (found["status"], found["error_message"]) == ("SUCCESS", None)
    return found


def after_the_first_batch(monkeypatch: pytest.MonkeyPatch, bench: Workbench, statement: str) -> None:
    """Somebody at a prompt of psql, while a run is at work."""
    behind = Run.after_part
    done: list[Any] = []

    def after_batch(self: Run, part: Any) -> None:
        behind(self, part)
        if not done:
            done.append(bench.sql(statement))

    monkeypatch.setattr(Run, "after_part", after_batch)


# --- the cursor ---------------------------------------------------------------------------------------------------


def test_another_cursor_starts_from_the_beginning(workbench: Workbench) -> None:
    make(workbench)
    run(workbench)
    workbench.change("events", incremental_key="rev")
    workbench.sql("UPDATE content.events SET rev = 1, note = 'new' WHERE id <= 10")

    found = run(workbench)

    assert "the cursor" in found["metrics"]["started_over"]
    assert workbench.differences(QUERY, "analytics.events") == 0
    assert run(workbench)["rows_read"] == 10, "and goes on from its own checkpoint"


def test_a_cursor_of_another_type_starts_from_the_beginning(workbench: Workbench) -> None:
    """What was safe in Tokyo's time lies nine hours ahead when it is read as UTC."""
    make(
        workbench,
        kind="timestamp",
        value="now() AT TIME ZONE 'Asia/Tokyo' - interval '1 hour'",
        options={"cursor_timezone": "Asia/Tokyo"},
    )
    workbench.sql("CREATE TABLE analytics.events (id int PRIMARY KEY, rev int, note text)")
    workbench.sql("ALTER TABLE analytics.events OWNER TO vitrina_app")
    run(workbench)
    workbench.sql("ALTER TABLE content.events ALTER at TYPE timestamptz USING at AT TIME ZONE 'Asia/Tokyo'")
    workbench.sql("UPDATE content.events SET at = now(), note = 'new' WHERE id <= 10")

    run(workbench)

    assert workbench.differences("SELECT id, rev, note FROM content.events", "analytics.events") == 0


def test_a_wider_cursor_keeps_its_checkpoint(workbench: Workbench) -> None:
    make(workbench, query="SELECT id, at::bigint AS at, rev, note FROM content.events")
    run(workbench)
    workbench.sql("ALTER TABLE content.events ALTER at TYPE bigint")
    workbench.change("events", source_query=QUERY)
    workbench.sql("UPDATE content.events SET at = at + 1000 WHERE id <= 10")

    assert run(workbench)["rows_read"] <= 11


def test_another_id_begins_the_interrupted_pass_again(workbench: Workbench) -> None:
    """Where it stood between rows of one key was said in terms of the old one."""
    make(workbench, value="1", incremental_id_key="id")
    run(workbench)
    workbench.sql("UPDATE content.events SET at = 2, note = 'new'")
    workbench.request("events")
    claim = workbench.claim()
    assert pipelines.request_pause(workbench.metastore, claim.pipeline_id)
    workbench.perform(claim)
    assert workbench.last_run("events")["rows_read"] == 10
    workbench.change("events", incremental_id_key=None)

    run(workbench)

    assert workbench.differences(QUERY, "analytics.events") == 0


@pytest.mark.parametrize("odd", ["NaN", "Infinity"])
def test_a_number_that_nothing_follows_is_no_checkpoint(workbench: Workbench, odd: str) -> None:
    make(workbench, kind="numeric", value="i")
    workbench.sql(f"INSERT INTO content.events VALUES (100, '{odd}', 0, 'odd')")
    run(workbench)
    workbench.sql("INSERT INTO content.events VALUES (51, 51, 0, 'later')")

    run(workbench)

    assert workbench.differences(QUERY, "analytics.events") == 0


@pytest.mark.parametrize(
    ("route", "kind", "values"), [("copy", "interval", ("1 mon", "30 days")), ("arrow", "float8", ("-0", "0"))]
)
def test_ids_that_are_equal_and_yet_differ_stay_together(
    workbench: Workbench, route: str, kind: str, values: tuple[str, str]
) -> None:
    make(
        workbench,
        query="SELECT id, at, part FROM content.events",
        incremental_id_key="part",
        batch_size=1,
        options={"route": route, "max_attempts": 20},
    )
    workbench.sql(f"ALTER TABLE content.events ADD part {kind} NOT NULL DEFAULT '{values[0]}'")
    run(workbench)
    one, other = values
    workbench.sql(
        f"INSERT INTO content.events (id, at, part) VALUES (101, 2000, '{one}'), (102, 2000, '{other}'),"
        f" (103, 2000, '{one}'), (104, 3000, '{one}')"
    )

    assert workbench.run_interrupted("events")["status"] == "SUCCESS"

    assert workbench.differences("SELECT id, at, part FROM content.events", "analytics.events") == 0


def test_a_checkpoint_that_is_no_value_of_the_cursor_is_named(workbench: Workbench) -> None:
    make(workbench, kind="timestamptz", value="now()")
    run(workbench)
    service.reset_state(workbench.metastore, Caller("somebody", Role.OPERATOR), "events", cursor="yesterday-ish")
    found = workbench.run("events")
    assert (found["status"], found["attempts"]) == ("FAILED", 1)
    assert "the checkpoint is 'yesterday-ish'" in found["error_message"]
    assert "at (timestamp with time zone)" in found["error_message"]

    service.reset_state(workbench.metastore, Caller("somebody", Role.OPERATOR), "events")
    found = workbench.run("events", since="2024-13-01")
    assert "since is '2024-13-01'" in found["error_message"]


# --- the mart -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["TRUNCATE analytics.events", "DROP TABLE analytics.events"])
def test_a_mart_emptied_between_two_batches_is_loaded_again(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """What is merged after that would hide that the rest is gone."""
    make(workbench)
    run(workbench)
    workbench.sql("UPDATE content.events SET at = at + 1000")
    after_the_first_batch(monkeypatch, workbench, how)

    run(workbench)

    assert workbench.differences(QUERY, "analytics.events") == 0


def test_a_mart_rewritten_between_two_batches_is_left_alone(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(workbench)
    run(workbench)
    workbench.sql("UPDATE content.events SET at = at + 1000")
    after_the_first_batch(monkeypatch, workbench, "VACUUM FULL analytics.events")

    assert (run(workbench)["attempts"], workbench.differences(QUERY, "analytics.events")) == (1, 0)


def test_a_column_dropped_between_two_batches_is_named(workbench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    make(workbench)
    run(workbench)
    workbench.sql("UPDATE content.events SET at = at + 1000")
    after_the_first_batch(monkeypatch, workbench, "ALTER TABLE analytics.events DROP COLUMN note")

    found = workbench.run("events")

    assert (found["status"], found["error_code"]) == ("FAILED", "target_mismatch")
    assert "analytics.events lacks note text" in found["error_message"]


def test_a_mart_emptied_behind_steps_is_filled_again(workbench: Workbench) -> None:
    make(
        workbench,
        tasks=[
            {"order_index": 0, "task_type": "SQL", "body": QUERY},
            {"order_index": 1, "task_type": "PYTHON", "body": "normalise_text", "params": {"columns": ["note"]}},
        ],
    )
    run(workbench)
    workbench.sql("TRUNCATE analytics.events")

    found = run(workbench)

    assert "by hand" in found["metrics"]["started_over"]
    assert workbench.differences(QUERY, "analytics.events") == 0


@ROUTES
def test_the_first_load_of_a_history_keeps_the_latest_version(workbench: Workbench, route: str) -> None:
    """As every later pass does: a mart that somebody empties must come back."""
    query = "SELECT id % 5 AS id, at, note FROM content.events"
    make(workbench, query=query, options={"route": route})
    workbench.sql("UPDATE content.events SET note = 'v' || id")
    latest = [{"note": f"v{number}"} for number in (50, 46, 47, 48, 49)]

    for _ in range(2):
        run(workbench)
        assert workbench.sql("SELECT note FROM analytics.events ORDER BY id") == latest
        workbench.sql("TRUNCATE analytics.events")


# --- patience -------------------------------------------------------------------------------------------------------


def test_a_backfill_that_cannot_end_well_ends(workbench: Workbench) -> None:
    """It begins anew each time: batches that it has merged before are no progress."""
    workbench.sql("CREATE TABLE analytics.events (id int PRIMARY KEY, at int, rev int, note text UNIQUE)")
    workbench.sql("ALTER TABLE analytics.events OWNER TO vitrina_app")
    make(workbench)
    workbench.sql("UPDATE content.events SET note = id::text")
    run(workbench)
    workbench.sql("UPDATE content.events SET note = '45' WHERE id = 30; DELETE FROM content.events WHERE id = 45")

    found = workbench.run("events", since="1", until="2000")

    assert (found["status"], found["attempts"], found["batches"]) == ("FAILED", 3, 6)
    assert "events_note_key" in found["error_message"]


def test_a_backfill_that_no_runner_survives_ends(workbench: Workbench) -> None:
    make(workbench)
    run(workbench)
    workbench.request("events", since="1", until="2000")
    for _ in range(3):
        workbench.lose_a_runner("batch.committed:crash:2")
        workbench.recover(max_attempts=3)

    # The backfill is given up; the pipeline itself is what it was, and its schedule goes on.
    last = workbench.last_run("events")
    assert (last["status"], last["error_code"]) == ("FAILED", "too_many_losses")
    assert workbench.status("events") == "IDLE"
    assert workbench.claim_or_none() is None


def test_a_load_in_one_snapshot_that_cannot_end_well_ends(workbench: Workbench) -> None:
    workbench.sql(
        """
        CREATE FUNCTION content.refuse(i int) RETURNS int LANGUAGE plpgsql STABLE AS $$
        BEGIN IF i = 35 THEN RAISE 'conflict with recovery' USING ERRCODE = '40001'; END IF; RETURN i; END $$;
        GRANT EXECUTE ON FUNCTION content.refuse TO vitrina_reader
        """
    )
    query = "SELECT id, content.refuse(id) AS at FROM content.events"
    options = {"route": "copy", "consistency": "snapshot"}
    make(workbench, query=query, mode="full", incremental_key=None, options=options)
    workbench.settings = workbench.settings.model_copy(update={"allowed_functions": "content.refuse"})

    found = workbench.run("events")

    assert (found["status"], found["attempts"]) == ("FAILED", 3)
    assert "conflict with recovery" in found["error_message"]


# --- who holds it ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "value"), [("timestamptz", "now()"), ("int", "i")])
@pytest.mark.parametrize("first", [True, False])
def test_who_holds_the_checkpoint_back_is_named(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch, kind: str, value: str, first: bool
) -> None:
    monkeypatch.setattr(cursors, "VISIBILITY_SECONDS", 0.0)  # younger ones hold nothing that is not held anyway
    make(workbench, kind=kind, value=value)
    if not first:
        run(workbench)
    with psycopg.connect(admin_url(workbench)) as late:
        late.execute("UPDATE content.events SET note = 'late' WHERE id = 1")
        run(workbench)
        [row] = workbench.sql("SELECT hold FROM etl.etl_pipelines")
        assert (row["hold"]["pid"], row["hold"]["user"]) == (late.info.backend_pid, late.info.user)
        assert datetime.fromisoformat(row["hold"]["since"]) < workbench.now()
    run(workbench)
    assert workbench.sql("SELECT hold FROM etl.etl_pipelines") == [{"hold": None}]


def test_a_sender_of_the_log_holds_nothing(workbench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is active for as long as somebody follows, and writes nothing."""
    monkeypatch.setattr(cursors, "VISIBILITY_SECONDS", 0.0)
    make(workbench, kind="timestamptz", value="now()")
    with closing(psycopg.connect(admin_url(workbench), replication="database", autocommit=True)) as follower:
        position = follower.pgconn.exec_(b"IDENTIFY_SYSTEM").get_value(0, 2)
        assert position is not None
        follower.pgconn.exec_(b"START_REPLICATION PHYSICAL " + position)
        until(lambda: bool(workbench.sql("SELECT 1 FROM pg_stat_activity WHERE backend_type = 'walsender'")))

        run(workbench)

        assert workbench.sql("SELECT hold FROM etl.etl_pipelines") == [{"hold": None}]


def test_autovacuum_holds_nothing(workbench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It inserts no row, and on a large table it lasts for hours."""
    monkeypatch.setattr(cursors, "VISIBILITY_SECONDS", 0.0)
    make(workbench, kind="int", value="i")
    slow = "autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1, autovacuum_vacuum_threshold = 0"
    workbench.sql("CREATE TABLE content.large AS SELECT i, repeat('x', 500) FROM generate_series(1, 20000) AS i")
    workbench.sql(f"ALTER TABLE content.large SET ({slow}, autovacuum_vacuum_scale_factor = 0)")
    workbench.sql("DELETE FROM content.large WHERE i % 2 = 0")
    workbench.sql("ALTER SYSTEM SET autovacuum_naptime = '1s'")
    workbench.sql("SELECT pg_reload_conf()")
    at_work = "SELECT 1 FROM pg_stat_activity WHERE backend_type = 'autovacuum worker' AND query LIKE '%content.large%'"
    try:
        until(lambda: bool(workbench.sql(at_work)), seconds=60)
        run(workbench)
        assert workbench.sql(at_work), "it was there all the time"
        assert workbench.sql("SELECT hold FROM etl.etl_pipelines") == [{"hold": None}]
    finally:
        workbench.sql("ALTER SYSTEM RESET autovacuum_naptime")
        workbench.sql("SELECT pg_reload_conf()")
        workbench.sql("DROP TABLE content.large")


def admin_url(bench: Workbench) -> str:
    assert bench.settings.admin_url is not None
    return bench.settings.admin_url.get_secret_value()


# --- what it was taken of ------------------------------------------------------------------------------------------


def test_what_a_checkpoint_was_taken_of_stays_with_it(workbench: Workbench) -> None:
    make(workbench)
    run(workbench)
    workbench.sql("""UPDATE etl.etl_state SET identity = identity || '{"sample": [1, 2]}'""")

    run(workbench)

    assert workbench.checkpoint("events").identity["sample"] == [1, 2]


# --- who may not see transactions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "value"), [("timestamptz", "now()"), ("int", "i")])
def test_transactions_that_the_login_may_not_see_hold_the_checkpoint(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch, kind: str, value: str
) -> None:
    """Of sessions of others, a plain login is shown neither state nor start nor what kind of backend they are."""
    monkeypatch.setattr(cursors, "VISIBILITY_SECONDS", 0.0)
    make(workbench, kind=kind, value=value, source_connection="shop", options={"cursor_clock": "database"})
    login = f"plain_{uuid4().hex[:8]}"
    workbench.sql(f"CREATE ROLE {login} LOGIN PASSWORD 'plain'; GRANT USAGE ON SCHEMA content TO {login}")
    workbench.sql(f"GRANT SELECT ON content.events TO {login}")
    url = psycopg.conninfo.make_conninfo(admin_url(workbench), user=login, password="plain")
    workbench.settings = workbench.settings.model_copy(update={"connections": {"shop": SecretStr(url)}})
    with psycopg.connect(admin_url(workbench)) as late:
        late.execute(f"INSERT INTO content.events SELECT 60, {value}, 0, 'late' FROM (VALUES (60)) AS v (i)")
        workbench.sql(f"INSERT INTO content.events SELECT 70, {value}, 0, 'early' FROM (VALUES (70)) AS v (i)")
        run(workbench)
        [row] = workbench.sql("SELECT hold FROM etl.etl_pipelines")
        assert row["hold"] is not None
    run(workbench)
    run(workbench)
    assert workbench.differences(QUERY, "analytics.events") == 0
