"""Whether the Python steps that a definition names exist: live runners say which ones they have."""

from vitrina.definition import Definition
from vitrina.errors import FieldError
from vitrina.services import policy
from vitrina.settings import Settings
from vitrina.store import runners
from vitrina.store.database import Connection


def check(connection: Connection, settings: Settings, definition: Definition) -> None:
    """Raise `Invalid` for names that no live runner knows. Without a live runner nobody can tell: they pass."""
    found = problems(connection, settings, definition)
    if found:
        raise policy.invalid(found)


def problems(connection: Connection, settings: Settings, definition: Definition) -> list[FieldError]:
    wanted = _wanted(definition)
    silence = settings.lease_ttl_seconds
    if not wanted or not runners.count_alive(connection, stale_after_seconds=silence):
        return []
    listed = runners.list_transforms(connection, stale_after_seconds=silence)
    kinds = {found["name"]: found["described"].get("kind", "transform") for found in listed}
    return [_unknown(path, name, kind, kinds) for path, name, kind in wanted if kinds.get(name) != kind]


def _wanted(definition: Definition) -> list[tuple[str, str, str]]:
    """Where a name stands, the name, and what it must be the name of."""
    if definition.python_source:
        return [("python_task", definition.python_source, "source")]
    if definition.tasks:
        return [
            (f"tasks.{position}.body", task.body, "transform")
            for position, task in enumerate(definition.tasks)
            if task.task_type == "PYTHON"
        ]
    return [("python_task", step.body, "transform") for step in definition.steps]


def _unknown(path: str, name: str, kind: str, kinds: dict[str, str]) -> FieldError:
    what = "source" if kind == "source" else "step"
    known = ", ".join(sorted(other for other, found in kinds.items() if found == kind)) or "none"
    return FieldError(path, f"no live runner has the Python {what} {name!r}; there are: {known}", "unknown_step")
