"""Process groups that outlive a command: whether any member of one still lives, and how to end it with ourselves."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path


def end_with_us(group: int) -> subprocess.Popen[bytes]:
    """Start a process that ends the group after us; the kernel closes its standard input however we end."""
    command = ["/bin/sh", "-c", 'read -r _; kill -9 "-$1"', "sh", str(group)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)


def started_at(pid: int) -> int | None:
    """Read when the process started, in clock ticks since boot, which tells a reused process number apart."""
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
    """Tell whether all members have ended; they stay in their group until the parent collects their exit status."""
    members = [fields for fields in _process_table() if int(fields[2]) == group]
    return bool(members) and all(_has_ended(fields) for fields in members)


def _has_ended(fields: list[str]) -> bool:
    """Tell whether all threads have ended. When only the first has, the process looks the same but for their number."""
    return fields[0] in "ZX" and int(fields[17]) <= 1


def _process_table() -> Iterator[list[str]]:
    """Read state, parent, group and more of every process, where there is such a table."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            yield path.read_text().rpartition(")")[2].split()
