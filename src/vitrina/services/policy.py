"""Check definitions against the rules of this installation: targets, queries, connections, task plans."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from vitrina import data_checks, sqlguard, targets, taskplan
from vitrina.definition import Definition, Options, Task, Unfit
from vitrina.errors import FieldError, Invalid, InvalidQuery
from vitrina.ports import registry
from vitrina.sentences import Sentence, say
from vitrina.services import connections
from vitrina.settings import DEFAULT_CONNECTION, Settings
from vitrina.store import kept_connections
from vitrina.store.database import Connection

# No reader needs more at a time, and each error may repeat a part of the request.
MAX_PROBLEMS = 100

# A change to any of these is checked again. Other changes, such as a pause of the schedule, must work even on a
# pipeline whose target the operator has since forbidden.
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
        "checks",
        "tasks",
    }
)


def parse(fields: Mapping[str, Any]) -> Definition:
    """Parse a definition from plain fields. Raise `Invalid`, which names each field that is wrong."""
    try:
        return Definition.model_validate(dict(fields))
    except ValidationError as exc:
        raise invalid(field_errors(exc.errors(include_url=False))) from None


def parse_for_reading(fields: Mapping[str, Any]) -> Definition:
    """Parse a definition that is only read from: it may still lack a name and a target."""
    return parse({"name": _NO_NAME, "target_table": _NO_TARGET, **fields})


def parse_piecemeal(fields: Mapping[str, Any]) -> tuple[Definition | None, list[FieldError]]:
    """Parse the definition without its invalid fields, and list the errors of those."""
    rest, found = dict(fields), list[FieldError]()
    while True:
        try:
            return parse(rest), found
        except Invalid as exc:
            wrong = {problem.path.partition(".")[0] for problem in exc.fields}
            news = [problem for problem in exc.fields if problem.path not in {known.path for known in found}]
            if not news or len(found) > MAX_PROBLEMS:
                return None, found
            found += news
            # Without a cursor column, the definition is treated as a full load.
            wrong |= {"mode"} if "incremental_key" in wrong else set()
            rest = {name: value for name, value in rest.items() if name not in wrong}
            rest |= {name: value for name, value in _PLACEHOLDERS.items() if name in wrong}


_NO_NAME, _NO_TARGET = "draft", "no_target"
# Required fields of a definition.
_PLACEHOLDERS = {"name": _NO_NAME, "target_table": _NO_TARGET, "source_query": "SELECT 1"}


def check(definition: Definition, settings: Settings, metastore: Connection | None = None) -> None:
    """Raise `Invalid` with everything that is wrong with the definition at once."""
    found = problems(definition, settings, metastore)
    if found:
        raise invalid(found)


def problems(definition: Definition, settings: Settings, metastore: Connection | None = None) -> list[FieldError]:
    """List what is wrong with a definition. Without the metastore, only the environment's connections are known."""
    return [
        *taskplan.target_violations(definition, settings.target_policy),
        *problems_of_reading(definition, settings, metastore),
    ]


def problems_of_reading(
    definition: Definition, settings: Settings, metastore: Connection | None = None
) -> list[FieldError]:
    """List the errors that prevent a definition from reading its source; the target is not checked."""
    return [
        *taskplan.violations(definition.tasks, after_source=definition.python_source is not None),
        *_query_problems(definition, settings),
        *_check_problems(definition, settings),
        *_connection_problems(definition, settings, metastore),
        *_timeout_problems(definition, settings),
    ]


def invalid(found: Sequence[FieldError]) -> Invalid:
    """Build one error from all problems; a single problem keeps its own message."""
    if len(found) == 1:
        return Invalid(found[0].message, tuple(found))
    listed = found[:MAX_PROBLEMS]
    more = [say("definition.more", count=len(found) - MAX_PROBLEMS)] if len(found) > MAX_PROBLEMS else []
    said = [*(problem.message for problem in listed), *more]
    return Invalid(say("definition.several", count=len(found), problems=said), tuple(listed))


def field_errors(details: Iterable[Mapping[str, Any]]) -> list[FieldError]:
    """Translate Pydantic's errors into sentences, without texts from the request: they may be secret."""
    found = []
    for detail in details:
        broken = detail.get("ctx", {}).get("error")
        path = ".".join([*map(str, _place(detail["loc"])), *([broken.field] if isinstance(broken, Unfit) else [])])
        found.append(FieldError(path, _words(path, detail), _CODES.get(detail["type"], "invalid")))
    return found


def _place(loc: Sequence[int | str]) -> Sequence[int | str]:
    """Leave out the kind of a check, which pydantic puts between the number of the check and its field."""
    return (*loc[:2], *loc[3:]) if loc[:1] == ("checks",) else loc


_CODES = {"missing": "missing", "extra_forbidden": "unknown_field"}


def _words(path: str, detail: Mapping[str, Any]) -> str:
    broken, kind = detail.get("ctx", {}).get("error"), detail["type"]
    if kind == "value_error":
        own = broken.args[0] if isinstance(broken, ValueError) and broken.args else None
        return own if isinstance(own, Sentence) else str(detail["msg"]).removeprefix("Value error, ")
    if kind == "extra_forbidden":
        return _unknown(path)
    path = path or say("definition.body")
    if kind == "list_type":
        return say("definition.not_a_list", path=path)
    if kind == "string_pattern_mismatch" and path == "name":
        return say("definition.name")
    if kind == "missing":
        return say("definition.missing", path=path)
    return _of_pydantic(path, detail)


# The sentence for each kind of pydantic error, and the name of the limit in its context.
_PYDANTIC = {
    "greater_than_equal": ("definition.at_least", "ge"),
    "less_than_equal": ("definition.at_most", "le"),
    "greater_than": ("definition.above", "gt"),
    "less_than": ("definition.below", "lt"),
    "literal_error": ("definition.one_of", "expected"),
    "string_too_short": ("definition.text_too_short", "min_length"),
    "string_too_long": ("definition.text_too_long", "max_length"),
    "string_type": ("definition.no_text", None),
    "int_type": ("definition.no_integer", None),
    "float_type": ("definition.no_number", None),
    "bool_type": ("definition.no_boolean", None),
    "dict_type": ("definition.no_object", None),
}


def _of_pydantic(path: str, detail: Mapping[str, Any]) -> Sentence:
    given, message = _given(detail.get("input")), str(detail["msg"])
    code, limit = _PYDANTIC.get(detail["type"], (None, None))
    if code is not None:
        named = {"limit": detail["ctx"][limit]} if limit else {}
        return say(code, path=path, given=given, message=message, **named)
    if message.startswith("Input should"):
        return say("definition.must", path=path, message=message.removeprefix("Input should "), given=given)
    return say("definition.other", path=path, message=message, given=given)


def _unknown(path: str) -> Sentence:
    """Report an unknown field, and suggest a field of the same object with a similar name."""
    outer, _, name = path.rpartition(".")
    parts: dict[str, type[BaseModel]] = {"options": Options, "tasks": Task}
    model = parts.get(outer.partition(".")[0], Definition)
    near = difflib.get_close_matches(name, model.model_fields.keys() - {name}, 1)
    if near:
        return say("definition.unknown_field_near", path=path, near=near[0])
    return say("definition.unknown_field", path=path)


def _given(value: object) -> str:
    """Quote a number or a flag, which helps to see the mistake. Texts are left out: they may contain anything."""
    if not isinstance(value, int | float):
        return ""
    return say("definition.given", value=str(value).lower() if isinstance(value, bool) else value)


def _query_problems(definition: Definition, settings: Settings) -> list[FieldError]:
    if definition.query is None or not definition.query.strip() or not definition.reads_postgres:
        return []  # another source checks its own options when it is opened
    path = "source_table" if definition.source_table else "source_query"
    if definition.tasks:
        path = f"tasks.{definition.tasks.index(definition.ordered_tasks[0])}.body"
    try:
        judge(definition.query, settings)
    except InvalidQuery as exc:
        return [FieldError(path, exc.message, exc.code, exc.line, exc.column)]
    return []


def _check_problems(definition: Definition, settings: Settings) -> list[FieldError]:
    """Check the SQL of checks by the rules of a source query."""
    found = []
    for place, check in enumerate(definition.checks):
        if isinstance(check, data_checks.Asked):
            try:
                judged = sqlguard.check(check.select, settings.sql_policy, given=data_checks.names_given(check))
            except InvalidQuery as exc:
                message = say("definition.check_query", name=check.called, message=exc.message)
                found.append(FieldError(f"checks.{place}", message, exc.code))
                continue
            if judged.parameters:
                message = say("definition.check_query", name=check.called, message=say("check.no_parameters"))
                found.append(FieldError(f"checks.{place}", message))
    return found


def judge(query: str, settings: Settings) -> sqlguard.CheckedQuery:
    return sqlguard.check(query, settings.sql_policy)


def _connection_problems(definition: Definition, settings: Settings, metastore: Connection | None) -> list[FieldError]:
    named = {"source_connection": definition.source_connection}
    if definition.options.target_connection is not None:
        named["options.target_connection"] = definition.options.target_connection
    known = {DEFAULT_CONNECTION, *settings.connections}
    unknown = {path: name for path, name in named.items() if name not in known}
    if unknown and metastore:
        # Locked, so that no transaction deletes it before the definition is saved.
        unknown = {path: name for path, name in unknown.items() if not kept_connections.hold(metastore, name)}
        known |= set(kept_connections.list_names(metastore)) if unknown else set()
    return [
        FieldError(
            path,
            say("definition.unknown_connection", name=name, known=", ".join(sorted(known)), variable=name.upper()),
            "unknown_connection",
        )
        for path, name in unknown.items()
    ] + _connector_problems(definition, settings, metastore)


def _timeout_problems(definition: Definition, settings: Settings) -> list[FieldError]:
    asked, path = definition.options.statement_timeout_seconds, "options.statement_timeout_seconds"
    limit = settings.statement_timeout_on(definition.source_connection)
    if asked is None or asked <= limit:
        return []
    said = say("definition.timeout_too_long", path=path, asked=asked, limit=limit)
    return [FieldError(path, said, "invalid")]


def _connector_problems(definition: Definition, settings: Settings, metastore: Connection | None) -> list[FieldError]:
    """Refuse a connection to another system than the connector's."""
    named = [("source_connection", definition.source_connection, definition.source_type)]
    target = targets.connector_of(definition.final_target)
    if definition.options.target_connection is not None and target is not None:
        named.append(("options.target_connection", definition.options.target_connection, target))
    if definition.python_source:
        named = named[1:]  # such a source decides what it reads
    found = []
    for path, name, wanted in named:
        actual = connections.connector_of(metastore, settings, name)
        if actual is not None and actual != wanted:
            message = say("definition.connection_of_another", name=name, actual=actual, path=path, wanted=wanted)
            found.append(FieldError(path, message, "invalid"))
    return found + _unplaced_problems(definition, target)


def _unplaced_problems(definition: Definition, target: str | None) -> list[FieldError]:
    """Require a target connection, except for Postgres and search, which have a default."""
    found = []
    connector = registry.installed().connectors.get(target or "")
    has_default = target in (None, registry.POSTGRES, registry.SEARCH) or not (connector and connector.schemes)
    if not has_default and definition.options.target_connection is None:
        message = say("definition.needs_target_connection", target=definition.final_target, connector=target)
        found.append(FieldError("options.target_connection", message, "missing"))
    return found
