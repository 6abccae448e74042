"""A PostgreSQL with a migrated metastore for benchmarks, and what its processes cost."""

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
def prepared(server_settings: Mapping[str, str] | None = None) -> Iterator[tuple[Settings, Path]]:
    """Settings of a metastore of its own, and a directory for logs; both are gone after the block."""
    with TemporaryServer(settings=server_settings) as server, tempfile.TemporaryDirectory() as directory:
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
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND
