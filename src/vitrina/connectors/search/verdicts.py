"""Interpret the answer to a bulk request for each of its documents, and decide what to do next."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from vitrina.connectors.search.client import BLOCK_TYPES, BUSY_STATUSES, Reply, describe_error


class ItemVerdict(Enum):
    """Name what to do with a document, or with all documents of a request."""

    DONE = "applied, or already present"
    SUPERSEDED = "a higher version exists: send again with the highest one of this claim"
    RETRY = "send again a little later"
    RETRY_FEW = "send again, a limited number of times"
    BLOCKED = "the index is read-only: wait until it is not"
    SPLIT = "the request is too large, or holds a document that spoils it: send it in halves"
    REJECT = "the server will never accept this document"
    FENCED = "the write alias was removed"
    FORBIDDEN = "the login may not write here"
    BROKEN = "the index accepts no document until a person acts"


class Item(NamedTuple):
    """Hold the server's answer for one document."""

    action: str
    status: int
    result: str
    error: Mapping[str, Any] | None
    # Fields of the document as it is now, if they were requested.
    returned: Mapping[str, Any] | None = None

    @classmethod
    def parse(cls, entry: Mapping[str, Any]) -> "Item":
        ((action, answer),) = entry.items()
        returned = answer.get("get", {}).get("_source")
        return cls(action, answer["status"], answer.get("result", ""), answer.get("error"), returned)

    @property
    def error_type(self) -> str:
        return str(self.error.get("type", "")) if self.error else ""

    @property
    def reason(self) -> str:
        return describe_error(self.error) if self.error else f"status {self.status}"


def all_results(entries: Sequence[Mapping[str, Any]]) -> Counter[str] | None:
    """Count each result if every item was applied, which is the common case; else return None."""
    answers = [answer for entry in entries for answer in entry.values()]
    if any([answer["status"] >= 300 for answer in answers]):  # noqa: C419  a list is twice as fast here
        return None
    return Counter([answer["result"] for answer in answers])


def judge_item(item: Item) -> ItemVerdict:
    """Return the verdict on one item. The status 200 of a reply says nothing about its items."""
    if item.status < 300 or (item.status == 404 and item.error is None):  # the latter: delete of a missing document
        return ItemVerdict.DONE
    if item.status == 409 and item.action != "update":
        return ItemVerdict.SUPERSEDED
    if item.status == 409:  # another writer changed the document between the server's read and write
        return ItemVerdict.RETRY
    if item.status == 429 and is_past_limit(item.reason):
        return ItemVerdict.REJECT
    return _judge_refusal(item.status, item.error_type) or ItemVerdict.REJECT


# The bytes that an operation needs and the server's limit for all operations, in the messages of its two guards.
_LIMITS = (
    re.compile(r"operation_bytes=(\d+), max_\w+_bytes=(\d+)"),
    re.compile(r"larger than the limit of \[(?P<limit>\d+)/.*new bytes reserved: \[(?P<needed>\d+)/"),
)


def is_past_limit(reason: str) -> bool:
    """Return whether a server that reports itself busy would refuse the same request even when idle."""
    for pattern in _LIMITS:
        if found := pattern.search(reason):
            named = found.groupdict()
            needed, limit = (named["needed"], named["limit"]) if named else found.groups()
            return int(needed) > int(limit)
    return False


def judge_request(reply: Reply) -> ItemVerdict:
    """Return the verdict on a whole request. DONE means that the caller has to judge the items."""
    if reply.status == 200:
        return ItemVerdict.DONE
    if reply.status == 429 and is_past_limit(reply.reason):
        return ItemVerdict.SPLIT
    # One document that cannot be parsed makes the server refuse all of them; a broken `update` does.
    if reply.status in (400, 413):
        return _judge_refusal(reply.status, reply.error_type) or ItemVerdict.SPLIT
    return _judge_refusal(reply.status, reply.error_type) or ItemVerdict.BROKEN


# Error types that say more than their status, which differs between servers and versions.
_BY_ERROR_TYPE = {
    "index_not_found_exception": ItemVerdict.FENCED,
    **dict.fromkeys(BLOCK_TYPES, ItemVerdict.BLOCKED),
    "index_closed_exception": ItemVerdict.BROKEN,
}


def _judge_refusal(status: int, error_type: str) -> ItemVerdict | None:
    if error_type in _BY_ERROR_TYPE:
        return _BY_ERROR_TYPE[error_type]
    if status in BUSY_STATUSES:
        return ItemVerdict.RETRY
    if status in (401, 403):
        return ItemVerdict.FORBIDDEN
    return ItemVerdict.RETRY_FEW if status >= 500 else None
