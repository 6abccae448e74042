"""`vitrina connections`: the databases that pipelines may name, and whether they can be used."""

from dataclasses import asdict
from typing import Annotated

import typer

from vitrina.cli import doctor, local
from vitrina.cli.exits import ExitCode
from vitrina.cli.output import Column, Format, Output, show_data, show_list
from vitrina.errors import NotFound

group = typer.Typer(help="Databases that pipelines may name.", no_args_is_help=True, rich_markup_mode=None)

LIST_COLUMNS = [
    Column("name", lambda row: row["name"], is_name=True),
    Column("database", lambda row: row["database"]),
    Column("set by", lambda row: row["set_by"], leaves=1),
]


@group.command(name="list")
def list_connections(output: Output = Format.TABLE) -> None:
    """Show connections and where they lead. Passwords are left out."""
    from vitrina.store import connections, database

    with local.database(local.load_settings(), migrated=False) as settings:
        rows = [
            {
                "name": name,
                "database": database.describe(database.reader_url(settings, name)),
                "set_by": connections.variable(name),
            }
            for name in connections.names(settings)
        ]
    show_list(rows, LIST_COLUMNS, output, empty="no connections")


@group.command(name="test")
def try_connections(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="These; all, if none is named.")
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Log in and look: what is wrong, and the statement that mends it.

    From this machine, with its settings; runners elsewhere may be let in or not. Exit code 1 if a connection cannot
    be used.
    """
    from vitrina.store import connections

    with local.database(local.load_settings(), migrated=False) as settings:
        known = connections.names(settings)
        for name in names or ():
            if name.lower() not in known:
                raise NotFound(
                    f"there is no connection {name!r} (known: {', '.join(known)}); set VITRINA_CONN_{name.upper()}"
                )
        findings = [
            doctor.Finding(name, found.status, found.finding, found.next_step)
            for name in ([name.lower() for name in names] if names else known)
            for found in connections.examine(settings, name)
        ]
    if output is Format.TABLE:
        doctor.print_findings(findings)
    else:
        show_data([asdict(found) for found in findings], output)
    if doctor.problems(findings):
        raise typer.Exit(ExitCode.FAILED)
