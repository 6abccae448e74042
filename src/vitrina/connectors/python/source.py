"""Read a registered Python source; each batch comes with the checkpoint that the source set for it."""

import hashlib
import json
import time
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from vitrina.definition import Definition
from vitrina.ports.batch import Batch, Part, Stopwatch
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.source import BaseSource, Description, Form, Mark, Marked, Pass, Unseen, Window
from vitrina.sentences import say
from vitrina.transforms.sources import OpenSource

# The position of a full load whose source set no checkpoint with its last batch.
NO_CHECKPOINT = '["null"]'


class PythonSource(BaseSource):
    """Read rows that a function produces. A position is the source's own checkpoint, as JSON."""

    runs_when_described = True
    version_types: tuple[str, ...] = ()

    def __init__(self, opened: OpenSource, definition: Definition, *, is_backfill: bool) -> None:
        self._opened = opened
        self._definition = definition
        self._is_backfill = is_backfill

    @property
    def name(self) -> str:
        return say("plan.python_source", name=self._opened.name)

    def describe(self, window: Window) -> Description:
        """Read the source up to its first batch, which is kept for the load."""
        schema = self._opened.peek(_checkpoint_of(window))
        if schema is None and window.after and self._definition.mode == "full":
            schema = self._opened.peek(None)  # an interrupted load that only has to be published
        return Description(schema=schema, digest=self._opened.digest)

    def sample(self, rows: int, max_bytes: int, max_row_bytes: int) -> pa.Table:
        """Return the first rows, which were read already; a source is not run twice."""
        return self._opened.peeked(rows)

    def read(self, window: Window, form: Form) -> Generator[Batch, None, None]:
        watch = Stopwatch()
        # The first batch was read before the target was prepared for it.
        watch.add("read", self._opened.peek_seconds, time.time())
        found = self._opened.batches(_checkpoint_of(window))
        while (made := watch.next_of("read", found)) is not None:
            batch, checkpoint = made
            rows = pa.Table.from_batches([batch]) if batch.num_columns else pa.table({})
            yield Batch(rows, (json.dumps(checkpoint),), watch=watch)
            watch = Stopwatch()

    def close(self) -> None:
        self._opened.close()

    def guarantee(self) -> str | None:
        return "exact"

    def warnings(self, found: Checkpoint) -> list[str]:
        return []

    def disowned(self, found: Checkpoint) -> str | None:
        """Return why the checkpoint is another source's, or None. One of an earlier version only names its mart."""
        known = found.identity.get("mart")
        if found.fingerprint is not None:
            is_anothers = found.fingerprint != self._identity
        else:
            is_anothers = known is not None and known["name"] != self._definition.final_target
        return say("plan.other_source") if is_anothers else None

    def fitting(self, found: Checkpoint) -> Checkpoint:
        return found

    @property
    def _identity(self) -> str:
        """Identify the source of a stored checkpoint, and the target that was filled up to it."""
        parts = ["source", self._definition.python_source, self._definition.placed_target]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def unseen(self) -> Unseen:
        return Unseen()

    def begin_pass(self, found: Checkpoint) -> Pass:
        """Begin a pass. A backfill does not record how far the source was read."""
        begun = found if self._is_backfill else replace(found, fingerprint=self._identity)
        return PythonPass(begun, is_backfill=self._is_backfill)

    def begin_load(self, found: Checkpoint) -> Marked:
        return Marked(None)

    def loaded(self, done: Checkpoint, held: Mark | None, rows: int) -> Checkpoint:
        return done


class PythonPass:
    """Read batches, each of which says where the next pass may begin."""

    hold: dict[str, Any] | None = None
    warnings: tuple[str, ...] = ()

    def __init__(self, checkpoint: Checkpoint, *, is_backfill: bool) -> None:
        self.checkpoint = checkpoint
        self._is_backfill = is_backfill

    def windows(self) -> Iterator[Window]:
        safe = self.checkpoint.safe_upto
        yield Window(after=(safe,) if safe else None)

    def after(self, checkpoint: Checkpoint, part: Part) -> Checkpoint:
        if self._is_backfill or not part.last:
            return replace(checkpoint, batch_no=part.number)
        return replace(checkpoint, batch_no=part.number, safe_upto=part.last[0])

    def ended(self, checkpoint: Checkpoint, rows_read: int) -> Checkpoint:
        return checkpoint


def _checkpoint_of(window: Window) -> Any:
    return json.loads(window.after[0]) if window.after and window.after[0] else None
