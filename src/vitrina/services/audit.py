"""Record changes in the audit log: who, what, before and after, with secrets masked."""

import re
from typing import Any

from vitrina.services.callers import Caller
from vitrina.store import audit
from vitrina.store.database import Connection

MASK = "***"

_SECRET_KEY = re.compile(r"passw|secret|token|api_?key|credential|authorization|private", re.IGNORECASE)
_PASSWORD_IN_URL = re.compile(r"(?<=://)([^\s:/@]*):[^\s/@]*@")


def record(
    connection: Connection,
    caller: Caller,
    action: str,
    target: str,
    *,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> None:
    """Record a change in its own transaction, so that both are committed or neither."""
    audit.record(
        connection,
        who=caller.name,
        action=action,
        target=target,
        before=masked(before),
        after=masked(after),
        request_id=caller.request_id,
    )


def masked(value: Any, key: str = "") -> Any:
    """Mask passwords: users put them into parameters of steps, although the manual advises against it."""
    if isinstance(value, dict):
        return {name: masked(part, str(name)) for name, part in value.items()}
    if isinstance(value, list):
        return [masked(part, key) for part in value]
    if isinstance(value, str):
        return MASK if _SECRET_KEY.search(key) else _PASSWORD_IN_URL.sub(rf"\1:{MASK}@", value)
    return value
