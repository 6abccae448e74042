"""Wait for what another process or thread is about to do."""

import time
from collections.abc import Callable


def until(true: Callable[[], bool], *, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.1)
