"""Crash the database repeatedly under load: runs resume by themselves, each time within 30 seconds."""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.chaos.arena import Arena
from tests.chaos.conftest import LONG, findings, say
from tests.conftest import settings_for
from vitrina.embedded.cluster import DATABASE
from vitrina.embedded.temporary import TemporaryServer
from vitrina.store import database
from vitrina.store.migrate import migrate

RESTARTS = 30 if LONG else 3
LIMIT_SECONDS = 30.0
KINDS = ("full_pages", "full_arrow", "inc_pages")


@pytest.mark.chaos
@pytest.mark.timeout(3600 if LONG else 300)
def test_runs_resume_after_every_crash_of_the_database(crashing: "Crashing") -> None:
    chance = random.Random(5)
    arena = crashing.arena
    arena.prepare(KINDS, seconds_per_row=0.002)
    arena.start_runners(2)
    took = [_crash_once(crashing, chance.uniform(0.1, 1.5)) for _ in range(RESTARTS)]
    assert all(runner.process.poll() is None for runner in arena.runners), "a runner gave up"
    assert not arena.ended
    say(f"{RESTARTS} restarts in immediate mode; at rest again after {max(took):.1f} s at most")


def _crash_once(crashing: "Crashing", after_seconds: float) -> float:
    """Return the time from the server's return until every pipeline was done."""
    arena = crashing.arena
    arena.change_source()
    arena.request(*KINDS)
    time.sleep(after_seconds)
    crashing.restart()
    back = time.monotonic()
    arena.await_quiet(LIMIT_SECONDS)
    took = time.monotonic() - back
    assert arena.violations() == []
    return took


def after_a_batch(crashing: "Crashing", kind: str) -> list[str]:
    """Crash the server when the second batch is committed and the runner knows nothing more."""
    arena = crashing.arena
    arena.change_source()
    arena.hold(kind, "batch.committed", 2)
    crashing.restart()
    arena.let_go()
    arena.await_quiet(LIMIT_SECONDS)
    arena.disarm()
    return arena.violations()


def in_a_publish_longer_than_the_lease(crashing: "Crashing", kind: str) -> list[str]:
    arena = crashing.arena
    arena.change_source()
    arena.request(kind)
    time.sleep(1.0)
    crashing.restart()
    arena.await_quiet(LIMIT_SECONDS)
    return arena.violations()


Scenario = Callable[["Crashing", str], list[str]]
SCENARIOS: dict[str, tuple[str, float, Scenario]] = {
    "disconnect_fatal": ("inc_pages", 0, after_a_batch),
    "stage_trusted": ("full_pages", 0, after_a_batch),
    "checkpoint_apart": ("inc_pages", 0, after_a_batch),
    "lease_ignored": ("full_once", 0.015, in_a_publish_longer_than_the_lease),
    "heartbeat_never": ("full_once", 0.015, in_a_publish_longer_than_the_lease),
}


@pytest.mark.chaos
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", SCENARIOS if LONG else ("stage_trusted",))
def test_a_missing_protection_is_found(crashing: "Crashing", mutant: str) -> None:
    kind, seconds_per_row, scenario = SCENARIOS[mutant]
    arena = crashing.arena
    # In the short version the test above has shown that the crash itself does no harm.
    arena.mutants = () if LONG else (mutant,)
    arena.prepare([kind], seconds_per_row=seconds_per_row)
    arena.start_runners(2 if seconds_per_row else 1)
    arena.request(kind)
    arena.await_quiet()
    if LONG:
        assert scenario(crashing, kind) == []
        arena.mutate(mutant)
    found = findings(lambda: scenario(crashing, kind))
    say(f"{mutant}: {found}")
    assert found


@dataclass
class Crashing:
    """Hold a server for this test only, which may crash without disturbing other tests."""

    server: TemporaryServer
    arena: Arena

    def restart(self) -> None:
        self.server.restart("immediate")
        self.arena.reconnect()


@pytest.fixture
def crashing(tmp_path: Path) -> Iterator[Crashing]:
    with TemporaryServer() as server:
        settings = settings_for(server, DATABASE)
        with database.connect(server.urls.admin, "vitrina:setup") as admin:
            admin.execute("CREATE SCHEMA content; CREATE SCHEMA ugc")
        migrate(settings)
        with Arena(settings, tmp_path, lease_seconds=2.0) as arena:
            yield Crashing(server, arena)
