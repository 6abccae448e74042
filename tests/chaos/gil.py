"""Measure how long a process could not run Python: a late heartbeat is a lost lease.

A thread wakes up every 50 ms. If it is late, another thread held the interpreter's lock, or no processor was free. The
kernel reports for each thread how long it waited for a processor, and how much time a virtual machine was not given.
That part is subtracted.
"""

import faulthandler
import json
import os
import threading
import time
from pathlib import Path

WAKE_SECONDS = 0.05
# If the lock is held for longer than this, the stacks of all threads are recorded.
LIMIT_SECONDS = 1.0
PREFIX = "held"
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def watch(directory: Path) -> None:
    """Write the longest time to a file of this process, each time that it increases."""
    threading.Thread(target=_watch, args=[directory], name="gil-watch", daemon=True).start()


def longest(directory: Path) -> dict[int, float]:
    """Return the longest times, by process id."""
    return {
        int(path.suffix[1:]): float(json.loads(path.read_text())["seconds"]) for path in directory.glob(f"{PREFIX}.*")
    }


def stacks(directory: Path) -> str:
    """Return the stacks of the threads whenever the limit was exceeded."""
    return "\n".join(path.read_text() for path in sorted(directory.glob(f"stacks.{PREFIX}.*")))


def _watch(directory: Path) -> None:
    worst, before, waited = 0.0, time.monotonic(), waiting()
    with (directory / f"stacks.{PREFIX}.{os.getpid()}").open("w") as file:
        while True:
            # Written by a thread that does not need the lock.
            faulthandler.dump_traceback_later(WAKE_SECONDS + LIMIT_SECONDS, file=file)
            time.sleep(WAKE_SECONDS)
            now, waits = time.monotonic(), waiting()
            held = held_seconds(now - before, waited, waits)
            if held > worst:
                worst = held
                _write(directory / f"{PREFIX}.{os.getpid()}", held)
            before, waited = now, waits


def held_seconds(gap: float, before: dict[str, float], after: dict[str, float]) -> float:
    """Return the part of the time between two measurements that neither sleep nor a wait for a processor explains."""
    more = {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}
    stolen = max((seconds for name, seconds in more.items() if name.startswith("cpu")), default=0.0)
    waited = max((seconds for name, seconds in more.items() if not name.startswith("cpu")), default=0.0)
    return max(0.0, gap - WAKE_SECONDS - waited - stolen)


def waiting() -> dict[str, float]:
    """Return the seconds for which each thread was ready and did not run, and each processor was not available."""
    found = _stolen()
    for path in Path("/proc/self/task").glob("*/schedstat"):
        try:
            found[path.parent.name] = int(path.read_text().split()[1]) / 1e9
        except (OSError, IndexError):
            continue  # it has ended meanwhile
    return found


def _stolen() -> dict[str, float]:
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return {}
    fields = (line.split() for line in lines if line.startswith("cpu") and not line.startswith("cpu "))
    return {name: int(numbers[7]) / TICKS_PER_SECOND for name, *numbers in fields}


def _write(path: Path, seconds: float) -> None:
    """Write by a rename, so that a reader sees the whole file."""
    written = path.with_name(f".{path.name}")
    written.write_text(json.dumps({"seconds": seconds}))
    written.rename(path)
