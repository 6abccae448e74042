"""Derive the index mapping for a query's result, and compare it with an existing one."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from vitrina.connectors.search.values import base_type, is_array, range_type

Json = dict[str, Any]

# Key under `_meta` of an index: which pipeline created it, for which target, and with which fields.
NOTES = "vitrina"

# Lucene's longest keyword has 32,766 bytes, and a character has at most four.
KEYWORD_LIMIT = 8191
KEYWORD: Json = {"type": "keyword", "ignore_above": KEYWORD_LIMIT}
TEXT: Json = {"type": "text", "fields": {"keyword": KEYWORD}}
# All digits as a keyword; a sub-field holds the nearest double for sorting and ranges.
EXACT_NUMBER: Json = {**KEYWORD, "fields": {"number": {"type": "double", "ignore_malformed": True}}}
LONG: Json = {"type": "long"}
DOUBLE: Json = {"type": "double"}
DATE: Json = {"type": "date"}
KEPT_NOT_INDEXED: Json = {"type": "object", "enabled": False}

# Decimal digits that a double preserves, and those that fit a long.
DOUBLE_DIGITS = 15
LONG_DIGITS = 18
MILLISECOND_DIGITS = 3

_FIELDS: Mapping[str, Json] = {
    "smallint": LONG,
    "integer": LONG,
    "bigint": LONG,
    "oid": LONG,
    "real": DOUBLE,
    "double precision": DOUBLE,
    "boolean": {"type": "boolean"},
    "text": TEXT,
    "character varying": TEXT,
    "character": TEXT,
    "bpchar": TEXT,
    "citext": TEXT,
    "date": DATE,
    "bytea": {"type": "binary"},
    "json": KEPT_NOT_INDEXED,
    "jsonb": KEPT_NOT_INDEXED,
    "inet": {"type": "ip"},
    "cidr": {"type": "ip_range"},
    "int4range": {"type": "integer_range"},
    "int8range": {"type": "long_range"},
    "numrange": {"type": "double_range"},
    "daterange": {"type": "date_range"},
    "tsrange": {"type": "date_range"},
    "tstzrange": {"type": "date_range"},
}


# PostgreSQL types of Arrow's extension types, for columns without a PostgreSQL type.
_EXTENSIONS = {"arrow.json": "json", "arrow.uuid": "uuid"}


@dataclass(frozen=True)
class Difference:
    """Describe a field that is not as the pipeline needs it; `found` is None if the index lacks it."""

    field: str
    wanted: Json
    found: Json | None

    def __str__(self) -> str:
        if self.found is None:
            return f"{self.field}: not in the index, wanted {_brief(self.wanted)}"
        return f"{self.field}: is {_brief(self.found)}, wanted {_brief(self.wanted)}"


def derive(schema: pa.Schema, types: Mapping[str, str], overrides: Mapping[str, Any] | None = None) -> Json:
    """Return the mapping for a result whose PostgreSQL types are `types`, written as by `format_type`.

    `overrides` is `options.index.mappings`: a field under its `properties` replaces the derived one as a whole.
    """
    overrides = dict(overrides or {})
    properties = {field.name: _field(field.type, types.get(field.name, "")) for field in schema}
    properties |= overrides.pop("properties", {})
    return {"dynamic": "strict", **overrides, "properties": properties}


def compare(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> list[Difference]:
    """Return the fields that differ. Fields that only the index has are ignored: other pipelines may fill them."""
    existing = dict(_flatten(found.get("properties", {})))
    asked = dict(_flatten(noted(found).get("fields", {})))
    return [
        Difference(path, field, existing.get(path))
        for path, field in _flatten(wanted.get("properties", {}))
        if not _is_as_wanted(field, existing.get(path), asked.get(path))
    ]


def additions(wanted: Mapping[str, Any], found: Mapping[str, Any], differences: Sequence[Difference]) -> Json:
    """Return the mapping that adds the missing fields. Existing fields cannot be changed."""
    missing = {item.field for item in differences if item.found is None}
    properties = _only(wanted.get("properties", {}), missing)
    notes = noted(found)
    return {
        "properties": properties,
        # The server replaces `_meta` as a whole.
        "_meta": {**found.get("_meta", {}), NOTES: {**notes, "fields": {**notes.get("fields", {}), **properties}}},
    }


def field_types(mapping: Mapping[str, Any]) -> dict[str, str]:
    """Return the field type of each column, as the encoding of values needs it."""
    return {name: field.get("type", "object") for name, field in mapping.get("properties", {}).items()}


def _field(arrow_type: pa.DataType, pg_type: str) -> Json:
    if isinstance(arrow_type, pa.BaseExtensionType):
        return _field(arrow_type.storage_type, pg_type or _EXTENSIONS.get(arrow_type.extension_name, ""))
    if pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type):
        return _field(arrow_type.value_type, pg_type.removesuffix("[]"))
    if is_array(pg_type):
        return _field(pa.string(), pg_type.removesuffix("[]"))
    if pa.types.is_struct(arrow_type):
        return {"properties": {part.name: _field(part.type, "") for part in arrow_type}}
    base = base_type(pg_type)
    if base == "numeric":
        return _numeric_field(pg_type)
    if base.startswith("timestamp"):
        return _timestamp_field(pg_type)
    return _FIELDS.get(range_type(base)) or _field_by_arrow_type(arrow_type, known=bool(base))


def _numeric_field(pg_type: str) -> Json:
    found = re.fullmatch(r"numeric\((\d+),(-?\d+)\)", pg_type)
    if not found:
        return EXACT_NUMBER
    precision, scale = int(found[1]), int(found[2])
    if scale <= 0 and precision - scale <= LONG_DIGITS:
        return LONG
    return DOUBLE if max(precision, scale) <= DOUBLE_DIGITS else EXACT_NUMBER


def _timestamp_field(pg_type: str) -> Json:
    found = re.search(r"\((\d)\)", pg_type)
    return DATE if found and int(found[1]) <= MILLISECOND_DIGITS else {"type": "date_nanos"}


def _field_by_arrow_type(arrow_type: pa.DataType, *, known: bool) -> Json:
    """Choose a field for a transform's column, which has no PostgreSQL type, or for a user-defined type."""
    checks = (
        (pa.types.is_boolean, {"type": "boolean"}),
        (pa.types.is_integer, LONG),
        (pa.types.is_floating, DOUBLE),
        (pa.types.is_decimal, EXACT_NUMBER),
        (pa.types.is_timestamp, {"type": "date_nanos"}),
        (pa.types.is_date, DATE),
        (pa.types.is_binary, {"type": "binary"}),
        (pa.types.is_large_binary, {"type": "binary"}),
    )
    for fits, field in checks:
        if fits(arrow_type):
            return field
    is_text = pa.types.is_string(arrow_type) or pa.types.is_large_string(arrow_type)
    return TEXT if is_text and not known else KEYWORD


def noted(mapping: Mapping[str, Any]) -> Json:
    """Return the notes that Vitrina stored in an index when it created it; empty for other indexes."""
    notes = mapping.get("_meta", {}).get(NOTES, {})
    return notes if isinstance(notes, dict) else {}


def _flatten(properties: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Json]]:
    """Yield every field by its path. An object or nested field comes before its members and without them."""
    for name, field in properties.items():
        path = f"{prefix}{name}"
        yield path, {"type": "object", **{key: value for key, value in field.items() if key != "properties"}}
        yield from _flatten(field.get("properties", {}), f"{path}.")


def _is_as_wanted(wanted: Json, found: Json | None, asked: Json | None) -> bool:
    """Compare a field with the index and with how it was requested; servers rewrite parameters and omit defaults."""
    if found is None:
        return False
    if asked == wanted and found["type"] == wanted["type"]:
        return True
    # Ignore `dynamic` of an object, unless the pipeline sets it.
    shown = {name: value for name, value in found.items() if name != "dynamic" or name in wanted}
    return _without_defaults(shown) == _without_defaults(wanted)


def _only(properties: Mapping[str, Any], missing: Collection[str], prefix: str = "") -> Json:
    """Return the fields at these paths, each inside the objects that contain it."""
    kept: Json = {}
    for name, field in properties.items():
        path = f"{prefix}{name}"
        if path in missing:
            kept[name] = field
        elif members := _only(field.get("properties", {}), missing, f"{path}."):
            kept[name] = {"type": field.get("type", "object"), "properties": members}
    return kept


# The servers omit these defaults when they show a mapping.
_DEFAULTS: Json = {"index": True, "store": False, "doc_values": True, "coerce": True, "ignore_malformed": False}


def _without_defaults(field: Mapping[str, Any]) -> Json:
    kept = {name: value for name, value in field.items() if _DEFAULTS.get(name, ...) != value}
    if "fields" in kept:
        kept["fields"] = {name: _without_defaults(sub) for name, sub in kept["fields"].items()}
    return kept


def _brief(field: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in field.items() if name != "type"}
    return str(field.get("type", "object")) + (f" {rest}" if rest else "")
