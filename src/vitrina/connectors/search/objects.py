"""What `update` leaves in objects that lost members, and how that is cleared: the server merges objects."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from vitrina import deep_json


def leftovers(document: bytes, found: Mapping[str, Any] | None) -> list[str]:
    """Find fields that hold, or may hold, members that were not sent; `found` is what is there now."""
    sent: Mapping[str, Any] = parsed(document)["doc"]
    found = found or {}
    return [
        name
        for name, value in sent.items()
        if isinstance(value, dict) and (name not in found or _has_more(found[name], value))
    ]


def clearing(document_id: str, names: Sequence[str]) -> bytes:
    """Build the action to send right before an update, so that its objects replace the existing ones."""
    action = {"update": {"_id": document_id}}
    return orjson.dumps(action) + b"\n" + orjson.dumps({"doc": dict.fromkeys(names), "doc_as_upsert": True}) + b"\n"


def parsed(document: bytes) -> dict[str, Any]:
    found: dict[str, Any] = deep_json.loads(document)
    return found


def _has_more(found: Any, sent: Any) -> bool:
    """Compare objects within objects, which alone are merged. Do so without recursion, because json may be deep."""
    pairs = [(found, sent)]
    while pairs:
        there, wanted = pairs.pop()
        if not (isinstance(there, dict) and isinstance(wanted, dict)):
            continue
        if there.keys() - wanted.keys():
            return True
        pairs += [(member, wanted[name]) for name, member in there.items()]
    return False
