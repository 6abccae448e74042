"""Imitate a reader's checkout: a directory with the Makefile, an environment, and a shell."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from tests.docs import forks
from tests.docs.blocks import ROOT, Block
from tests.support.ports import kept_port

BLOCK_SECONDS = 200
START_SECONDS = 150
# `make dev` is ready when it has said where everything is, which comes after the lines of its processes.
READY = re.compile(r"API docs +http://127\.0\.0\.1:\d+/docs|^(?!\w+ +\|).*(?:api|runner)\.started", re.MULTILINE)
STATE = ".shell"
PROGRAMS = Path(".venv/bin")


class Checkout:
    """Run blocks one after the other, as one shell would; `close` ends what keeps running."""

    def __init__(self, directory: Path, search_url: str | None = None) -> None:
        self.directory = directory
        self._beside: list[tuple[subprocess.Popen[bytes], Path]] = []
        self._open = contextlib.ExitStack()
        self._addresses = {"8000": f"127.0.0.1:{self._open.enter_context(kept_port())}"}
        self._search: dict[str, str] = {}
        if search_url:
            self._addresses["9200"] = urlsplit(search_url).netloc
            # What `make dev SEARCH=1` says to its own processes.
            self._search = {"ELASTICSEARCH_URL": search_url, "VITRINA_ALLOWED_TARGETS": "analytics.*,es:*"}
        self._open.enter_context(forks.ready(directory / PROGRAMS))
        _furnish(directory)

    def add_environment(self, **more: str) -> None:
        """Set variables that the reader of a page has set."""
        self._search |= more

    def run(self, block: Block) -> str:
        if block.title:
            path = self.directory / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
            return ""
        if not block.is_command:
            return ""
        if block.reason_not_to_run:
            check_syntax(block)
            return ""
        return self._start(block) if block.keeps_running else self._do(block)

    def close(self) -> None:
        with self._open:
            self.end_all_but(0)

    def end_all_but(self, count: int) -> None:
        """Forget the shell of a page and end its processes, except the first `count`, which all pages share."""
        (self.directory / STATE).unlink(missing_ok=True)
        while len(self._beside) > count:
            self._end(*self._beside.pop())

    @property
    def running(self) -> int:
        return len(self._beside)

    def _do(self, block: Block) -> str:
        script = f"[ ! -f {STATE} ] || . ./{STATE}\nset -eo pipefail\n{self._here(block.script)}\nexport -p > {STATE}\n"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.directory,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=BLOCK_SECONDS,
            text=True,
            check=False,
        )
        assert done.returncode == block.exit_code, f"{block} ended with {done.returncode}:\n{block.text}\n{done.stdout}"
        return done.stdout

    def _start(self, block: Block) -> str:
        log = self.directory / f"beside-{len(self._beside)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", f"[ ! -f {STATE} ] || . ./{STATE}\n{self._here(block.script)}"],
                cwd=self.directory,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._beside.append((process, log))
        self._await_ready(block, process, log)
        return log.read_text()

    def _await_ready(self, block: Block, process: "subprocess.Popen[bytes]", log: Path) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not READY.search(log.read_text()):
            assert process.poll() is None, f"{block} ended:\n{log.read_text()}"
            assert time.monotonic() < deadline, f"{block} is not up after {START_SECONDS} s:\n{log.read_text()}"
            time.sleep(0.1)

    def _end(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(90)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise AssertionError(f"did not end by Ctrl-C:\n{log.read_text()[-3000:]}") from None

    def _here(self, script: str) -> str:
        """Replace addresses by those of this platform, whose search server is running already."""
        script = script.replace("make dev SEARCH=1", "make dev")
        for port, address in self._addresses.items():
            script = re.sub(rf"\b(?:127\.0\.0\.1|localhost):{port}\b", address, script)
        return script

    def _environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("VITRINA_", "ELASTICSEARCH_", "PG"))}
        port = self._addresses["8000"].rpartition(":")[2]
        programs = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
        return kept | self._search | {"PATH": programs, "PORT": port}


def check_syntax(block: Block) -> None:
    done = subprocess.run(["bash", "-n"], input=block.script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{block} is not bash:\n{done.stderr}"


def _furnish(directory: Path) -> None:
    """Create what a clone has after `make setup`, without another environment."""
    (directory / PROGRAMS / "activate").write_text(f'PATH="{directory / PROGRAMS}:$PATH"\n')
    # A link from elsewhere would be an interpreter without the packages of this environment.
    python = directory / PROGRAMS / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    for name in ("Makefile", "sql", "infra", ".env.sample"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, directory / name)
    scripts = directory / "scripts"
    scripts.mkdir()
    for path in (ROOT / "scripts").iterdir():
        if path.suffix == "" and path.is_file():
            (scripts / path.name).write_text("#!/bin/sh\n")  # the environment is there already
            (scripts / path.name).chmod(0o755)
