"""End sessions that outlive their lease, the drain, or their time limit for an answer.

A thread that waits for a server cannot check a clock. The kernel notices a peer that has vanished; this module notices
one that is there but never answers.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import structlog

from vitrina.loads.control import RunControl, clock
from vitrina.store.database import Connection
from vitrina.store.sessions import SessionHandle

INTERVAL_SECONDS = 0.25
# A runner's own statements take milliseconds, so a server that is silent for this long is taken to be down.
SILENCE_SECONDS = 10.0


def silence_limit(statement_timeout_seconds: float) -> float:
    """Return how many seconds a source or target may leave a statement unanswered; its own timeout is much shorter."""
    return 2 * statement_timeout_seconds + SILENCE_SECONDS


class SessionWatchdog:
    """Watch the sessions of a runner in one thread. `runs` returns the current runs."""

    def __init__(self, runs: Callable[[], Iterable[RunControl]]) -> None:
        self._runs = runs
        self._own: dict[SessionHandle, float] = {}
        self._busy_since: dict[SessionHandle, float] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._drain_until: float | None = None
        self._given_up: set[RunControl] = set()
        self._thread = threading.Thread(target=self._check_all, name="watch", daemon=True)
        self._log = structlog.get_logger()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(timeout=5)

    def drain(self, seconds: float) -> None:
        """Cut off runs that take longer than `seconds`, so that a long publish cannot keep the runner from stopping."""
        self._drain_until = clock() + seconds

    @contextmanager
    def watch(self, connection: Connection, limit_seconds: float) -> Iterator[None]:
        """Watch a session of the runner itself, whose statements are short."""
        handle = SessionHandle(connection)
        with self._lock:
            self._own[handle] = limit_seconds
        try:
            yield
        finally:
            with self._lock:
                self._own.pop(handle, None)
            handle.close()

    def _check_all(self) -> None:
        while not self._stopped.wait(INTERVAL_SECONDS):
            runs = list(self._runs())
            with self._lock:
                limits = dict(self._own)
            limits |= {handle: run.silence_limit_seconds for run in runs for handle in run.handles}
            self._end_silent(limits)
            for run in runs:
                self._enforce(run)

    def _end_silent(self, limits: dict[SessionHandle, float]) -> None:
        now = clock()
        self._busy_since = {handle: self._busy_since.get(handle, now) for handle in limits if handle.is_busy}
        for handle, since in self._busy_since.items():
            if now - since > limits[handle]:
                self._log.warning("session.cut", reason="no answer", seconds=round(now - since, 1))
                handle.cut()

    def _enforce(self, run: RunControl) -> None:
        if run.lease_is_over:
            if run.is_lost and run not in self._given_up:
                self._given_up.add(run)
                run.cancel()  # a server continues a statement after its client has disconnected
            run.cut()
            return
        if run.is_interrupted:
            run.cancel()
        if self._drain_until is not None:
            run.end_workers()  # another runner repeats the current batch; a step would not notice the shutdown
        if self._drain_until is not None and clock() > self._drain_until and run not in self._given_up:
            self._given_up.add(run)  # only once: releasing the lease needs a session as well
            run.cancel()
            run.cut()
