"""Run a separate PostgreSQL server that leaves no files, for tests and benchmarks."""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from vitrina.embedded.launch import ANY_PORT
from vitrina.embedded.postgres import EmbeddedPostgres

# Its data has to survive crashes of the server, not of the machine.
FAST_SETTINGS: Mapping[str, str] = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "128MB"}


class TemporaryServer(EmbeddedPostgres):
    """Run an EmbeddedPostgres in its own directory, on any free port. Leaving the `with` removes the data as well."""

    def __init__(
        self, bindir: Path | None = None, directory: Path | None = None, *, settings: Mapping[str, str] | None = None
    ) -> None:
        # In the system's temporary directory, because a test's own may be closed to the account of root's server.
        self._directory = Path(tempfile.mkdtemp(prefix="vitrina-test-", dir=directory))
        self._directory.chmod(0o711)
        super().__init__(
            self._directory / "home", bindir=bindir, port=ANY_PORT, settings={**FAST_SETTINGS, **(settings or {})}
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()

    def remove(self) -> None:
        """Stop the server and delete its data."""
        self.stop()
        if self._cluster is not None:
            shutil.rmtree(self.socket_directory, ignore_errors=True)
            shutil.rmtree(self.cluster.data.parent, ignore_errors=True)
        shutil.rmtree(self._directory, ignore_errors=True)
