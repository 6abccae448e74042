"""Define fixtures of the chaos tests: an arena on the session's server."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.chaos.arena import Arena, Stuck
from vitrina.settings import Settings

# `make chaos` sets it; without it each test runs its short version.
LONG = os.environ.get("VITRINA_CHAOS") == "long"

MakeArena = Callable[..., Arena]


def say(figures: str) -> None:
    """Print figures for pytest with -s, as `make chaos` runs it."""
    sys.stdout.write(f"\n{figures}\n")


def findings(scenario: Callable[[], list[str]]) -> list[str]:
    """Return what a scenario found; not coming to its end is a finding too."""
    try:
        return scenario()
    except Stuck as stuck:
        return [str(stuck)]


@pytest.fixture
def make_arena(database: Settings, tmp_path: Path) -> Iterator[MakeArena]:
    with ExitStack() as arenas:
        yield lambda **options: arenas.enter_context(Arena(database, tmp_path, **options))
