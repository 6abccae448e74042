"""Run a PostgreSQL with a migrated metastore for benchmarks, and measure its processes."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pydantic import SecretStr

from vitrina.embedded.temporary import TemporaryServer
from vitrina.settings import Settings
from vitrina.store.migrate import migrate

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


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


def tree_cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and its descendants so far, including ended ones."""
    try:
        # Children first: the time of a child that ends now is added to that of its parent.
        children = sum(tree_cpu_seconds(child) for child in _children(pid))
        ended = sum(map(int, _stat(pid)[13:15])) / _TICKS_PER_SECOND
        return children + ended + cpu_seconds(pid)
    except (FileNotFoundError, ProcessLookupError):  # it ended before, or while, it was read
        return 0.0


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat starting from the state, which is the third."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
