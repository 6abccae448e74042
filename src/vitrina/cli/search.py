"""Run search servers on this machine: started and stopped by hand, or together with `vitrina dev`."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrina.cli import local, processes
from vitrina.cli.output import Column, Format, Output, show_list
from vitrina.errors import CannotConnect, ConfigError

if TYPE_CHECKING:
    from vitrina.cli.processes import Children
    from vitrina.embedded.search_server import SearchServer

DIRECTORY = local.HOME / "search"
LOOK_SECONDS = 1.0

group = typer.Typer(help="Search servers on this machine.", no_args_is_help=True, rich_markup_mode=None)

Kind = Annotated[
    str | None, typer.Option(help="elasticsearch-8, elasticsearch-9, opensearch-2 or opensearch-3.", metavar="KIND")
]
SERVER_COLUMNS = [
    Column("kind", lambda found: found["kind"]),
    Column("version", lambda found: found["version"]),
    Column("status", lambda found: found["status"]),
    Column("address", lambda found: found["url"]),
    Column("log", lambda found: found["log"]),
]


@group.command()
def start(kind: Kind = None, output: Output = Format.TABLE) -> None:
    """Start a search server that runs until `stop`.

    It is downloaded from Maven Central the first time. Its data stays in .vitrina/search.
    """
    server = _server(kind or _kind_for_this_machine())
    if not server.running:
        local.say(f"starting {server.kind} (downloaded from Maven Central the first time)")
    server.start()
    show_list([_described(server)], SERVER_COLUMNS, output, empty="")
    local.say(f"use it with: export ELASTICSEARCH_URL={server.url}")


@group.command()
def stop(kind: Kind = None) -> None:
    """Stop the server of that kind, or all; their data stays."""
    for server in _known(kind):
        if server.running:
            server.stop()
            local.say(f"{server.kind} is stopped")


@group.command()
def status(kind: Kind = None, output: Output = Format.TABLE) -> None:
    """Show the servers of this directory and whether they run."""
    empty = "no search server was started here: `vitrina search start`"
    show_list([_described(server) for server in _known(kind)], SERVER_COLUMNS, output, empty=empty)


def _known(kind: str | None) -> "list[SearchServer]":
    from vitrina.embedded.search_server import KINDS

    if kind is not None:
        return [_server(kind)]
    return [_server(name) for name in KINDS if _directory_of(name).exists()]


def _server(kind: str) -> "SearchServer":
    from vitrina.embedded.search_server import SearchServer

    return SearchServer(kind, _directory_of(kind))


def _described(server: "SearchServer") -> dict[str, object]:
    running = server.running
    return {
        "kind": server.kind,
        "version": server.distribution.version,
        "status": "RUNNING" if running else "stopped",
        "url": server.url if running else None,
        "log": str(server.log_file),
    }


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
            _stay(server)
        except KeyboardInterrupt:
            local.say(f"{kind} is stopping")
        finally:
            server.stop(timeout_seconds=processes.ORPHAN_SECONDS / 2)


def _stay(server: "SearchServer") -> None:
    """Watch the server, which another command may stop and start again. Polling also reaps its process."""
    was_running = True
    while True:
        running = server.running
        if was_running and not running:
            local.say(f"{server.kind} has ended: `vitrina search start` starts it again")
        elif running and not was_running:
            local.say(f"{server.kind} runs again on {server.url}")
        was_running = running
        time.sleep(LOOK_SECONDS)


class NotStarted(CannotConnect):
    """No search server can be started; everything else may continue without it."""


def start_beside(children: "Children") -> str:
    """Start one as a child process and return its address once it answers. The first time, it is downloaded."""
    kind = _kind_for_this_machine()
    directory = _directory_of(kind)
    if not _server(kind).running:  # otherwise a user started it by hand, and this command must not stop it
        local.say(f"search: starting {kind} (downloaded from Maven Central the first time)")
        children.start("search", ["search-server", "--kind", kind, "--directory", str(directory)], {})
    while True:
        children.raise_if_ended()
        server = _server(kind)
        if server.running:
            server.start()  # it runs: this waits until it answers
            return server.url
        time.sleep(0.2)


def is_at_hand() -> bool:
    """Return whether `start_beside` would have nothing to download."""
    from vitrina.embedded.search_server import is_installed

    return bool(_usable_kinds()) and is_installed(_kind_for_this_machine())


def _kind_for_this_machine() -> str:
    """Choose the kind that was used here before, or else the first that the installed Java can run."""
    usable = _usable_kinds()
    if not usable:
        raise ConfigError("a search server needs Java 17 or later: apt-get install -y openjdk-17-jre-headless")
    return next((kind for kind in usable if _directory_of(kind).exists()), usable[0])


def _usable_kinds() -> list[str]:
    from vitrina.embedded.search_server import KINDS, has_java

    return [kind for kind in KINDS if has_java(kind)]


def _directory_of(kind: str) -> Path:
    return DIRECTORY / kind
