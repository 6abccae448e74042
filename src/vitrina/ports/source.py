"""What a source is to a run: columns, windows of rows, and how far a pass has made the next one safe."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from vitrina.ports.batch import Batch, Key, Part, Position
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.schema import Column

# What a finished pass made safe; opaque, the source's own text.
Mark = str

# natural: Arrow types as Python steps see them. exact: what the target reads back without loss, text where it must be.
Form = Literal["natural", "exact"]


@dataclass(frozen=True)
class Window:
    """Say which rows to read: all of them, where nothing is said."""

    since: Mark | None = None
    until: Mark | None = None
    # Rows after this position of an earlier read of the same window.
    after: Position | None = None
    # These rows alone; for sources that are `Rereads`.
    keys: Sequence[Key] | None = None
    # Asked before each batch: it may change during a run.
    batch_rows: Callable[[], int] = lambda: 5000


@dataclass(frozen=True)
class Description:
    """What a source knows of its rows before it reads them."""

    columns: tuple[Column, ...]
    # Columns that differ in every run by nature, such as now(): a row is not written again because of them.
    stamps: frozenset[str] = frozenset()
    # Whether a read can go on after the `last` of a batch.
    resumable: bool = True
    estimated_rows: int = 0
    guarantee: str = "exact"
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    # Changes with the code that makes the rows: a load of older code is not continued.
    digest: str | None = None


@dataclass(frozen=True)
class Marked:
    """What a pass will have made safe when it is done."""

    mark: Mark | None
    # What holds it back, for people: such as a transaction that has been open for an hour.
    hold: dict[str, Any] | None = None


class Pass(Protocol):
    """One pass over what is new since the checkpoint. It alone knows how the checkpoint moves."""

    # Goes on with a pass that was interrupted: it may have missed what the request is about.
    resumed: bool
    hold: dict[str, Any] | None
    # Rows that no pass can see, because they do not say when they changed.
    unseen_rows: int
    warnings: Sequence[str]
    # The checkpoint that the pass begins with.
    checkpoint: Checkpoint

    def windows(self) -> Iterator[Window]: ...

    def after(self, checkpoint: Checkpoint, part: Part) -> Checkpoint:
        """Move the checkpoint past one merged part."""
        ...

    def ended(self, checkpoint: Checkpoint, rows_read: int) -> Checkpoint:
        """Move it to what the whole pass made safe."""
        ...


class Source(Protocol):
    """Where rows come from. One run opens it, reads it from one thread, and may close it from another."""

    @property
    def name(self) -> str: ...

    def describe(self) -> Description: ...

    def mark(self, last: Mark | None) -> Marked:
        """Say, before the first read, what is safe once the pass is done."""
        ...

    def read(self, window: Window, form: Form) -> Iterator[Batch]: ...

    def close(self) -> None: ...


@runtime_checkable
class Passes(Protocol):
    """A source with rules of its own for how a checkpoint moves."""

    def begin_pass(self, found: Checkpoint) -> Pass: ...


@runtime_checkable
class Rereads(Protocol):
    """A source that can be asked for single rows: replay and repair need it."""

    def canonical(self, keys: Sequence[Key]) -> list[Key]:
        """Write equal keys as one text each, in the order given."""
        ...

    def present(self, keys: Sequence[Key]) -> set[Key]:
        """Find which of these canonical keys the source has now."""
        ...

    def reread(self, keys: Sequence[Key]) -> Window:
        """Give the window of these rows; of several with one key the latest comes last."""
        ...


@dataclass(frozen=True)
class Range:
    """A range of a backfill, as somebody asked for it."""

    since: Mark | None = None
    until: Mark | None = None
    extra: dict[str, Any] = field(default_factory=dict)
