"""A Spark Connect server with two executors, each a process of its own, as `make test-spark` installs it.

`python -m tests.spark.server DIRECTORY` runs one until it is interrupted; tests use the one in
VITRINA_TEST_SPARK_DIRECTORY, which saves a start while they are written.
"""

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from tests.support.waiting import until

EXECUTORS = 2
MASTER = os.environ.get("VITRINA_TEST_SPARK_MASTER", f"local-cluster[{EXECUTORS},1,1024]")
# A busy machine takes its time: these are four Java processes.
START_SECONDS = 600
# Settings that executors find in files, as in a cluster with mounted secrets: each test has a database of its own.
SECRETS = ("VITRINA_DATABASE_URL", "VITRINA_READER_URL")


@dataclass
class SparkServer:
    """The server, its files, and the processes below it."""

    directory: Path
    port: int
    ui_port: int
    process: "subprocess.Popen[bytes] | None" = None
    # The process that leads the session in which everything of the server runs.
    leader: int = 0
    # Processes of drivers that were killed; they end by themselves when they notice.
    _lost: list[int] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"sc://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    def tell(self, **secrets: str) -> None:
        """Write what executors resolve connections by."""
        for name, value in secrets.items():
            (self.directory / name).write_text(value)

    def start(self) -> None:
        for name in ("events", "local"):
            (self.directory / name).mkdir(exist_ok=True)
        for name in SECRETS:
            if not (self.directory / name).exists():  # of no database, until a test has one
                self.tell(**{name: "postgresql://nobody:nothing@127.0.0.1:1/none"})
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._words(), env=self._environment(), stdout=log, stderr=log, start_new_session=True
            )
        self.leader = self.process.pid
        until(self._listens, seconds=START_SECONDS)

    def _words(self) -> list[str]:
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": self.port,
            "spark.ui.port": self.ui_port,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "512m",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": (self.directory / "events").as_uri(),
        }
        return [
            *(str(self._home / "bin" / "spark-submit"), "--master"),
            *(MASTER, "--name", "vitrina-tests"),
            *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
            *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"),
        ]

    def _environment(self) -> dict[str, str]:
        own = {
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.directory / "local"),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.environ["PYTHONPATH"],
        }
        # Executors start many Python processes. Each would compile what it imports if none might keep the result.
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return inherited | own | {f"{name}_FILE": str(self.directory / name) for name in SECRETS}

    def _listens(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()[-5000:]
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5):
            return True
        return False

    def page(self, path: str) -> str:
        """Read a page of the user interface, or of its API."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ui_port}{path}", timeout=60) as answer:
            return str(answer.read().decode())

    # --- processes ---------------------------------------------------------------------------------------------------

    def executors(self) -> list[int]:
        return [pid for pid in self._processes() if "CoarseGrainedExecutorBackend" in _words(pid)]

    def python_workers(self) -> list[int]:
        """List the processes that fill ranges: forked by the daemon of an executor."""
        return [
            pid
            for pid in self._processes()
            if "pyspark.daemon" in _words(pid) and "pyspark.daemon" in _words(_parent(pid))
        ]

    def _processes(self) -> list[int]:
        """List what the server has started, and what that has: all of it is in one session."""
        return [pid for pid in map(int, _listed()) if _fields(pid)[3:4] == [str(self.leader)]]

    @property
    def work(self) -> Path:
        """Return where executors of a `local-cluster` write their output."""
        return self._home / "work"

    @property
    def _home(self) -> Path:
        """Return a home of this server's own: a `local-cluster` works in there, whatever the environment says."""
        home = self.directory / "home"
        if not home.exists():
            home.mkdir()
            for found in Path(pyspark.__file__).parent.iterdir():
                if found.name != "work":
                    (home / found.name).symlink_to(found)
        return home

    def kill(self) -> None:
        """Kill the driver alone, as a crash would; its executors notice by themselves."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self._lost += self._processes()

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.kill()
        for pid in (*self._processes(), *self._lost):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def _listed() -> list[str]:
    return [path.name for path in Path("/proc").glob("[0-9]*")]


def _words(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _fields(pid: int) -> list[str]:
    """Read state, parent, group and session of a process; nothing of one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
    except OSError:
        return []


def _parent(pid: int) -> int:
    found = _fields(pid)
    return int(found[1]) if found else 0


@contextmanager
def running(directory: Path) -> Iterator[SparkServer]:
    server = SparkServer(directory, _free_port(), _free_port())
    try:
        server.start()
        yield server
    finally:
        server.stop()


@contextmanager
def found_in(directory: Path) -> Iterator[SparkServer]:
    """Use a server that was started by hand; it goes on running."""
    port, ui_port, leader = map(int, (directory / "server").read_text().split())
    yield SparkServer(directory, port, ui_port, leader=leader)


def main(directory: Path) -> None:
    with running(directory) as server:
        (directory / "server").write_text(f"{server.port} {server.ui_port} {server.leader}")
        assert server.process is not None
        server.process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
