"""Clear what `update` leaves in objects that lost members, because the server merges objects."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from vitrina import deep_json


def leftovers(document: bytes, found: Mapping[str, Any] | None) -> list[str]:
    """Return the fields that hold, or may hold, members that were not sent; `found` is the current document."""
    sent: Mapping[str, Any] = parsed(document)["doc"]
    found = found or {}
    return [
        name
        for name, value in sent.items()
        if isinstance(value, dict) and (name not in found or _has_more(found[name], value))
    ]


def clearing(document_id: str, names: Sequence[str]) -> bytes:
    """Return the action to send right before an update, so that its objects replace the existing ones."""
    action = {"update": {"_id": document_id}}
    return orjson.dumps(action) + b"\n" + orjson.dumps({"doc": dict.fromkeys(names), "doc_as_upsert": True}) + b"\n"


def parsed(document: bytes) -> dict[str, Any]:
    found: dict[str, Any] = deep_json.loads(document)
    return found


def _has_more(found: Any, sent: Any) -> bool:
    """Compare nested objects, which alone are merged. Avoid recursion, because JSON may be deep."""
    pairs = [(found, sent)]
    while pairs:
        there, wanted = pairs.pop()
        if not (isinstance(there, dict) and isinstance(wanted, dict)):
            continue
        if there.keys() - wanted.keys():
            return True
        pairs += [(member, wanted[name]) for name, member in there.items()]
    return False
