"""Live pipelines end to end: real runner processes keep marts equal to their queries."""

from datetime import UTC, datetime

import psycopg
import pytest

from tests.live.marts import CALLER, FILMS, Marts
from vitrina.services import pipelines as services
from vitrina.services import reports


def test_a_mart_follows_inserts_updates_deletes_and_moved_keys(followed: Marts) -> None:
    marts = followed
    marts.await_equal("films")
    runs = marts.count_runs("films")
    for statement in (
        "INSERT INTO content.film VALUES (51, 'new', 1)",
        "UPDATE content.film SET title = 'renamed' WHERE id = 7",
        "DELETE FROM content.film WHERE id = 9",
        "UPDATE content.rating SET film_id = 51 WHERE film_id = 10",
        "UPDATE content.film SET studio_id = 4 WHERE studio_id = 2",
        "UPDATE content.studio SET name = upper(name) WHERE id = 3",
        "DELETE FROM content.rating WHERE film_id = 12",
        "UPDATE content.film SET id = 1000 WHERE id = 11",
        "UPDATE content.film SET studio_id = NULL WHERE id = 13",
    ):
        marts.sql(statement)
        marts.await_equal("films", FILMS)
    assert marts.count_runs("films") == runs, "all of it came by following, none by a full load"


def test_pause_and_resume_go_on_where_it_stopped(followed: Marts) -> None:
    services.request_pause(followed.metastore, CALLER, "films")
    followed.await_true("paused", lambda: followed.row("films")["status"] == "PAUSED")
    followed.sql("DELETE FROM content.film WHERE id < 10")
    assert followed.differences("films")
    services.resume(followed.metastore, CALLER, "films")
    followed.await_equal("films")
    followed.await_following("films")
    assert "loads_because" not in followed.run("films")["metrics"]


def test_cancel_ends_it_and_a_run_begins_it_again(followed: Marts) -> None:
    services.cancel(followed.metastore, CALLER, "films")
    followed.await_true("ended", lambda: followed.row("films")["claim_id"] is None)
    assert followed.row("films")["status"] == "IDLE"
    followed.sql("UPDATE content.film SET title = 'other'")
    followed.request("films")
    followed.await_equal("films")


def test_disable_ends_it(followed: Marts) -> None:
    services.disable(followed.metastore, CALLER, "films")
    followed.await_true("ended", lambda: followed.row("films")["status"] == "IDLE")
    followed.sql("UPDATE content.film SET title = 'other'")
    services.enable(followed.metastore, CALLER, "films")
    followed.request("films")
    followed.await_equal("films")


def test_a_run_that_is_asked_for_is_a_full_load(followed: Marts) -> None:
    followed.sql("UPDATE analytics.films SET title = 'spoilt' WHERE id = 3")
    assert followed.differences("films"), "no change of the source leads to the row"
    before = followed.count_runs("films")
    followed.request("films")
    followed.await_equal("films")
    followed.await_true("another run", lambda: followed.count_runs("films") == before + 1)
    followed.await_following("films")
    assert followed.run("films")["metrics"]["loads_because"] == "a full load was requested"


def test_truncate_is_followed_by_a_full_load(followed: Marts) -> None:
    followed.sql("TRUNCATE content.rating")
    followed.await_equal("films")


def test_another_runner_takes_over_after_a_kill(followed: Marts) -> None:
    followed.kill(followed.runners[0])
    followed.sql("UPDATE content.rating SET score = score + 1 WHERE film_id < 20")
    followed.sql("DELETE FROM content.film WHERE id = 30")
    followed.start_runner()
    followed.await_equal("films")
    followed.await_following("films")
    assert "loads_because" not in followed.run("films")["metrics"]


@pytest.mark.parametrize("point", ["live.gathered", "batch.filled", "batch.fenced", "batch.committed"])
def test_a_batch_that_is_killed_is_done_by_the_next_runner(followed: Marts, point: str) -> None:
    followed.plan(f"{point}:kill:1")
    followed.sql("UPDATE content.film SET title = 'x' || title WHERE id < 9; DELETE FROM content.film WHERE id = 31")
    followed.runners[0].wait(timeout=60)
    followed.start_runner()
    followed.await_equal("films")


def test_a_slot_that_is_dropped_by_hand_heals_with_one_full_load(followed: Marts) -> None:
    before = followed.count_runs("films")
    followed.drop_feeds()
    followed.sql("DELETE FROM content.film WHERE id = 5")
    followed.await_equal("films")
    followed.await_following("films")
    followed.sql("DELETE FROM content.film WHERE id = 6")
    followed.await_equal("films")
    assert followed.count_runs("films") == before + 1


def test_switching_modes_keeps_the_mart(followed: Marts) -> None:
    [table] = followed.sql("SELECT 'analytics.films'::regclass::oid AS oid")
    followed.change("films", mode="full")
    followed.await_true("ended", lambda: followed.row("films")["claim_id"] is None)
    followed.sql("DELETE FROM content.film WHERE id = 5")
    followed.request("films")
    followed.await_equal("films")
    followed.await_true("done", lambda: followed.row("films")["status"] == "IDLE")
    followed.await_true("the slot is gone", lambda: not followed.slots())
    followed.change("films", mode="live")
    followed.sql("DELETE FROM content.film WHERE id = 6")
    followed.request("films")
    followed.await_equal("films")
    followed.await_following("films")
    followed.sql("DELETE FROM content.film WHERE id = 7")
    followed.await_equal("films")
    assert followed.sql("SELECT 'analytics.films'::regclass::oid AS oid") == [table]


def test_a_changed_query_is_followed_after_one_full_load(followed: Marts) -> None:
    before = followed.count_runs("films")
    changed = FILMS.replace("f.title,", "upper(f.title) AS title,")
    followed.change("films", source_query=changed)
    followed.await_equal("films", changed)
    followed.await_following("films")
    assert followed.count_runs("films") == before + 1
    followed.sql("UPDATE content.film SET title = 'small' WHERE id = 6")
    followed.await_equal("films", changed)


def test_deleting_the_last_live_pipeline_drops_slot_and_publication(followed: Marts) -> None:
    assert followed.slots()
    services.request_pause(followed.metastore, CALLER, "films")
    followed.await_true("paused", lambda: followed.row("films")["status"] == "PAUSED")
    services.remove(followed.metastore, CALLER, "films")
    followed.await_true("no slot", lambda: not followed.slots())
    followed.await_true("no publication", lambda: not followed.sql("SELECT pubname FROM pg_publication"))


def test_its_status_says_which_moment_it_shows(followed: Marts) -> None:
    [then] = followed.sql("SELECT clock_timestamp() AS now")
    seen = reports.pipeline_status(followed.metastore, followed.settings, followed.row("films"))
    assert seen.following
    followed.await_true("it moves on", lambda: _as_of(followed) > then["now"])


def _as_of(followed: Marts) -> datetime:
    seen = reports.pipeline_status(followed.metastore, followed.settings, followed.row("films"))
    return seen.following.as_of if seen.following else datetime.min.replace(tzinfo=UTC)


def test_reconcile_finds_what_the_follower_did_not_bring(followed: Marts) -> None:
    assert followed.reconcile("films")["differences"] == 0
    followed.sql("UPDATE analytics.films SET title = 'spoilt' WHERE id = 3")
    assert followed.reconcile("films")["differences"] == 1


def test_keys_that_are_one_by_the_collation_of_the_mart_are_refused(marts: Marts) -> None:
    try:
        marts.sql(
            "CREATE COLLATION content.any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
        )
    except psycopg.errors.FeatureNotSupported:
        pytest.skip("this server was built without ICU")
    query = "SELECT code, title FROM content.code"
    marts.sql(
        "CREATE TABLE content.code (code text PRIMARY KEY, title text); GRANT SELECT ON content.code TO vitrina_reader;"
        "GRANT USAGE ON SCHEMA content TO vitrina_app; INSERT INTO content.code VALUES ('b', 'first');"
        "CREATE TABLE analytics.codes (code text COLLATE content.any_case PRIMARY KEY, title text);"
        "GRANT ALL ON analytics.codes TO vitrina_app"
    )
    marts.live("codes", query, target_key=["code"])
    marts.start_runner()
    marts.await_following("codes")

    marts.sql("UPDATE content.code SET title = 'second'")
    marts.await_equal("codes", query)
    marts.sql("INSERT INTO content.code VALUES ('B', 'another'); UPDATE content.code SET title = 'third'")

    marts.await_failed("codes", "code")
    assert marts.run("codes")["error_code"] == "bad_key"
    assert marts.sql("SELECT * FROM analytics.codes") == [{"code": "b", "title": "second"}]


def test_rows_that_pass_steps_are_staged_over_one_session(marts: Marts) -> None:
    query = "SELECT id, title FROM content.film"
    marts.sql("UPDATE content.film SET title = id::text")
    tasks = [
        {"order_index": 0, "task_type": "SQL", "body": query},
        {"order_index": 1, "task_type": "PYTHON", "body": "cast_columns", "params": {"types": {"title": "bigint"}}},
    ]
    marts.live("stepped", tasks=tasks)
    marts.start_runner()
    marts.await_following("stepped")
    sessions = set()
    for number in range(3):
        marts.sql(f"UPDATE content.film SET title = '{number}' WHERE id = 7")
        marts.await_true(
            "it is shown",
            lambda number=number: _title_of_seven(marts) == number,  # type: ignore[misc]
        )
        sessions |= {row["pid"] for row in marts.sql(STAGING)}
    assert len(sessions) == 1


STAGING = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND state = 'idle' AND query LIKE 'COPY%etl_stage%FROM STDIN%'
"""


def _title_of_seven(marts: Marts) -> int:
    [row] = marts.sql("SELECT title FROM analytics.stepped WHERE id = 7")
    return int(row["title"])
