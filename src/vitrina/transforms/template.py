"""Serve as the process that workers are forked from: `python -m vitrina.transforms.template`.

A worker's imports cost a quarter of a second of CPU or more, a fork a few milliseconds. This process has imported what
a worker needs, and no user code. It runs no step and starts no thread, so that a fork of it is complete.
"""

import importlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import NoReturn

# Maximum for one worker: its own descriptors, and its output.
DESCRIPTORS = 8


def main(arguments: Sequence[str]) -> None:
    control = socket.socket(fileno=int(arguments[0]))
    control.set_inheritable(False)
    sys.path[:] = arguments[2:]
    # The first module has the workers' `main`.
    worker, *_ = (importlib.import_module(name) for name in arguments[1].split(","))
    _serve(worker, control)


def _serve(worker: ModuleType, control: socket.socket) -> None:
    """Fork what is requested until the other end is closed."""
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    _say(control, "ready", threads=_count_threads())
    while True:
        ready, _, _ = select.select([control.fileno(), wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            _tell_ended(control)
        if control.fileno() in ready and not _fork(worker, control, (wake, woken)):
            return


def _count_threads() -> int:
    """Count the threads that a fork would lack.

    Those of jemalloc (in pyarrow) do not count: it restarts them itself.
    """
    names = (task.joinpath("comm").read_text().strip() for task in Path("/proc/self/task").iterdir())
    return sum(name != "jemalloc_bg_thd" for name in names)


def _fork(worker: ModuleType, control: socket.socket, wakers: Sequence[int]) -> bool:
    """Fork a worker with the received descriptors, or another template.

    Return False when the runner has disconnected.
    """
    message, given, _, _ = socket.recv_fds(control, 1, DESCRIPTORS)
    if not message:
        return False
    pid = os.fork()
    if pid == 0 and message == b"t":
        _become_template(worker, control, wakers, given)
    if pid == 0:
        _become_worker(worker, control, wakers, given)
    for descriptor in given:
        os.close(descriptor)
    _say(control, "started", pid=pid)
    return True


def _become_template(
    worker: ModuleType, control: socket.socket, wakers: Sequence[int], given: Sequence[int]
) -> NoReturn:
    """Serve another process. Its workers are children of this process and end with it."""
    _let_go(control, wakers)
    [descriptor] = given
    _serve(worker, socket.socket(fileno=descriptor))
    os._exit(0)


def _become_worker(worker: ModuleType, control: socket.socket, wakers: Sequence[int], given: Sequence[int]) -> None:
    _let_go(control, wakers)
    *theirs, output = given
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    sys.argv[1:] = [*map(str, theirs), *sys.path]
    worker.main(sys.argv[1:])


def _let_go(control: socket.socket, wakers: Sequence[int]) -> None:
    """Release what belongs to the template, in a process that was forked from it."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    control.close()
    for descriptor in wakers:
        os.close(descriptor)


def _tell_ended(control: socket.socket) -> None:
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            _say(control, "ended", pid=found[0], code=os.waitstatus_to_exitcode(found[1]))


def _say(control: socket.socket, what: str, **fields: int) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # the runner has ended, so this process ends as well
        control.send(json.dumps({"what": what, **fields}).encode())


if __name__ == "__main__":
    main(sys.argv[1:])
