"""Run workers as threads, for tests that share state with their steps; the messages are the same."""

import mmap
import os
import socket
import threading
from contextlib import suppress

from vitrina.transforms import progress
from vitrina.transforms.process import Started
from vitrina.transforms.worker import Server


def start(environment: dict[str, str]) -> Started:
    """Replace `vitrina.transforms.process.start`."""
    ours, theirs = socket.socketpair()
    output, nothing = os.pipe()
    os.close(nothing)
    life, place = os.dup(output), mmap.mmap(-1, progress.SIZE)
    return Started(_Thread(theirs), os.dup(ours.fileno()), ours.detach(), output, life, place)


class _Thread:
    pid = 0  # its memory is not measured

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._thread = threading.Thread(target=self._serve, name="step-worker", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with self._line:
            Server(self._line.fileno(), self._line.fileno()).serve()

    def wait(self, timeout: float | None = None) -> int:
        self._thread.join(timeout)
        return 0

    def kill(self) -> None:
        """Do nothing: a thread cannot be ended, and its answers are no longer read."""
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)
