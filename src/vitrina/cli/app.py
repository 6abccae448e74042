"""Register every command of `vitrina`. The module of a command is imported only when it is called."""

import sys
from dataclasses import dataclass, field
from importlib import import_module
from typing import Annotated, Any

import typer

from vitrina import __version__
from vitrina.cli import words
from vitrina.cli.help import CommandsUnderHeadings

START, WORK, FILES, SERVERS = "Start here", "Pipelines and runs", "Pipelines as files", "Servers"


@dataclass(frozen=True)
class Entry:
    """Represent a command or a group: its name, and `module.attribute` below `vitrina.cli`."""

    name: str
    place: str
    heading: str | None = None
    context: dict[str, Any] = field(default_factory=dict)

    def add_to(self, app: typer.Typer) -> None:
        module, _, attribute = self.place.partition(".")
        found = getattr(import_module(f"vitrina.cli.{module}"), attribute)
        hidden = self.heading is None
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=self.name, rich_help_panel=self.heading, hidden=hidden)
        else:
            add = app.command(
                self.name, rich_help_panel=self.heading, hidden=hidden, context_settings=self.context or None
            )
            add(found)


COMMANDS = (
    Entry("demo", "demo.demo", START),
    Entry("dev", "dev.dev", START),
    Entry("init", "init.init", START),
    Entry("doctor", "doctor.doctor", START),
    Entry("smoke", "smoke.smoke", START),
    Entry("psql", "psql.psql", START, context={"allow_extra_args": True, "ignore_unknown_options": True}),
    Entry("pipelines", "pipelines.group", WORK),
    Entry("run", "runs.run", WORK),
    Entry("pause", "pipelines.pause", WORK),
    Entry("resume", "runs.resume", WORK),
    Entry("cancel", "pipelines.cancel", WORK),
    Entry("enable", "pipelines.enable", WORK),
    Entry("disable", "pipelines.disable", WORK),
    Entry("rollback", "pipelines.rollback", WORK),
    Entry("status", "pipelines.status", WORK),
    Entry("graph", "graph.graph", WORK),
    Entry("runs", "runs.runs", WORK),
    Entry("logs", "runs.logs", WORK),
    Entry("state", "pipelines.state", WORK),
    Entry("validate", "checks.validate", WORK),
    Entry("preview", "checks.preview", WORK),
    Entry("reconcile", "checks.reconcile", WORK),
    Entry("profile", "profile.profile", WORK),
    Entry("transforms", "catalog.transforms", WORK),
    Entry("transform", "catalog.transforms"),
    Entry("connectors", "catalog.connectors", WORK),
    Entry("dead-letters", "catalog.dead_letters", WORK),
    Entry("new", "new.new", FILES),
    Entry("export", "manifests.export", FILES),
    Entry("diff", "manifests.diff", FILES),
    Entry("plan", "plans.plan", FILES),
    Entry("plans", "plans.plans", FILES),
    Entry("apply", "manifests.apply", FILES),
    Entry("api", "servers.api", SERVERS),
    Entry("runner", "servers.runner", SERVERS),
    Entry("migrate", "servers.migrate", SERVERS),
    Entry("connections", "connections.group", SERVERS),
    Entry("feeds", "feeds.group", SERVERS),
    Entry("search", "search.group", SERVERS),
    Entry("tokens", "tokens.group", SERVERS),
    Entry("search-server", "search.search_server"),
)


def make_app(entries: tuple[Entry, ...] = COMMANDS) -> typer.Typer:
    app = typer.Typer(
        name="vitrina",
        help="Configuration-driven ETL: pipelines are rows in Postgres, marts are exact, every step can be seen.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        cls=CommandsUnderHeadings,
        context_settings={"help_option_names": words.HELP},
    )
    app.callback()(_vitrina)
    for entry in entries:
        entry.add_to(app)
    return app


def called(words: list[str]) -> tuple[Entry, ...]:
    """Find the command that the first word names. Return all commands for help, completion and an unknown word."""
    named = tuple(entry for entry in COMMANDS if words and entry.name == words[0])
    return named or COMMANDS


def main() -> None:
    words.take_plainly(typer.main.get_command(make_app(called(sys.argv[1:]))))(prog_name="vitrina")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


def _vitrina(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None: ...
