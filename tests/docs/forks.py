"""Commands as forks of a process that has read all modules already: reading them is most of what a command costs.

A directory with a program `vitrina` in front of PATH does it. The program hands its arguments, directory, environment
and standard streams to the process that waits here, and ends the way the fork ended. What stays (servers) is started
as usual.
"""

import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SERVERS = ("api", "demo", "dev", "runner", "search")
# A shell starts it: the kernel takes no path with a space for an interpreter. Python reads the second line as a string.
PROGRAM = """#!/bin/sh
'''exec' "{python}" -IS "$0" "$@"
' '''
import json, os, socket, sys
if sys.argv[1:] and sys.argv[1] in {servers}:
    os.execv({python!r}, [{python!r}, "-m", "vitrina.cli", *sys.argv[1:]])
asked = {{"words": sys.argv[1:], "directory": os.getcwd(), "environment": dict(os.environ)}}
with socket.socket(socket.AF_UNIX) as line:
    line.connect({address!r})
    socket.send_fds(line, [b"."], [0, 1, 2])
    line.sendall(json.dumps(asked).encode())
    line.shutdown(socket.SHUT_WR)
    sys.exit(int(line.recv(8) or 1))
"""


@contextlib.contextmanager
def ready(directory: Path) -> Iterator[Path]:
    """Make `directory/vitrina`, which works while the block lasts."""
    directory.mkdir(parents=True)
    address = directory / "line"
    program = directory / "vitrina"
    program.write_text(PROGRAM.format(python=sys.executable, servers=SERVERS, address=str(address)))
    program.chmod(0o755)
    command = [sys.executable, "-m", __name__, str(address)]
    # It ends when its standard input does: with the block, or with us, however that comes.
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as waiting:
        assert waiting.stdout
        assert waiting.stdout.readline() == b"ready\n"
        yield program


def serve(address: str) -> None:
    _read_modules()
    gc.freeze()  # what is here stays here: forks need not look at it again
    with socket.create_server(address, family=socket.AF_UNIX) as listener:
        os.write(1, b"ready\n")
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            line, _ = listener.accept()
            with line:
                if os.fork() == 0:
                    listener.close()
                    _answer(line)
            _bury_the_ended()


def _read_modules() -> None:
    pass


def _answer(line: socket.socket) -> None:
    """Runs one command in a fork of its own and tells how it ended. Does not return."""
    _, streams, _, _ = socket.recv_fds(line, 1, 3)
    with line.makefile("rb") as received:
        asked = json.load(received)
    command = os.fork()
    if command == 0:
        line.close()
        _run(asked["words"], asked["directory"], asked["environment"], streams)
    for stream in streams:
        os.close(stream)
    _, status = os.waitpid(command, 0)
    with contextlib.suppress(OSError):
        line.sendall(str(os.waitstatus_to_exitcode(status) % 256).encode())
    os._exit(0)


def _run(words: list[str], directory: str, environment: dict[str, str], streams: list[int]) -> None:
    from vitrina.cli import main

    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.argv = ["vitrina", *words]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
    sys.exit(0)


def _bury_the_ended() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    serve(sys.argv[1])
