"""A history under writers, late commits and lost runners: as of each run's snapshot the mart is the source then.

Runners are lost at failpoints here, in this process; `tests/chaos/test_history.py` kills real ones.
"""

import os
import random

import pytest

from tests.support import journal
from tests.support.workbench import Workbench
from vitrina import failpoints

LONG = os.environ.get("VITRINA_CHAOS") == "long"
SEEDS = range(10) if LONG else range(2)
RUNS = 100 if LONG else 8
# What the table is unique by, in turns: each seed tests both, one with full loads and one with incremental runs.
LAYOUTS = ("valid_from", "valid_to")

CRASHES = (
    "run.planned", "pass.begun", "load.begun", "batch.filled", "merge.applied", "batch.fenced", "batch.committed",
    "publish.applied", "publish.fenced", "publish.committed", "pass.fenced", "pass.ended",
)  # fmt: skip


def run_somehow(bench: Workbench, rng: random.Random) -> str:
    """Run to the end, with runners that are lost on the way; the snapshot's time."""
    bench.request("items")
    while rng.random() < 0.4:
        failpoints.configure(f"{rng.choice(CRASHES)}:crash:{rng.randint(1, 3)}")
        try:
            bench.perform(bench.claim())
        except failpoints.Crashed:
            bench.recover(max_attempts=100)
        else:
            bench.request("items")
        finally:
            failpoints.configure("")
    bench.perform(bench.claim())
    done = bench.last_run("items")
    assert done["status"] == "SUCCESS", done["error_message"]
    return str(done["metrics"]["snapshot_at"])


@pytest.mark.timeout(1800 if LONG else 300)
@pytest.mark.parametrize("mode", ["full", "incremental"])
@pytest.mark.parametrize("seed", SEEDS)
def test_as_of_each_snapshot_the_mart_is_the_source_then(workbench: Workbench, seed: int, mode: str) -> None:
    rng = random.Random(seed)
    unique_by = LAYOUTS[(seed + (mode == "incremental")) % 2]
    workbench.source(journal.SOURCE)
    workbench.sql("SET synchronous_commit = off")
    workbench.pipeline(
        "items",
        journal.QUERY,
        target_key=["id"],
        mode=mode,
        batch_size=rng.choice((3, 7, 50)),
        incremental_key="modified" if mode == "incremental" else None,
        incremental_id_key="id" if mode == "incremental" else None,
        options={
            "history": {"exclusion": rng.random() < 0.5, "unique_by": unique_by},
            "route": rng.choice(("auto", "copy", "arrow")),
            "checkpoint_rows": rng.choice((5, 10**6)),
            "allow_shrink": True,
            "cursor_clock": "database",
        },
    )
    snapshots: list[tuple[str, int]] = []
    with journal.Writers(journal.admin_url(workbench.settings), seed, deletes=mode == "full"):
        for _ in range(RUNS):
            moment = run_somehow(workbench, rng)
            [shown] = workbench.sql(journal.SHOWN)
            snapshots.append((moment, int(shown["note"])))
    journal.require_equal(workbench.admin, snapshots)
    assert len({number for _, number in snapshots}) > RUNS // 2, "nothing was written meanwhile"
    run_somehow(workbench, rng)
    [before] = workbench.sql("SELECT count(*) AS states FROM analytics.items")
    again = workbench.run("items")
    assert (again["status"], again["rows_written"], again["rows_deleted"]) == ("SUCCESS", 0, 0)
    assert workbench.sql("SELECT count(*) AS states FROM analytics.items") == [before]
