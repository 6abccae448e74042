"""Define callers of the API and their roles."""

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """Enumerate roles. Each role may do everything that the roles before it may."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def includes(self, other: "Role") -> bool:
        return _RANKS[self] >= _RANKS[other]


_RANKS = {role: rank for rank, role in enumerate(Role)}


@dataclass(frozen=True)
class Caller:
    """Represent the person or program that makes a request, as the audit log names it."""

    name: str
    role: Role
    request_id: str | None = None
    # The trace of the request, as a W3C traceparent.
    traceparent: str | None = None
