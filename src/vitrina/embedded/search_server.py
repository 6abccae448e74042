"""Fetch, start, check and stop a real Elasticsearch or OpenSearch server, for tests and developers' machines."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitrina.embedded import accounts, process_groups
from vitrina.errors import CannotConnect, ConfigError

HEAP = "512m"
STATE_FILE = "server.json"
LOCK_FILE = "server.lock"


@dataclass(frozen=True)
class Distribution:
    """Describe one server release on Maven Central and the Java versions that run it."""

    group: str
    name: str
    version: str
    oldest_java: int
    newest_java: int | None  # the older two need the security manager, which Java 24 removed

    @property
    def artifact(self) -> str:
        return f"{self.group}:{self.name}:{self.version}:zip"

    @property
    def env_prefix(self) -> str:
        return "ES" if self.name == "elasticsearch" else "OPENSEARCH"

    def runs_on(self, java_version: int) -> bool:
        return self.oldest_java <= java_version <= (self.newest_java or java_version)


_ELASTIC = "org.elasticsearch.distribution.integ-test-zip"
_OPENSEARCH = "org.opensearch.distribution.integ-test-zip"
DISTRIBUTIONS: Mapping[str, Distribution] = {
    "elasticsearch-8": Distribution(_ELASTIC, "elasticsearch", "8.19.0", 17, 23),
    "elasticsearch-9": Distribution(_ELASTIC, "elasticsearch", "9.2.0", 21, None),
    "opensearch-2": Distribution(_OPENSEARCH, "opensearch", "2.19.4", 17, 23),
    "opensearch-3": Distribution(_OPENSEARCH, "opensearch", "3.4.0", 21, None),
}
KINDS = tuple(DISTRIBUTIONS)


class SearchServer:
    """Run one server process in its own directory; data, port and address survive `restart`.

    A later process finds the server again by its directory: `SearchServer(kind, directory).running`. A `tied` server
    ends with the process that started it, however that ends.
    """

    def __init__(
        self,
        kind: str,
        directory: Path,
        *,
        settings: Mapping[str, str] | None = None,
        java_options: Sequence[str] = (),
        tied: bool = False,
    ) -> None:
        if kind not in DISTRIBUTIONS:
            raise ConfigError(f"unknown search server {kind!r}: choose one of {', '.join(KINDS)}")
        self.kind = kind
        self.distribution = DISTRIBUTIONS[kind]
        self.directory = directory.resolve()
        self.settings = dict(settings or {})
        self.java_options = tuple(java_options)
        self._find_ports()
        self._tied = tied
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def log_file(self) -> Path:
        return self.directory / "server.log"

    @property
    def running(self) -> bool:
        return self._find_pid() is not None

    def start(self, *, timeout_seconds: float = 240) -> None:
        """Start the server and wait until it answers. Do nothing if it already runs."""
        if not self.running:
            home, java_home = install(self.kind), find_java(self.distribution)
            self.directory.mkdir(parents=True, exist_ok=True)
            # If two commands start the server of one directory, the second finds it running.
            with _alone(self.directory / LOCK_FILE), _kept(self.http_port, self.transport_port):
                if not self.running:
                    self._start(home, java_home, timeout_seconds)
        self._find_ports()
        self._wait_until_healthy(timeout_seconds)

    def _start(self, home: Path, java_home: Path, timeout_seconds: float) -> None:
        self._prepare_directory(home)
        self._launch(home, java_home)
        try:
            self._wait_until_healthy(timeout_seconds)
        except (CannotConnect, ConfigError):
            self.kill()
            raise

    def _find_ports(self) -> None:
        """Choose the ports of the running server, if there is one, else any free ones."""
        state = self._read_state()
        self.http_port: int = state.get("http_port") or _free_port()
        self.transport_port: int = state.get("transport_port") or _free_port()

    def stop(self, *, timeout_seconds: float = 30) -> None:
        """Stop the server in an orderly way, or by force if it does not end."""
        self._signal(signal.SIGTERM)
        if not self._wait_until_ended(timeout_seconds):
            self.kill()

    def kill(self) -> None:
        """End the server at once, as a power cut would (SIGKILL to the launcher and the server it started)."""
        self._signal(signal.SIGKILL)
        if not self._wait_until_ended(60):
            raise CannotConnect(f"{self.kind} (process {self._find_pid()}) still runs after SIGKILL")

    def restart(self, *, timeout_seconds: float = 240) -> None:
        """Start again on the same data and the same port, after `stop` or `kill` or instead of them."""
        self.stop()
        self.start(timeout_seconds=timeout_seconds)

    def _launch(self, home: Path, java_home: Path) -> None:
        prefix = self.distribution.env_prefix
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "HOME": str(self.directory),
            f"{prefix}_JAVA_HOME": str(java_home),
            f"{prefix}_JAVA_OPTS": " ".join([f"-Xms{HEAP}", f"-Xmx{HEAP}", *self.java_options]),
            f"{prefix}_PATH_CONF": str(self.directory / "config"),
            f"{prefix}_TMPDIR": str(self.directory / "tmp"),
        }
        settings = [f"-E{name}={value}" for name, value in self._all_settings().items()]
        account = accounts.server_account(self.directory)
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [str(home / "bin" / self.distribution.name), *settings],
                cwd=self.directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # its own process group, so that signals reach the launcher's child too
                user=account.uid if account.is_other else None,
                group=account.gid if account.is_other else None,
                extra_groups=[] if account.is_other else None,
            )
        self._write_state(self._process.pid)
        if self._tied:
            self._watchdog = process_groups.end_with_us(self._process.pid)

    def _all_settings(self) -> dict[str, str]:
        settings = {
            "cluster.name": "vitrina",
            "node.name": self.kind,
            "discovery.type": "single-node",
            "http.host": "127.0.0.1",
            "http.port": str(self.http_port),
            "transport.host": "127.0.0.1",
            "transport.port": str(self.transport_port),
            "cluster.routing.allocation.disk.threshold_enabled": "false",
            # Without thresholds, each check of the disks would lift blocks, which tests set.
            "cluster.info.update.interval": "24h",
            "path.data": str(self.directory / "data"),
            "path.logs": str(self.directory / "logs"),
        }
        if self.distribution.name == "elasticsearch":
            settings["xpack.security.enabled"] = "false"
        return settings | self.settings

    def _prepare_directory(self, home: Path) -> None:
        for name in ("data", "logs", "tmp"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        config = self.directory / "config"
        if not config.exists():
            shutil.copytree(home / "config", config)
            _drop_paths_inside_the_installation(config / "jvm.options")
        account = accounts.server_account(self.directory)  # not root, which both servers refuse
        for path in (self.directory, *self.directory.rglob("*")):
            account.own(path)
        if account.run(["test", "-w", self.directory.resolve()]).returncode:
            raise ConfigError(
                f"{self.directory.resolve()} cannot be entered by the account that {self.kind} runs as, which is not"
                " root: let all users pass through the directories above it (chmod o+x), or work in another one"
            )

    def _wait_until_healthy(self, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        while not _answers(self.http_port):
            if self._find_pid() is None:
                raise CannotConnect(f"{self.kind} ended while starting.\n{self._log_tail()}")
            if time.monotonic() > deadline:
                raise ConfigError(f"{self.kind} did not answer within {timeout_seconds:.0f} s.\n{self._log_tail()}")
            time.sleep(0.2)

    def _wait_until_ended(self, timeout_seconds: float) -> bool:
        deadline = time.monotonic() + timeout_seconds
        while self._find_pid() is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        if self._watchdog is not None:
            self._watchdog.kill()  # before its pipe closes, because the pid may be reused by then
            self._watchdog.communicate()
            self._watchdog = None
        return True

    def _log_tail(self) -> str:
        text = self.log_file.read_text(errors="replace") if self.log_file.exists() else ""
        telling = [line for line in text.splitlines() if not line.startswith("\tat ")]  # without stack frames
        return f"The end of its log, {self.log_file}:\n" + "\n".join(telling[-15:])

    def _signal(self, number: signal.Signals) -> None:
        pid = self._find_pid()
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number)

    def _find_pid(self) -> int | None:
        """Return the leader of the server's process group while any member of it is alive."""
        state = self._read_state()
        pid = state.get("pid")
        if pid is None:
            return None
        started = process_groups.started_at(pid)
        if started is not None and started != state.get("started"):
            return None  # the pid was reused
        if process_groups.is_alive(pid):
            return pid
        if self._process is not None:
            self._process.poll()  # collects the exit status, or it would stay a zombie
        return None

    def _read_state(self) -> dict[str, int]:
        try:
            state = json.loads((self.directory / STATE_FILE).read_text())
        except FileNotFoundError:
            return {}
        if state.pop("kind") != self.kind:
            raise ConfigError(
                f"{self.directory} holds another kind of server than {self.kind}: use a separate directory"
            )
        return dict(state)

    def _write_state(self, pid: int) -> None:
        state = {
            "kind": self.kind,
            "pid": pid,
            "started": process_groups.started_at(pid),
            "http_port": self.http_port,
            "transport_port": self.transport_port,
        }
        # Written atomically, because another command may be reading it.
        written = self.directory / f".{STATE_FILE}.{os.getpid()}"
        written.write_text(json.dumps(state))
        written.rename(self.directory / STATE_FILE)


@contextlib.contextmanager
def running(
    kind: str, *, settings: Mapping[str, str] | None = None, java_options: Sequence[str] = ()
) -> Iterator[SearchServer]:
    """Run a server for the duration of a `with` block, then remove its directory. A failed start leaves its log."""
    directory = Path(tempfile.mkdtemp(prefix=f"vitrina-{kind}-"))
    server = SearchServer(kind, directory, settings=settings, java_options=java_options, tied=True)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


def install(kind: str) -> Path:
    """Return the unpacked server in the cache; fetch it from Maven Central if it is missing."""
    distribution, cache, home = DISTRIBUTIONS[kind], cache_directory(), _home(kind)
    if home.exists():
        return home
    try:
        cache.mkdir(parents=True, exist_ok=True)
        # One at a time, because Maven's files do not support concurrent use.
        with (
            _alone(cache.with_name(f"{cache.name}.lock")),
            tempfile.TemporaryDirectory(dir=cache, prefix=".fetching-") as scratch,
        ):
            if not home.exists():
                archive = _fetch(distribution, Path(scratch))
                (_unpack(archive, Path(scratch)) / home.name).rename(home)
    except PermissionError as exc:
        raise ConfigError(f"cannot write to the cache {cache}: {exc.strerror}; set XDG_CACHE_HOME") from exc
    return home


def is_installed(kind: str) -> bool:
    """Return whether a server of that kind can be started without fetching anything."""
    return _home(kind).exists()


def _home(kind: str) -> Path:
    distribution = DISTRIBUTIONS[kind]
    return cache_directory() / f"{distribution.name}-{distribution.version}"


def cache_directory() -> Path:
    """Return where servers are kept between runs; for root a place that the unprivileged user can read as well."""
    configured = os.environ.get("XDG_CACHE_HOME")
    base = Path(configured) if configured else Path.home() / ".cache"
    if os.geteuid() == 0 and not _is_open_to_all(base):
        base = Path("/var/cache")
    return base / "vitrina" / "search"


def find_java(distribution: Distribution) -> Path:
    """Return the home of the oldest installed Java that runs the server."""
    suitable = sorted((version, home) for home, version in _installed_javas() if distribution.runs_on(version))
    if not suitable:
        raise ConfigError(
            f"{distribution.name} {distribution.version} needs Java {_java_range(distribution)}; JAVA_HOME, PATH and "
            f"/usr/lib/jvm have none. Install it: apt-get install -y openjdk-{distribution.oldest_java}-jre-headless"
        )
    return suitable[0][1]


def has_java(kind: str) -> bool:
    """Return whether this machine has a Java that runs that kind of server."""
    return any(DISTRIBUTIONS[kind].runs_on(version) for _, version in _installed_javas())


def _java_range(distribution: Distribution) -> str:
    if distribution.newest_java is None:
        return f"{distribution.oldest_java} or later"
    return f"{distribution.oldest_java} to {distribution.newest_java}"


def _installed_javas() -> Iterator[tuple[Path, int]]:
    homes = [Path(value) for value in (os.environ.get("JAVA_HOME"),) if value]
    on_path = shutil.which("java")
    if on_path:
        homes.append(Path(on_path).resolve().parent.parent)
    homes += sorted(Path("/usr/lib/jvm").glob("*"))
    for home in homes:
        version = _java_version(home)
        if version is not None:
            yield home, version


def _java_version(home: Path) -> int | None:
    java = home / "bin" / "java"
    if not java.exists():
        return None
    release = home / "release"
    text = release.read_text() if release.exists() else _run([str(java), "-version"])
    found = re.search(r'(?:JAVA_VERSION=|version )"(\d+)', text)
    return int(found[1]) if found else None


def _fetch(distribution: Distribution, into: Path) -> Path:
    if shutil.which("mvn") is None:
        raise ConfigError("Maven fetches the search servers and is not installed: apt-get install -y maven")
    goal = ["dependency:copy", f"-Dartifact={distribution.artifact}", f"-DoutputDirectory={into}"]
    output = _run(["mvn", "-q", "-B", *goal], timeout_seconds=600)
    archive = into / f"{distribution.name}-{distribution.version}.zip"
    if not archive.exists():
        raise ConfigError(f"Maven could not fetch {distribution.artifact}:\n{output[-2000:]}")
    return archive


def _run(command: list[str], timeout_seconds: float = 60) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise ConfigError(f"{' '.join(command)} did not end within {timeout_seconds:.0f} s") from exc
    return done.stdout.decode(errors="replace")


def _unpack(archive: Path, into: Path) -> Path:
    with zipfile.ZipFile(archive) as content:
        for entry in content.infolist():
            path = Path(content.extract(entry, into))
            mode = entry.external_attr >> 16  # zipfile does not restore which files are executable
            path.chmod(0o755 if entry.is_dir() or mode & stat.S_IXUSR else 0o644)
    return into


def _drop_paths_inside_the_installation(jvm_options: Path) -> None:
    """Keep garbage collector logs and heap dumps out of the shared installation, which is read-only."""
    lines = jvm_options.read_text().splitlines()
    kept = [line for line in lines if not re.search(r"=logs/|=data|HeapDumpOnOutOfMemory", line)]
    jvm_options.write_text("\n".join(kept) + "\n")


def _is_open_to_all(path: Path) -> bool:
    existing = [part for part in (path, *path.parents) if part.exists()]
    return all(part.stat().st_mode & stat.S_IXOTH for part in existing)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def _alone(lock_file: Path) -> Iterator[None]:
    with lock_file.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _kept(*ports: int) -> Iterator[None]:
    """Reserve these ports for the server, which takes a while to listen on them.

    They are bound, but not listened on. The server also sets SO_REUSEADDR, so only it can share them.
    """
    with contextlib.ExitStack() as keepers:
        for port in ports:
            keeper = keepers.enter_context(socket.socket())
            keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):  # already in use, which the server will report
                keeper.bind(("127.0.0.1", port))
        yield


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/_cluster/health?wait_for_status=yellow&timeout=3s")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
