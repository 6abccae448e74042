"""Kill runners, stop them past their lease and make them fail at every failpoint: 0 lost, 0 doubled, 0 stuck."""

import itertools
import re
from collections import Counter
from pathlib import Path

import pytest

import vitrina
from tests.chaos.arena import KINDS
from tests.chaos.conftest import LONG, MakeArena, say
from vitrina import failpoints

ACTIONS = ("kill", "stop", "error")
EVERYWHERE = ("claim.taken", "run.seized", "run.planned", "run.concluding", "run.concluded")
OF_LOADS = ("load.fenced", "load.begun", "publish.applied", "publish.fenced", "publish.committed")
OF_PASSES = ("pass.begun", "merge.applied", "pass.fenced", "pass.ended")
OF_BATCHES = ("batch.filled", "batch.fenced", "batch.committed")

Fault = tuple[str, str, str, int]


def every_fault() -> list[Fault]:
    """List each point of each kind of pipeline with each action, and again at the second batch."""
    faults: list[Fault] = []
    for kind in KINDS:
        points = EVERYWHERE + OF_BATCHES + (OF_LOADS if kind.startswith("full") else OF_PASSES)
        faults += [(kind, point, action, 1) for point, action in itertools.product(points, ACTIONS)]
        if kind != "full_once":
            again = OF_BATCHES + (("merge.applied",) if kind.startswith("inc") else ())
            faults += [(kind, point, action, 2) for point, action in itertools.product(again, ACTIONS)]
    return faults


SHORT: list[Fault] = [
    ("full_pages", "batch.committed", "kill", 2),
    ("full_arrow", "publish.fenced", "stop", 1),
    ("full_copy", "batch.filled", "kill", 2),
    ("full_pages", "publish.committed", "stop", 1),
    ("inc_pages", "batch.fenced", "stop", 2),
    ("inc_steps", "batch.committed", "kill", 2),
    ("inc_pages", "claim.taken", "stop", 1),
    ("inc_arrow", "batch.filled", "error", 2),
    ("inc_copy", "batch.committed", "error", 1),
    ("inc_pages", "pass.ended", "error", 1),
    ("full_steps", "batch.filled", "kill", 2),
    ("inc_steps", "batch.fenced", "stop", 1),
]


def test_every_failpoint_is_part_of_the_plan() -> None:
    sources = Path(vitrina.__file__).parent.rglob("*.py")
    # A fence hits the points that it is created with.
    striking = re.compile(r'failpoints\.hit\("[^"]+"\)|\bpoints ?= ?\[.*')
    found = (place for path in sources for place in striking.findall(path.read_text()))
    labelled = {name for place in found for name in re.findall(r'"([a-z_]+\.[a-z_]+)"', place)}
    # Tested elsewhere: tests/clickhouse/test_kills.py, tests/live, tests/integration/test_schedules.py.
    of_live = {*failpoints.FEED_POINTS, *failpoints.LIVE_POINTS}
    elsewhere = {*failpoints.CLICKHOUSE_POINTS, *of_live, *failpoints.OTHER_POINTS}
    assert labelled - elsewhere == set(failpoints.POINTS)
    assert elsewhere < labelled
    assert {point for _, point, _, _ in every_fault()} == set(failpoints.POINTS)
    assert len(every_fault()) >= 200


def groups() -> dict[str, list[Fault]]:
    if not LONG:
        return {"some of each": SHORT}
    return {kind: [fault for fault in every_fault() if fault[0] == kind] for kind in KINDS}


@pytest.mark.chaos
@pytest.mark.timeout(3600 if LONG else 300)
@pytest.mark.parametrize("group", groups())
def test_no_fault_loses_or_doubles_a_row(make_arena: MakeArena, group: str) -> None:
    faults = groups()[group]
    arena = make_arena()
    arena.prepare(sorted({kind for kind, *_ in faults}))
    arena.start_runners(3)
    arena.request(*arena.ids)
    arena.await_quiet()

    for kind, point, action, count in faults:
        arena.strike(kind, point, action, count)
        assert arena.violations(kind) == [], (kind, point, action, count)
    arena.request(*arena.ids)
    arena.await_quiet()
    assert arena.violations() == []

    said, planned = arena.said(), Counter(action for _, _, action, _ in faults)
    say(f"{group}: {dict(planned)}; takeovers: {arena.takeovers()}; late runners refused: {refused(said)}")
    assert refused(said) >= planned["stop"] / 2


def refused(said: Counter[str]) -> int:
    """Count late runners that found their sessions ended or, if they had none, the fence closed."""
    return said["run.lease_lost"] + said["run.disconnected"]
