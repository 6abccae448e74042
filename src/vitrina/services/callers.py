"""Who asks, and what a role may do."""

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """Each role may do what the ones before it may."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def includes(self, other: "Role") -> bool:
        return _RANKS[self] >= _RANKS[other]


_RANKS = {role: rank for rank, role in enumerate(Role)}


@dataclass(frozen=True)
class Caller:
    """The person or program that makes a request, as the audit names it."""

    name: str
    role: Role
    request_id: str | None = None
    # The trace that the request was made in, as W3C writes it.
    traceparent: str | None = None
