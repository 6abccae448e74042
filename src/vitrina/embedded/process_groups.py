"""Check whether any member of a process group is alive, and end a group together with this process."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path


def end_with_us(group: int) -> subprocess.Popen[bytes]:
    """Start a process that kills the group after us; the kernel closes its standard input however we end."""
    command = ["/bin/sh", "-c", 'read -r _; kill -9 "-$1"', "sh", str(group)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)


def started_at(pid: int) -> int | None:
    """Return when the process started, in clock ticks since boot, to recognise a reused pid."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except OSError:
        return None
    return int(after_name.split()[19])


def is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return not _only_zombies(group)


def _only_zombies(group: int) -> bool:
    """Return whether all members have ended; they stay in their group until the parent collects their exit status."""
    members = [fields for fields in _process_table() if int(fields[2]) == group]
    return bool(members) and all(_has_ended(fields) for fields in members)


def _has_ended(fields: list[str]) -> bool:
    """Return whether all threads have ended. If only the first has, only the number of threads tells."""
    return fields[0] in "ZX" and int(fields[17]) <= 1


def _process_table() -> Iterator[list[str]]:
    """Yield state, parent, group and more of every process, if the system has /proc."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            yield path.read_text().rpartition(")")[2].split()
