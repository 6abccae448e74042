"""Commands that list transforms, connectors and dead letters of the installation."""

from typing import Annotated

import typer

from vitrina.cli import remote, steps
from vitrina.cli.checks import RECONCILE_SECONDS, Timeout, result_of
from vitrina.cli.exits import ExitCode
from vitrina.cli.output import Column, Format, Output, show_list, show_one
from vitrina.cli.remote import OptionalPipelineName, PipelineName
from vitrina.errors import NotFound

transforms = typer.Typer(help="Python steps that runners have.", no_args_is_help=True, rich_markup_mode=None)
connectors = typer.Typer(help="Kinds of sources and targets.", no_args_is_help=True, rich_markup_mode=None)
dead_letters = typer.Typer(help="Rejected rows and documents.", no_args_is_help=True, rich_markup_mode=None)

transforms.command(name="test")(steps.try_step)

# How many are searched for one id.
LETTERS_SEARCHED = 10_000

TRANSFORM_COLUMNS = [
    Column("name", lambda found: found.name, is_name=True),
    Column("kind", lambda found: found.kind),
    Column("runners", lambda found: found.runners),
    Column("what it does", lambda found: found.doc.strip().partition("\n")[0]),
]
CONNECTOR_COLUMNS = [
    Column("name", lambda found: found.name, is_name=True),
    Column("package", lambda found: f"{found.package} {found.version}"),
    Column("source", lambda found: "yes" if found.source else ""),
    Column(
        "target", lambda found: f"{found.prefix}:<name>" if found.prefix else "schema.table" if found.target else ""
    ),
    Column("URLs", lambda found: ", ".join(f"{scheme}://" for scheme in found.schemes)),
    Column("runners", lambda found: found.runners),
]
LETTER_COLUMNS = [
    Column("number", lambda letter: str(letter.id)),
    Column("pipeline", lambda letter: letter.pipeline, is_name=True),
    Column("document", lambda letter: letter.document_id),
    Column("at", lambda letter: letter.created_at),
    Column("error", lambda letter: letter.error),
]


@transforms.command(name="list")
def list_transforms(output: Output = Format.TABLE) -> None:
    """Show the Python steps that pipelines may name."""
    with remote.api() as client:
        found = client.list_transforms()
    empty = "no transforms: live runners have none registered (set VITRINA_TRANSFORMS), or none is alive"
    show_list(found, TRANSFORM_COLUMNS, output, empty=empty)


@connectors.command(name="list")
def list_connectors(output: Output = Format.TABLE) -> None:
    """Show the kinds of sources and targets that are installed, and how many live runners have each."""
    with remote.api() as client:
        found = client.list_connectors()
    show_list(found, CONNECTOR_COLUMNS, output, empty="no connectors")


@dead_letters.command(name="list")
def list_dead_letters(
    pipeline: OptionalPipelineName = None,
    resolved: Annotated[bool, typer.Option("--resolved", help="Show resolved ones instead.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many.", min=1)] = 50,
    output: Output = Format.TABLE,
) -> None:
    """Show dead letters."""
    with remote.api() as client:
        found = client.list_dead_letters(pipeline, resolved=resolved, limit=limit)
    show_list(found, LETTER_COLUMNS, output, empty="no dead letters")


@dead_letters.command()
def show(
    number: Annotated[int, typer.Argument(metavar="NUMBER", help="As `list` shows it.")], output: Output = Format.TABLE
) -> None:
    """Show one dead letter in full."""
    with remote.api() as client:
        for resolved in (False, True):
            for letter in client.list_dead_letters(resolved=resolved, limit=LETTERS_SEARCHED):
                if letter.id == number:
                    show_one(letter, letter.model_dump(), output)
                    return
    raise NotFound(f"there is no dead letter {number}: `vitrina dead-letters list` shows them")


@dead_letters.command()
def replay(
    pipeline: PipelineName,
    numbers: Annotated[list[int] | None, typer.Argument(metavar="NUMBER", help="Only these dead letters.")] = None,
    *,
    timeout: Timeout = RECONCILE_SECONDS,
    output: Output = Format.TABLE,
) -> None:
    """Read rejected rows again and replay them.

    Dead letters whose rows are accepted are marked resolved. Exit code 1 if any was refused again.
    """
    with remote.api() as client:
        result = result_of(client, client.replay_dead_letters(pipeline, numbers), timeout)
    told = {name: result[name] for name in ("letters", "sent", "refused", "gone", "unclear", "remaining")}
    show_one(result, told, output)
    if result["refused"] or result["unclear"]:
        raise typer.Exit(ExitCode.FAILED)
