"""Explore all interleavings of two runners on one pipeline: nothing breaks, and every end can be continued."""

import pytest

from tests.chaos import mutants
from tests.chaos.conftest import LONG, say
from tests.chaos.explorer import Violation, World, explore
from tests.support.workbench import Workbench

BUDGET = {"expire": 2, "beat": 2, "crash": 2, "pause": 1} if LONG else {"expire": 1, "beat": 1, "crash": 1, "pause": 0}


@pytest.mark.chaos
@pytest.mark.timeout(7200 if LONG else 300)
def test_no_interleaving_breaks_a_promise(workbench: Workbench) -> None:
    world = World(workbench, budget=BUDGET)
    try:
        explored = explore(world, finish_every=1 if LONG else 5)
    finally:
        world.close()
    say(f"{explored}")
    assert explored.states > 100


@pytest.mark.chaos
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", mutants.NAMES)
def test_a_missing_protection_is_found(workbench: Workbench, mutant: str) -> None:
    world = World(workbench, budget={"expire": 1, "beat": 1, "crash": 1, "pause": 0})
    try:
        with mutants.applied(mutant), pytest.raises(Violation) as caught:
            explore(world, finish_every=5)
    finally:
        world.close()
    say(f"{mutant}: {caught.value}")
