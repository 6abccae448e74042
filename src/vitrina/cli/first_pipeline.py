"""Create the first mart of an installation: choose a table, copy it and compare it, with a temporary API and runner."""

from typing import TYPE_CHECKING

import typer

from vitrina.cli import checks, local, new, runs, stack
from vitrina.cli.exits import ExitCode
from vitrina.cli.output import show_table
from vitrina.errors import CannotConnect

if TYPE_CHECKING:
    from vitrina.client import Client
    from vitrina.schemas import Run
    from vitrina.services.suggestions import Preferences, Suggestion
    from vitrina.settings import Settings

ANY_PORT = 8100
ROWS_SHOWN = 5
TABLES_SHOWN = 30


def offer(settings: "Settings", table: str | None, preferences: "Preferences", *, asks: bool) -> None:
    """Create a pipeline for the named table, or for one that the user chooses. The user may choose none."""
    if table is None:
        table = _choose(settings) if asks else None
    if table is None:
        return
    made = new.propose(settings, table, None, preferences)
    for reason in new.told(made):
        local.say(f"  {reason}")
    with stack.running(settings, ANY_PORT, _keep_quiet) as running:
        from vitrina.client import Client

        with Client(running.url) as client:
            try:
                _fill(client, made, asks=asks)
            except CannotConnect:
                running.children.raise_if_ended()  # its output contains the reason
                raise


def _choose(settings: "Settings") -> str | None:
    from vitrina.store import database, tables

    with (
        database.connect(database.reader_url(settings, None), "vitrina:init") as connection,
        database.translated("listing tables"),
    ):
        found = tables.list_names(connection, sorted(settings.source_schemas))
    for schema, name in found[:TABLES_SHOWN]:
        local.say(f"  {_word(schema)}.{_word(name)}")
    if len(found) > TABLES_SHOWN:
        local.say(f"  and {len(found) - TABLES_SHOWN} more")
    said = str(
        typer.prompt("Which table should be copied first? (empty: none)", default="", err=True, show_default=False)
    )
    return said.strip() or None


def _word(name: str) -> str:
    return f'"{name}"' if "." in name else name


def _fill(client: "Client", made: "Suggestion", *, asks: bool) -> None:
    from vitrina.services import manifest_files

    name, target = made.definition["name"], made.definition["target_table"]
    [change] = client.apply(manifest_files.write([made.document])).items
    local.say(f"pipeline {name}: {change.action}, {made.definition['mode']}, guarantee {made.guarantee}, into {target}")
    result = checks.result_of(client, client.preview(name, limit=ROWS_SHOWN), checks.WAIT_SECONDS)
    columns = [column["name"] for column in result.get("columns", [])]
    show_table(
        [[row.get(column) for column in columns] for row in result.get("rows", [])],
        columns,
        title="Preview",
        are_data=True,
    )
    if asks and not typer.confirm(f"Fill {target} now?", default=True, err=True):
        return
    ended = _run(client, name)
    runs.show_runs([ended])
    if not runs.succeeded(ended):
        raise typer.Exit(ExitCode.FAILED)
    report = checks.result_of(client, client.reconcile(name), checks.RECONCILE_SECONDS)
    if report["remaining"]:
        raise typer.Exit(ExitCode.FAILED)
    rows = report["target"]["rows"]
    local.say(f"{target} equals its source: {rows:,} rows compared, column by column")


def _run(client: "Client", name: str) -> "Run":
    from vitrina.cli.progress import watching

    with watching() as watcher:
        accepted = client.run(name)
        ended = client.wait_for_run(
            accepted.pipeline_id,
            requested_at=accepted.run_requested_at,
            asked=accepted.asked,
            on_progress=watcher.see,
        )
        watcher.finish(ended)
    return ended


def _keep_quiet(name: str, line: str) -> None:
    """Hide the logs of API and runner unless something goes wrong."""
