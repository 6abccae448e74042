"""`vitrina plan`: show what a definition would change in its target. `vitrina plans`: list earlier plans."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrina.cli import files, plan_text, remote
from vitrina.cli.checks import RECONCILE_SECONDS, Timeout, result_of
from vitrina.cli.exits import ExitCode
from vitrina.cli.output import Column, Format, Output, show_data, show_list
from vitrina.cli.remote import OptionalPipelineName, PipelineName

if TYPE_CHECKING:
    from vitrina.client import Client
    from vitrina.schemas import PlanSummary


class PlanFormat(StrEnum):
    TEXT = "text"
    JSON = "json"
    YAML = "yaml"
    MARKDOWN = "markdown"


def plan(
    pipeline: OptionalPipelineName = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--file", "-f", metavar="PATH", help="Definitions that are not saved: a file, a directory of them, or -."
        ),
    ] = None,
    timeout: Timeout = RECONCILE_SECONDS,
    output: Annotated[
        PlanFormat, typer.Option("--output", "-o", help="How to print the result; markdown: for a comment in CI.")
    ] = PlanFormat.TEXT,
) -> None:
    """Show what the next full load would change.

    Columns, rows, and what depends on them; nothing is written. Exit code 1 if the run would be refused.
    """
    if (pipeline is None) == (file is None):
        raise typer.BadParameter("give the name of a pipeline, or a file with -f")
    with remote.api() as client:
        made = _of_files(client, file, timeout) if file else [result_of(client, client.plan(str(pipeline)), timeout)]
    _show(made, output)
    if any(one["refusals"] for one in made):
        raise typer.Exit(ExitCode.FAILED)


def _of_files(client: "Client", file: str, timeout: float) -> list[dict[str, Any]]:
    return [
        result_of(client, client.plan_definition(definition), timeout) for definition in files.read_definitions(file)
    ]


def _show(made: list[dict[str, Any]], output: PlanFormat) -> None:
    if output in (PlanFormat.JSON, PlanFormat.YAML):
        show_data(made if len(made) > 1 else made[0], Format(output.value))
        return
    write = plan_text.markdown if output is PlanFormat.MARKDOWN else plan_text.text
    print("\n\n".join(write(one) for one in made))


def plans(
    pipeline: PipelineName,
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many.", min=1)] = 20,
    output: Output = Format.TABLE,
) -> None:
    """List plans of a pipeline, newest first.

    With their authors, and which were applied.
    """
    with remote.api() as client:
        found = client.list_plans(pipeline, limit=limit)
    show_list(
        found,
        PLAN_COLUMNS,
        output,
        empty=f"no plan of {pipeline} exists yet: create one with `vitrina plan {pipeline}`",
    )


def _outcome(plan: "PlanSummary") -> str:
    if plan.applied_version is not None:
        return f"applied by {plan.applied_by} as version {plan.applied_version}"
    return "the run would be refused" if plan.refused else "-"


PLAN_COLUMNS = [
    Column("plan", lambda plan: plan.id, is_name=True),
    Column("made", lambda plan: plan.created_at),
    Column("by", lambda plan: plan.created_by, leaves=2),
    Column("for version", lambda plan: plan.base_version, leaves=3),
    Column("added", lambda plan: plan.added),
    Column("changed", lambda plan: plan.changed),
    Column("removed", lambda plan: plan.removed),
    Column("outcome", _outcome),
]
