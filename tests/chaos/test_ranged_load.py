"""Kill workers and runners of a load in ranges of the key: each range counts once, and all are published."""

import random
from typing import Any

import pytest

from tests.chaos.arena import PATIENCE_SECONDS, Arena
from tests.chaos.conftest import LONG, MakeArena, say
from vitrina.definition import Definition
from vitrina.store import pipelines

ROWS = 1_000_000 if LONG else 6_000
KILLS = 30 if LONG else 4
WORKERS = 2
RANGE_ROWS = ROWS // 200 if LONG else ROWS // 20
# A worker dies when its rows are committed and it has not reported; a runner dies before a part counts, and after.
POINTS = {"worker": ("batch.filled",), "runner": ("batch.fenced", "batch.committed")}
STEP = {"order_index": 1, "task_type": "PYTHON", "body": "arena_drop"}
QUERY = "SELECT id, id AS version, 0 AS applied FROM content.item"
ROUTES: dict[str, dict[str, Any]] = {
    "copied": {"source_query": QUERY, "options": {"route": "copy"}},
    "stepped": {"tasks": [{"order_index": 0, "task_type": "SQL", "body": QUERY}, STEP], "options": {}},
}


@pytest.mark.chaos
@pytest.mark.timeout(3600 if LONG else 600)
@pytest.mark.parametrize("kind", ROUTES if LONG else ["copied"])
def test_workers_and_runners_that_are_killed_lose_and_double_nothing(make_arena: MakeArena, kind: str) -> None:
    arena = make_arena(lease_seconds=60.0)
    _prepare(arena, kind)
    chance = random.Random(7)
    victims = ["worker", "runner"] * (KILLS // 2)
    chance.shuffle(victims)
    arena.start_runners(1)
    _arm(arena, chance, victims[0])
    arena.request(kind)
    for place, victim in enumerate(victims):
        arena.await_true(lambda: arena.fired, PATIENCE_SECONDS, f"a {victim} was killed")
        if victim == "runner":
            arena.runners[0].process.wait()
        if victims[place + 1 :]:
            _arm(arena, chance, victims[place + 1])
        if victim == "runner":
            arena.expire_leases()
            arena.replace_dead()
    arena.await_quiet()

    kept = sum(1 for number in range(1, ROWS + 1) if kind == "copied" or number % 7)
    runs = arena.sql("SELECT status, rows_read, metrics FROM etl.etl_runs ORDER BY started_at")
    assert [run["status"] for run in runs] == ["FAILED"] * victims.count("runner") + ["SUCCESS"]
    # Each range was counted once, by the run that read it.
    assert sum(run["rows_read"] for run in runs) == ROWS
    [mart] = arena.sql(
        f"SELECT count(*) AS rows, count(DISTINCT id) AS ids, count(DISTINCT xmin::text) AS publishes"
        f" FROM analytics.{kind}"
    )
    assert mart == {"rows": kept, "ids": kept, "publishes": 1}
    # Besides the ranges of its workers, a runner loses one that it has collected and not counted yet.
    assert _attempts(arena) <= _ranges(arena) + victims.count("worker") + (WORKERS + 1) * victims.count("runner")
    say(f"{ROWS} rows, {kind}: {victims}, {_ranges(arena)} ranges in {_attempts(arena)} attempts")


def _attempts(arena: Arena) -> int:
    return len(_begun(arena))


def _ranges(arena: Arena) -> int:
    return len({event["range"] for event in _begun(arena)})


def _begun(arena: Arena) -> list[dict[str, Any]]:
    runners = [*arena.ended, *arena.runners]
    return [event for runner in runners for event in runner.events() if event["event"] == "range.begun"]


def _arm(arena: Arena, chance: random.Random, victim: str) -> None:
    arena.arm(chance.choice(POINTS[victim]), "kill", chance.randint(1, 2))


def _prepare(arena: Arena, kind: str) -> None:
    arena.sql(f"CREATE TABLE content.item AS SELECT i AS id FROM generate_series(1, {ROWS}) AS i")
    arena.sql("ALTER TABLE content.item ADD PRIMARY KEY (id); GRANT SELECT ON content.item TO vitrina_reader")
    arena.sql("ANALYZE content.item")
    fields = ROUTES[kind]
    options = fields["options"] | {"parallel": WORKERS, "checkpoint_rows": RANGE_ROWS}
    definition = Definition.model_validate(
        {"name": kind, "target_table": f"analytics.{kind}", "target_key": ["id"], **fields, "options": options}
    )
    arena.ids[kind] = pipelines.insert(arena.admin, definition, pipeline_id=None, managed_by=None)
