"""Test the verdict of the soak: an hour is too long to find out that it would not have noticed."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos import gil
from tests.chaos.arena import ROOT
from tests.chaos.soak import Sample, _judge, _judge_held

# Measurements between runs and in the middle of them.
STEADY = [Sample(450.0, 5 + (i % 7) * 2, 3.0, 0.1) for i in range(360)]


def test_steady_work_is_steady() -> None:
    assert _judge(STEADY, resting=5) == []
    assert _judge(STEADY[:1], resting=5) == ["too short to tell: give it more --minutes"]


@pytest.mark.parametrize(
    ("field", "growth", "told"),
    [
        ("megabytes", 0.5, "megabytes grew from 508.2 to 589.2"),
        ("connections", 0.01, "connections at rest grew from 5 to 7"),
        ("lag_seconds", 0.1, "a change waited 38.9 s for its mart"),
    ],
)
def test_what_grows_is_noticed(field: str, growth: float, told: str) -> None:
    grown = [
        Sample(**{**vars(sample), field: getattr(sample, field) + type(getattr(sample, field))(i * growth)})
        for i, sample in enumerate(STEADY)
    ]
    assert told in _judge(grown, resting=9)


def test_a_machine_that_never_rests_is_no_leak() -> None:
    busy = [Sample(450.0, 17 + 4 * (i >= 180), 3.0, 0.1) for i in range(360)]
    assert _judge(busy, resting=13) == []
    assert _judge(busy, resting=20) == ["connections at rest grew from 17 to 20"]


def test_a_lock_that_is_held_for_long_is_noticed_and_a_processor_that_is_not_free_is_not_blamed() -> None:
    assert gil.held_seconds(2.05, {"1": 4.0, "2": 1.0}, {"1": 4.0, "2": 1.0}) == pytest.approx(2.0)
    assert gil.held_seconds(2.05, {"1": 4.0, "2": 1.0}, {"1": 4.0, "2": 2.5}) == pytest.approx(0.5)
    assert gil.held_seconds(2.05, {"1": 4.0, "cpu0": 1.0}, {"1": 4.5, "cpu0": 1.25}) == pytest.approx(1.25)
    assert gil.held_seconds(0.05, {}, {"3": 0.2}) == 0.0
    assert _judge_held({7: 0.9}, "") == []
    assert _judge_held({7: 1.2}, "in json") == ["runner 7 could run no other Python for 1.2 s: in json"]
    assert _judge_held({}, "") == ["no runner told for how long it could run no Python"]


def test_a_process_reports_how_long_its_lock_was_held(tmp_path: Path) -> None:
    """Hold the lock with one expression; the watching thread runs before and after it."""
    program = """
import sys, re, time
from pathlib import Path
from tests.chaos import gil
gil.watch(Path(sys.argv[1]))
while not gil.longest(Path(sys.argv[1])):
    time.sleep(0.01)
while max(gil.longest(Path(sys.argv[1])).values()) <= 0.05:
    re.match("(a+)+$", "a" * 24 + "b")
    time.sleep(0.01)
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, cwd=ROOT, timeout=120)
    assert max(gil.longest(tmp_path).values()) > 0.05
