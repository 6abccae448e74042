"""What a step or a source may know about the run that it works for."""

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
    """Handed to a step that has a parameter named `context`."""

    pipeline: str = ""
    run_id: UUID = field(default_factory=lambda: UUID(int=0))
    # One moment for the whole run: two batches of it must not disagree.
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    batch_no: int = 0
    # The operator's VITRINA_HASH_KEY.
    hash_key: bytes | None = field(default=None, repr=False)
    # Runs a query with the rights of a source query; the answer is kept for the run.
    reference: Callable[[str], "pa.Table"] = field(default=_no_reference, repr=False)


@dataclass
class SourceContext:
    """Handed to a source. What `checkpoint` holds when a batch is yielded is stored with it, in one transaction."""

    checkpoint: Any = None
    pipeline: str = ""
    run_id: UUID = field(default_factory=lambda: UUID(int=0))
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    mode: str = "full"
    batch_size: int = 5000
    params: "BaseModel | None" = None
    # A range that was asked for with the run; the stored checkpoint stays where it is.
    since: str | None = None
    until: str | None = None
