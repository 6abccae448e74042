"""Kill runners of diamonds of pipelines: whatever runs after others runs exactly once for every wave."""

import random
from collections import Counter
from collections.abc import Callable

import pytest

from tests.chaos.arena import PATIENCE_SECONDS, Arena
from tests.chaos.conftest import LONG, MakeArena, findings, say

RUNNERS = 5
DIAMONDS, WAVES = (4, 25) if LONG else (2, 5)
# Where a runner is killed: before, within and after what counts.
POINTS = ("claim.taken", "run.seized", "run.planned", "publish.committed", "run.concluding", "run.concluded")
# Long, so that no runner loses a lease on a busy machine and runs a pipeline twice; dead ones lose theirs immediately.
LEASE_SECONDS = 60.0
QUERY = "SELECT id, version FROM content.item"


@pytest.mark.chaos
@pytest.mark.timeout(1800 if LONG else 300)
def test_every_pipeline_of_a_diamond_runs_once_per_wave(make_arena: MakeArena) -> None:
    chance = random.Random(25)
    arena = make_arena(lease_seconds=LEASE_SECONDS)
    tops = [prepare_diamond(arena, n) for n in range(DIAMONDS)]
    arena.start_runners(RUNNERS)
    for number in range(WAVES):
        for _ in range(2):
            arena.arm(chance.choice(POINTS), "kill", chance.randint(1, 3 * DIAMONDS))
        assert wave(arena, tops) == [], f"wave {number}"
    say(f"{DIAMONDS * WAVES} diamonds, {len(arena.ended)} runners killed: every pipeline ran once per wave")
    assert arena.ended, "no runner was killed"


def wave(arena: Arena, tops: list[str]) -> list[str]:
    """Run each top and everything that follows from it. Return what did not run exactly once."""
    before = successes(arena)
    arena.change_source()
    arena.request(*tops)
    arena.await_true(lambda: is_at_rest(arena), PATIENCE_SECONDS, "the wave has come to rest")
    arena.disarm()
    ran = successes(arena) - before
    return [f"{name} ran {ran[name]} times, {outcome(arena, name)}" for name in arena.ids if ran[name] != 1]


def outcome(arena: Arena, name: str) -> str:
    """Describe how the pipeline and its runs ended, for the message of a failure."""
    runs = arena.sql(
        f"""
        SELECT p.status AS now, r.status, r.trigger, r.error_code, left(r.error_message, 200) AS error
        FROM etl.etl_pipelines p LEFT JOIN etl.etl_runs r ON r.pipeline_id = p.id
        WHERE p.name = '{name}' ORDER BY r.started_at
        """
    )
    return str([tuple(run.values()) for run in runs])


def prepare_diamond(arena: Arena, number: int) -> str:
    top, left, right, mart = (f"{name}_{number}" for name in ("top", "left", "right", "mart"))
    for name, upstreams in ((top, []), (left, [top]), (right, [top]), (mart, [left, right])):
        fields = {"source_query": QUERY, "target_table": f"analytics.{name}", "target_key": ["id"]}
        arena.prepare_pipeline(name, {**fields, "run_after": upstreams})
    return top


def is_at_rest(arena: Arena) -> bool:
    arena.replace_dead()
    expire_leases_of_the_dead(arena)
    [found] = arena.sql(
        """
        SELECT count(*) FILTER (WHERE p.status NOT IN ('IDLE', 'FAILED')) AS at_work,
               count(*) FILTER (WHERE w.ready) AS ready
        FROM etl.etl_pipelines p
        LEFT JOIN (SELECT downstream_id, bool_and(arrived_run_id IS NOT NULL) AS ready
                   FROM etl.etl_run_after GROUP BY 1) w ON w.downstream_id = p.id
        """
    )
    return (found["at_work"], found["ready"]) == (0, 0)


def expire_leases_of_the_dead(arena: Arena) -> None:
    dead = ", ".join(str(runner.process.pid) for runner in arena.ended)
    if dead:
        arena.sql(
            f"""
            UPDATE etl.etl_pipelines SET lease_until = clock_timestamp()
            WHERE lease_until > clock_timestamp()
              AND runner_id IN (SELECT id FROM etl.etl_runners WHERE pid IN ({dead}))
            """
        )


def successes(arena: Arena) -> Counter[str]:
    """Count runs that a wave requested.

    Runs after a continued load are left out: a runner that dies after it has prepared a stage, and before it has
    recorded which request that answers, leaves a load that is continued and then one run that finds nothing new.
    """
    return Counter(
        row["name"]
        for row in arena.sql(
            "SELECT p.name FROM etl.etl_runs r JOIN etl.etl_pipelines p ON p.id = r.pipeline_id"
            " WHERE r.status = 'SUCCESS' AND r.trigger <> 'follow-up'"
        )
    )


def a_runner_dies_before_its_run_is_concluded(arena: Arena) -> list[str]:
    top = prepare_diamond(arena, 0)
    arena.start_runners(1)
    arena.arm("run.concluding", "kill")
    return wave(arena, [top])


def what_has_arrived_twice(arena: Arena) -> list[str]:
    top = prepare_diamond(arena, 0)
    arena.start_runners(1)
    first = wave(arena, [top])
    arena.request("left_0")
    arena.await_true(lambda: is_at_rest(arena), PATIENCE_SECONDS, "the wave has come to rest")
    left_alone = successes(arena)["mart_0"]
    return [*first, *([f"mart_0 ran {left_alone} times"] if left_alone != 1 else [])]


SCENARIOS: dict[str, Callable[[Arena], list[str]]] = {
    "wave_early": a_runner_dies_before_its_run_is_concluded,
    "wave_unused": what_has_arrived_twice,
}


@pytest.mark.chaos
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", SCENARIOS if LONG else ("wave_early",))
def test_a_missing_protection_is_found(make_arena: MakeArena, mutant: str) -> None:
    found = findings(lambda: SCENARIOS[mutant](make_arena(mutants=[mutant], lease_seconds=LEASE_SECONDS)))
    say(f"{mutant}: {found}")
    assert found


@pytest.mark.chaos
@pytest.mark.timeout(300)
@pytest.mark.takes_long  # the diamonds above show it in the short version
@pytest.mark.parametrize("scenario", SCENARIOS.values())
def test_with_every_protection_in_place_nothing_is_found(
    make_arena: MakeArena, scenario: Callable[[Arena], list[str]]
) -> None:
    assert scenario(make_arena(lease_seconds=LEASE_SECONDS)) == []
