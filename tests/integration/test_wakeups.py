"""A runner looks once for each notification, and misses no request: it polls once per hour here."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina.runner.manager import PipelineManager
from vitrina.store import leases
from vitrina.store.database import Connection
from vitrina.store.leases import Waiting

LOOK = leases.look


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    workbench.source("CREATE TABLE content.films (id int PRIMARY KEY); INSERT INTO content.films VALUES (1)")
    for name in ("first", "second", "third"):
        workbench.pipeline(name, "SELECT id FROM content.films", target_table=f"analytics.{name}", target_key=["id"])
    return workbench


@contextmanager
def runner(bench: Workbench, **settings: Any) -> Iterator[PipelineManager]:
    manager = PipelineManager(bench.settings.model_copy(update={"poll_seconds": 3600.0} | settings))
    thread = threading.Thread(target=manager.run_forever)
    thread.start()
    try:
        yield manager
    finally:
        manager.stop()
        thread.join(timeout=60)
        manager._wakeup_recv.close()
        manager._wakeup_send.close()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Waiting]:
    """Collect what the runner saw each time it looked."""
    found: list[Waiting] = []

    def look(connection: Connection, **more: Any) -> Waiting:
        found.append(LOOK(connection, **more))
        return found[-1]

    monkeypatch.setattr(leases, "look", look)
    return found


def succeeded(bench: Workbench) -> list[str]:
    rows = bench.sql(
        "SELECT p.name FROM etl.etl_runs r JOIN etl.etl_pipelines p ON p.id = r.pipeline_id"
        " WHERE r.status = 'SUCCESS' ORDER BY r.started_at"
    )
    return [row["name"] for row in rows]


def has_ended(bench: Workbench, runs: int) -> bool:
    return len(succeeded(bench)) == runs


def test_a_request_costs_one_look_and_the_end_of_its_run_none(bench: Workbench, looks: list[Waiting]) -> None:
    with runner(bench) as manager:
        until(lambda: len(looks) == 2)  # of the first tick
        looks.clear()
        for ended in range(1, 4):
            bench.request("first")
            until(partial(has_ended, bench, ended))
            until(lambda: not manager._claims)
    assert [found.runs for found in looks] == [1, 1, 1]


def test_a_request_that_arrives_during_a_tick_is_claimed(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time, the runner has looked already."""
    asked = iter(["second", "third"])

    def look(connection: Connection, **more: Any) -> Waiting:
        found = LOOK(connection, **more)
        if found.runs and (name := next(asked, None)):
            bench.request(name)
        return found

    monkeypatch.setattr(leases, "look", look)
    with runner(bench):
        bench.request("first")
        until(lambda: sorted(succeeded(bench)) == ["first", "second", "third"])


def test_a_run_that_ends_wakes_the_runner_for_those_that_wait_for_its_slot(bench: Workbench) -> None:
    with runner(bench, concurrency=1):
        for name in ("first", "second", "third"):
            bench.request(name)
        until(lambda: sorted(succeeded(bench)) == ["first", "second", "third"])


def test_many_requests_are_claimed_at_one_look(bench: Workbench, looks: list[Waiting]) -> None:
    with bench.metastore.transaction():
        for name in ("first", "second", "third"):
            bench.request(name)
    with runner(bench, concurrency=3):
        until(lambda: len(succeeded(bench)) == 3)
    assert looks[0].runs == 3


def test_a_count_is_limited(bench: Workbench) -> None:
    for name in ("first", "second", "third"):
        bench.request(name)
    assert leases.look(bench.metastore, count_to=2).runs == 2
    assert leases.look(bench.metastore, count_to=5).runs == 3
