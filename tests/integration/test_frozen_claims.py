"""A runner that stands still in the middle of a claim: its row is locked, and let go when its lease would be over."""

import threading
from typing import Any
from uuid import uuid4

import pytest

from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina.runner.manager import PipelineManager
from vitrina.store import leases


def test_another_runner_takes_the_pipeline(workbench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = PipelineManager(workbench.settings.model_copy(update={"lease_ttl_seconds": 1.0}))
    frozen = threading.Thread(target=manager.run_forever)
    lock_next, stands_still, goes_on = leases._lock_next, threading.Event(), threading.Event()

    def lock_and_stand_still(*values: Any, **more: Any) -> dict[str, Any] | None:
        found = lock_next(*values, **more)
        if found and threading.current_thread() is frozen:
            stands_still.set()
            goes_on.wait(120)
        return found

    monkeypatch.setattr(leases, "_lock_next", lock_and_stand_still)
    workbench.pipeline("films", "SELECT 1 AS id", target_key=["id"])
    workbench.request("films")
    frozen.start()
    try:
        assert stands_still.wait(60)
        until(lambda: leases.claim_next(workbench.metastore, uuid4(), 30) is not None)
    finally:
        manager.stop()
        goes_on.set()
        frozen.join(timeout=60)
        manager._wakeup_recv.close()
        manager._wakeup_send.close()
