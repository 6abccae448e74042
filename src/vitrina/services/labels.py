"""Manage labels, by which users sort and select pipelines. They are not part of a definition and create no version."""

import re
from collections.abc import Mapping
from typing import Any

from vitrina.errors import FieldError, Invalid
from vitrina.sentences import Sentence, say
from vitrina.services import audit, versions
from vitrina.services.callers import Caller
from vitrina.store import pipelines
from vitrina.store.database import Connection
from vitrina.store.pipelines import Row

KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./\-]{0,99}")
MAX_VALUE = 200
MAX_LABELS = 50


def of(row: Row) -> dict[str, Any]:
    """Return the labels of a row: none if it was edited to no object."""
    found = row["labels"]
    return found if isinstance(found, dict) else {}


def split(fields: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Split a body into its labels and its definition. The labels are None when it has none."""
    return fields.get("labels"), {name: value for name, value in fields.items() if name != "labels"}


def problems(labels: Any) -> list[FieldError]:
    """List what is wrong with labels. Null removes a label, so it is valid."""
    if not isinstance(labels, Mapping):
        return [FieldError("labels", say("definition.labels"), "invalid")]
    if len(labels) > MAX_LABELS:
        return [FieldError("labels", say("definition.too_many_labels", most=MAX_LABELS), "invalid")]
    found = ((key, _problem(str(key), value)) for key, value in labels.items())
    return [FieldError(f"labels.{key}", said, "invalid") for key, said in found if said is not None]


def _problem(key: str, value: Any) -> Sentence | None:
    if not KEY.fullmatch(key):
        return say("definition.label_key", key=key[:100])
    if value is not None and (not isinstance(value, str) or len(value) > MAX_VALUE or "\x00" in value):
        return say("definition.label", key=key, most=MAX_VALUE)
    return None


def check(labels: Any) -> None:
    found = problems(labels)
    if found:
        raise Invalid(found[0].message, tuple(found))


def change(connection: Connection, caller: Caller, row: Row, labels: Mapping[str, str | None]) -> Row:
    """Set labels key by key; null removes one. The caller holds the row."""
    check(labels)
    wanted = {key: value for key, value in (of(row) | dict(labels)).items() if value is not None}
    if wanted == row["labels"]:
        return row
    check(wanted)
    pipelines.set_labels(connection, row["id"], wanted)
    audit.record(
        connection,
        caller,
        "label",
        versions.object_name(row),
        before={"labels": row["labels"]},
        after={"labels": wanted},
    )
    return row | {"labels": wanted}
