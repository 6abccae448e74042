"""Interrupt a run from outside: lost lease, requested pause, shutdown of the process."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import psycopg

from vitrina.errors import LeaseLost, RunError
from vitrina.ports.batch import Endable
from vitrina.store.database import Connection, sqlstate_of
from vitrina.store.leases import Claim
from vitrina.store.sessions import SessionHandle

_STEP_SECONDS = 0.2
_CANCEL_SECONDS = 2.0
_CANCELLED = psycopg.errors.QueryCanceled.sqlstate


class Stopping(RunError):
    """Signal that the runner is shutting down: the run stops at the batch boundary and releases the lease."""

    code = "stopping"


class Paused(Exception):
    """Signal that a pause was requested and the run is at a point from which it can be resumed."""


def clock() -> float:
    """Return seconds, including time during which the process is stopped or the machine sleeps.

    Changes of the wall clock do not affect it.
    """
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class RunControl:
    """Connect one claim with the rest of the runner. The heartbeat moves the deadline; the run checks it."""

    def __init__(self, ttl_seconds: float, shutdown: threading.Event, *, claimed_at: float | None = None) -> None:
        self._ttl = ttl_seconds
        self._shutdown = shutdown
        self._lost = threading.Event()
        self._handles: list[SessionHandle] = []
        self._handles_lock = threading.Lock()
        self._workers: list[Endable] = []
        # How long a session may wait for an answer. The run sets it, because each pipeline has its own timeouts.
        self.silence_limit_seconds = math.inf
        # Updated by the manager. A run in batches queries the pause itself, at the end of each.
        self.pause_asked = False
        self._in_one_statement = False
        self.extended(clock() if claimed_at is None else claimed_at)

    def extended(self, asked_at: float) -> None:
        """Move the deadline after the lease was confirmed.

        It counts from when the request was sent, because the reply may have been delayed.
        """
        self._deadline = asked_at + self._ttl

    def lose(self) -> None:
        self._lost.set()

    @property
    def is_lost(self) -> bool:
        """Return whether the metastore has reported that the claim is no longer held."""
        return self._lost.is_set()

    @property
    def lease_is_over(self) -> bool:
        return self._lost.is_set() or clock() > self._deadline

    def check(self) -> None:
        """Check the lease, between batches and before anything that cannot be undone."""
        self.require_lease()
        if self._shutdown.is_set():
            raise Stopping("the runner is shutting down")

    def require_lease(self) -> None:
        """Refuse to continue without the lease; called immediately before a COMMIT."""
        if self.lease_is_over:
            raise LeaseLost("the lease was not confirmed in time; leaving the pipeline to others")

    def wait(self, seconds: float, pause_asked: Callable[[], bool] = lambda: False) -> None:
        """Sleep, unless the run is interrupted."""
        end = clock() + seconds
        while (left := end - clock()) > 0:
            self.check()
            if pause_asked():
                raise Paused
            self._shutdown.wait(min(left, _STEP_SECONDS))

    @property
    def is_interrupted(self) -> bool:
        """Return whether a pause has to cancel the running statement, because no batch boundary will come."""
        return self.pause_asked and self._in_one_statement

    @contextmanager
    def one_statement(self) -> Iterator[None]:
        """Mark a section without batch boundaries. A pause ends it, and the next run repeats it."""
        self._in_one_statement = True
        try:
            yield
        except (RunError, psycopg.errors.QueryCanceled) as exc:
            if self.pause_asked and sqlstate_of(exc) == _CANCELLED:
                raise Paused from exc
            raise
        finally:
            self._in_one_statement = False

    def guard(self, connection: Connection) -> Connection:
        """End the connection when the lease ends, even in the middle of a statement."""
        with self._handles_lock:
            self._handles.append(SessionHandle(connection))
        return connection

    def let_go(self, connection: Connection) -> bool:
        """Release a session of the run.

        Return False if the lease is over, or the session was cancelled or cut with it.
        """
        with self._handles_lock:
            handles = [handle for handle in self._handles if handle.connection is connection]
            self._handles = [handle for handle in self._handles if handle.connection is not connection]
        # Close every handle, even after one of them returned False.
        undisturbed = [handle.close() for handle in handles]
        return all(undisturbed) and not self.lease_is_over

    def attach(self, workers: Endable) -> None:
        """End the run's Python steps when the lease ends, even in the middle of one."""
        with self._handles_lock:
            self._workers.append(workers)

    def release(self) -> None:
        """Forget the run's sessions, which are closed by now."""
        with self._handles_lock:
            handles, self._handles = self._handles, []
            self._workers = []
        for handle in handles:
            handle.close()

    @property
    def handles(self) -> list[SessionHandle]:
        with self._handles_lock:
            return list(self._handles)

    def cancel(self) -> None:
        """Ask the servers to cancel running statements; the watchdog cuts off a server that does not react."""
        for handle in self.handles:
            handle.cancel(_CANCEL_SECONDS)

    def cut(self) -> None:
        self.end_workers()
        for handle in self.handles:
            handle.cut()

    def end_workers(self) -> None:
        """End the processes of steps, which do not check the lease themselves."""
        with self._handles_lock:
            workers = list(self._workers)
        for worker in workers:
            worker.close()


# Keeps the lease of a claim alive during the block.
Hold = Callable[[Claim, float], AbstractContextManager[RunControl]]
