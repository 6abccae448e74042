"""Start the runner as the process that users start."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from vitrina.settings import Settings

VITRINA = str(Path(sys.executable).with_name("vitrina"))


@contextmanager
def runner_process(settings: Settings, directory: Path, **more: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Start `vitrina runner`, with `more` in its environment; its output goes to `runner.log` in the directory."""
    environment = environment_of(settings)
    with (directory / "runner.log").open("w") as output:
        process = subprocess.Popen(
            [VITRINA, "runner"], env=environment | more, cwd=directory, stdout=output, stderr=output
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(timeout=60)


def environment_of(settings: Settings) -> dict[str, str]:
    """Return the environment that a `vitrina` process needs to work on the database of the settings."""
    assert settings.reader_url
    return {
        "PATH": os.environ["PATH"],
        "VITRINA_DATABASE_URL": settings.require_database_url(),
        "VITRINA_READER_URL": settings.reader_url.get_secret_value(),
        "VITRINA_BACKOFF_SECONDS": "0.1,0.1,0.1",
    }


def command(directory: Path, environment: Mapping[str, str], *words: str) -> str:
    """Return the whole output of `vitrina WORDS`, whatever its exit code."""
    done = subprocess.run(
        [VITRINA, *words],
        env={"PATH": os.environ["PATH"]} | dict(environment),
        cwd=directory,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout + done.stderr
