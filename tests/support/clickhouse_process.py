"""Run the ClickHouse of the tests as a process, with faults on its statements."""

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

from tests.support.clickhouse_server import PASSWORD, USER
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]


@dataclass
class ClickHouseProcess:
    """Represent a server; without a process it is an external one."""

    url: str
    process: "subprocess.Popen[str] | None" = None
    port: int = 0
    directory: Path = field(default_factory=Path)

    @property
    def can_fault(self) -> bool:
        return self.process is not None

    def fault(self, on: str, do: str) -> None:
        """Inject a fault into the next statement that contains `on`; `clickhouse_server` lists the actions."""
        self._ask("fault", on=on, do=do)

    def met(self) -> int:
        """Return how many of the requested faults have hit a statement."""
        return int(self._ask("met"))

    def until_met(self, faults: int = 1) -> None:
        until(lambda: self.met() >= faults)

    def release(self) -> None:
        self._ask("release")

    def _ask(self, path: str, **parameters: str) -> str:
        address = f"http://127.0.0.1:{self.port}/{path}?{urlencode(parameters)}"
        with urllib.request.urlopen(address, timeout=60) as answer:
            return str(answer.read().decode())

    def kill(self) -> None:
        assert self.process
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def start(self) -> None:
        """Start the server, or restart it on the same port and data."""
        words = [sys.executable, "-m", "tests.support.clickhouse_server", str(self.directory), str(self.port)]
        self.process = subprocess.Popen(words, cwd=ROOT, env=dict(os.environ), stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        self.port = int(self.process.stdout.readline())
        self.url = f"clickhouse://{USER}:{PASSWORD}@127.0.0.1:{self.port}/default"


@contextmanager
def clickhouse_process(directory: Path) -> Iterator[ClickHouseProcess]:
    server = ClickHouseProcess("", directory=directory / "data")
    server.start()
    try:
        yield server
    finally:
        server.kill()
        assert server.process
        assert server.process.stdout
        server.process.stdout.close()
