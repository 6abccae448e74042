"""`cancel` ends a run in the middle of its query: the session on the server too, not only the bookkeeping."""

import threading
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from tests.support.workbench import Workbench
from vitrina.runner.manager import PipelineManager
from vitrina.services import pipelines as service
from vitrina.services.callers import Caller, Role
from vitrina.store import leases

OPERATOR = Caller("ann", Role.OPERATOR)
# Nothing in it is forbidden; it merely takes hours.
ENDLESS = "SELECT count(*) AS id FROM generate_series(1, 1000000) AS a, generate_series(1, 1000000) AS b"
PATIENCE_SECONDS = 60.0


@pytest.fixture
def runner(workbench: Workbench) -> Iterator[PipelineManager]:
    manager = PipelineManager(workbench.settings.model_copy(update={"poll_seconds": 30.0}))
    thread = threading.Thread(target=manager.run_forever)
    thread.start()
    yield manager
    manager.stop()
    thread.join(timeout=60)
    manager._wakeup_recv.close()
    manager._wakeup_send.close()


def busy_sessions(bench: Workbench) -> int:
    [row] = bench.sql(
        "SELECT count(*) AS sessions FROM pg_stat_activity"
        " WHERE usename = 'vitrina_reader' AND state = 'active' AND query LIKE '%generate_series%'"
    )
    return int(row["sessions"])


def wait_until(holds: Any) -> float:
    started = time.monotonic()
    while not holds():
        assert time.monotonic() - started < PATIENCE_SECONDS
        time.sleep(0.05)
    return time.monotonic() - started


@pytest.mark.parametrize("route", ["auto", "copy", "arrow"])
def test_a_query_at_work_ends_on_the_server(workbench: Workbench, runner: PipelineManager, route: str) -> None:
    workbench.pipeline("endless", ENDLESS, target_key=["id"], options={"route": route})
    workbench.request("endless")
    wait_until(lambda: busy_sessions(workbench) > 0)

    row = service.cancel(workbench.metastore, OPERATOR, "endless")

    assert row["status"] == "IDLE"
    wait_until(lambda: busy_sessions(workbench) == 0)
    run = workbench.last_run("endless")
    assert (run["status"], run["error_code"]) == ("CANCELLED", "cancelled")
    assert "ann" in run["error_message"]
    assert workbench.status("endless") == "IDLE"


def test_a_source_takes_only_so_many_runs_at_a_time(workbench: Workbench) -> None:
    for name in ("one", "two", "three"):
        workbench.pipeline(name, "SELECT 1 AS id", target_key=["id"])
        workbench.request(name)

    def claim() -> leases.Claim | None:
        return leases.claim_next(workbench.metastore, uuid4(), 30, per_source=2)

    first, second = claim(), claim()
    assert first
    assert second
    assert claim() is None
    leases.conclude_run(workbench.metastore, first)
    third = claim()
    assert third
    assert {first.name, second.name, third.name} == {"one", "two", "three"}
