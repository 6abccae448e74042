"""Read a source that knows only marks in passes. The mark for the next pass is taken before a pass begins."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace

from vitrina.definition import Definition
from vitrina.ports.batch import Part
from vitrina.ports.checkpoint import Accepted, Checkpoint
from vitrina.ports.source import Source, Window
from vitrina.sentences import say


def identity_of(definition: Definition) -> str:
    """Identify the source that marks belong to, and the target that was filled up to them."""
    read = definition.source_table or definition.query
    cursor = [definition.incremental_key, definition.incremental_id_key]
    parts = [definition.source_type, definition.source_connection, read, *cursor, definition.placed_target]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def disowned(definition: Definition, found: Checkpoint) -> str | None:
    """Return why a mark belongs to another source or target, or None. Resuming from it would skip rows."""
    if found.stage is not None or found.fingerprint in (None, identity_of(definition)):
        return None
    return say("plan.other_source")


class MarkedPass:
    """Hold a pass whose mark is pending in the checkpoint until it is complete, and is reused after an interruption."""

    def __init__(self, source: Source, definition: Definition, found: Checkpoint) -> None:
        self.warnings: tuple[str, ...] = ()
        self.hold = None
        found = self.checkpoint = replace(found, fingerprint=identity_of(definition))
        if found.last_key is None:
            marked = source.mark(found.safe_upto)
            self.hold, self.warnings = marked.hold, marked.warnings
            self.checkpoint = replace(found, held_upto=marked.mark)

    def windows(self) -> Iterator[Window]:
        found = self.checkpoint
        after = tuple(json.loads(found.last_key)) if found.last_key else None
        yield Window(since=found.safe_upto, until=found.held_upto, after=after)

    def after(self, checkpoint: Checkpoint, part: Part) -> Checkpoint:
        last = json.dumps(part.last) if part.last else None
        return replace(
            checkpoint, batch_no=part.number, rows=checkpoint.rows + part.staged_rows, last_key=last, last_id=None
        )

    def ended(self, checkpoint: Checkpoint, rows_read: int) -> Checkpoint:
        return replace(
            checkpoint,
            safe_upto=checkpoint.held_upto or checkpoint.safe_upto,
            held_upto=None,
            last_key=None,
            last_id=None,
            accepted=Accepted(),
        )
