"""Describe a row in an error message by its shape, without its values."""

from collections.abc import Mapping
from typing import Any

_MAX_COLUMNS = 30
# Shorter texts occur everywhere and reveal nothing.
_SHORTEST_SECRET = 3


def masked(row: Mapping[str, Any]) -> str:
    """Format the shape of a row: `id=<int>, title=<str of 12>, rating=NULL`."""
    shown = [f"{name}={_shape(value)}" for name, value in list(row.items())[:_MAX_COLUMNS]]
    return ", ".join(shown) + (", ..." if len(row) > _MAX_COLUMNS else "")


def _shape(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str | bytes | list | dict):
        return f"<{type(value).__name__} of {len(value)}>"
    return f"<{type(value).__name__}>"


def scrubbed(text: str, row: Mapping[str, Any]) -> str:
    """Remove the values of a row from the message of an exception about it."""
    for secret in sorted(_texts(row.values()), key=len, reverse=True):
        text = text.replace(secret, "***")
    return " ".join(text.split())


def _texts(values: Any) -> set[str]:
    found: set[str] = set()
    for value in values:
        if isinstance(value, dict):
            found |= _texts(value.values())
        elif isinstance(value, list | tuple):
            found |= _texts(value)
        elif value is not None and not isinstance(value, bool):
            found |= {form for form in (str(value), repr(value)) if len(form) >= _SHORTEST_SECRET}
    return found
