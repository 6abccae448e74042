"""Fill a history with runners that are killed: as of the snapshot of each run the mart equals the source then.

`VITRINA_CHAOS=long` makes a thousand runs for each of ten seeds, with full loads and with incremental runs. Writers
change the source all the time, and some of their transactions stay open during several runs.
"""

import os
import random
import signal
import time
from typing import Any

import pytest

from tests.chaos.arena import PATIENCE_SECONDS, Arena
from tests.chaos.conftest import LONG, MakeArena, say
from tests.support import journal
from vitrina.store import runs

SEEDS = range(10) if LONG else range(1)
RUNS = 1_000 if LONG else 5
# One run in this many loses its runner, alternately at a failpoint and at any moment.
ONE_KILL_IN = 20 if LONG else 5
KILLS = RUNS // ONE_KILL_IN
CHECKED_EVERY = 100
# What the table is unique by, in turns: each seed tests both, one with full loads and one with incremental runs.
LAYOUTS = ("valid_from", "valid_to")

EVERYWHERE = ("run.planned", "batch.filled")
POINTS = {
    "full": (*EVERYWHERE, "load.begun", "publish.applied", "publish.fenced", "publish.committed"),
    "incremental": (*EVERYWHERE, "pass.begun", "merge.applied", "batch.fenced", "batch.committed", "pass.fenced"),
}
CURSOR = {"incremental_key": "modified", "incremental_id_key": "id"}


@pytest.mark.chaos
@pytest.mark.timeout(7200 if LONG else 300)
@pytest.mark.parametrize("mode", ["full", "incremental"])
@pytest.mark.parametrize("seed", SEEDS)
def test_as_of_each_run_the_mart_is_the_source_then(make_arena: MakeArena, seed: int, mode: str) -> None:
    rng = random.Random(f"{seed}-{mode}")
    # Longer than a busy machine delays a runner: only killed runners lose their leases, and immediately.
    arena = make_arena(lease_seconds=20.0)
    prepare(arena, rng, mode, unique_by=LAYOUTS[(seed + (mode == "incremental")) % 2])
    snapshots: list[tuple[str, int]] = []
    url = journal.admin_url(arena.settings)
    with journal.Writers(url, seed, deletes=mode == "full", late=True, pause_seconds=0.1) as writers:
        for number in range(RUNS):
            if number % ONE_KILL_IN == 1:
                run_and_kill(arena, rng, None if number // ONE_KILL_IN % 2 else rng.choice(POINTS[mode]))
            else:
                run_to_its_end(arena)
            snapshots.append(latest(arena))
            writers.runs += 1
            if number % CHECKED_EVERY == CHECKED_EVERY - 1:
                journal.require_equal(arena.admin, snapshots)
                say(f"{mode}, seed {seed}: {number + 1} runs, as of each of them the mart is the source then")
    journal.require_equal(arena.admin, snapshots)
    killed = sum(runner.process.returncode == -signal.SIGKILL for runner in arena.ended)
    assert killed > KILLS // 2, "runners were to be killed"
    assert writers.late_commits > RUNS // 10, "transactions were to stay open while runs pass by"
    assert len({shown for _, shown in snapshots}) > RUNS // 2, "nothing was written meanwhile"
    require_kept_apart(arena)
    require_nothing_left_to_write(arena)
    [found] = arena.sql("SELECT count(*) AS states FROM analytics.items")
    say(f"{mode}, seed {seed}: {RUNS} runs, {killed} killed, {writers.late_commits} late, {found['states']} states")


def prepare(arena: Arena, rng: random.Random, mode: str, *, unique_by: str) -> None:
    arena.sql(journal.SOURCE)
    options = {
        "history": {"exclusion": True, "unique_by": unique_by},
        "route": rng.choice(("auto", "copy", "arrow")),
        "checkpoint_rows": rng.choice((15, 10**6)),
        "allow_shrink": True,
        "cursor_clock": "database",
    }
    fields: dict[str, Any] = {
        "source_query": journal.QUERY,
        "target_table": "analytics.items",
        "target_key": ["id"],
        "mode": mode,
        "batch_size": rng.choice((7, 20, 50)),
        "options": options,
    }
    arena.prepare_pipeline("items", fields | (CURSOR if mode == "incremental" else {}))
    arena.start_runners(2 if LONG else 1)


def run_to_its_end(arena: Arena) -> None:
    arena.request("items")
    arena.await_quiet()


def run_and_kill(arena: Arena, rng: random.Random, point: str | None) -> None:
    """Lose the runner at the failpoint, or at any moment; another one finishes the run."""
    if point:
        arena.arm(point, "kill")
    arena.request("items")
    if point is None:
        kill_owner(arena, rng)
    arena.await_true(lambda: is_lost(arena) or has_ended(arena), PATIENCE_SECONDS, "a runner lost")
    arena.expire_leases()
    arena.await_quiet()
    arena.disarm()


def is_lost(arena: Arena) -> bool:
    return any(runner.process.poll() is not None for runner in arena.runners)


def has_ended(arena: Arena) -> bool:
    return arena.status("items") in ("IDLE", "FAILED")


def kill_owner(arena: Arena, rng: random.Random) -> None:
    """Kill the runner of the pipeline, some time after it claimed it: a run takes 0.02 to 0.5 seconds."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not owner(arena) and not has_ended(arena):
        assert time.monotonic() < end, "items were not claimed"
    time.sleep(rng.uniform(0, rng.choice((0.01, 0.1))))
    if victim := owner(arena):
        os.kill(victim, signal.SIGKILL)


def owner(arena: Arena) -> int | None:
    found = arena.sql(
        "SELECT r.pid FROM etl.etl_pipelines AS p JOIN etl.etl_runners AS r ON r.id = p.runner_id"
        " WHERE p.claim_id IS NOT NULL"
    )
    return found[0]["pid"] if found else None


def latest(arena: Arena) -> tuple[str, int]:
    """Return the time of the latest snapshot, and the number that it showed."""
    done = runs.find_current(arena.admin, arena.ids["items"])
    assert done is not None
    assert done["status"] == "SUCCESS", done["error_message"]
    [shown] = arena.sql(journal.SHOWN)
    return str(done["metrics"]["snapshot_at"]), int(shown["note"])


def require_kept_apart(arena: Arena) -> None:
    """Require that the server itself has refused overlapping states from the first run to the last."""
    found = arena.sql(
        "SELECT convalidated FROM pg_constraint WHERE conrelid = 'analytics.items'::regclass AND contype = 'x'"
    )
    assert found == [{"convalidated": True}]


def require_nothing_left_to_write(arena: Arena) -> None:
    run_to_its_end(arena)
    before = arena.sql("SELECT count(*) AS states FROM analytics.items")
    run_to_its_end(arena)
    done = runs.find_current(arena.admin, arena.ids["items"])
    assert done is not None
    assert (done["status"], done["rows_written"], done["rows_deleted"]) == ("SUCCESS", 0, 0)
    assert arena.sql("SELECT count(*) AS states FROM analytics.items") == before
