"""Run a real PostgreSQL for users who have none: started with the first command, stopped with the last one using it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from vitrina.embedded import watchdog
from vitrina.embedded.accounts import give_to_owner
from vitrina.embedded.cluster import DATABASE, SUPERUSER, Cluster, ensure_cluster, postgres_binaries
from vitrina.embedded.launch import ANY_PORT, HOST, await_ready, launch, socket_directory
from vitrina.errors import CannotConnect, ConfigError
from vitrina.settings import APP_ROLE, READER_ROLE

PREFERRED_PORT = 54320

# For a small machine, but durable: committed data survives crashes.
DEFAULT_SETTINGS: Mapping[str, str] = {
    "shared_buffers": "256MB",
    "maintenance_work_mem": "128MB",
    "work_mem": "16MB",
    "max_connections": "100",
    "max_prepared_transactions": "20",
    "wal_level": "logical",
    "max_slot_wal_keep_size": "4GB",
    "max_wal_size": "2GB",
    "fsync": "on",
    "synchronous_commit": "on",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %u@%d %a ",
}

StopMode = Literal["smart", "fast", "immediate"]
STOP_SIGNALS: Mapping[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}


@dataclass(frozen=True)
class Urls:
    """Hold the URLs of the three logins. `vitrina migrate` creates the last two roles with the passwords given here."""

    admin: str = field(repr=False)
    app: str = field(repr=False)
    reader: str = field(repr=False)
    app_password: str = field(repr=False)
    reader_password: str = field(repr=False)


def say_on_stderr(message: str) -> None:
    sys.stderr.write(f"{message}\n")


class EmbeddedPostgres:
    """Run the server of one home directory, such as `.vitrina`. Commands of the same home share one server.

    `start` starts it or joins the running one; `stop` leaves it, and the last command to leave stops it. A killed
    command leaves too: see `watchdog`. `port` is the first port to try; ANY_PORT takes any free one.
    """

    def __init__(
        self,
        home: Path,
        *,
        bindir: Path | None = None,
        port: int = PREFERRED_PORT,
        settings: Mapping[str, str] | None = None,
        say: Callable[[str], None] = say_on_stderr,
    ) -> None:
        self.home = home.absolute()
        self.port = port
        self.settings = {**DEFAULT_SETTINGS, **(settings or {})}
        self._bindir = bindir
        self._say = say
        self._cluster: Cluster | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> Urls:
        self._make_home()
        try:
            with watchdog.exclusive(self.home):
                self._cluster = self._find_cluster()
                self._count_as_user()
                if not self._join_running_server():
                    self._launch()
        except BaseException:
            self.stop()
            raise
        return self.urls

    def stop(self) -> None:
        """Leave the server. It stops, unless another command of the same home still uses it."""
        if self._watchdog is None:
            return
        leaving, self._watchdog = self._watchdog, None
        leaving.communicate()

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop and start the server while others use it, on the same port. `immediate` is a crash to PostgreSQL."""
        with watchdog.exclusive(self.home):
            watchdog.stop_server(self.cluster.data, STOP_SIGNALS[mode])
            self._launch()

    def kill(self) -> None:
        """Kill the server and all of its processes at once, as the loss of the machine would.

        `start` starts it again.
        """
        pid = watchdog.find_postmaster(self.cluster.data)
        if pid is None:
            return
        os.kill(pid, signal.SIGSTOP)  # otherwise it would start new processes meanwhile
        for victim in [*_children(pid), pid]:
            os.kill(victim, signal.SIGKILL)
        watchdog.wait_until_ended(pid, self.cluster.data, watchdog.STOP_TIMEOUT_SECONDS)

    @property
    def is_running(self) -> bool:
        return self._cluster is not None and watchdog.find_postmaster(self._cluster.data) is not None

    @property
    def urls(self) -> Urls:
        passwords = self.cluster.passwords
        return Urls(
            admin=self._url(SUPERUSER, passwords.superuser),
            app=self._url(APP_ROLE, passwords.app),
            reader=self._url(READER_ROLE, passwords.reader),
            app_password=passwords.app,
            reader_password=passwords.reader,
        )

    @property
    def log(self) -> Path:
        return self.home / "postgres.log"

    @property
    def socket_directory(self) -> Path:
        return socket_directory(self.cluster)

    @property
    def cluster(self) -> Cluster:
        if self._cluster is None:
            raise RuntimeError("the embedded PostgreSQL has not been started: call start() first")
        return self._cluster

    def _make_home(self) -> None:
        try:
            with suppress(FileExistsError):
                self.home.mkdir(parents=True)
                # Root's server runs under another account, which must be able to pass through.
                self.home.chmod(0o711 if os.geteuid() == 0 else 0o700)
            self.home = self.home.resolve()
            for file in (watchdog.users_file(self.home), watchdog.lock_file(self.home), self.log):
                file.touch(mode=0o600)
                give_to_owner(file)
        except PermissionError as exc:
            raise ConfigError(
                f"{self.home} cannot be written to: if another user made it, remove it or run as that user; "
                "or set VITRINA_DATABASE_URL to a database of your own"
            ) from exc

    def _find_cluster(self) -> Cluster:
        durable = self.settings["fsync"] == "on"
        return ensure_cluster(self.home, self._bindir or postgres_binaries(), durable=durable)

    def _count_as_user(self) -> None:
        """Register as a user of the server. No other command stops it now; if this one is the last, its end does."""
        if self._watchdog is not None and self._watchdog.poll() is None:
            return
        with self.log.open("ab") as log:
            self._watchdog = subprocess.Popen(
                [sys.executable, "-I", "-S", watchdog.__file__, self.home, self.cluster.data],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        if not (self._watchdog.stdout and self._watchdog.stdout.readline()):
            raise CannotConnect(f"the watchdog process of PostgreSQL did not start: see the end of {self.log}")

    def _join_running_server(self) -> bool:
        """Join a running server of this data: another command's, or one that a killed command left."""
        pid = watchdog.find_postmaster(self.cluster.data)
        if pid is None or not await_ready(pid, self.cluster.data):
            return False
        self.port = int(watchdog.postmaster_file(self.cluster.data)[3])
        return True

    def _launch(self) -> None:
        wanted, self.port = self.port, launch(self.cluster, self.port, self.settings, self.log)
        if wanted not in (ANY_PORT, self.port):
            self._say(f"port {wanted} is busy: PostgreSQL listens on {HOST}:{self.port} instead")

    def _url(self, user: str, password: str) -> str:
        return f"postgresql://{user}:{password}@{HOST}:{self.port}/{DATABASE}"


def _children(pid: int) -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            # The program's name, in parentheses, may contain anything; the parent is the second field after it.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == pid:
            yield int(entry.name)
