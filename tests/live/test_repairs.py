"""Live pipelines are repaired, and their dead letters sent again, between two batches; nothing is loaded again."""

from typing import Any

from tests.live.marts import CALLER, FILMS, Marts
from vitrina.services import pipelines as services
from vitrina.store import leases, requests

NUMBERS = [
    {"order_index": 0, "task_type": "SQL", "body": "SELECT id, title FROM content.film"},
    {
        "order_index": 1,
        "task_type": "PYTHON",
        "body": "cast_columns",
        "params": {"types": {"title": "integer"}, "on_error": "dead_letter"},
    },
]


def perform(marts: Marts, kind: str, name: str = "films", **payload: Any) -> dict[str, Any]:
    """Ask a runner for it, and wait for the answer."""
    made = requests.insert(marts.metastore, kind, marts.row(name)["id"], payload, "tests")

    def is_over() -> bool:
        found = requests.find(marts.metastore, made)
        return found is not None and found["status"] in ("DONE", "FAILED")

    marts.await_true(f"{kind} is performed", is_over)
    found = requests.find(marts.metastore, made)
    assert found is not None
    assert found["error"] is None, found["error"]
    result: dict[str, Any] = found["result"]
    return result


def test_a_followed_mart_is_repaired_and_followed_on(followed: Marts) -> None:
    place = followed.place("films")
    followed.sql("UPDATE analytics.films SET title = 'spoilt' WHERE id < 3; DELETE FROM analytics.films WHERE id = 5")
    leases.refuse_beside_a_run(followed.row("films"))
    done = perform(followed, "reconcile", repair=True)
    assert (done["differences"], done["repair"]["done"], done["remaining"]) == (3, True, 0)
    followed.await_following("films")
    assert not followed.differences("films")
    assert "loads_because" not in followed.run("films")["metrics"]
    followed.sql("UPDATE content.film SET title = 'after' WHERE id = 3; DELETE FROM content.film WHERE id = 6")
    followed.await_equal("films", FILMS)
    assert "loads_because" not in followed.run("films")["metrics"]
    now = followed.place("films")
    assert place is not None
    assert now is not None
    assert (now["feed"], now["lsn"] > place["lsn"]) == (place["feed"], True), "it goes on from its own place"


def test_what_changes_during_a_repair_is_followed_afterwards(followed: Marts) -> None:
    """The repair reads rows that the follower has not seen yet; following from its place again does no harm."""
    followed.sql("UPDATE analytics.films SET title = 'spoilt' WHERE id < 30")
    made = requests.insert(followed.metastore, "reconcile", followed.row("films")["id"], {"repair": True}, "tests")
    for number in range(40):
        followed.sql(f"UPDATE content.film SET title = 'x{number}' WHERE id = {number % 20 + 10}")
        followed.sql(f"UPDATE content.rating SET film_id = {number % 7 + 1} WHERE id = {number + 1}")
    followed.sql("DELETE FROM content.film WHERE id IN (11, 12)")
    followed.await_true("repaired", lambda: (requests.find(followed.metastore, made) or {})["status"] == "DONE")
    followed.await_equal("films")


def test_dead_letters_of_a_followed_pipeline_are_sent_again(marts: Marts) -> None:
    marts.sql("UPDATE content.film SET title = id::text")
    marts.live("numbers", tasks=NUMBERS)
    marts.start_runner()
    marts.await_following("numbers")
    marts.sql("UPDATE content.film SET title = 'no number' WHERE id = 3")
    marts.settle("numbers")
    done = perform(marts, "replay", "numbers")
    assert (done["letters"], done["sent"], done["refused"]) == (1, 0, 1), done
    marts.sql("UPDATE content.film SET title = '33' WHERE id = 3")
    marts.await_following("numbers")
    marts.settle("numbers")
    assert marts.sql("SELECT title FROM analytics.numbers WHERE id = 3") == [{"title": 33}]
    assert "loads_because" not in marts.run("numbers")["metrics"]


def test_a_runner_that_dies_in_a_repair_leaves_a_pipeline_that_is_followed(followed: Marts) -> None:
    followed.sql("UPDATE analytics.films SET title = 'spoilt' WHERE id = 3")
    followed.plan("batch.fenced:kill:1")
    requests.insert(followed.metastore, "reconcile", followed.row("films")["id"], {"repair": True}, "tests")
    followed.runners[0].wait(timeout=60)
    followed.start_runner()
    followed.await_equal("films")
    followed.await_following("films")
    assert "loads_because" not in followed.run("films")["metrics"]


def test_a_paused_pipeline_stays_paused_when_it_is_repaired(followed: Marts) -> None:
    followed.sql("UPDATE analytics.films SET title = 'spoilt' WHERE id = 3")
    services.request_pause(followed.metastore, CALLER, "films")
    followed.await_true("paused", lambda: followed.row("films")["status"] == "PAUSED")
    done = perform(followed, "reconcile", repair=True)
    assert done["remaining"] == 0
    assert followed.row("films")["status"] == "PAUSED"
