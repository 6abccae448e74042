"""Stop and pause runners: at the batch boundary, in the middle of a long publish, while waiting."""

import signal
import time

import pytest

from tests.chaos.arena import PATIENCE_SECONDS, Arena
from tests.chaos.conftest import MakeArena
from vitrina.store import pipelines


def working(arena: Arena, kind: str, *, seconds_per_row: float) -> None:
    """Bring one runner to the middle of a run that takes much longer than a test may."""
    arena.prepare([kind], seconds_per_row=seconds_per_row)
    arena.start_runners(1)
    arena.request(kind)
    arena.await_true(lambda: applying(arena), PATIENCE_SECONDS, "rows are being merged")


def tell_to_stop(arena: Arena) -> None:
    """Send one signal, and wait until the runner has logged it."""
    [runner] = arena.runners
    runner.process.send_signal(signal.SIGTERM)
    arena.await_true(lambda: arena.said()["runner.draining"] > 0, PATIENCE_SECONDS, "the signal was heard")


def applying(arena: Arena) -> bool:
    found = arena.sql(
        "SELECT count(*) AS n FROM pg_stat_activity WHERE state = 'active' AND wait_event = 'PgSleep'"
        " AND datname = current_database()"
    )
    return int(found[0]["n"]) > 0


@pytest.mark.chaos
@pytest.mark.timeout(300)
def test_the_first_signal_drains_a_long_publish_and_gives_the_lease_back(make_arena: MakeArena) -> None:
    arena = make_arena(lease_seconds=30.0)
    working(arena, "full_once", seconds_per_row=0.2)  # 80 s
    runner = arena.runners[0]

    started = time.monotonic()
    runner.process.send_signal(signal.SIGTERM)

    assert runner.process.wait(70) == 0
    assert time.monotonic() - started < 60
    assert arena.status("full_once") == "RUN_REQUESTED"
    assert arena.sql("SELECT status, error_code FROM etl.etl_runs") == [
        {"status": "CANCELLED", "error_code": "runner_stopped"}
    ]
    assert arena.sql("SELECT * FROM etl.etl_runners") == []
    assert arena.sql("SELECT * FROM analytics.full_once") == []
    # It was read in less than a second, so that its publication counts it, and the next run reads it again.
    assert [row["rows"] for row in arena.sql("SELECT rows FROM etl.etl_state")] == [0]


@pytest.mark.chaos
@pytest.mark.timeout(300)
def test_the_first_signal_lets_the_running_batch_finish(make_arena: MakeArena) -> None:
    arena = make_arena(lease_seconds=30.0)
    arena.prepare(["inc_pages"])
    arena.start_runners(1)
    arena.request("inc_pages")
    arena.await_quiet()
    arena.change_source()
    arena.hold("inc_pages", "batch.filled", 2)

    tell_to_stop(arena)
    arena.let_go()

    assert arena.runners[0].process.wait(PATIENCE_SECONDS) == 0
    assert arena.status("inc_pages") == "RUN_REQUESTED"
    arena.disarm()
    arena.replace_dead()
    arena.await_quiet()
    assert arena.violations() == []


@pytest.mark.chaos
@pytest.mark.timeout(300)
def test_the_second_signal_leaves_at_once_and_the_lease_expires(make_arena: MakeArena) -> None:
    arena = make_arena(lease_seconds=2.0)
    working(arena, "full_once", seconds_per_row=0.02)
    runner = arena.runners[0]

    tell_to_stop(arena)
    runner.process.send_signal(signal.SIGTERM)

    assert runner.process.wait(PATIENCE_SECONDS) == 128 + signal.SIGTERM
    assert arena.sql("SELECT * FROM analytics.full_once") == [], "it did not wait for the publish"
    assert arena.status("full_once") == "RUNNING"
    arena.replace_dead()
    arena.await_quiet()
    assert arena.violations() == []


@pytest.mark.chaos
@pytest.mark.timeout(300)
def test_a_pause_is_obeyed_while_waiting_for_the_next_try(make_arena: MakeArena) -> None:
    arena = make_arena(lease_seconds=30.0, environment={"VITRINA_BACKOFF_SECONDS": "60"})
    arena.prepare(["full_pages"])
    arena.start_runners(1)
    arena.arm("batch.committed", "error", 2)
    arena.request("full_pages")
    arena.await_true(lambda: arena.said()["run.retrying"] > 0, PATIENCE_SECONDS, "the run waits for its next try")

    pipelines.request_pause(arena.admin, arena.ids["full_pages"])

    arena.await_true(lambda: arena.status("full_pages") == "PAUSED", 30, "PAUSED")
    assert [row["status"] for row in arena.sql("SELECT status FROM etl.etl_runs")] == ["PAUSED"]
    assert arena.sql("SELECT rows FROM etl.etl_state")[0]["rows"] == 200
    arena.request("full_pages")
    arena.await_quiet()
    assert arena.violations() == []


@pytest.mark.chaos
@pytest.mark.timeout(300)
def test_a_pause_survives_the_runner_that_should_have_performed_it(make_arena: MakeArena) -> None:
    arena = make_arena()
    arena.prepare(["full_pages"])
    arena.start_runners(2)
    arena.hold("full_pages", "batch.filled", 2)
    pipelines.request_pause(arena.admin, arena.ids["full_pages"])
    [runner] = [runner for runner in arena.runners if runner.process.pid == arena.victim]
    runner.process.kill()

    arena.await_true(lambda: arena.status("full_pages") == "PAUSED", PATIENCE_SECONDS, "PAUSED")
    arena.disarm()
    arena.request("full_pages")
    arena.await_quiet()
    assert arena.violations() == []
