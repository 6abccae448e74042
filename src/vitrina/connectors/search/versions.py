"""Compute versions of documents that are written whole: the claim's epoch, then the batch, so that later ones win."""

import re

from vitrina import errors
from vitrina.ports.batch import PartId
from vitrina.ports.checkpoint import Accepted

_BATCH_BITS = 22
_BATCHES = 1 << _BATCH_BITS
# Quotes within an id are escaped, so this occurs nowhere else in an action's first line.
_VERSION = re.compile(rb'"version": ?(\d+)(?=, ?"version_type")')


def write_version(epoch: int, batch: int) -> int:
    """Return the external version of documents written by `index`. It grows with the claim, then with the batch."""
    if not 0 <= batch < _BATCHES:
        raise errors.FatalError(f"batch {batch:,} does not fit a document version: raise batch_size")
    return epoch << _BATCH_BITS | batch


def is_counted(version: int, accepted: Accepted) -> bool:
    """Return whether a document belongs to an accepted part."""
    return PartId(*divmod(version, _BATCHES)) in accepted


def raised(line: bytes) -> bytes | None:
    """Return the action with the highest version of its claim; None if it has that already, or no version."""
    action, newline, document = line.partition(b"\n")
    found = _VERSION.search(action)
    if found is None or int(found[1]) % _BATCHES == _BATCHES - 1:
        return None
    highest = b'"version":%d' % (int(found[1]) | _BATCHES - 1)
    return action[: found.start()] + highest + action[found.end() :] + newline + document


def is_versioned(line: bytes) -> bool:
    return _VERSION.search(line.partition(b"\n")[0]) is not None
