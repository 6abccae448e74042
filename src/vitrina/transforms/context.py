"""Define what a step or a source may know about its run."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from vitrina.errors import FatalError

if TYPE_CHECKING:
    import pyarrow as pa
    from pydantic import BaseModel


def _no_reference(query: str) -> "pa.Table":
    raise FatalError("reference queries cannot be run here")


@dataclass
class StepContext:
    """Hold what is passed to a step that has a parameter named `context`."""

    pipeline: str = ""
    run_id: UUID = field(default_factory=lambda: UUID(int=0))
    # One moment for the whole run, so that its batches agree.
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    batch_no: int = 0
    # The operator's VITRINA_HASH_KEY.
    hash_key: bytes | None = field(default=None, repr=False)
    # Runs a query with the rights of a source query; the result is kept for the run.
    reference: Callable[[str], "pa.Table"] = field(default=_no_reference, repr=False)


@dataclass
class SourceContext:
    """Hold what is passed to a source. The value of `checkpoint` at each yield is stored with the batch atomically."""

    checkpoint: Any = None
    pipeline: str = ""
    run_id: UUID = field(default_factory=lambda: UUID(int=0))
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    mode: str = "full"
    batch_size: int = 5000
    params: "BaseModel | None" = None
    # A range that was requested with the run; the stored checkpoint does not move.
    since: str | None = None
    until: str | None = None
