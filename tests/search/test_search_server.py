"""The search server for tests and developers: what it needs, how it is found again, and what it says when it cannot."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.search.conftest import Target
from vitrina.embedded import search_server
from vitrina.embedded.search_server import DISTRIBUTIONS, SearchServer
from vitrina.errors import CannotConnect, ConfigError


def test_a_running_server_is_found_again_by_its_directory(search: Target) -> None:
    if search.process is None:
        pytest.fail("this test looks at the server's process: run it without ELASTICSEARCH_URL")
    found = SearchServer(search.kind, search.process.directory)

    assert found.running
    assert found.url == search.url
    found.start()  # does nothing
    assert found._find_pid() == search.process._find_pid()


def test_another_kind_does_not_take_over_the_directory(search: Target) -> None:
    if search.process is None:
        pytest.fail("this test looks at the server's process: run it without ELASTICSEARCH_URL")
    other = next(kind for kind in search_server.KINDS if kind != search.kind)

    with pytest.raises(ConfigError, match="holds another kind of server"):
        SearchServer(other, search.process.directory)


def test_a_server_is_stopped_when_it_has_ended_and_its_starter_has_not_looked_yet(tmp_path: Path) -> None:
    server = SearchServer("elasticsearch-8", tmp_path)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as started:
        server._write_state(started.pid)
        assert server.running
        assert started.stdin
        started.stdin.close()
        os.waitid(os.P_PID, started.pid, os.WEXITED | os.WNOWAIT)

        assert not server.running


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's servers run as somebody else")
def test_a_directory_that_the_servers_account_may_not_enter_is_named(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)

    with pytest.raises(ConfigError, match="closed/search cannot be entered by the account that elasticsearch-8 runs"):
        SearchServer("elasticsearch-8", closed / "search").start()


def test_unknown_kind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown search server 'solr': choose one of elasticsearch-8"):
        SearchServer("solr", tmp_path)


def test_missing_java_comes_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_server, "_installed_javas", lambda: iter([(Path("/old"), 11)]))

    with pytest.raises(ConfigError, match="apt-get install -y openjdk-21-jre-headless"):
        search_server.find_java(DISTRIBUTIONS["elasticsearch-9"])


def test_missing_maven_comes_with_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(search_server, "cache_directory", lambda: tmp_path / "search")

    with pytest.raises(ConfigError, match="apt-get install -y maven"):
        search_server.install("opensearch-2")
    assert list((tmp_path / "search").iterdir()) == [], "nothing half-fetched is left"


@pytest.mark.parametrize(
    ("kind", "installed", "chosen"),
    [
        ("elasticsearch-8", [25, 17, 21], 17),
        ("elasticsearch-8", [25], None),
        ("elasticsearch-9", [17, 25], 25),
        ("opensearch-2", [11, 21], 21),
        ("opensearch-3", [17], None),
    ],
)
def test_the_oldest_java_that_fits_is_chosen(
    monkeypatch: pytest.MonkeyPatch, kind: str, installed: list[int], chosen: int | None
) -> None:
    monkeypatch.setattr(
        search_server, "_installed_javas", lambda: iter([(Path(f"/jvm/{version}"), version) for version in installed])
    )
    if chosen is None:
        with pytest.raises(ConfigError, match="needs Java"):
            search_server.find_java(DISTRIBUTIONS[kind])
    else:
        assert search_server.find_java(DISTRIBUTIONS[kind]) == Path(f"/jvm/{chosen}")


def test_java_version_is_read_from_the_release_file(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch()
    (tmp_path / "release").write_text('IMPLEMENTOR="x"\nJAVA_VERSION="21.0.2"\n')

    assert search_server._java_version(tmp_path) == 21
    assert search_server._java_version(tmp_path / "nothing") is None


def test_a_server_that_does_not_start_shows_its_log() -> None:
    """The setting is wrong, so the server ends by itself; the message names the log and shows its end."""
    directory = Path(tempfile.mkdtemp(prefix="vitrina-opensearch-2-"))  # pytest's own is closed to the server's account
    server = SearchServer("opensearch-2", directory, settings={"no.such.setting": "1"})

    with pytest.raises(CannotConnect, match=r"(?s)ended while starting.*server\.log.*no\.such\.setting"):
        server.start()
    assert not server.running
    assert server.log_file.exists()
    shutil.rmtree(directory)


def test_a_server_started_by_hand_runs_until_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tempfile.mkdtemp(prefix="vitrina-cli-"))  # pytest's own is closed to the server's account
    Path.cwd().chmod(0o755)
    try:
        # Two at once: the second one finds the server that the first one starts.
        with ThreadPoolExecutor() as both:
            start = ("search", "start", "--kind", "opensearch-2", "-o", "json")
            [[server], again] = [json.loads(said) for said in both.map(lambda _: _vitrina(*start), range(2))]
        assert again == [server]
        with urllib.request.urlopen(f"{server['url']}/_cluster/health") as answer:
            assert answer.status == 200
        assert len(_processes_of(Path.cwd())) == 1
        assert [found["status"] for found in json.loads(_vitrina("search", "status", "-o", "json"))] == ["RUNNING"]
    finally:
        _vitrina("search", "stop")

    assert [found["status"] for found in json.loads(_vitrina("search", "status", "-o", "json"))] == ["stopped"]
    shutil.rmtree(Path.cwd())


def test_a_port_is_kept_for_the_server_that_is_on_its_way_to_it() -> None:
    port = search_server._free_port()
    with search_server._kept(port):
        with socket.socket() as somebody, pytest.raises(OSError, match="in use"):
            somebody.bind(("127.0.0.1", port))
        with socket.socket() as the_server:
            the_server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Java does
            the_server.bind(("127.0.0.1", port))
            the_server.listen()
            with search_server._kept(port):  # busy is no news
                pass


def _processes_of(directory: Path) -> list[int]:
    """Java, not the launcher in front of it."""
    commands = {int(path.parent.name): path for path in Path("/proc").glob("[0-9]*/cmdline")}
    return [pid for pid, command in commands.items() if _is_server_in(directory, command)]


def _is_server_in(directory: Path, command: Path) -> bool:
    try:
        words = command.read_bytes()
    except OSError:  # it has ended
        return False
    return f"path.data={directory}".encode() in words and b"org.opensearch.bootstrap.OpenSearch" in words


def _vitrina(*arguments: str) -> str:
    command = [sys.executable, "-m", "vitrina.cli", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.chaos
def test_a_server_for_a_with_block_ends_with_its_process() -> None:
    """Also when that is killed and can clean up nothing."""
    code = (
        "import sys, time; from vitrina.embedded import search_server\n"
        "with search_server.running('opensearch-2') as server:\n"
        "    print(server.directory, flush=True); time.sleep(600)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout
    directory = Path(owner.stdout.readline().strip())
    server = SearchServer("opensearch-2", directory)
    assert server.running

    owner.kill()
    owner.communicate()

    assert _ends_within(60, server)
    shutil.rmtree(directory)


def _ends_within(seconds: float, server: SearchServer) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not server.running:
            return True
        time.sleep(0.1)
    return False
