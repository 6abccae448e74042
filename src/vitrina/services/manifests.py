"""Export pipelines to files, and apply files to pipelines in one transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg

from vitrina.definition import Definition
from vitrina.errors import Conflict, FieldError, Invalid
from vitrina.schemas import ApplyReport, FieldChange, ManifestChange
from vitrina.sentences import say
from vitrina.services import data_plans, manifest_files, pipelines, policy, run_after, versions
from vitrina.services import labels as label_rules
from vitrina.services.callers import Caller
from vitrina.services.manifest_files import API_VERSION, KIND, Document, Path
from vitrina.settings import Settings
from vitrina.store import pipelines as rows
from vitrina.store import run_after as edges
from vitrina.store.database import Connection
from vitrina.store.pipelines import Row

# The name under which files own their pipelines.
OWNER = r"^[A-Za-z0-9][A-Za-z0-9_./\-]{0,99}$"

# Names of files (None for a text without one) and their contents.
Files = Sequence[tuple[str | None, str]]


@dataclass(frozen=True)
class Manifest:
    """Represent one pipeline as a file declares it."""

    definition: Definition
    labels: dict[str, str]
    document: Document


def apply(
    connection: Connection,
    settings: Settings,
    caller: Caller,
    files: Files,
    *,
    managed_by: str,
    prune: bool = False,
    dry_run: bool = False,
    plans: Sequence[UUID] = (),
) -> ApplyReport:
    """Apply every document in one transaction. A dry run does the same work and rolls it back.

    With `plans`, apply only definitions that one of them covers.
    """
    manifests = _read(files, settings, connection)
    try:
        with connection.transaction(force_rollback=dry_run):
            rows.lock_targets(connection)
            declared = {manifest.definition.name for manifest in manifests}
            found = rows.list_by_name(connection, declared, or_managed_by=managed_by if prune else None, lock=True)
            edges.lock_edges(connection, [row["id"] for row in found])
            existing = {row["name"]: row for row in found}
            planned = _planned(connection, plans, manifests, existing)
            changes = [
                _make_it_so(
                    connection,
                    settings,
                    caller,
                    manifest,
                    row=existing.get(manifest.definition.name),
                    managed_by=managed_by,
                )
                for manifest in manifests
            ]
            # Last, because the other pipelines may have run after these until now.
            changes += _prune(connection, caller, [row for row in found if row["name"] not in declared], plans)
            for name, plan in planned.items():
                data_plans.applied(connection, caller, plan, pipelines.get(connection, name))
            for manifest in manifests:
                pipelines.refuse_second_writer(connection, pipelines.get(connection, manifest.definition.name))
            run_after.refuse_circles(connection, [m.definition.name for m in manifests if m.definition.run_after])
    except psycopg.errors.UniqueViolation as exc:
        raise Conflict("another request created one of these pipelines at the same time: apply again") from exc
    return ApplyReport(dry_run=dry_run, items=sorted(changes, key=lambda change: change.name))


def export(connection: Connection, names: Sequence[str]) -> str:
    """Write the named pipelines, or all, as YAML documents in the order of their names."""
    # Postgres cannot store this character, so no pipeline can have such a name.
    possible = [name for name in names if "\x00" not in name]
    found = rows.list_by_name(connection, possible if names else None)
    missing = sorted(set(names) - {row["name"] for row in found})
    if missing:
        raise pipelines.no_such(connection, missing[0])
    return manifest_files.write([manifest_of(row) for row in found])


def manifest_of(row: Row) -> dict[str, Any]:
    """Describe the fields that differ from their defaults, in reading order."""
    fields = versions.snapshot(row)
    spec = {
        name: _shown(name, fields[name])
        for name in Definition.model_fields
        if name != "name" and not versions.same(fields[name], _DEFAULTS.get(name))
    }
    labels = label_rules.of(row)
    metadata = {"name": row["name"]} | ({"labels": dict(sorted(labels.items()))} if labels else {})
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def json_schema() -> dict[str, Any]:
    """Build the JSON Schema of one document, for editors."""
    spec = Definition.model_json_schema(ref_template="#/$defs/{model}")
    definitions = spec.pop("$defs", {})
    name = spec["properties"].pop("name")
    spec["required"] = [field for field in spec["required"] if field != "name"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Vitrina pipeline",
        "type": "object",
        "additionalProperties": False,
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "properties": {
            "apiVersion": {"const": API_VERSION},
            "kind": {"const": KIND},
            "metadata": {
                "type": "object",
                "additionalProperties": False,
                "required": ["name"],
                "properties": {
                    "name": name,
                    "labels": {
                        "type": "object",
                        "additionalProperties": {"type": "string", "maxLength": label_rules.MAX_VALUE},
                    },
                },
            },
            "spec": spec,
        },
        "$defs": definitions,
    }


# --- reading ---------------------------------------------------------------------------------------------------


def _read(files: Files, settings: Settings, connection: Connection) -> list[Manifest]:
    """Read every document of every file, and report everything that is wrong at once."""
    manifests: dict[str, Manifest] = {}
    found: list[FieldError] = []
    documents = [document for file, text in files for document in manifest_files.read(text, file)]
    if len(documents) > manifest_files.MAX_DOCUMENTS:
        raise manifest_files.too_many()
    for document in documents:
        try:
            manifest = _manifest(document, settings, connection)
        except _WrongDocument as exc:
            found += exc.fields
            continue
        name = manifest.definition.name
        if name in manifests:
            first = manifests[name].document.place_of(())
            found.append(_at(document, ("metadata", "name"), f"{name} is declared at {first} already", "repeated"))
        manifests.setdefault(name, manifest)
    if found:
        raise policy.invalid(found)
    return [manifests[name] for name in run_after.upstreams_first([m.definition for m in manifests.values()])]


_PARTS = ("apiVersion", "kind", "metadata", "spec")
_FORM = (
    f"a document has apiVersion: {API_VERSION}, kind: {KIND}, the pipeline's name in metadata and its fields in spec;"
    " `vitrina export` shows the form (fields without it are what `vitrina pipelines create -f` takes)"
)


class _WrongDocument(Exception):
    """Collect the errors of one document."""

    def __init__(self, fields: list[FieldError]) -> None:
        super().__init__()
        self.fields = fields


def _manifest(document: Document, settings: Settings, connection: Connection) -> Manifest:
    content = document.content
    found = _form_errors(document)
    metadata, spec = content.get("metadata"), content.get("spec")
    if found or not isinstance(metadata, dict) or not isinstance(spec, dict):
        raise _WrongDocument(found)
    try:
        definition = policy.parse(spec | {"name": metadata.get("name")})
        policy.check(definition, settings, connection)
    except Invalid as exc:
        raise _WrongDocument([_located(document, error) for error in exc.fields]) from exc
    return Manifest(definition, metadata.get("labels") or {}, document)


def _form_errors(document: Document) -> list[FieldError]:
    content = document.content
    strange = [name for name in content if name not in _PARTS]
    if len(strange) == len(content):
        return [_at(document, (), _FORM, "invalid")]
    found = [
        _at(document, (name,), f"{name} is not a part of a document: fields stand in spec", "unknown_field")
        for name in strange
    ]
    for name, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if content.get(name) != expected:
            found.append(_at(document, (name,), f"{name} must be {expected}", "invalid"))
    for name in ("metadata", "spec"):
        if not isinstance(content.get(name), dict):
            found.append(_at(document, (name,), f"{name} must be a mapping", "invalid"))
    if isinstance(content.get("metadata"), dict):
        found += _metadata_errors(document, content["metadata"])
    if isinstance(content.get("spec"), dict) and "name" in content["spec"]:
        found.append(_at(document, ("spec", "name"), "the name stands in metadata", "unknown_field"))
    return found


def _metadata_errors(document: Document, metadata: dict[str, Any]) -> list[FieldError]:
    found = [
        _at(document, ("metadata", name), f"metadata.{name} is not known: only name and labels are", "unknown_field")
        for name in metadata.keys() - {"name", "labels"}
    ]
    if "name" not in metadata:
        found.append(_at(document, ("metadata",), "metadata.name is required", "missing"))
    labels = metadata.get("labels")
    if labels is None:
        return found
    if not isinstance(labels, dict):
        return [*found, _at(document, ("metadata", "labels"), "labels must be a mapping of texts", "invalid")]
    return found + [
        _at(
            document,
            ("metadata", "labels", key),
            f"label {key} must be a string of up to {label_rules.MAX_VALUE} characters",
            "invalid",
        )
        for key, value in labels.items()
        if value is None or label_rules.problems({key: value})
    ]


def _located(document: Document, error: FieldError) -> FieldError:
    """Move a definition's error to the position of the field in the file."""
    parts: Path = tuple(int(part) if part.isdigit() else part for part in error.path.split(".") if part)
    inside: Path = ("metadata", "name") if parts == ("name",) else ("spec", *parts)
    return _at(document, inside, error.message, error.code)


def _at(document: Document, path: Path, message: str, code: str) -> FieldError:
    return FieldError(".".join(map(str, path)), f"{document.place_of(path)}: {message}", code)


# --- applying --------------------------------------------------------------------------------------------------


def _make_it_so(
    connection: Connection,
    settings: Settings,
    caller: Caller,
    manifest: Manifest,
    *,
    row: Row | None,
    managed_by: str,
) -> ManifestChange:
    definition = manifest.definition
    if row is None:
        pipelines.insert(connection, settings, caller, definition, managed_by=managed_by, labels=manifest.labels)
        return ManifestChange(name=definition.name, action="create")
    changes = _differences(row, manifest, managed_by)
    if not changes:
        return ManifestChange(name=definition.name, action="unchanged")
    pipelines.redefine(connection, settings, caller, row, definition, action="apply")
    rows.set_owner(connection, row["id"], managed_by=managed_by, labels=manifest.labels)
    return ManifestChange(name=definition.name, action="update", changes=changes)


def _differences(row: Row, manifest: Manifest, managed_by: str) -> list[FieldChange]:
    found = versions.compare(versions.snapshot(row), versions.snapshot_of(manifest.definition))
    found += versions.compare(label_rules.of(row), manifest.labels, "labels.")
    if row["managed_by"] != managed_by:
        found.append(FieldChange(path="managed_by", before=row["managed_by"], after=managed_by))
    return found


def _planned(
    connection: Connection, plans: Sequence[UUID], manifests: Sequence[Manifest], existing: Mapping[str, Row]
) -> dict[str, Row]:
    """Find the plan of every pipeline that would change, if only planned changes may be applied."""
    if not plans:
        return {}
    wanted = [(manifest.definition, existing.get(manifest.definition.name)) for manifest in manifests]
    return data_plans.refuse_unplanned(connection, plans, wanted)


def _prune(
    connection: Connection, caller: Caller, unnamed: Sequence[Row], plans: Sequence[UUID]
) -> list[ManifestChange]:
    if plans and unnamed:
        raise Conflict(say("request.prune_not_planned", pipelines=[row["name"] for row in unnamed]))
    ids = {row["id"] for row in unnamed}
    for row in unnamed:
        pipelines.remove(connection, caller, row["id"], also_removed=ids)
    return [ManifestChange(name=row["name"], action="delete") for row in unnamed]


# --- writing ---------------------------------------------------------------------------------------------------

_DEFAULTS = versions.snapshot_of(Definition(name="x", target_table="x", source_query="x")) | {
    "target_table": None,
    "source_query": None,
}


def _shown(name: str, value: Any) -> Any:
    if name == "options":
        return dict(sorted(value.items()))
    if name == "tasks":
        return [_step(task) for task in value]
    if name == "run_after":
        return [edge if edge["only_if_changed"] else edge["pipeline"] for edge in value]
    return value


def _step(task: dict[str, Any]) -> dict[str, Any]:
    """Leave out the empty fields of a step and sort its parameters, because Postgres does not keep their order."""
    said = {name: value for name, value in task.items() if value not in (None, {})}
    if "params" in said:
        said["params"] = _sorted(said["params"])
    order = ("order_index", "task_type", "body", "params", "source_table", "target_table")
    return {name: said[name] for name in order if name in said}


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(part) for part in value] if isinstance(value, list) else value
