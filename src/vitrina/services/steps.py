"""Check that a definition's Python steps exist and get valid params, by what live runners report."""

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from vitrina.definition import Definition, ErrorRule
from vitrina.errors import FieldError
from vitrina.sentences import say
from vitrina.services import params, policy
from vitrina.settings import Settings
from vitrina.store import runners
from vitrina.store.database import Connection


def check(connection: Connection, settings: Settings, definition: Definition) -> None:
    """Raise `Invalid` for steps that no live runner has. Without a live runner nothing is known, and all steps pass."""
    found = problems(connection, settings, definition)
    if found:
        raise policy.invalid(found)


def problems(connection: Connection, settings: Settings, definition: Definition) -> list[FieldError]:
    wanted = _wanted(definition)
    silence = settings.lease_ttl_seconds
    if not wanted or not runners.count_alive(connection, stale_after_seconds=silence):
        return []
    listed = runners.list_transforms(connection, stale_after_seconds=silence)
    described = {found["name"]: found["described"] for found in listed}
    return [error for step in wanted for error in _problems_of(step, described)]


@dataclass(frozen=True)
class _Wanted:
    """Represent one function that the definition names."""

    kind: str  # the kind that it must have
    name: str
    name_path: str
    params: dict[str, Any]
    params_path: str


def _wanted(definition: Definition) -> list[_Wanted]:
    given = definition.options.params
    source = definition.python_source
    read = [_Wanted("source", source, "python_task", given, "options.params")] if source else []
    if definition.tasks:
        return read + [
            _Wanted("transform", task.body, f"tasks.{position}.body", task.params, f"tasks.{position}.params")
            for position, task in enumerate(definition.tasks)
            if task.task_type == "PYTHON"
        ]
    if read:
        return read
    return [_Wanted("transform", step.body, "python_task", given, "options.params") for step in definition.steps]


def _problems_of(step: _Wanted, described: dict[str, dict[str, Any]]) -> list[FieldError]:
    found = described.get(step.name)
    if found is None or found.get("kind", "transform") != step.kind:
        kinds = {name: entry.get("kind", "transform") for name, entry in described.items()}
        return [_unknown(step.name_path, step.name, step.kind, kinds)]
    ruling = {name for name in step.params if step.kind == "transform" and name in ErrorRule.model_fields}
    own = {name: value for name, value in step.params.items() if name not in ruling}
    rule = {name: step.params[name] for name in ruling}
    return [*_problems_of_rule(rule, step.params_path), *_problems_of_params(own, step, found)]


def _problems_of_rule(rule: dict[str, Any], path: str) -> list[FieldError]:
    try:
        ErrorRule.model_validate(rule)
    except ValidationError as exc:
        return [
            FieldError(
                f"{path}.{error['loc'][0]}",
                say("params.other", name=error["loc"][0], message=error["msg"]),
                "invalid_params",
            )
            for error in exc.errors(include_url=False, include_input=False)
        ]
    return []


def _problems_of_params(own: dict[str, Any], step: _Wanted, found: dict[str, Any]) -> list[FieldError]:
    if "params" not in found:
        return []  # reported by a runner that does not report params
    if found["params"] is None:
        return [
            FieldError(
                f"{step.params_path}.{name}", say("definition.no_params", step=step.name, params=name), "unknown_params"
            )
            for name in sorted(own)
        ]
    return params.problems(own, found["params"], step.params_path, strict=found.get("strict", False))


def _unknown(path: str, name: str, kind: str, kinds: dict[str, str]) -> FieldError:
    what = "source" if kind == "source" else "step"
    known = ", ".join(sorted(other for other, found in kinds.items() if found == kind)) or "none"
    return FieldError(path, say("definition.unknown_step", what=what, name=name, known=known), "unknown_step")
