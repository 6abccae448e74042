"""Every command of `vitrina` in one place."""

from typing import Annotated

import typer

from vitrina import __version__
from vitrina.cli import (
    catalog,
    checks,
    connections,
    demo,
    dev,
    doctor,
    graph,
    init,
    manifests,
    new,
    pipelines,
    psql,
    runs,
    search,
    servers,
    smoke,
    tokens,
)
from vitrina.cli.help import CommandsUnderHeadings

START, WORK, FILES, SERVERS = "Start here", "Pipelines and runs", "Pipelines as files", "Servers"

app = typer.Typer(
    name="vitrina",
    help="Configuration-driven ETL: pipelines are rows in Postgres, marts are exact, every step can be seen.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    cls=CommandsUnderHeadings,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _vitrina(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None: ...


app.command(rich_help_panel=START)(demo.demo)
app.command(rich_help_panel=START)(dev.dev)
app.command(rich_help_panel=START)(init.init)
app.command(rich_help_panel=START)(doctor.doctor)
app.command(rich_help_panel=START)(smoke.smoke)
app.command(rich_help_panel=START, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(
    psql.psql
)

app.add_typer(pipelines.group, name="pipelines", rich_help_panel=WORK)
app.command(rich_help_panel=WORK)(runs.run)
app.command(rich_help_panel=WORK)(pipelines.pause)
app.command(rich_help_panel=WORK)(runs.resume)
app.command(rich_help_panel=WORK)(pipelines.cancel)
app.command(rich_help_panel=WORK)(pipelines.enable)
app.command(rich_help_panel=WORK)(pipelines.disable)
app.command(rich_help_panel=WORK)(pipelines.rollback)
app.command(rich_help_panel=WORK)(pipelines.status)
app.command(rich_help_panel=WORK)(graph.graph)
app.command(rich_help_panel=WORK)(runs.runs)
app.command(rich_help_panel=WORK)(runs.logs)
app.command(rich_help_panel=WORK)(pipelines.state)
app.command(rich_help_panel=WORK)(checks.validate)
app.command(rich_help_panel=WORK)(checks.preview)
app.command(rich_help_panel=WORK)(checks.reconcile)
app.add_typer(catalog.transforms, name="transforms", rich_help_panel=WORK)
app.add_typer(catalog.transforms, name="transform", hidden=True)
app.add_typer(catalog.connectors, name="connectors", rich_help_panel=WORK)
app.add_typer(catalog.dead_letters, name="dead-letters", rich_help_panel=WORK)

app.command(rich_help_panel=FILES)(new.new)
app.command(rich_help_panel=FILES)(manifests.export)
app.command(rich_help_panel=FILES)(manifests.diff)
app.command(rich_help_panel=FILES)(manifests.apply)

app.command(rich_help_panel=SERVERS)(servers.api)
app.command(rich_help_panel=SERVERS)(servers.runner)
app.command(rich_help_panel=SERVERS)(servers.migrate)
app.add_typer(connections.group, name="connections", rich_help_panel=SERVERS)
app.add_typer(search.group, name="search", rich_help_panel=SERVERS)
app.add_typer(tokens.group, name="tokens", rich_help_panel=SERVERS)

app.command(hidden=True)(search.search_server)
