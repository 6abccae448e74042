"""Kill, stop and crash all of the live path under load: marts end equal, and show no moment that never was.

The long form hits each failpoint of feed and follower, with kill -9 and with SIGSTOP, in an order that the seed
determines; crashes both servers, drops the slot and restarts the whole platform, for ten seeds.
"""

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psycopg
import pytest

from tests.chaos.conftest import LONG, say
from tests.chaos.live_world import PIPELINES, World, changing, moving, polling, world
from tests.live.marts import PATIENCE_SECONDS
from tests.support.waiting import until
from vitrina import failpoints

Strike = Callable[[World, random.Random], None]

# Reached with every change, by the owner of the feed and by followers.
FOLLOWING = (
    *("feed.copied", "feed.stored", "feed.confirmed"),
    *("live.gathered", "batch.filled", "merge.applied", "batch.fenced", "batch.committed"),
)
# Reached when another owner begins to read the log.
OWNING = ("feed.claimed", "feed.started", "feed.published")
# Reached when a full load is requested, which ends one run and begins the next.
LOADING = (
    *("run.concluding", "run.concluded", "claim.taken", "run.seized", "run.planned", "load.fenced", "load.begun"),
    *("publish.applied", "publish.fenced", "publish.committed", "pass.begun"),
)


def test_every_failpoint_of_the_live_path_is_struck() -> None:
    of_passes = {"pass.fenced", "pass.ended"}
    every = {*failpoints.POINTS, *failpoints.FEED_POINTS, *failpoints.LIVE_POINTS}
    assert {*FOLLOWING, *OWNING, *LOADING} == every - of_passes


def kill_at(point: str, world: World, chance: random.Random) -> None:
    world.process(_struck(world, chance, point, "kill")).wait(timeout=PATIENCE_SECONDS)


def stop_at(point: str, world: World, chance: random.Random) -> None:
    """Stop the process until another one has taken over everything that it held, then let it continue."""
    pid = _struck(world, chance, point, "stop")
    world.await_true("another runner has taken over", lambda: not world.held_by([pid]))
    world.await_quiet()
    os.kill(pid, signal.SIGCONT)


def _struck(world: World, chance: random.Random, point: str, action: str) -> int:
    fired = world.directory / "fired"
    fired.unlink(missing_ok=True)
    world.plan(f"{point}:{action}:{chance.randint(1, 5) if point in FOLLOWING else 1}")
    if point in OWNING:
        _kill_feed_owner(world)
        world.replace_dead()
    elif point in LOADING:
        world.request(chance.choice(list(PIPELINES)))
    until(fired.exists, seconds=PATIENCE_SECONDS)
    return int(fired.read_text())


def _kill_feed_owner(world: World) -> None:
    world.await_true("a runner owns the feed", lambda: world.feed_owner() is not None)
    owner = world.feed_owner()
    if owner:
        world.kill(owner)


def crash_source(world: World, chance: random.Random) -> None:
    world.source.restart("immediate")
    world.reconnect()


def crash_metastore(world: World, chance: random.Random) -> None:
    world.home.restart("immediate")
    world.reconnect()


def drop_slot(world: World, chance: random.Random) -> None:
    world.drop_feeds()
    world.await_true("there is a slot again", lambda: bool(world.slots()))


def restart_platform(world: World, chance: random.Random) -> None:
    world.kill_all()
    crash_metastore(world, chance)


CRASHES: dict[str, Strike] = {
    "source crashes": crash_source,
    "metastore crashes": crash_metastore,
    "slot is dropped": drop_slot,
    "platform restarts": restart_platform,
}
KILLS: dict[str, Strike] = {f"kill at {point}": partial(kill_at, point) for point in (*FOLLOWING, *OWNING, *LOADING)}
STOPS: dict[str, Strike] = {f"stop at {point}": partial(stop_at, point) for point in (*FOLLOWING, *OWNING, *LOADING)}
STRIKES = CRASHES | KILLS | STOPS
SHORT = ("kill at batch.fenced", "source crashes", "slot is dropped")


@pytest.mark.chaos
@pytest.mark.timeout(3600 if LONG else 300)
@pytest.mark.parametrize("seed", range(1, 11) if LONG else [1])
def test_marts_follow_whatever_dies(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    strikes = chance.sample(list(STRIKES), len(STRIKES)) if LONG else SHORT
    with world(tmp_path) as found, ExitStack() as clients:
        source, home = found.source.urls.admin, found.home.urls.admin
        application = [clients.enter_context(each) for each in (changing(source, seed), moving(source, seed))]
        reader = clients.enter_context(polling(home))
        for name in strikes:
            _strike(found, chance, name)
            problems = [text for client in (*application, reader) for text in client.problems]
            assert not problems, (name, problems, found.told())
        for client in application:
            client.__exit__()
        assert found.differences_at_rest() == {}
        assert not reader.problems
        assert reader.done > len(strikes)
        say(
            f"seed {seed}: {len(strikes)} strikes, {sum(c.done for c in application)} transactions, {reader.done} looks"
        )


def _strike(world: World, chance: random.Random, name: str) -> None:
    began = time.monotonic()
    try:
        STRIKES[name](world, chance)
        world.replace_dead()
        world.await_quiet()
        say(f"{name}: followed again after {time.monotonic() - began:.1f} s")
    except (AssertionError, psycopg.Error) as exc:
        raise AssertionError(f"{name}: {exc}; {world.told()}") from exc
