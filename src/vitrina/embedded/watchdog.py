"""Stop the embedded PostgreSQL once the last command that uses it has ended, however it ended.

Every command that uses the server starts a watchdog process: `python watchdog.py HOME DATA`. The watchdog holds a
shared lock on HOME/postgres.users for as long as the command lives, which it learns from its standard input: the
kernel closes that pipe however the command ends, even by kill -9. The watchdog that can then turn its lock into an
exclusive one was the last, and stops the server. The file runs on its own, so it imports only the standard library.
"""

import fcntl
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

STOP_TIMEOUT_SECONDS = 60.0
POLL_SECONDS = 0.02
EXEC_SECONDS = 5.0


def main(home: Path, data: Path) -> None:
    with users_file(home).open("a") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        sys.stdout.write("watching\n")
        sys.stdout.flush()
        sys.stdin.buffer.read()
        with exclusive(home):
            if _is_last(users.fileno()):
                stop_server(data, signal.SIGINT)


def _is_last(users: int) -> bool:
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def exclusive(home: Path) -> Iterator[None]:
    """Lock the home, so that only one process at a time starts, adopts or stops its server."""
    with lock_file(home).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def users_file(home: Path) -> Path:
    return home / "postgres.users"


def lock_file(home: Path) -> Path:
    return home / "postgres.lock"


def stop_server(data: Path, how: signal.Signals) -> None:
    """Ask the server to stop and wait until it has: SIGTERM is smart, SIGINT fast, SIGQUIT immediate."""
    pid = find_postmaster(data)
    if pid is None:
        return
    lines = postmaster_file(data)
    os.kill(pid, how)
    if not wait_until_ended(pid, data, STOP_TIMEOUT_SECONDS):
        # A backend that hangs in a system call must not keep the server running forever.
        os.kill(pid, signal.SIGQUIT)
        wait_until_ended(pid, data, STOP_TIMEOUT_SECONDS)
    if len(lines) > 4:
        remove_socket_directory(Path(lines[4]))


def remove_socket_directory(directory: Path) -> None:
    """Remove our directory; PostgreSQL removes only its sockets."""
    with suppress(OSError):  # already removed, or it contains files that are not ours
        directory.rmdir()


def wait_until_ended(pid: int, data: Path, timeout_seconds: float) -> bool:
    deadline = time.monotonic() + timeout_seconds
    while is_postmaster(pid, data):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def find_postmaster(data: Path) -> int | None:
    """Return the process that serves this data directory; ignore a stale postmaster.pid."""
    lines = postmaster_file(data)
    pid = int(lines[0]) if lines and lines[0].isdigit() else 0
    return pid if pid and is_postmaster(pid, data) else None


def postmaster_file(data: Path) -> list[str]:
    """Read postmaster.pid: pid, data directory, start time, port, socket directory, address, memory key, status."""
    try:
        return (data / "postmaster.pid").read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []


def is_postmaster(pid: int, data: Path) -> bool:
    """Check the arguments of the process, because the pid may belong to another program or a zombie by now."""
    return os.fsencode(data) in command_line(pid)


def command_line(pid: int) -> list[bytes]:
    """Return the arguments of a process; [] if it does not exist, [b""] if it is a zombie."""
    deadline = time.monotonic() + EXEC_SECONDS
    while True:
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
            # The program's name, in parentheses, may contain anything; the state is the first field after it.
            state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return []
        # During exec a process has no arguments, for as long as a busy machine takes.
        if arguments or state in "ZX" or time.monotonic() > deadline:
            return arguments.split(b"\0")
        time.sleep(0.001)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
