"""`vitrina dev` and the long-running commands: everything comes up together, and nothing is left behind."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vitrina.settings import Settings

VITRINA = [sys.executable, "-m", "vitrina.cli"]
START_SECONDS = 120.0
STOP_SECONDS = 90.0

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def checkout() -> Iterator[Path]:
    """A directory that the account of root's PostgreSQL may pass through, with a space in its name."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        path = Path(directory) / "my checkout"
        path.mkdir()
        yield path


class Dev:
    """A running command in a directory, with what it says."""

    def __init__(self, directory: Path, *arguments: str, settings: Settings | None = None) -> None:
        self.log = directory / "said.txt"
        self._output = self.log.open("wb")
        self.process = subprocess.Popen(
            [*VITRINA, *arguments],
            cwd=directory,
            env=environment(**(variables_of(settings) if settings else {})),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.directory = directory

    @property
    def said(self) -> str:
        return self.log.read_text()

    def await_line(self, pattern: str) -> re.Match[str]:
        wait_until(lambda: re.search(pattern, self.said) or self.process.poll() is not None, START_SECONDS)
        found = re.search(pattern, self.said)
        assert found, f"{pattern!r} was not said:\n{self.said}"
        return found

    def await_url(self) -> str:
        return self.await_line(r"API docs +(http://127\.0\.0\.1:\d+)/docs")[1]

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(STOP_SECONDS)

    def family(self) -> set[int]:
        """Every process that works in the directory or on it, however it is related to the command."""
        return {pid for pid in all_pids() if belongs_to(pid, self.directory)}

    def clean_up(self) -> None:
        self._output.close()
        for pid in self.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def start() -> Iterator[Callable[..., Dev]]:
    started: list[Dev] = []

    def start_in(directory: Path, *arguments: str, settings: Settings | None = None) -> Dev:
        started.append(Dev(directory, *arguments, settings=settings))
        return started[-1]

    yield start_in
    for dev in started:
        dev.clean_up()


def test_dev_serves_until_ctrl_c_and_leaves_nothing(checkout: Path, start: Callable[..., Dev]) -> None:
    dev = start(checkout, "dev", "--port", str(free_port()))
    url = dev.await_url()
    assert get(f"{url}/livez") == 200
    assert get(f"{url}/docs") == 200
    dev.await_line(r"runner \| .*runner\.started")
    asked = subprocess.run(
        [*VITRINA, "pipelines", "-o", "json"],
        cwd=checkout,
        env=environment(),  # the port is not the usual one, and still found
        capture_output=True,
        text=True,
        check=False,
    )
    assert (asked.returncode, asked.stdout) == (0, "[]\n"), asked.stderr
    assert len(dev.family()) > 4
    assert dev.end(signal.SIGINT) == 0
    assert dev.said.rstrip().endswith("stopped")
    assert dev.family() == set()


def test_dev_leaves_a_busy_port_to_its_owner_and_ends_on_sigterm(
    checkout: Path, start: Callable[..., Dev], database: Settings
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = occupied.getsockname()[1]
        dev = start(checkout, "dev", "--port", str(port), settings=database)
        url = dev.await_url()
        assert url != f"http://127.0.0.1:{port}"
        assert f"port {port} is busy: the API listens on {url.removeprefix('http://')} instead" in dev.said
        assert f"export VITRINA_API_URL={url}" in dev.said
        assert dev.end(signal.SIGTERM) == 0
    assert dev.family() == set()
    assert not (checkout / ".vitrina").exists()


def test_two_checkouts_run_at_once(checkout: Path, start: Callable[..., Dev]) -> None:
    other = checkout.with_name("other")
    other.mkdir()
    port = str(free_port())
    first, second = start(checkout, "dev", "--port", port), start(other, "dev", "--port", port)
    assert get(f"{first.await_url()}/livez") == get(f"{second.await_url()}/livez") == 200
    assert first.await_url() != second.await_url()
    assert first.end(signal.SIGINT) == 0
    assert get(f"{second.await_url()}/livez") == 200
    assert second.end(signal.SIGINT) == 0
    assert first.family() | second.family() == set()


@pytest.mark.parametrize("victim", ["api", "runner"])
def test_when_one_process_dies_everything_stops_and_says_why(
    checkout: Path, start: Callable[..., Dev], database: Settings, victim: str
) -> None:
    dev = start(checkout, "dev", "--port", str(free_port()), settings=database)
    dev.await_url()
    os.kill(child_of(dev.process.pid, victim), signal.SIGKILL)
    assert dev.process.wait(STOP_SECONDS) == 1
    assert f"error: the {victim} was killed by SIGKILL: everything was stopped" in dev.said
    assert dev.family() == set()


def test_a_killed_dev_takes_its_children_along(checkout: Path, start: Callable[..., Dev]) -> None:
    dev = start(checkout, "dev", "--port", str(free_port()))
    dev.await_url()
    assert dev.end(signal.SIGKILL) == -signal.SIGKILL
    wait_until(lambda: not dev.family(), STOP_SECONDS)


def test_interrupted_while_starting_it_leaves_nothing(checkout: Path, start: Callable[..., Dev]) -> None:
    dev = start(checkout, "dev", "--port", str(free_port()))
    dev.await_line("database: the embedded PostgreSQL")
    assert dev.end(signal.SIGINT) == 0
    assert dev.family() == set()


def test_commands_of_one_directory_share_the_embedded_server(checkout: Path, start: Callable[..., Dev]) -> None:
    api = start(checkout, "api", "--port", str(free_port()))
    api.await_line(r"api\.started +.*url=http://127\.0\.0\.1:\d+")
    runner = start(checkout, "runner")
    runner.await_line(r"runner\.started")
    assert api.end(signal.SIGTERM) == 0
    migrated = subprocess.run(
        [*VITRINA, "migrate"], cwd=checkout, env=environment(), capture_output=True, text=True, check=True
    )
    assert re.fullmatch(r"\d{4}\n", migrated.stdout)
    assert "the embedded PostgreSQL of .vitrina/" in migrated.stderr
    assert runner.end(signal.SIGTERM) == 0
    assert runner.family() == set()


def environment(**variables: str) -> dict[str, str]:
    """Without the settings of whoever runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VITRINA_", "ELASTICSEARCH_"))}
    return {**kept, "PYTHONUNBUFFERED": "1", **variables}


def variables_of(settings: Settings) -> dict[str, str]:
    names = ("database_url", "admin_url", "reader_url", "app_password", "reader_password")
    return {f"VITRINA_{name.upper()}": getattr(settings, name).get_secret_value() for name in names}


def get(url: str) -> int:
    with urllib.request.urlopen(url, timeout=60) as response:
        status: int = response.status
        return status


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def wait_until(condition: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not so after {seconds} s"
        time.sleep(0.05)


def child_of(parent: int, command: str) -> int:
    for pid in all_pids():
        if parent_of(pid) == parent and command in arguments_of(pid):
            return pid
    raise AssertionError(f"process {parent} has no child {command!r}")


def all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]


def belongs_to(pid: int, directory: Path) -> bool:
    try:
        works_in = Path(f"/proc/{pid}/cwd").readlink()
    except PermissionError:  # another account's
        works_in = Path("/")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return works_in.is_relative_to(directory) or any(str(directory) in argument for argument in arguments_of(pid))


def arguments_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def parent_of(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None
