"""A search server beside `vitrina dev`: a child process of ours that starts the real one and takes it along."""

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrina.cli import local, processes
from vitrina.errors import ConfigError

if TYPE_CHECKING:
    from vitrina.cli.processes import Children

DIRECTORY = local.HOME / "search"


def search_server(
    kind: Annotated[str, typer.Option()],
    directory: Annotated[Path, typer.Option()] = DIRECTORY,
    end_with_stdin: processes.EndWithStdin = False,
) -> None:
    """Run a search server until stopped. Used by `vitrina dev --search`."""
    from vitrina.embedded.search_server import SearchServer

    if end_with_stdin:
        processes.end_with_stdin()
    with processes.ending_like_ctrl_c():
        server = SearchServer(kind, directory)
        try:
            server.start()
            local.say(f"{kind} answers on {server.url}")
            threading.Event().wait()
        except KeyboardInterrupt:
            local.say(f"{kind} is stopping")
        finally:
            server.stop(timeout_seconds=processes.ORPHAN_SECONDS / 2)


def start_beside(children: "Children") -> str:
    """Start one as a child process and return its address once it answers. The first time, it is downloaded."""
    from vitrina.embedded.search_server import SearchServer

    kind = _kind_for_this_machine()
    directory = _directory_of(kind)
    local.say(f"search: starting {kind} (fetched from Maven Central if it is not here yet)")
    children.start("search", ["search-server", "--kind", kind, "--directory", str(directory)], {})
    while True:
        children.raise_if_ended()
        server = SearchServer(kind, directory)
        if server.running:
            server.start()  # it runs: this waits until it answers
            return server.url
        time.sleep(0.2)


def _kind_for_this_machine() -> str:
    """The one that was used here before, else the first that the installed Java can run."""
    from vitrina.embedded.search_server import KINDS, has_java

    usable = [kind for kind in KINDS if has_java(kind)]
    if not usable:
        raise ConfigError("a search server needs Java 17 or later: apt-get install -y openjdk-17-jre-headless")
    return next((kind for kind in usable if _directory_of(kind).exists()), usable[0])


def _directory_of(kind: str) -> Path:
    return DIRECTORY / kind
