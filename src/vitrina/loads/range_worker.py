"""Load ranges of the key for one run in a separate process: `python -m vitrina.loads.range_worker`.

The process belongs to the runner and has its own sessions. It receives what to open, and its tasks, over a pipe that
only the runner has; each answer reports the result of a task. Steps that do not ship with Vitrina run in a child
process of it.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, MutableMapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import structlog

from vitrina.observe import logs
from vitrina.ports.ranges import Filler, FillHandle, Task
from vitrina.ports.worker_errors import packed
from vitrina.settings import Settings
from vitrina.store import database
from vitrina.transforms import forking, process
from vitrina.transforms.child_process import be_modest, end_with_runner

_PROGRESS_SECONDS = 0.5


def main(arguments: Sequence[str]) -> NoReturn:
    line, life, control = map(int, arguments[:3])
    for descriptor in (line, life, control):
        os.set_inheritable(descriptor, False)
    end_with_runner(life)
    be_modest()
    sys.path[:] = arguments[3:]
    _serve(Pipe(Connection(line)), socket.socket(fileno=control))
    # The sessions end with the process, without waiting for any server.
    os._exit(0)


class Pipe:
    """Write to this end of the pipe, one message at a time, because threads of steps send log lines too."""

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self.receive = connection.recv

    def send(self, kind: str, said: Any = None) -> None:
        with self._sending:
            self._connection.send((kind, said))


def _serve(line: Pipe, control: socket.socket) -> None:
    """Open what the runner describes, then fill ranges until it closes its end."""
    try:
        settings, handle = line.receive()
        structlog.configure(processors=[_Forwarding(line, settings)])
        forking.templates.adopt(forking.environment_of(settings.step_environment), control)
        filler = _opened(line, settings, handle)
        while filler is not None and (task := line.receive()) is not None:
            _fill(line, filler, task)
        if filler is not None:
            filler.close()
            _await_ended()
    except (EOFError, ConnectionError):
        return


def _await_ended() -> None:
    """Wait for processes of steps that were told to end, so that their resource usage counts for the run."""
    for thread in threading.enumerate():
        if thread.name == process.ENDING:
            thread.join(1.0)


def _opened(line: Pipe, settings: Settings, handle: FillHandle) -> Filler | None:
    try:
        with database.translated("opening what loads ranges of the key"):
            filler = handle.open(settings)
    except BaseException as exc:  # noqa: BLE001 - the runner decides what follows
        line.send("error", packed(exc))
        return None
    line.send("ready")
    return filler


def _fill(line: Pipe, filler: Filler, task: Task) -> None:
    progress = _Progress(line)
    try:
        with database.translated("loading a range of the key"):
            filled = filler.fill(task, progress)
    except BaseException as exc:  # noqa: BLE001 - as above
        line.send("error", packed(exc))
    else:
        line.send("filled", filled)


class _Progress:
    """Report rows twice a second at most: pieces of COPY data are small."""

    def __init__(self, line: Pipe) -> None:
        self._line = line
        self._rows = 0
        self._sent_at = time.monotonic()

    def __call__(self, rows: int) -> None:
        self._rows += rows
        if time.monotonic() - self._sent_at >= _PROGRESS_SECONDS:
            self._line.send("progress", self._rows)
            self._rows, self._sent_at = 0, time.monotonic()


class _Forwarding:
    """Forward log lines to the runner, which stores them with the run."""

    def __init__(self, line: Pipe, settings: Settings) -> None:
        self._line = line
        self._redact: Callable[[str], str] = logs.Redactor(logs.secrets_of(settings))

    def __call__(self, logger: Any, method: str, fields: MutableMapping[str, Any]) -> NoReturn:
        plain = {name: self._redact(str(logs.shortened(value))) for name, value in fields.items() if name != "exc_info"}
        self._line.send("log", (method, plain))
        raise structlog.DropEvent


if __name__ == "__main__":
    main(sys.argv[1:])
