"""Hide values of rows from viewers, in error messages and dead letters. Operators see them."""

import json
import re
from typing import Any

from fastapi import Response

SHOWN_INSTEAD = "(for operators)"
# Fields of answers and events that contain error messages.
_MESSAGES = frozenset({"delivery_error", "error", "error_message", "last_error", "message", "notes", "refusals"})
_ROWS = frozenset({"document", "max_value", "min_value", "offending_rows", "sample_rows", "top_values"})
# A quick test: an answer in which all of these are null or missing is returned unchanged.
_MAY_HOLD_VALUES = re.compile(rf'"(?:{"|".join(sorted(_MESSAGES | _ROWS))})"\s*:\s*(?!null)'.encode())
# How Postgres, search servers and this platform quote values. Names are in double quotes without a colon before.
_VALUES = (
    (re.compile(r"(Failing row contains |\)=)\(.*?\)(?=[.\s]|$)", re.DOTALL), r"\1(…)"),
    (re.compile(r"(: |value |value of |values )\"(?:[^\"]|\"\")*\""), r'\1"…"'),
    (re.compile(r"(?<![\w'])'(?:[^']|'')*'"), "'…'"),
)


def without_values(message: str) -> str:
    """Remove every value that a message quotes."""
    for pattern, instead in _VALUES:
        message = pattern.sub(instead, message)
    return message


def shown(value: Any, key: str = "", *, in_message: bool = False) -> Any:
    """Return the same JSON without values of rows."""
    in_message = in_message or key in _MESSAGES
    if key in _ROWS:
        return SHOWN_INSTEAD
    if isinstance(value, dict):
        return {name: shown(part, name, in_message=in_message) for name, part in value.items()}
    if isinstance(value, list):
        return [shown(part, key, in_message=in_message) for part in value]
    return without_values(value) if isinstance(value, str) and in_message else value


def shown_to_viewers(response: Response) -> Response:
    """Return an answer as a viewer gets it. An answer that is not JSON contains no message."""
    body = getattr(response, "body", b"")
    if _MAY_HOLD_VALUES.search(body) and response.headers.get("content-type", "").startswith("application/json"):
        response.body = json.dumps(shown(json.loads(body)), ensure_ascii=False, separators=(",", ":")).encode()
        response.headers["content-length"] = str(len(response.body))
    return response
