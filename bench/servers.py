"""Run a PostgreSQL with a migrated metastore for benchmarks, and measure its processes."""

import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from pydantic import SecretStr

from vitrina.embedded.temporary import TemporaryServer
from vitrina.settings import Settings
from vitrina.store.migrate import migrate

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# An ended process may have used up to this much more than was seen.
_LOOK_SECONDS = 0.1


@contextmanager
def prepared(
    server_settings: Mapping[str, str] | None = None, *, bindir: Path | None = None
) -> Iterator[tuple[Settings, Path]]:
    """Yield settings of a separate metastore, and a directory for logs; both are removed after the block."""
    with TemporaryServer(bindir, settings=server_settings) as server, tempfile.TemporaryDirectory() as directory:
        settings = Settings(
            database_url=SecretStr(server.urls.app),
            admin_url=SecretStr(server.urls.admin),
            reader_url=SecretStr(server.urls.reader),
            app_password=SecretStr(server.urls.app_password),
            reader_password=SecretStr(server.urls.reader_password),
        )
        migrate(settings)
        yield settings, Path(directory)


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that a process has used so far."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def parent(pid: int) -> int:
    """Return the parent process: for a session, its server."""
    return int(_stat(pid)[1])


def tree_cpu_seconds(pid: int, *, without: int | None = None) -> float:
    """Return the CPU seconds of a process and its descendants so far, including ended ones.

    Leave out the descendant `without` and its own descendants.
    """
    try:
        # Children first: the time of a child that ends now is added to that of its parent.
        children = sum(tree_cpu_seconds(child, without=without) for child in _children(pid) if child != without)
        ended = sum(map(int, _stat(pid)[13:15])) / _TICKS_PER_SECOND
        return children + ended + cpu_seconds(pid)
    except (FileNotFoundError, ProcessLookupError):  # it ended before, or while, it was read
        return 0.0


def own_cpu_seconds() -> float:
    """Return the CPU seconds of this process so far, and of its children that have ended."""
    return sum(os.times()[:4])


class SessionCpu:
    """Count the CPU of all processes of a session, including ended ones.

    The kernel adds the time of an ended child to its parent only if the parent waits for it. A parent that ignores
    SIGCHLD, as the Python daemon of a Spark executor does, never receives it. Therefore a thread reads each process
    repeatedly, and the last value that it has read counts.
    """

    def __init__(self, leader: int) -> None:
        self._leader = str(leader)
        # By pid and start time: a pid may be used again.
        self._ticks: dict[tuple[int, str], int] = {}
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="session-cpu", daemon=True)

    def __enter__(self) -> "SessionCpu":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def seconds(self) -> float:
        """Return the CPU seconds that the session has used so far."""
        with self._lock:
            self._look()
            return sum(self._ticks.values()) / _TICKS_PER_SECOND

    def _watch(self) -> None:
        while not self._is_over.wait(_LOOK_SECONDS):
            with self._lock:
                self._look()

    def _look(self) -> None:
        for entry in Path("/proc").glob("[0-9]*"):
            pid = int(entry.name)
            with suppress(FileNotFoundError, ProcessLookupError):
                fields = _stat(pid)
                if fields[3] == self._leader:
                    self._ticks[pid, fields[19]] = int(fields[11]) + int(fields[12])


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat starting from the state, which is the third."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
