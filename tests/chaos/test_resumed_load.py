"""Kill the runner of one large load repeatedly: it resumes where it was, and is published once."""

import random

import pytest

from tests.chaos.arena import PATIENCE_SECONDS, Arena
from tests.chaos.conftest import LONG, MakeArena, say
from vitrina.definition import Definition
from vitrina.store import pipelines

ROWS = 1_000_000 if LONG else 6_000
KILLS = 20 if LONG else 3
BATCH_ROWS = ROWS // 100
# Late enough that each attempt gets a batch further: batch n + 2 is filled only when n has been counted.
POINTS = (("batch.filled", 3), ("batch.filled", 4), ("batch.fenced", 2), ("batch.fenced", 3), ("batch.committed", 2))
# Chunks that Postgres cuts, and one stream that is resumed.
ROUTES = {"pages": {"checkpoint_rows": BATCH_ROWS}, "stream": {"route": "copy", "checkpoint_rows": BATCH_ROWS}}


@pytest.mark.chaos
@pytest.mark.timeout(1800 if LONG else 300)
@pytest.mark.parametrize("kind", ROUTES if LONG else ["stream"])
def test_a_load_that_is_killed_again_and_again_is_published_once(make_arena: MakeArena, kind: str) -> None:
    # Only killed runners lose their lease: each loss is a recorded run, and they are counted below.
    arena = make_arena(lease_seconds=60.0)
    _prepare(arena, kind)
    arena.start_runners(1)
    chance = random.Random(11)
    _arm(arena, chance)
    arena.request(kind)
    for kills_left in reversed(range(KILLS)):
        arena.await_true(lambda: arena.fired, PATIENCE_SECONDS, "a kill")
        arena.runners[0].process.wait()
        if kills_left:
            _arm(arena, chance)
        arena.expire_leases()
        arena.replace_dead()
    arena.await_quiet()

    runs = arena.sql("SELECT status, rows_read, batches, metrics FROM etl.etl_runs ORDER BY started_at")
    assert [run["status"] for run in runs] == ["FAILED"] * KILLS + ["SUCCESS"]
    # Each batch was counted once, by the run that read it, and the next run began after it.
    assert sum(run["rows_read"] for run in runs) == ROWS
    taken_up = [run["metrics"]["continued"][0]["rows"] for run in runs[1:]]
    assert taken_up == [sum(run["rows_read"] for run in runs[: i + 1]) for i in range(KILLS)]
    [mart] = arena.sql(
        f"SELECT count(*) AS rows, sum(id) AS sum, count(DISTINCT xmin::text) AS publishes FROM analytics.{kind}"
    )
    assert mart == {"rows": ROWS, "sum": ROWS * (ROWS + 1) // 2, "publishes": 1}
    say(f"{ROWS} rows, {kind}: killed {KILLS} times, taken up after {taken_up} rows")


def _arm(arena: Arena, chance: random.Random) -> None:
    """Arm the failpoints before any runner starts: the load must not finish first."""
    point, count = chance.choice(POINTS)
    arena.arm(point, "kill", count)


def _prepare(arena: Arena, kind: str) -> None:
    arena.sql(
        f"CREATE TABLE content.item AS SELECT i AS id, 'Item ' || i AS title FROM generate_series(1, {ROWS}) AS i"
    )
    arena.sql("ALTER TABLE content.item ADD PRIMARY KEY (id); GRANT SELECT ON content.item TO vitrina_reader")
    arena.sql("ANALYZE content.item")
    definition = Definition.model_validate(
        {
            "name": kind,
            "source_query": "SELECT id, title FROM content.item",
            "target_table": f"analytics.{kind}",
            "target_key": ["id"],
            "batch_size": BATCH_ROWS,
            "options": ROUTES[kind],
        }
    )
    arena.ids[kind] = pipelines.insert(arena.admin, definition, pipeline_id=None, managed_by=None)
