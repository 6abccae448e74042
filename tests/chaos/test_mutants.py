"""Test the fault tests themselves: with a protection removed, the same scenario must fail."""

from collections.abc import Callable

import pytest

from tests.chaos import mutants
from tests.chaos.arena import Arena
from tests.chaos.conftest import LONG, MakeArena, findings, say


def a_late_runner_wakes_up(arena: Arena) -> list[str]:
    """Wake a runner that does not notice it is late and whose sessions are open: only the fence is left."""
    arena.mutants = ["blind", *arena.mutants]
    arena.prepare(["inc_pages"])
    arena.start_runners(2)
    arena.request("inc_pages")
    arena.await_quiet()
    arena.strike("inc_pages", "run.planned", "stop")
    return arena.violations()


def a_runner_dies_after_a_commit(arena: Arena) -> list[str]:
    arena.prepare(["inc_pages"])
    arena.start_runners(2)
    arena.request("inc_pages")
    arena.await_quiet()
    arena.strike("inc_pages", "batch.committed", "kill", 2)
    return arena.violations()


def a_run_outlasts_its_lease(arena: Arena) -> list[str]:
    arena.lease_seconds = 2.0
    arena.prepare(["full_once"], seconds_per_row=0.015)
    arena.start_runners(2)
    arena.request("full_once")
    arena.await_quiet()
    taken = arena.takeovers()
    return [*arena.violations(), *([f"{taken} runs were taken from a healthy runner"] if taken else [])]


SCENARIOS: dict[str, Callable[[Arena], list[str]]] = {
    "fence_off": a_late_runner_wakes_up,
    "checkpoint_apart": a_runner_dies_after_a_commit,
    "lease_ignored": a_run_outlasts_its_lease,
    "heartbeat_never": a_run_outlasts_its_lease,
}


@pytest.mark.chaos
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", mutants.NAMES if LONG else ("fence_off",))
def test_a_missing_protection_is_found(make_arena: MakeArena, mutant: str) -> None:
    found = findings(lambda: SCENARIOS[mutant](make_arena(mutants=[mutant])))
    say(f"{mutant}: {found}")
    assert found


@pytest.mark.chaos
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "scenario",
    [a_late_runner_wakes_up, *((a_runner_dies_after_a_commit, a_run_outlasts_its_lease) if LONG else ())],
)
def test_with_every_protection_in_place_nothing_is_found(
    make_arena: MakeArena, scenario: Callable[[Arena], list[str]]
) -> None:
    assert scenario(make_arena()) == []
