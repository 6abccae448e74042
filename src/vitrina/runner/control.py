"""What can interrupt a run from outside: the lease, the operator's pause, the process's own end."""

import threading
import time

from vitrina.errors import LeaseLost, RunError


class Stopping(RunError):
    """This runner is shutting down: leave at the batch boundary and give the lease back."""

    code = "stopping"


class RunControl:
    """One claim's line to the rest of the runner. The heartbeat moves the deadline; the run looks at it."""

    def __init__(self, ttl_seconds: float, shutdown: threading.Event) -> None:
        self._ttl = ttl_seconds
        self._shutdown = shutdown
        self._lost = threading.Event()
        self.extended()

    def extended(self) -> None:
        """The database confirmed the lease. Our own deadline is local and monotonic: no clock can fool it."""
        self._deadline = time.monotonic() + self._ttl

    def lose(self) -> None:
        self._lost.set()

    def check(self) -> None:
        """Called between batches and before anything that cannot be undone."""
        if self._lost.is_set() or time.monotonic() > self._deadline:
            raise LeaseLost("the lease was not confirmed in time; leaving the pipeline to others")
        if self._shutdown.is_set():
            raise Stopping("the runner is shutting down")

    def wait(self, seconds: float) -> None:
        """Sleep, unless the run is interrupted."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.check()
            self._shutdown.wait(min(left, 0.2))
