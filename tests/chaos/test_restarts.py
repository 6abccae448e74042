"""The database crashes again and again under load: runs resume by themselves, each time within 30 seconds."""

import random
import time
from pathlib import Path

import pytest

from tests.chaos.arena import Arena
from tests.chaos.conftest import LONG, say
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
def test_runs_resume_after_every_crash_of_the_database(tmp_path: Path) -> None:
    chance = random.Random(5)
    with TemporaryServer() as server:
        settings = settings_for(server, DATABASE)
        with database.connect(server.urls.admin, "vitrina:setup") as admin:
            admin.execute("CREATE SCHEMA content; CREATE SCHEMA ugc")
        migrate(settings)
        with Arena(settings, tmp_path, lease_seconds=2.0) as arena:
            arena.prepare(KINDS, seconds_per_row=0.002)
            arena.start_runners(2)
            took = [_crash_once(arena, server, chance.uniform(0.1, 1.5)) for _ in range(RESTARTS)]
            assert all(runner.process.poll() is None for runner in arena.runners), "a runner gave up"
            assert not arena.ended
    say(f"{RESTARTS} restarts in immediate mode; at rest again after {max(took):.1f} s at most")


def _crash_once(arena: Arena, server: TemporaryServer, after_seconds: float) -> float:
    """Returns the time from the server's return until every pipeline was done."""
    arena.change_source()
    arena.request(*KINDS)
    time.sleep(after_seconds)
    server.restart("immediate")
    back = time.monotonic()
    arena.reconnect()
    arena.await_quiet(LIMIT_SECONDS)
    took = time.monotonic() - back
    assert arena.violations() == []
    return took
