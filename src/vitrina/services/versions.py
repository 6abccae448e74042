"""Record versions of definitions: snapshots, differences, and the audit entry of every change."""

from collections.abc import Mapping
from typing import Any

from vitrina.definition import Definition
from vitrina.errors import NotFound
from vitrina.schemas import FieldChange
from vitrina.sentences import say
from vitrina.services import audit
from vitrina.services.callers import Caller
from vitrina.store import audit as records
from vitrina.store import pipelines
from vitrina.store.database import Connection
from vitrina.store.pipelines import Row

Fields = dict[str, Any]


def get(connection: Connection, row: Row, version: int) -> Row:
    found = records.find_version(connection, row["id"], version)
    if found is None and version == row["version"]:
        keep_baseline(connection, row)
        found = records.find_version(connection, row["id"], version)
    if found is None:
        raise NotFound(say("pipeline.no_version", name=row["name"], version=version, newest=row["version"]))
    # Snapshots from before run_after existed have none.
    return found | {"definition": {"run_after": []} | found["definition"]}


def record(
    connection: Connection, caller: Caller, row: Row, *, action: str, before: Fields | None, summary: str
) -> None:
    """Record version and audit entry of a change that was just made, in its transaction."""
    after = snapshot(row)
    records.add_version(connection, row["id"], row["version"], after, who=caller.name, summary=summary)
    changed = sorted(changed_fields(before or {}, after))
    audit.record(
        connection,
        caller,
        action,
        object_name(row),
        before={name: before.get(name) for name in changed} if before else None,
        after={name: after.get(name) for name in changed} | {"version": row["version"]},
    )


def keep_baseline(connection: Connection, row: Row) -> None:
    """Record the first version of a row that was inserted with psql, so that its content is not lost."""
    records.add_version(
        connection, row["id"], row["version"], snapshot(row), who="unknown", summary=say("version.found")
    )


def snapshot(row: Row) -> Fields:
    """Return the author's part of a row, as versions keep it."""
    return _normal(fields_of(row))


def snapshot_of(definition: Definition) -> Fields:
    return _normal(definition.model_dump(mode="json"))


def fields_of(row: Row) -> Fields:
    return {name: row[name] for name in (*pipelines.DEFINITION_COLUMNS, *pipelines.DEFINITION_PARTS)}


def changed_fields(before: Mapping[str, Any], after: Mapping[str, Any]) -> set[str]:
    return {name for name in {*before, *after} if not same(before.get(name), after.get(name))}


def compare(before: Mapping[str, Any], after: Mapping[str, Any], path: str = "") -> list[FieldChange]:
    """List every difference by its path; lists are compared position by position."""
    found: list[FieldChange] = []
    for name in sorted({*before, *after}):
        found += _differences(f"{path}{name}", before.get(name), after.get(name))
    return found


def same(one: Any, other: Any) -> bool:
    """Compare values as JSON does: 1 is 1.0, but false is not 0 as it is for Python."""
    if one is other or isinstance(one, str):
        return bool(one == other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if (isinstance(one, float) and isinstance(other, int)) or (isinstance(one, int) and isinstance(other, float)):
        # Postgres returns a large float as an integer with all digits.
        return float(one) == float(other)
    return bool(one == other)


def object_name(row: Row) -> str:
    """Return the audit's name for a pipeline."""
    return f"pipeline:{row['name']}"


def _differences(path: str, before: Any, after: Any) -> list[FieldChange]:
    if same(before, after):
        return []
    if isinstance(before, list) and isinstance(after, list) and any(isinstance(part, dict) for part in before + after):
        before, after = dict(enumerate(before)), dict(enumerate(after))
    if isinstance(before, dict) and isinstance(after, dict):
        return compare(before, after, f"{path}.")
    return [FieldChange(path=path, before=before, after=after)]


def _normal(fields: Fields) -> Fields:
    """Leave out options that have their default, and sort steps by their order."""
    options = {
        name: value
        for name, value in (fields["options"] if isinstance(fields["options"], dict) else {}).items()
        if name not in _DEFAULT_OPTIONS or not same(value, _DEFAULT_OPTIONS[name])
    }
    return fields | {"options": options, "tasks": sorted(fields["tasks"], key=lambda task: int(task["order_index"]))}


_DEFAULT_OPTIONS = Definition(name="x", target_table="x", source_query="x").options.model_dump(mode="json")
