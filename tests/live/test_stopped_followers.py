"""A follower that stands still for longer than its lease: another runner goes on, and its late batch is refused."""

import os
import signal

import pytest

from tests.live.marts import FILMS, PATIENCE_SECONDS, Marts
from tests.support.waiting import until


# Between two batches of changes; with the rows written and not committed; before the COMMIT; right after it.
@pytest.mark.parametrize("point", ["live.gathered", "batch.filled", "batch.fenced", "batch.committed"])
def test_a_late_batch_is_refused_and_nothing_is_doubled(followed: Marts, point: str) -> None:
    followed.plan(f"{point}:stop:1")
    followed.sql("UPDATE content.film SET title = 'before' WHERE id < 20; DELETE FROM content.film WHERE id = 31")
    until((followed.directory / "fired").exists, seconds=PATIENCE_SECONDS)
    stopped = followed.runners[0]
    followed.sql(
        "UPDATE content.film SET title = 'after' WHERE id < 9; INSERT INTO content.film VALUES (31, 'back', 1)"
    )
    followed.start_runner()
    followed.await_true("another runner takes it over", lambda: followed.count_runs("films") == 2)
    followed.await_following("films")
    followed.await_equal("films", FILMS)
    epoch = followed.row("films")["epoch"]
    os.kill(stopped.pid, signal.SIGCONT)
    followed.await_true("the late runner hears of it", lambda: "run.lease_lost" in log_of(followed, 0))
    followed.sql("UPDATE content.rating SET film_id = 7 WHERE film_id = 8")
    followed.await_equal("films", FILMS)
    assert followed.row("films")["epoch"] == epoch, "the successor was not disturbed"
    assert "loads_because" not in followed.run("films")["metrics"]


def log_of(marts: Marts, runner: int) -> str:
    return (marts.directory / f"runner-{runner}.log").read_text()
