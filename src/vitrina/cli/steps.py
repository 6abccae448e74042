"""`vitrina transform test`: show a pipeline's rows before and after a step."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrina.cli import local
from vitrina.cli.output import Format, Output, show_data, show_table
from vitrina.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from vitrina.checks.previews import PreviewStage
    from vitrina.definition import Definition
    from vitrina.settings import Settings

Rows = list[dict[str, Any]]


def try_step(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A registered step.")],
    pipeline: Annotated[str, typer.Option("--pipeline", "-p", metavar="PIPELINE", help="Pipeline whose rows to use.")],
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many rows.", min=1, max=1000)] = 20,
    params: Annotated[
        str | None,
        typer.Option("--params", metavar="JSON", help="Parameters of the step, as JSON. [default: those of the plan]"),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Show a pipeline's first rows before and after a step. Nothing is written.

    Runs here, with the modules of VITRINA_TRANSFORMS, against the configured database. A step that the pipeline's plan
    does not have is tried after its last one.
    """
    with local.database(local.load_settings()) as settings:
        before, after = _before_and_after(_definition(settings, pipeline), settings, name, limit, _read_params(params))
    if output is not Format.TABLE:
        show_data(
            {side: {"columns": found.columns, "rows": found.rows} for side, found in _named(before, after)}, output
        )
        return
    key = _key_of(before, after)
    _show(before.rows, after.rows, key)
    local.say(f"{len(before.rows)} rows before, {len(after.rows)} after {name}")


def _named(before: "PreviewStage", after: "PreviewStage") -> list[tuple[str, "PreviewStage"]]:
    return [("before", before), ("after", after)]


def _read_params(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        found = json.loads(text)
    except json.JSONDecodeError as exc:
        raise ConfigError(f"--params is not JSON: {exc}") from exc
    if not isinstance(found, dict):
        raise ConfigError('--params must be a JSON object, such as {"columns": ["title"]}')
    return found


def _definition(settings: "Settings", name: str) -> "Definition":
    from vitrina.store import database, pipelines

    with (
        database.connect(settings.require_database_url(), "vitrina:transform-test") as connection,
        database.translated("looking up the pipeline"),
    ):
        row = pipelines.find(connection, name)
    if row is None:
        raise NotFound(f"there is no pipeline {name!r}: `vitrina pipelines list` shows them")
    return pipelines.definition_of(row)


def _before_and_after(
    definition: "Definition", settings: "Settings", name: str, limit: int, params: dict[str, Any] | None
) -> "tuple[PreviewStage, PreviewStage]":
    from vitrina.checks import previews
    from vitrina.definition import Task

    planned = [step.body for step in definition.steps]
    if name in planned and params is None:
        place = planned.index(name)
        stages = previews.trace(definition, settings, limit)
        return stages[place], stages[place + 1]
    if name in planned:
        # The same position in the plan, with other params. Later steps do not matter here.
        place = planned.index(name)
        definition = definition.model_copy(update={"tasks": definition.ordered_tasks[: place + 1], "python_task": None})
    extra = Task(order_index=len(definition.steps) + 1, task_type="PYTHON", body=name, params=params or {})
    stages = previews.trace(definition, settings, limit, extra=[extra])
    return stages[-2], stages[-1]


def _key_of(before: "PreviewStage", after: "PreviewStage") -> str | None:
    """Find a column whose values identify rows on both sides."""
    for name in before.rows[0] if before.rows else []:
        if after.rows and name not in after.rows[0]:
            continue
        values = [json.dumps(row[name]) for row in before.rows]
        if len(set(values)) == len(values) and "null" not in values:
            return name
    return None


def _show(before: Rows, after: Rows, key: str | None) -> None:
    """Show only differing columns: unchanged ones would push the rest off the screen."""
    pairs = _paired(before, after, key)
    old, new = list(before[0]) if before else [], list(after[0]) if after else []
    titles, columns = ([key], [[_either(pair, key) for pair in pairs]]) if key else ([], [])
    for name in dict.fromkeys([*old, *new]):
        if name == key or (name in old and name in new and all(_same(pair, name) for pair in pairs)):
            continue
        if name in old:
            titles.append(f"{name} before")
            columns.append([(first or {}).get(name) for first, _ in pairs])
        if name in new:
            titles.append(f"{name} after")
            columns.append([(second or {}).get(name) for _, second in pairs])
    gone = [second is None for _, second in pairs]
    if any(gone):
        titles.append("")
        columns.append(["dropped" if left else "" for left in gone])
    show_table(list(zip(*columns, strict=True)), titles, are_data=True)


def _paired(before: Rows, after: Rows, key: str | None) -> list[tuple[dict[str, Any] | None, dict[str, Any] | None]]:
    """Pair each row with its result, by the key, or by position when there is none."""
    if key is None:
        length = max(len(before), len(after))
        return [(_at(before, place), _at(after, place)) for place in range(length)]
    pairs: list[tuple[dict[str, Any] | None, dict[str, Any] | None]] = []
    for first in before:
        found = [second for second in after if second[key] == first[key]]
        pairs += [(first, second) for second in found] or [(first, None)]
    known = {json.dumps(first[key]) for first in before}
    return pairs + [(None, second) for second in after if json.dumps(second[key]) not in known]


def _at(rows: Rows, place: int) -> dict[str, Any] | None:
    return rows[place] if place < len(rows) else None


def _either(pair: tuple[dict[str, Any] | None, dict[str, Any] | None], name: str) -> Any:
    return (pair[0] or pair[1] or {}).get(name)


def _same(pair: tuple[dict[str, Any] | None, dict[str, Any] | None], name: str) -> bool:
    first, second = pair
    return second is None or (first is not None and first[name] == second[name])
