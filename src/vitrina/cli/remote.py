"""Talking to the API: the client of the configured address, and pipeline names for the shell's completion."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from vitrina.cli import local

if TYPE_CHECKING:
    from vitrina.client import Client

COMPLETION_SECONDS = 1.0


@contextmanager
def api() -> Iterator["Client"]:
    """The client of VITRINA_API_URL with VITRINA_TOKEN."""
    from vitrina.client import Client

    with Client.from_settings(local.load_settings()) as client:
        yield client


def complete_pipeline(incomplete: str) -> list[str]:
    """Names that begin so. Silent when there is no API: a shell's line is no place for errors."""
    from vitrina.client import Client
    from vitrina.errors import VitrinaError

    try:
        settings = local.load_settings()
        token = settings.token.get_secret_value() if settings.token else None
        with Client(settings.api_url, token, timeout_seconds=COMPLETION_SECONDS) as client:
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
