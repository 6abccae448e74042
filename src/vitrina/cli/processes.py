"""Run other `vitrina` commands as child processes and make sure that they end with their parent.

A child notices the end of its parent by its standard input: the kernel closes that pipe however the parent ends, even
by kill -9. Children run in a separate session, so that a Ctrl-C reaches them only once, through the parent.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import IO, Annotated, NoReturn, Self, cast

import typer

from vitrina.errors import VitrinaError

EndWithStdin = Annotated[bool, typer.Option("--end-with-stdin", hidden=True)]

STOP_SECONDS = 15.0
ORPHAN_SECONDS = 10.0
LINES_KEPT = 20


_PR_SET_DUMPABLE = 4


def close_to_others() -> None:
    """Hide environment and memory from other processes of the same user, such as the worker of a Python step.

    This works on Linux only. Root still sees everything, but there are no core dumps of this process.
    """
    with suppress(AttributeError):  # not every system has it
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


class ChildEnded(VitrinaError):
    """A process that should have kept running ended."""

    code = "child_ended"

    def __init__(self, name: str, exit_code: int, last_lines: Sequence[str]) -> None:
        how = f"was killed by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"ended with code {exit_code}"
        said = "".join(f"\n  {line}" for line in last_lines)
        self.summary = f"the {name} {how}"
        self.exit_code = exit_code
        super().__init__(f"{self.summary}; its last output:{said}" if said else f"{self.summary} without any output")


class Child:
    """Hold one process and its last lines of output."""

    def __init__(self, name: str, process: "subprocess.Popen[bytes]") -> None:
        self.name = name
        self.process = process
        self.last_lines: deque[str] = deque(maxlen=LINES_KEPT)

    def ended(self) -> ChildEnded:
        return ChildEnded(self.name, self.process.wait(), self.last_lines)


class Children:
    """Hold child processes that start and end together. Leaving the `with` block stops them all."""

    def __init__(self, on_line: Callable[[str, str], None]) -> None:
        self._on_line = on_line
        self._children: list[Child] = []
        self._listeners: list[threading.Thread] = []
        self._first_ended: Child | None = None
        self._one_ended = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(
        self, name: str, arguments: Sequence[str], environment: Mapping[str, str], *, sockets: Sequence[int] = ()
    ) -> Child:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "vitrina.cli", *arguments, "--end-with-stdin"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment, "PYTHONUNBUFFERED": "1"},
            pass_fds=tuple(sockets),
            start_new_session=True,
        )
        child = Child(name, process)
        self._children.append(child)
        listener = threading.Thread(target=self._listen, args=[child], name=f"lines of the {name}", daemon=True)
        listener.start()
        self._listeners.append(listener)
        return child

    def wait_for_an_end(self) -> NoReturn:
        """Wait until a child ends, and raise an error that names it."""
        self._one_ended.wait()
        self.raise_if_ended()
        raise AssertionError("a child ended and cannot be found")

    def raise_if_ended(self) -> None:
        """Raise an error when a child has ended: a caller must not wait for the work of a dead process."""
        if self._first_ended is not None:
            raise self._first_ended.ended()

    def stop(self) -> None:
        """Ask all children to stop, wait, and kill those that do not react. A second Ctrl-C shortens the wait."""
        with _on_signal(self._terminate):
            self._terminate()
            deadline = time.monotonic() + STOP_SECONDS
            for child in self._children:
                try:
                    child.process.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    child.process.kill()
                    child.process.wait()
        for listener in self._listeners:
            listener.join(timeout=1.0)
        for child in self._children:
            cast(IO[bytes], child.process.stdin).close()

    def _terminate(self) -> None:
        for child in self._children:
            child.process.terminate()

    def _listen(self, child: Child) -> None:
        with cast(IO[bytes], child.process.stdout) as lines:
            for raw in lines:
                line = raw.decode(errors="replace").rstrip()
                child.last_lines.append(line)
                self._on_line(child.name, line)
        child.process.wait()
        self._first_ended = self._first_ended or child
        self._one_ended.set()


@contextmanager
def ending_like_ctrl_c() -> Iterator[None]:
    """Make SIGTERM and a closed terminal interrupt the main thread as Ctrl-C does, so that everything is cleaned up."""
    with _on_signal(_interrupt, signal.SIGTERM, signal.SIGHUP):
        yield


def end_with_stdin() -> None:
    """Stop this process when its standard input is closed: the process that started it has ended."""
    threading.Thread(target=_await_end_of_stdin, name="waits for the end of stdin", daemon=True).start()


def _await_end_of_stdin() -> None:
    # Read the file descriptor directly: this thread must not hold the lock of sys.stdin when the process ends.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_SECONDS)
    os._exit(1)


@contextmanager
def _on_signal(action: Callable[[], None], *numbers: signal.Signals) -> Iterator[None]:
    handled = numbers or (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda *_: action()) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt() -> None:
    raise KeyboardInterrupt
