"""Run a registered source: yield batches in the form that steps receive, each with its checkpoint."""

import json
import time
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import pyarrow as pa

from vitrina.errors import RunError, StepFailed, TransientError
from vitrina.transforms import call, python_values, same_schema
from vitrina.transforms.context import SourceContext
from vitrina.transforms.registry import Registered

Yielded = tuple[pa.RecordBatch, Any]
# Stored with every batch, and shown in full.
MAX_CHECKPOINT_CHARACTERS = 262_144


def yielded(registered: Registered, context: SourceContext) -> Iterator[Yielded]:
    """Yield the source's batches, each with a copy of its checkpoint; later changes to it belong to later batches.

    A checkpoint that the source sets after its last batch comes with an empty batch.
    """
    expected: pa.Schema | None = None
    stored = _copied(registered, context.checkpoint)
    for number, made in enumerate(_guarded(registered, context), 1):
        batch = _batch(registered, made, expected, number)
        if batch.num_columns:
            expected = batch.schema
        stored = _copied(registered, context.checkpoint)
        yield batch, stored
    last = _copied(registered, context.checkpoint)
    if last != stored:
        yield pa.RecordBatch.from_pylist([], schema=expected or pa.schema([])), last


class OpenSource:
    """Hold a source whose first batch may be inspected for its columns before the batches are read."""

    def __init__(
        self, name: str, digest: str, begin: Callable[[Any], Iterator[Yielded]], close: Callable[[], None]
    ) -> None:
        self.name = name
        self.digest = digest
        # Starts the source from a checkpoint.
        self._begin = begin
        # Ends the source, whatever it is doing; may be called from another thread.
        self.close = close
        self._pending: list[Yielded] = []
        self._rest: Iterator[Yielded] | None = None
        self._begun_at: Any = None
        self.peek_seconds = 0.0

    def peek(self, checkpoint: Any) -> pa.Schema | None:
        """Return the columns of the first batch that has any, or None if no batch follows."""
        started = time.monotonic()
        try:
            return self._peek(checkpoint)
        finally:
            self.peek_seconds += time.monotonic() - started

    def _peek(self, checkpoint: Any) -> pa.Schema | None:
        self._begun_at = checkpoint
        self._pending = []
        self._rest = self._begin(checkpoint)
        for batch, state in self._rest:
            self._pending.append((batch, state))
            if batch.num_columns:
                schema: pa.Schema = batch.schema
                return schema
        return None

    def peeked(self, rows: int) -> pa.Table:
        """Return the first rows of the peeked batches, which `batches` yields as well."""
        batches = [batch for batch, _ in self._pending if batch.num_columns]
        return pa.Table.from_batches(batches).slice(0, rows) if batches else pa.table({})

    def batches(self, checkpoint: Any) -> Iterator[Yielded]:
        """Yield batches starting from a checkpoint. Peeked ones are not read again if the checkpoint is the same."""
        pending, rest = self._pending, self._rest
        self._pending, self._rest = [], None
        if rest is not None and checkpoint == self._begun_at:
            return chain(pending, rest)
        return self._begin(checkpoint)


def _guarded(registered: Registered, context: SourceContext) -> Iterator[Any]:
    try:
        yield from registered.function(context)
    except RunError:
        raise
    except (ConnectionError, TimeoutError) as exc:
        raise TransientError(f"source {registered.name}: {type(exc).__name__}: {exc}") from exc
    except Exception as exc:  # a source is foreign code and may raise anything
        raise StepFailed(f"source {registered.name} failed: {type(exc).__name__}: {exc}") from exc


def _batch(registered: Registered, made: Any, expected: pa.Schema | None, number: int) -> pa.RecordBatch:
    """Convert a record batch, a table or a list of dicts. An empty list only moves the checkpoint."""
    who = f"source {registered.name}"
    if isinstance(made, list) and all(isinstance(row, dict) for row in made):
        if not made:
            return pa.RecordBatch.from_pylist([], schema=expected or pa.schema([]))
        try:
            made = python_values.batch_of(made, expected or pa.schema([]))
        except python_values.Unfit as exc:
            raise StepFailed(f"{who} in batch {number}: {exc}") from exc
    if isinstance(made, pa.Table):
        made = call.one_batch(made)
    if not isinstance(made, pa.RecordBatch):
        raise StepFailed(f"{who} yielded {type(made).__name__}: yield a pyarrow.RecordBatch or a list of dicts")
    return same_schema.require_same_schema(who, call.normalised(made), expected, number)


def _copied(registered: Registered, checkpoint: Any) -> Any:
    try:
        text = json.dumps(checkpoint)
    except (TypeError, ValueError, RecursionError) as exc:
        raise StepFailed(
            f"source {registered.name} set a checkpoint that is not JSON ({exc}): use numbers, texts, lists and dicts"
        ) from exc
    if len(text) > MAX_CHECKPOINT_CHARACTERS:
        raise StepFailed(
            f"source {registered.name} set a checkpoint of {len(text):,} characters, more than"
            f" {MAX_CHECKPOINT_CHARACTERS:,}: store a position in it, not what was read"
        )
    return json.loads(text)
