"""What a definition may say here: allowed target, allowed query, known connection, a sound task plan."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from vitrina import sqlguard, targets, taskplan
from vitrina.definition import Definition, Options, Task, Unfit
from vitrina.errors import FieldError, Invalid, InvalidQuery
from vitrina.ports import registry
from vitrina.services import connections
from vitrina.settings import DEFAULT_CONNECTION, Settings
from vitrina.store import kept_connections
from vitrina.store.database import Connection

# Nobody reads more of them at a time, and each may repeat a part of what was sent.
MAX_PROBLEMS = 100

# A change to any of these is judged again; the others (a pause in the schedule, say) must work even on a pipeline
# whose target the operator has meanwhile forbidden.
JUDGED_FIELDS = frozenset(
    {
        "type",
        "source_type",
        "source_connection",
        "source_query",
        "source_table",
        "python_task",
        "target_table",
        "target_key",
        "mode",
        "options",
        "tasks",
    }
)


def parse(fields: Mapping[str, Any]) -> Definition:
    """A definition from plain fields; `Invalid` names each field that is wrong."""
    try:
        return Definition.model_validate(dict(fields))
    except ValidationError as exc:
        raise invalid(field_errors(exc.errors(include_url=False))) from None


def check(definition: Definition, settings: Settings, metastore: Connection | None = None) -> None:
    """Raise `Invalid` with everything that stands against the definition at once."""
    found = problems(definition, settings, metastore)
    if found:
        raise invalid(found)


def problems(definition: Definition, settings: Settings, metastore: Connection | None = None) -> list[FieldError]:
    """Without the metastore, only the environment's connections are known."""
    return [
        *taskplan.target_violations(definition, settings.target_policy),
        *taskplan.violations(definition.tasks, after_source=definition.python_source is not None),
        *_query_problems(definition, settings),
        *_connection_problems(definition, settings, metastore),
        *_timeout_problems(definition, settings),
    ]


def invalid(found: Sequence[FieldError]) -> Invalid:
    """One error that says everything: a single problem keeps its own words."""
    if len(found) == 1:
        return Invalid(found[0].message, tuple(found))
    listed = found[:MAX_PROBLEMS]
    more = [f"and {len(found) - MAX_PROBLEMS} more"] if len(found) > MAX_PROBLEMS else []
    said = "; ".join([*(problem.message for problem in listed), *more])
    return Invalid(f"{len(found)} fields are not acceptable: {said}", tuple(listed))


def field_errors(details: Iterable[Mapping[str, Any]]) -> list[FieldError]:
    """Pydantic's findings in our words; texts stay out of them, they may be secret."""
    found = []
    for detail in details:
        broken = detail.get("ctx", {}).get("error")
        path = ".".join([*map(str, detail["loc"]), *([broken.field] if isinstance(broken, Unfit) else [])])
        found.append(FieldError(path, _words(path, detail), _CODES.get(detail["type"], "invalid")))
    return found


_CODES = {"missing": "missing", "extra_forbidden": "unknown_field"}


def _words(path: str, detail: Mapping[str, Any]) -> str:
    message = str(detail["msg"])
    if detail["type"] == "value_error":
        return message.removeprefix("Value error, ")
    if detail["type"] == "extra_forbidden":
        return f"{path} is not a field that can be set here{_meant(path)}"
    path = path or "the body"
    if detail["type"] == "list_type":
        return f'{path} must be a list, such as ["a", "b"]'
    if detail["type"] == "string_pattern_mismatch" and path == "name":
        return "name needs 1 to 100 letters, digits, dots, dashes or underscores, the first a letter or a digit"
    if detail["type"] == "missing":
        return f"{path} is required"
    said = message.replace("Input should", "must", 1) if message.startswith("Input should") else f": {message}"
    return f"{path} {said}{_shown(detail.get('input'))}".replace(" : ", ": ", 1)


def _meant(path: str) -> str:
    """A field of the same part of a definition whose name is nearly this one."""
    outer, _, name = path.rpartition(".")
    parts: dict[str, type[BaseModel]] = {"options": Options, "tasks": Task}
    model = parts.get(outer.partition(".")[0], Definition)
    near = difflib.get_close_matches(name, model.model_fields.keys() - {name}, 1)
    return f": did you mean {near[0]}?" if near else ""


def _shown(value: object) -> str:
    """Numbers and flags help to see the mistake; texts may hold anything."""
    return f", not {str(value).lower() if isinstance(value, bool) else value}" if isinstance(value, int | float) else ""


def _query_problems(definition: Definition, settings: Settings) -> list[FieldError]:
    if definition.query is None or not definition.query.strip() or not definition.reads_postgres:
        return []  # another source judges its own words, where it is opened
    path = "source_table" if definition.source_table else "source_query"
    if definition.tasks:
        path = f"tasks.{definition.tasks.index(definition.ordered_tasks[0])}.body"
    try:
        judge(definition.query, settings)
    except InvalidQuery as exc:
        return [FieldError(path, exc.message, exc.code)]
    return []


def judge(query: str, settings: Settings) -> sqlguard.Judged:
    return sqlguard.judge(query, settings.sql_policy)


def _connection_problems(definition: Definition, settings: Settings, metastore: Connection | None) -> list[FieldError]:
    named = {"source_connection": definition.source_connection}
    if definition.options.target_connection is not None:
        named["options.target_connection"] = definition.options.target_connection
    known = {DEFAULT_CONNECTION, *settings.connections}
    unknown = {path: name for path, name in named.items() if name not in known}
    if unknown and metastore:
        # Held, so that nobody removes it before the definition is saved.
        unknown = {path: name for path, name in unknown.items() if not kept_connections.hold(metastore, name)}
        known |= set(kept_connections.list_names(metastore)) if unknown else set()
    return [
        FieldError(
            path,
            f"connection {name!r} is not configured; known: {', '.join(sorted(known))}"
            f" (the operator sets VITRINA_CONN_{name.upper()}, or adds it with `vitrina connections add`)",
            "unknown_connection",
        )
        for path, name in unknown.items()
    ] + _connector_problems(definition, settings, metastore)


def _timeout_problems(definition: Definition, settings: Settings) -> list[FieldError]:
    asked, path = definition.options.statement_timeout_seconds, "options.statement_timeout_seconds"
    limit = settings.statement_timeout_on(definition.source_connection)
    if asked is None or asked <= limit:
        return []
    said = f"{path} {asked:g} is more than the installation allows ({limit:g} s, VITRINA_STATEMENT_TIMEOUT_SECONDS)"
    return [FieldError(path, said, "invalid")]


def _connector_problems(definition: Definition, settings: Settings, metastore: Connection | None) -> list[FieldError]:
    """A connection leads to one system: it is no use to the connectors of others."""
    named = [("source_connection", definition.source_connection, definition.source_type)]
    target = targets.connector_of(definition.final_target)
    if definition.options.target_connection is not None and target is not None:
        named.append(("options.target_connection", definition.options.target_connection, target))
    if definition.python_source:
        named = named[1:]  # what such a source reads is its own business
    found = []
    for path, name, wanted in named:
        actual = connections.connector_of(metastore, settings, name)
        if actual is not None and actual != wanted:
            message = f"connection {name!r} is one of the connector {actual}, but {path} needs one of {wanted}"
            found.append(FieldError(path, message, "invalid"))
    return found + _unplaced_problems(definition, target)


def _unplaced_problems(definition: Definition, target: str | None) -> list[FieldError]:
    """Only Postgres and search have a default place; for other systems a connection has to be named."""
    found = []
    connector = registry.installed().connectors.get(target or "")
    has_default = target in (None, registry.POSTGRES, registry.SEARCH) or not (connector and connector.schemes)
    if not has_default and definition.options.target_connection is None:
        message = f"{definition.final_target} needs options.target_connection, the name of a connection of {target}"
        found.append(FieldError("options.target_connection", message, "missing"))
    return found
