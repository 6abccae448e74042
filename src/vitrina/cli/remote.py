"""Open the API client for the configured address, and complete pipeline names in the shell."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from vitrina import answers, environment
from vitrina.cli import local

if TYPE_CHECKING:
    from vitrina.client import Client

WANTED = ("VITRINA_API_URL", "VITRINA_TOKEN")
COMPLETION_SECONDS = 1.0
# `vitrina dev` writes the address of its API here: the port may differ from the default.
ADDRESS = local.HOME / "api-url"


def api(*, timeout_seconds: float = 30.0) -> "Client":
    """Open the client of VITRINA_API_URL, or of the `vitrina dev` of this directory, with VITRINA_TOKEN."""
    from vitrina.client import Client

    url, token = _address_and_token()
    return Client(url, token, timeout_seconds=timeout_seconds, read=answers.plain)


@contextmanager
def announced(url: str) -> Iterator[None]:
    """Publish the address of the API to other commands in this directory while the block runs."""
    is_directory_ours = not ADDRESS.parent.exists()
    with suppress(OSError):  # in a read-only directory, users set VITRINA_API_URL
        _write(url)
    try:
        yield
    finally:
        with suppress(OSError, UnicodeDecodeError):
            if ADDRESS.read_text() == url:  # a second `vitrina dev` may have started
                ADDRESS.unlink()
                if is_directory_ours:
                    ADDRESS.parent.rmdir()  # if nothing else is in it


def _write(url: str) -> None:
    """Write the address atomically, because another command may be reading it."""
    with suppress(FileExistsError):
        ADDRESS.parent.mkdir()
        # As the embedded PostgreSQL would create it later: started by root, it runs under another account.
        ADDRESS.parent.chmod(0o711 if os.geteuid() == 0 else 0o700)
    written = ADDRESS.with_name(f".{ADDRESS.name}.{os.getpid()}")
    written.write_text(url)
    written.replace(ADDRESS)


def _address_and_token() -> tuple[str, str | None]:
    """Read these two of the settings. Where others are set, all are checked, as every command does."""
    variables = environment.read()
    ours = {name.removesuffix("_FILE") for name, value in variables.items() if value and environment.is_ours(name)}
    if not ours <= set(WANTED):
        local.load_settings()
    url, token = (environment.with_files(variables, WANTED).get(name) or None for name in WANTED)
    return url or _announced() or environment.API_URL, token


def _announced() -> str | None:
    from vitrina.errors import ConfigError

    try:
        return ADDRESS.read_text()
    except OSError:
        return None
    except UnicodeDecodeError as exc:
        raise ConfigError(
            f"{ADDRESS} does not contain the address of a `vitrina dev`: remove it, or set VITRINA_API_URL"
        ) from exc


def complete_pipeline(incomplete: str) -> list[str]:
    """List names with this prefix. Return none when there is no API, because completion must not print errors."""
    from vitrina.errors import VitrinaError

    try:
        with api(timeout_seconds=COMPLETION_SECONDS) as client:
            found = client.list_pipelines(name=incomplete or None, limit=100)
    except VitrinaError:
        return []
    return [pipeline.name for pipeline in found if pipeline.name.startswith(incomplete)]


PipelineName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name or id of a pipeline.", autocompletion=complete_pipeline)
]
OptionalPipelineName = Annotated[
    str | None, typer.Argument(metavar="NAME", help="Name or id of a pipeline.", autocompletion=complete_pipeline)
]
