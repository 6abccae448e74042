"""`vitrina dev`: the whole platform on this machine until Ctrl-C."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from vitrina.cli import exits, local, processes, remote, servers, stack

if TYPE_CHECKING:
    from vitrina.embedded.postgres import EmbeddedPostgres

COLOURS = {"api": "\x1b[36m", "runner": "\x1b[35m", "search": "\x1b[33m"}
RESET = "\x1b[0m"


def dev(
    port: Annotated[
        int, typer.Option(help="Port of the API; the next free one if it is busy.", min=1, max=65535)
    ] = servers.DEFAULT_PORT,
    with_search: Annotated[
        bool, typer.Option("--search", help="Also start a search server (needs Java and Maven).")
    ] = False,
) -> None:
    """Start database, API and runner here, until Ctrl-C."""
    try:
        with processes.ending_like_ctrl_c():
            _work(port, with_search)
    except KeyboardInterrupt:
        local.say("stopped")
    except processes.ChildEnded as ended:
        # Its output has just been shown.
        local.say(f"error: {ended.summary}: everything was stopped")
        raise typer.Exit(ended.exit_code if ended.exit_code > 0 else exits.ExitCode.FAILED) from None


def _work(port: int, with_search: bool) -> None:
    settings = local.load_settings(auth="off")
    with (
        stack.migrated_database(settings) as (found, server),
        stack.running(found, port, _line_printer(), with_search=with_search) as running,
        remote.announced(running.url),
    ):
        _say_where(running, server)
        running.children.wait_for_an_end()


def _say_where(running: stack.Stack, server: "EmbeddedPostgres | None") -> None:
    # With an embedded database, commands find the API without settings.
    told = server or running.port == servers.DEFAULT_PORT
    places = {
        "console": f"{running.url}/",
        "API docs": f"{running.url}/docs",
        "commands": None if told else f"export VITRINA_API_URL={running.url}",
        "search": running.search_url,
        "psql": local.psql_command(server) if server else None,
    }
    lines = [f"  {name:<9} {place}" for name, place in places.items() if place]
    local.say("\n".join(["", *lines, "  Ctrl-C stops everything", ""]))


def _line_printer() -> Callable[[str, str], None]:
    from vitrina.observe.logs import wants_colours

    colours = COLOURS if wants_colours(sys.stderr) else {}

    def print_line(name: str, line: str) -> None:
        colour = colours.get(name, "")
        local.say(f"{colour}{name:<6} |{RESET if colour else ''} {line}")

    return print_line
