"""Watch a child process for time and memory, and end it once, from any thread."""

import contextvars
import mmap
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from vitrina.errors import VitrinaError

_POLL_SECONDS = 0.05
# How long an ended process may take to exit.
EXIT_SECONDS = 5.0


class Process(Protocol):
    """Define a process that serves messages and can be killed."""

    pid: int

    def wait(self, timeout: float | None = None) -> int:
        """Wait as subprocess does: return the exit code, or minus the signal."""
        ...

    def kill(self) -> None: ...


class WatchedProcess:
    """Watch a process from outside, because a loop in C answers no message, and end it for one reason.

    `timed_out` and `over_memory`, which receives the MiB used, build the errors with which the watching thread ends the
    process. `release` is called once the process has exited and no caller holds `busy`; it closes the pipes.
    """

    def __init__(
        self,
        process: Process,
        *,
        name: str,
        memory_mb: int,
        timed_out: Callable[[], VitrinaError],
        over_memory: Callable[[int], VitrinaError],
        release: Callable[[], None],
    ) -> None:
        self._process = process
        # Held while a caller sends a request and waits for its answer.
        self.busy = threading.Lock()
        # When the pending answer is due, by the monotonic clock. None: no answer is pending.
        self.deadline: float | None = None
        self.error: VitrinaError | None = None
        self._name = name
        self._memory_mb = memory_mb
        self._timed_out = timed_out
        self._over_memory = over_memory
        self._release = release
        self._ending = threading.Lock()
        self._ended = threading.Event()
        # The copied context puts the run's names into log lines.
        watch = contextvars.copy_context().run
        threading.Thread(target=watch, args=[self._watch], name=f"{name}-watch", daemon=True).start()

    @property
    def is_over(self) -> bool:
        return self._ended.is_set()

    def end(self, error: VitrinaError) -> None:
        """Kill the process. Only the first call has an effect, and sets `error`."""
        with self._ending:
            if self.is_over:
                return
            self.error = error
            self._ended.set()
        self._process.kill()
        threading.Thread(target=self._close, name=f"{self._name}-end", daemon=True).start()

    def error_after(self, diagnose: Callable[[], VitrinaError]) -> VitrinaError | None:
        """Return why the process ended. If it ended by itself, `diagnose` determines the error."""
        if not self.is_over:
            self.end(diagnose())
        return self.error

    def _watch(self) -> None:
        while not self._ended.wait(_POLL_SECONDS):
            deadline = self.deadline
            if deadline is not None and time.monotonic() > deadline:
                self.end(self._timed_out())
            elif (used := _memory_mb(self._process.pid)) > self._memory_mb:
                self.end(self._over_memory(used))

    def _close(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_SECONDS)
        with self.busy:  # a caller that waited for an answer has received the error
            self._release()


def _memory_mb(pid: int) -> int:
    """Return the resident memory in MiB; 0 if the system does not report it."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:  # noqa: PTH123 - read twenty times a second
            return int(file.read().split()[1]) * mmap.PAGESIZE >> 20
    except (OSError, IndexError):
        return 0
