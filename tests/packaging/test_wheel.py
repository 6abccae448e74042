"""What is published: built as a source archive and a wheel, installed into an empty environment, and tried there."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from tests.integration.test_init import DURABLE, SHOP
from tests.support.waiting import until
from vitrina import __version__
from vitrina.embedded.temporary import TemporaryServer

ROOT = Path(__file__).resolve().parents[2]
UV = Path(sys.executable).with_name("uv")
CONSOLE = ROOT / "src/vitrina/api/console/index.html"
# Generous: other tests share the machine.
LONGEST_SECONDS = 200

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    """Far from the checkout, and open to the account of root's PostgreSQL."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.fixture(scope="module")
def archive(scratch: Path) -> Path:
    run(ROOT, sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", scratch / "dist")
    [found] = (scratch / "dist").glob("*.tar.gz")
    return found


@pytest.fixture(scope="module")
def wheel(scratch: Path, archive: Path) -> Path:
    """Built from the archive alone, as an installer without a checkout does it."""
    with tarfile.open(archive) as unpacked:
        unpacked.extractall(scratch / "source", filter="data")
    [source] = (scratch / "source").iterdir()
    run(source, sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", scratch / "dist")
    [found] = (scratch / "dist").glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(scratch: Path, wheel: Path) -> Path:
    """`vitrina` of an environment that holds what the wheel asks for, in the locked versions, and nothing else."""
    environment = scratch / "environment"
    run(scratch, UV, "venv", "--quiet", "--python", sys.executable, environment)
    python = environment / "bin/python"
    install(scratch, "pip", "install", "--python", python, "--constraints", ROOT / "requirements/runtime.txt", wheel)
    return environment / "bin/vitrina"


def test_the_archive_and_the_wheel_hold_what_runs_and_nothing_else(archive: Path, wheel: Path) -> None:
    assert archive.name == f"vitrina-{__version__}.tar.gz"
    assert wheel.name == f"vitrina-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    assert {name.partition("/")[0] for name in names} == {"vitrina", f"vitrina-{__version__}.dist-info"}
    assert "vitrina/embedded/init_demo_data.sql" in names
    assert any(re.match(r"vitrina/store/migrations/versions/0001_", name) for name in names)


def test_the_console_is_in_the_wheel(wheel: Path) -> None:
    if not CONSOLE.exists():
        pytest.skip("the console was not built here")
    with zipfile.ZipFile(wheel) as opened:
        page = opened.read("vitrina/api/console/index.html").decode()
        scripts = re.findall(r"assets/[\w.-]+\.js", page)
        assert scripts
        assert {f"vitrina/api/console/{script}" for script in scripts} <= set(opened.namelist())


def test_the_command_says_its_version(scratch: Path, installed: Path) -> None:
    assert run(scratch, installed, "--version").strip() == __version__
    assert "Start here" in run(scratch, installed, "--help")


def test_dev_serves_api_console_and_runner(scratch: Path, installed: Path) -> None:
    directory = scratch / "dev"
    directory.mkdir()
    log = directory / "said.txt"
    with log.open("wb") as output:
        dev = subprocess.Popen(
            [installed, "dev"],
            cwd=directory,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        ready = re.compile(r"API docs +(http://127\.0\.0\.1:\d+)/docs")
        until(lambda: bool(ready.search(log.read_text())) or dev.poll() is not None, seconds=LONGEST_SECONDS)
        found = ready.search(log.read_text())
        assert found, log.read_text()
        url = found[1]
        assert json.loads(get(f"{url}/health"))["version"] == __version__
        if CONSOLE.exists():
            assert "<title>Vitrina" in get(f"{url}/")
        until(lambda: "runner.started" in log.read_text(), seconds=LONGEST_SECONDS)
        assert run(directory, installed, "pipelines", "-o", "json") == "[]\n"
    finally:
        with suppress(ProcessLookupError):  # it has ended by itself, and its exit code says so
            os.killpg(dev.pid, signal.SIGINT)
        ended = dev.wait(LONGEST_SECONDS)
    assert ended == 0, log.read_text()


def test_five_minutes_from_an_empty_environment_to_a_scheduled_mart_that_is_compared(
    scratch: Path, installed: Path
) -> None:
    """Somebody's own PostgreSQL, `pip install`, `vitrina init`: no file is edited."""
    directory = scratch / "five-minutes"
    directory.mkdir()
    with TemporaryServer(settings=DURABLE) as server:
        url = urlunsplit(urlsplit(server.urls.admin)._replace(path="/somebody"))
        with psycopg.connect(server.urls.admin, autocommit=True) as connection:
            connection.execute("CREATE DATABASE somebody")
        with psycopg.connect(url, autocommit=True) as theirs:
            theirs.execute(SHOP)
            run(
                directory,
                installed,
                "init",
                "--yes",
                "--database-url",
                url,
                "--sources",
                "shop",
                "--table",
                "shop.orders",
            )
            assert differences(theirs) == 0
            assert one(theirs, "SELECT enabled AND next_run_at IS NOT NULL FROM etl.etl_pipelines") is True
            compared = "SELECT result ->> 'differences' FROM etl.etl_requests WHERE kind = 'reconcile'"
            assert one(theirs, compared) == "0"
            assert one(theirs, "SELECT options ? 'reconcile' FROM etl.etl_pipelines") is True

            theirs.execute("UPDATE shop.orders SET total = total + 1 WHERE id <= 10")
            theirs.execute("INSERT INTO shop.orders (customer, total) VALUES ('somebody', 1)")
            theirs.execute("UPDATE etl.etl_pipelines SET next_run_at = now()")  # five minutes later
            said = run(directory, installed, "runner", "--once")
            assert differences(theirs) == 0, said
            assert one(theirs, "SELECT trigger FROM etl.etl_runs ORDER BY started_at DESC LIMIT 1") == "schedule"
    assert [path.name for path in directory.iterdir() if path.is_file()] == [".env"]


def differences(theirs: "psycopg.Connection[tuple[object, ...]]") -> object:
    return one(
        theirs,
        "SELECT count(*) FROM (TABLE shop.orders EXCEPT ALL SELECT id, customer, total, updated_at"
        " FROM analytics.orders) AS lacking",
    )


def one(theirs: "psycopg.Connection[tuple[object, ...]]", question: str) -> object:
    row = theirs.execute(question.encode()).fetchone()
    return row[0] if row else None


def test_the_demo_runs_without_installing_anything(scratch: Path, wheel: Path, installed: Path) -> None:
    """`uvx --from dist/vitrina-*.whl vitrina demo`: uv brings an environment and forgets it."""
    directory = scratch / "demo"
    directory.mkdir()
    shutil.copy(ROOT / "requirements/runtime.txt", directory / "locked.txt")
    words = ("--constraints", "locked.txt", "--from", wheel, "vitrina", "demo", "--no-search")
    said = install(directory, "tool", "run", *words)
    assert "analytics.film_dim" in said, said


def install(directory: Path, *words: str | Path) -> str:
    """Out of uv's cache, which `make setup` has filled; from the network where it has not."""
    done = subprocess.run(
        [UV, "--quiet", "--offline", *words],
        cwd=directory,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST_SECONDS,
    )
    return done.stdout + done.stderr if done.returncode == 0 else run(directory, UV, "--quiet", *words)


def run(directory: Path, *words: str | Path) -> str:
    done = subprocess.run(
        words,
        cwd=directory,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=LONGEST_SECONDS,
    )
    assert done.returncode == 0, f"{words} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def clean_environment() -> dict[str, str]:
    """Neither settings nor modules of this checkout."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("VITRINA_", "PYTHON", "VIRTUAL_"))
    }


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())
