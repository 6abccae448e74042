"""Running a registered source: batches in the form that steps have, each with the checkpoint that belongs to it."""

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from vitrina.adapters.transforms import forms, pythonic
from vitrina.adapters.transforms.context import SourceContext
from vitrina.adapters.transforms.registry import Registered
from vitrina.errors import RunError, StepFailed, TransientError

Yielded = tuple[pa.RecordBatch, Any]


def yielded(registered: Registered, context: SourceContext) -> Iterator[Yielded]:
    """What the source yields. The checkpoint is copied when a batch comes: what it becomes later belongs to later."""
    expected: pa.Schema | None = None
    try:
        for made in registered.function(context):
            batch = _batch(registered, made, expected)
            if batch.num_columns:
                expected = batch.schema
            yield batch, _copied(registered, context.checkpoint)
    except RunError:
        raise
    except (ConnectionError, TimeoutError) as exc:
        raise TransientError(f"source {registered.name}: {type(exc).__name__}: {exc}") from exc
    except Exception as exc:  # a source is a stranger's code and may raise anything
        raise StepFailed(f"source {registered.name} failed: {type(exc).__name__}: {exc}") from exc


def _batch(registered: Registered, made: Any, expected: pa.Schema | None) -> pa.RecordBatch:
    """A record batch, a table or a list of dicts; an empty list moves the checkpoint alone."""
    if isinstance(made, list) and all(isinstance(row, dict) for row in made):
        if made:
            return pythonic.batch_of(made, expected or pa.schema([]))
        return pa.RecordBatch.from_pylist([], schema=expected or pa.schema([]))
    if isinstance(made, pa.Table):
        made = forms.one_batch(made)
    if not isinstance(made, pa.RecordBatch):
        raise StepFailed(
            f"source {registered.name} yielded {type(made).__name__}: yield a pyarrow.RecordBatch or a list of dicts"
        )
    return forms.normalised(made)


def _copied(registered: Registered, checkpoint: Any) -> Any:
    try:
        return json.loads(json.dumps(checkpoint))
    except (TypeError, ValueError) as exc:
        raise StepFailed(
            f"source {registered.name} set a checkpoint that is not JSON ({exc}): use numbers, texts, lists and dicts"
        ) from exc
