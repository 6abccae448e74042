"""A runner that is told to stop hears it wherever it is, also while its metastore is away."""

import threading

import pytest

from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina.errors import CannotConnect
from vitrina.runner.manager import PipelineManager


def test_it_waits_for_its_metastore_without_a_lock_that_a_signal_needs(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal's handler sets the event that ends everything, in the very thread that would be waiting for it."""
    manager = PipelineManager(workbench.settings.model_copy(update={"poll_seconds": 3600.0}))
    tries: list[str] = []

    def away(purpose: str, **_: object) -> None:
        tries.append(purpose)
        raise CannotConnect("the metastore is away")

    monkeypatch.setattr(manager, "_metastore", away)
    locked: list[float] = []
    monkeypatch.setattr(manager._shutdown, "wait", locked.append)
    looping = threading.Thread(target=manager._work_until_shutdown)
    looping.start()
    until(lambda: bool(tries))
    manager.stop()
    looping.join(60)

    assert not looping.is_alive()
    assert (tries, locked) == (["manager"], [])
    manager._wakeup_recv.close()
    manager._wakeup_send.close()
