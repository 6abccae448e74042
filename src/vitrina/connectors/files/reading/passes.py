"""Track which files incremental passes have read, by a short digest of each that changes with the file."""

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from vitrina.connectors.files.reading.listing import File
from vitrina.ports.batch import Part
from vitrina.ports.checkpoint import Accepted, Checkpoint
from vitrina.ports.source import Mark, Window

# Key in the identity of a checkpoint.
FILES = "files"
_SIZE = 8


def mark_of(files: Iterable[File]) -> Mark:
    """Return a mark that records the files and their state."""
    return base64.b64encode(b"".join(sorted({file.digest for file in files}))).decode()


def marked(mark: Mark | None) -> frozenset[bytes]:
    """Return the digests that a mark holds."""
    known = base64.b64decode(mark or "")
    return frozenset(known[start : start + _SIZE] for start in range(0, len(known), _SIZE))


class FilesPass:
    """Read the files that are new or changed. An interrupted pass resumes with the files it began with.

    The checkpoint shows people a timestamp. The files that were read are in its identity and count only with that
    timestamp: a checkpoint that was reset, or set to another value, begins with all files.
    """

    hold: dict[str, Any] | None = None
    warnings: tuple[str, ...] = ()

    def __init__(self, found: Checkpoint, fingerprint: str, look: Callable[[], tuple[Mark, str | None]]) -> None:
        known = found.identity.get(FILES) or {}
        is_ours = found.safe_upto is not None and known.get("upto") == found.safe_upto
        self._since: Mark | None = known.get("read") if is_ours else None
        held: Mark | None = known.get("held")
        if found.last_key is None or held is None:
            held, newest = look()
            found = replace(found, last_key=None, last_id=None, held_upto=newest)
        self._until = held
        self.checkpoint = replace(found, fingerprint=fingerprint).identified(**{FILES: known | {"held": held}})

    def windows(self) -> Iterator[Window]:
        last = self.checkpoint.last_key
        yield Window(since=self._since, until=self._until, after=tuple(json.loads(last)) if last else None)

    def after(self, checkpoint: Checkpoint, part: Part) -> Checkpoint:
        last = json.dumps(part.last) if part.last else None
        rows = checkpoint.rows + part.staged_rows
        return replace(checkpoint, batch_no=part.number, rows=rows, last_key=last, last_id=None)

    def ended(self, checkpoint: Checkpoint, rows_read: int) -> Checkpoint:
        upto = checkpoint.held_upto or checkpoint.safe_upto
        done = replace(checkpoint, safe_upto=upto, held_upto=None, last_key=None, last_id=None, accepted=Accepted())
        return done.identified(**{FILES: {"upto": upto, "read": self._until}})
