"""A mart that is live passes from one moment of its source to another, and a follower that is less careful is found."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from tests.live import application
from tests.live.marts import ACCOUNTS, Marts

Scenario = Callable[[Marts], None]
SUM = 200 * 100
# While these are merged, a reader looks at the sum all the time.
BATCHES = 40


# --- what must hold --------------------------------------------------------------------------------------------------


def transfers_are_seen_whole(marts: Marts) -> None:
    """Money that is moved between accounts is never missing in the mart, and never there twice."""
    marts.live("accounts", ACCOUNTS)
    marts.start_runner()
    marts.await_following("accounts")
    with movers(marts, 3):
        while marts.run("accounts")["batches"] < BATCHES:
            assert _sum(marts) == SUM
    marts.settle("accounts")
    assert not marts.differences("accounts", ACCOUNTS)


def a_commit_that_is_not_visible_yet_is_left(marts: Marts) -> None:
    """A commit that waits for a standby is in the log, but in no snapshot."""
    commits_wait_for_nobody(marts)
    marts.live("films")
    marts.start_runner()
    marts.await_following("films")
    with waiting_commit(marts, "UPDATE content.film SET title = 'late' WHERE id = 3"):
        marts.sql("UPDATE content.film SET title = 'early' WHERE id = 4")
        marts.await_true("the other one came", lambda: _title(marts, 4) == "early")
        assert _title(marts, 3) == "film 3"
    marts.settle("films")
    assert _title(marts, 3) == "late"
    assert not marts.differences("films")


def rows_that_leave_are_deleted(marts: Marts) -> None:
    marts.live("films")
    marts.start_runner()
    marts.await_following("films")
    marts.sql("DELETE FROM content.film WHERE id IN (3, 4)")
    marts.settle("films")
    assert not marts.differences("films")


def a_rejected_row_has_not_left(marts: Marts) -> None:
    """What a step rejects is on record as a dead letter, and the mart keeps what it has."""
    query = "SELECT id, title FROM content.film"
    step = {"types": {"title": "integer"}, "on_error": "dead_letter"}
    marts.sql("UPDATE content.film SET title = id::text")
    marts.live(
        "stepped",
        tasks=[
            {"order_index": 0, "task_type": "SQL", "body": query},
            {"order_index": 1, "task_type": "PYTHON", "body": "cast_columns", "params": step},
        ],
    )
    marts.start_runner()
    marts.await_following("stepped")
    marts.sql("UPDATE content.film SET title = 'no number' WHERE id = 3; DELETE FROM content.film WHERE id = 4")
    marts.sql("UPDATE content.film SET title = '77' WHERE id = 5")
    marts.settle("stepped")
    assert _stepped(marts) == {"3": "3", "4": None, "5": "77"}


def a_row_that_a_worker_leaves_out_is_deleted(marts: Marts) -> None:
    a_row_that_a_step_leaves_out_is_deleted(marts, workers=2)


def a_row_that_a_step_leaves_out_is_deleted(marts: Marts, workers: int = 1) -> None:
    """It is no part of the result any more; a rejected row is, and stays as it was."""
    query = "SELECT id, title, studio_id FROM content.film"
    marts.sql("UPDATE content.film SET title = id::text")
    cast = {"types": {"title": "integer"}, "on_error": "dead_letter"}
    known = {"where": {"column": "studio_id", "op": "not_null"}}
    marts.live(
        "stepped",
        tasks=[
            {"order_index": 0, "task_type": "SQL", "body": query},
            {"order_index": 1, "task_type": "PYTHON", "body": "cast_columns", "params": cast},
            {"order_index": 2, "task_type": "PYTHON", "body": "keep_rows", "params": known},
        ],
        options={"parallel": workers},
    )
    marts.start_runner()
    marts.await_following("stepped")
    marts.sql("UPDATE content.film SET studio_id = NULL WHERE id = 3")
    marts.sql("UPDATE content.film SET title = 'no' WHERE id = 4")
    marts.sql("UPDATE content.film SET title = '77' WHERE id = 5")
    marts.settle("stepped")
    assert _stepped(marts) == {"3": None, "4": "4", "5": "77"}
    marts.sql("UPDATE content.film SET studio_id = 1 WHERE id = 3")
    marts.settle("stepped")
    assert _stepped(marts) == {"3": "3", "4": "4", "5": "77"}


def moved_keys_are_left_and_met(marts: Marts) -> None:
    marts.live("films")
    marts.start_runner()
    marts.await_following("films")
    marts.sql("UPDATE content.rating SET film_id = 4 WHERE film_id = 3")
    marts.settle("films")
    assert not marts.differences("films")


@pytest.mark.parametrize(
    "scenario",
    [
        transfers_are_seen_whole,
        a_commit_that_is_not_visible_yet_is_left,
        rows_that_leave_are_deleted,
        a_rejected_row_has_not_left,
        a_row_that_a_step_leaves_out_is_deleted,
        a_row_that_a_worker_leaves_out_is_deleted,
        moved_keys_are_left_and_met,
    ],
)
def test_a_mart_shows_one_moment(marts: Marts, scenario: Scenario) -> None:
    scenario(marts)


# --- and what is found without each protection -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mutant", "scenario"),
    [
        ("no_visibility", a_commit_that_is_not_visible_yet_is_left),
        ("snapshot_after_the_feed", transfers_are_seen_whole),
        ("absent_keys_kept", rows_that_leave_are_deleted),
        ("absent_after_steps", a_rejected_row_has_not_left),
        ("filtered_kept", a_row_that_a_step_leaves_out_is_deleted),
        ("absent_after_steps", a_row_that_a_step_leaves_out_is_deleted),
        ("old_keys_forgotten", moved_keys_are_left_and_met),
    ],
)
def test_without_a_protection_it_shows(marts: Marts, mutant: str, scenario: Scenario) -> None:
    breaks(marts, mutant, scenario)


def breaks(marts: Marts, mutant: str, scenario: Scenario) -> None:
    """The scenario must fail because the mart is wrong, not because the mutant does not even follow."""
    marts.mutants = (mutant,)
    with pytest.raises(AssertionError) as found:
        scenario(marts)
    assert "it did not come to that" not in str(found.value)
    assert "last_error" not in str(found.value)


# --- the application -------------------------------------------------------------------------------------------------


@contextmanager
def movers(marts: Marts, count: int) -> Iterator[None]:
    """Move money from account to account, each time in one transaction of two updates."""
    stop = threading.Event()
    threads = [threading.Thread(target=_move, args=[marts, stop, seed]) for seed in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _move(marts: Marts, stop: threading.Event, seed: int) -> None:
    chance = random.Random(seed)
    assert marts.settings.admin_url
    with psycopg.connect(marts.settings.admin_url.get_secret_value()) as session:
        while not stop.is_set():
            application.move(session, chance)
            # As many as a source has, not as many as a machine can: its readers have to keep up.
            stop.wait(0.01)


def commits_wait_for_nobody(marts: Marts) -> None:
    """Let the commits of everybody but one session be visible at once, whatever standbys the server waits for."""
    [row] = marts.sql("SELECT current_database() AS name")
    marts.sql(f"ALTER DATABASE {row['name']} SET synchronous_commit = local")
    for session in (marts.admin, marts.metastore):
        session.execute("SET synchronous_commit = local")


@contextmanager
def waiting_commit(marts: Marts, statement: str) -> Iterator[None]:
    """Commit something that stays invisible during the block: it waits for a standby that does not exist."""
    assert marts.settings.admin_url
    url = marts.settings.admin_url.get_secret_value()
    _configure(marts, "synchronous_standby_names = 'nobody'")
    try:
        with psycopg.connect(url, application_name="waiting-commit") as session:
            session.execute("SET synchronous_commit = on")
            session.execute(statement)
            committing = threading.Thread(target=session.commit)
            committing.start()
            marts.await_true("it waits", lambda: bool(_waiting(marts)))
            try:
                yield
            finally:
                for row in _waiting(marts):
                    marts.sql(f"SELECT pg_cancel_backend({row['pid']})")
                committing.join()
    finally:
        _configure(marts, "synchronous_standby_names = ''")


def _waiting(marts: Marts) -> list[dict[str, int]]:
    return marts.sql(
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'waiting-commit' AND wait_event = 'SyncRep'"
    )


def _configure(marts: Marts, setting: str) -> None:
    marts.sql(f"ALTER SYSTEM SET {setting}")
    marts.sql("SELECT pg_reload_conf()")
    name, _, value = setting.partition(" = ")
    marts.await_true("configured", lambda: marts.sql(f"SHOW {name}")[0][name] == value.strip("'"))


def _sum(marts: Marts) -> int:
    [row] = marts.sql("SELECT sum(balance) AS total FROM analytics.accounts")
    return int(row["total"])


def _title(marts: Marts, film: int) -> str:
    [row] = marts.sql(f"SELECT title FROM analytics.films WHERE id = {film}")
    return str(row["title"])


def _stepped(marts: Marts) -> dict[str, str | None]:
    rows = marts.sql("SELECT id::text, title::text FROM analytics.stepped WHERE id IN (3, 4, 5)")
    return {"3": None, "4": None, "5": None} | {row["id"]: row["title"] for row in rows}
