"""Workers of the runner, without a database: their progress, their silence, and what is left if none can be started."""

import errno
import os
import resource
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.filling import ROWS, Handle
from tests.support.waiting import until
from vitrina.errors import TransientError
from vitrina.loads import local_pool
from vitrina.loads.local_pool import LocalPool
from vitrina.ports.ranges import KeyRange, Result, Task
from vitrina.settings import Settings


class Seen:
    """Keep what was reported of each attempt."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int]] = []

    def read(self, number: int, rows: int) -> None:
        self.rows.append((number, rows))

    def running(self, tasks: int) -> None:
        raise AssertionError("workers run all that is submitted")

    def sent(self) -> None:
        raise AssertionError("there is no cluster")


def task(name: str, number: int = 1) -> Task:
    return Task(KeyRange(None, (name,)), number, None, 100, 1000)


def open_descriptors() -> int:
    """Count what is open once no worker is left: results arrive before idle workers have ended."""
    until(lambda: not any(thread.name == "ranges" for thread in threading.enumerate()), seconds=30)
    return len(list(Path("/proc/self/fd").iterdir()))


def collected(pool: LocalPool, *tasks: Task) -> list[Result]:
    for one in tasks:
        pool.submit(one)
    return list(pool.results(lambda: False))


def test_rows_are_reported_before_a_range_is_done() -> None:
    seen = Seen()

    [found] = collected(LocalPool(Handle(), Settings(), 1, progress=seen), task("slow", 7))

    assert found.filled is not None
    assert len(seen.rows) >= 2
    assert {number for number, _ in seen.rows} == {7}
    assert 0 < sum(rows for _, rows in seen.rows) <= ROWS


def test_a_worker_that_stops_answering_is_killed_and_its_range_is_lost() -> None:
    pool = LocalPool(Handle(), Settings(), 1, silence_limit_seconds=3.0)
    pool.submit(task("silent"))
    until(lambda: bool(pool.pids), seconds=30)
    [pid] = pool.pids

    [found] = list(pool.results(lambda: False))

    assert found.is_lost
    assert "has not responded for 3 s" in str(found.error)
    until(lambda: not Path(f"/proc/{pid}").exists(), seconds=30)


def test_nothing_stays_open_if_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any) -> Any:
        raise OSError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(local_pool, "_spawn", refuse)
    monkeypatch.setattr(local_pool.templates, "fork", lambda *given: None)
    before = open_descriptors()

    found = collected(LocalPool(Handle(), Settings(), 2), *(task("range", number) for number in range(1, 9)))

    assert {type(result.error) for result in found} == {TransientError}
    assert "no process could be started" in str(found[0].error)
    assert open_descriptors() == before


@pytest.mark.parametrize("spare", range(6))
def test_nothing_stays_open_if_there_are_too_few_descriptors(spare: int) -> None:
    collected(LocalPool(Handle(), Settings(), 1), task("range"))  # imports what needs descriptors too
    before = open_descriptors()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    filling = os.dup(0)
    os.close(filling)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (filling + spare, hard))
        [found] = collected(LocalPool(Handle(), Settings(), 1), task("range", 2))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert isinstance(found.error, TransientError)
    assert "no process could be started" in str(found.error)
    assert open_descriptors() == before
