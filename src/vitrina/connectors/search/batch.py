"""Hold a batch of documents to send to an index, and the outcome for each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class Actions:
    """Hold prepared bulk actions: distinct ids, and the NDJSON lines of the actions at the same positions.

    `objects` names the fields of updates that hold an object in at least one document.
    """

    ids: Sequence[str]
    lines: Sequence[bytes]
    objects: Sequence[str] = ()

    @cached_property
    def id_set(self) -> frozenset[str]:
        return frozenset(self.ids)

    def document(self, position: int) -> bytes:
        """Return what follows the action line; empty for a delete."""
        return self.lines[position].partition(b"\n")[2].rstrip(b"\n")


@dataclass(frozen=True)
class Rejected:
    """Hold a document that was permanently refused, by the server or before it was sent."""

    id: str
    reason: str
    document: bytes
    status: int = 400


@dataclass
class BulkOutcome:
    """Count what happened to a batch. Every document is in exactly one of these numbers."""

    created: int = 0
    updated: int = 0
    noop: int = 0
    deleted: int = 0
    rejected: list[Rejected] = field(default_factory=list)
    requests: int = 0
    sent_again: int = 0
    # Sent a second time, after an action that clears the objects in it.
    cleared: int = 0

    def add(self, results: Mapping[str, int]) -> None:
        """Add results by the servers' terms; `not_found` is a delete of a document that did not exist."""
        self.created += results.get("created", 0)
        self.updated += results.get("updated", 0)
        self.deleted += results.get("deleted", 0)
        self.noop += sum(results.values()) - sum(results.get(word, 0) for word in ("created", "updated", "deleted"))

    @property
    def acknowledged(self) -> int:
        return self.created + self.updated + self.noop + self.deleted

    @property
    def settled(self) -> int:
        return self.acknowledged + len(self.rejected)
