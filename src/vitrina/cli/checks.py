"""Commands whose work a runner does: validate, preview, reconcile."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vitrina.cli import files, local, remote
from vitrina.cli.exits import ExitCode
from vitrina.cli.output import Format, Output, clean, show_data, show_one, show_table, text
from vitrina.cli.remote import OptionalPipelineName, PipelineName
from vitrina.errors import RunError

if TYPE_CHECKING:
    from vitrina.client import Client
    from vitrina.schemas import Request, ValidationReport

WAIT_SECONDS = 60.0
RECONCILE_SECONDS = 3600.0

Timeout = Annotated[float, typer.Option(help="Wait this many seconds for a runner.", min=0)]


def validate(
    pipeline: OptionalPipelineName = None,
    file: Annotated[
        str | None, typer.Option("--file", "-f", metavar="PATH", help="Check a definition that is not saved.")
    ] = None,
    timeout: Timeout = WAIT_SECONDS,
    output: Output = Format.TABLE,
) -> None:
    """Check a pipeline without running it.

    Exit code 3 if it could not run.
    """
    if (pipeline is None) == (file is None):
        raise typer.BadParameter("give the name of a pipeline, or a file with -f")
    with remote.api() as client:
        if file is not None:
            report = client.validate_definition(files.read_definition(file, also_documents=True))
        else:
            report = client.validate(str(pipeline))
        if report.deep is not None and not report.deep.is_finished:
            report.deep = client.wait_for_request(report.deep, timeout_seconds=timeout)
    if output is Format.TABLE:
        _print_report(report)
    else:
        show_data(report, output)
    if _problems(report):
        raise typer.Exit(ExitCode.INVALID_CONFIG)
    if file is not None:
        local.say("its query was not tried on the source: save the pipeline, then run `vitrina validate NAME`")


def preview(
    pipeline: PipelineName,
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many rows.", min=1)] = 10,
    timeout: Timeout = WAIT_SECONDS,
    output: Output = Format.TABLE,
) -> None:
    """Show the first rows that a run would write. Nothing is written."""
    with remote.api() as client:
        result = result_of(client, client.preview(pipeline, limit=limit), timeout)
    if output is not Format.TABLE:
        show_data(result, output)
        return
    rows = result.get("rows", [])
    columns = [column["name"] for column in result.get("columns", [])]
    show_table([[row.get(name) for name in columns] for row in rows], columns, are_data=True)


class Level(StrEnum):
    QUICK = "quick"
    FULL = "full"
    SAMPLE = "sample"


def reconcile(
    pipeline: PipelineName,
    level: Annotated[
        Level, typer.Option(help="quick: counts, minimum and maximum; full: every row and column; sample: random keys.")
    ] = Level.FULL,
    repair: Annotated[bool, typer.Option("--repair", help="Also repair the rows that differ.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many differing keys to list.", min=1)] = 100,
    *,
    save: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Also write the listed keys, with both values, to a .csv or .json file."),
    ] = None,
    timeout: Timeout = RECONCILE_SECONDS,
    output: Output = Format.TABLE,
) -> None:
    """Check that a mart equals its source.

    Exit code 1 if it does not and was not repaired.
    """
    if save is not None and save.suffix not in _FILE_FORMATS:
        raise typer.BadParameter(f"{save} must end in .csv or .json", param_hint="--save")
    with remote.api() as client:
        asked = client.reconcile(pipeline, level=level, repair=repair, limit=limit)
        result = result_of(client, asked, timeout)
        if save is not None:
            save.write_bytes(client.differences(pipeline, _FILE_FORMATS[save.suffix]))
            local.say(f"{len(result['keys'])} keys are in {save}")
    if output is Format.TABLE:
        _print_differences(result)
    else:
        show_data(result, output)
    if result.get("remaining"):
        raise typer.Exit(ExitCode.FAILED)


def _print_differences(result: dict[str, Any]) -> None:
    if result["keys"]:
        show_table(
            [
                [one["kind"], *one["key"].values(), name, values["source"], values["target"]]
                for one in result["keys"]
                for name, values in (one["columns"].items() if one["kind"] == "differing" else [(None, _NOTHING)])
            ],
            ["difference", *result["keys"][0]["key"], "column", "source", "target"],
            are_data=True,
        )
        print()
    done = result["repair"] or {}
    verdict = "equal" if result["equal"] else "repaired" if not result["remaining"] else "different"
    show_one(
        result,
        {
            "result": verdict,
            "rows": f"{text(result['source']['rows'])} in the source, {text(result['target']['rows'])} in the mart"
            if result["source"]["rows"] is not None
            else None,
            "missing": result["missing"] or None,
            "extra": result["extra"] or None,
            "differing": result["differing"] or None,
            "in flight": result["in_flight"] or None,
            "findings": "\n".join(result["findings"]),
            "repair": _repair_line(done),
            "guarantee": result["guarantee"],
            "seconds": result["duration_seconds"],
        },
        Format.TABLE,
    )


_FILE_FORMATS: dict[str, Literal["csv", "json"]] = {".csv": "csv", ".json": "json"}
_NOTHING: dict[str, str | None] = {"source": None, "target": None}


def _repair_line(done: dict[str, Any]) -> str | None:
    if not done:
        return None
    if not done["done"]:
        return f"--repair would write {text(done['upserts'])} rows and delete {text(done['deletes'])}"
    paused = "; paused, run it again for the rest" if done["paused"] else ""
    written = done["inserted"] + done["updated"]
    refused = f"; {text(done['rejected'])} were rejected: `vitrina dead-letters list`" if done.get("rejected") else ""
    return f"wrote {text(written)} rows, deleted {text(done['deleted'])}{refused}{paused}"


def result_of(client: "Client", request: "Request", timeout: float) -> dict[str, Any]:
    done = client.wait_for_request(request, timeout_seconds=timeout)
    if done.error is not None:
        raise RunError(str(done.error.get("message", done.error)))
    return done.result or {}


def _print_report(report: "ValidationReport") -> None:
    for warning in report.warnings:
        local.say(clean(f"warning: {warning}"))
    problems = _problems(report)
    for problem in problems:
        print(clean(problem))
    if not problems:
        print("valid")
        if report.deep and report.deep.result:
            show_one(report.deep, _findings(report.deep.result), Format.TABLE)


def _findings(result: dict[str, Any]) -> dict[str, object]:
    """Collect the runner's findings: the plan with its reasons, and the columns of the target."""
    plan = result.get("plan") or {}
    exists = result.get("target_exists")
    return {
        "route": plan.get("route"),
        "because": "\n".join(plan.get("reasons", [])),
        "key": plan.get("key"),
        "guarantee": plan.get("guarantee"),
        "warnings": "\n".join(plan.get("warnings", [])),
        "rows": result.get("estimated_rows") and f"about {result['estimated_rows']:,}",
        "columns": "\n".join(f"{column['name']} {column['type']}" for column in result.get("columns", [])),
        "target": None if exists is None else "exists" if exists else "will be created by the first run",
    }


def _problems(report: "ValidationReport") -> list[str]:
    found = [f"{error.path}: {error.message}" if error.path else error.message for error in report.errors]
    # The server includes the runner's finding only if it arrived while the server waited.
    if report.deep is not None and report.deep.error is not None and report.valid:
        found.append(text(report.deep.error.get("message", report.deep.error)))
    return found
