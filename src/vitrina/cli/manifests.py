"""Commands for pipelines as files: export, diff -f, apply -f."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from vitrina.cli import files, local, remote
from vitrina.cli.exits import ExitCode
from vitrina.cli.output import Format, Output, clean, show_data

if TYPE_CHECKING:
    from vitrina.schemas import ApplyReport, ManifestChange

OWNER = "file"
SIGNS = {"create": "+", "update": "~", "delete": "-", "unchanged": " "}

Documents = Annotated[
    str, typer.Option("--file", "-f", metavar="PATH", help="A file, a directory of them, or - for standard input.")
]
Owner = Annotated[
    str, typer.Option("--managed-by", help="Owner of these pipelines; --prune deletes only those of this owner.")
]
Prune = Annotated[bool, typer.Option("--prune", help="Also delete pipelines of this owner that no file names.")]


def export(
    pipelines: Annotated[list[str] | None, typer.Argument(help="Names of pipelines. [default: all]")] = None,
    directory: Annotated[
        Path | None, typer.Option("--directory", "-d", help="Write one file for each pipeline instead of printing.")
    ] = None,
) -> None:
    """Write pipelines as YAML documents that `apply` takes."""
    with remote.api() as client:
        if directory is None:
            sys.stdout.write(client.export(pipelines or ()))
            return
        names = pipelines or [pipeline.name for pipeline in client.list_pipelines()]
        directory.mkdir(parents=True, exist_ok=True)
        for name in names:
            path = directory / f"{name}.yaml"
            path.write_text(client.export([name]), encoding="utf-8")
            print(path)


def diff(file: Documents, prune: Prune = False, owner: Owner = OWNER, output: Output = Format.TABLE) -> None:
    """Show what `apply` would change.

    Exit code 1 if it would change anything.
    """
    report = _apply(file, dry_run=True, prune=prune, owner=owner)
    _show(report, output)
    if report.has_changes:
        raise typer.Exit(ExitCode.FAILED)


def apply(
    file: Documents,
    prune: Prune = False,
    owner: Owner = OWNER,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    *,
    require_plan: Annotated[
        list[str] | None,
        typer.Option("--require-plan", metavar="ID", help="Apply only what this plan covers; may be repeated."),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Make pipelines match the files, all of them or none."""
    report = _apply(file, dry_run=dry_run, prune=prune, owner=owner, plans=_ids(require_plan or ()))
    _show(report, output)
    counts = {action: sum(item.action == action for item in report.items) for action in SIGNS}
    told = ", ".join(f"{count} {action}" for action, count in counts.items() if count) or "nothing to apply"
    local.say(f"{told}{' (dry run: nothing was written)' if dry_run else ''}")


def _apply(file: str, *, dry_run: bool, prune: bool, owner: str, plans: Sequence[UUID] = ()) -> "ApplyReport":
    documents = files.read_all(file)
    with remote.api() as client:
        return client.apply(documents, dry_run=dry_run, prune=prune, source=owner, require_plans=plans)


def _ids(given: Sequence[str]) -> list[UUID]:
    try:
        return [UUID(text) for text in given]
    except ValueError as exc:
        raise typer.BadParameter("it must be the id that `vitrina plan` shows", param_hint="--require-plan") from exc


def _show(report: "ApplyReport", output: Format) -> None:
    if output is not Format.TABLE:
        show_data(report, output)
        return
    for item in report.items:
        for line in _lines(item):
            print(clean(line))


def _lines(item: "ManifestChange") -> list[str]:
    head = f"{SIGNS.get(item.action, '?')} {item.name} ({item.action})"
    if item.action != "update":
        return [head]
    return [head, *(f"    {c.path}: {_shown(c.before)} -> {_shown(c.after)}" for c in item.changes)]


def _shown(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
