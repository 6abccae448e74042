"""Define a source: its columns, windows of rows, and the mark up to which a pass is complete."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from vitrina.ports.batch import Batch, Key, Part, Position
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.schema import Column

if TYPE_CHECKING:
    import pyarrow as pa

# A text by which the source records what a finished pass completed. Only the source interprets it.
Mark = str

# natural: Arrow types as Python steps see them. exact: what the target reads back without loss, as text if needed.
Form = Literal["natural", "exact"]


@dataclass(frozen=True)
class Window:
    """Select the rows to read; by default all of them."""

    since: Mark | None = None
    until: Mark | None = None
    # Only rows after this position of an earlier read of the same window.
    after: Position | None = None
    # Only rows up to this position in the read order.
    upto: Position | None = None
    # A snapshot that another session holds (`ports.ranges.SharedSnapshot`). None: the reading session takes its own.
    snapshot: str | None = None
    # The columns to order by, if the source can. A load can then be resumed after each batch.
    order: tuple[str, ...] = ()
    # Only rows with these values of `order`; for sources that implement `Rereads`.
    keys: Sequence[Key] | None = None
    # Use one snapshot, however long the read takes.
    one_snapshot: bool = False
    # Called before each batch, because the size may change during a run.
    batch_rows: Callable[[], int] = lambda: 5000


@dataclass(frozen=True)
class Description:
    """Describe the rows of a source before they are read."""

    # With PostgreSQL types if the source has them; otherwise `schema` is set. Neither is set if no row was read.
    columns: tuple[Column, ...] = ()
    schema: "pa.Schema | None" = None
    # Columns whose values differ in every run, such as now(): a difference in them alone does not rewrite a row.
    stamps: frozenset[str] = frozenset()
    # The cursor column and its type: `{"key": ..., "type": ...}`.
    cursor: Mapping[str, str] | None = None
    estimated_rows: int = 0
    # Columns in whose order no read can resume, because two positions among them cannot be compared.
    unordered: frozenset[str] = frozenset()
    # How the server would run the query, from `vitrina.explain.outline`; None if unknown.
    outline: Mapping[str, Any] | None = None
    # Changes with the code that produces the rows: a load of older code is not resumed.
    digest: str | None = None


@dataclass(frozen=True)
class Marked:
    """Hold the mark that a pass will have reached when it is done."""

    mark: Mark | None
    # What holds the mark back, for people: such as a transaction that has been open for an hour.
    hold: dict[str, Any] | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unseen:
    """Report rows that no pass can see, and what to do about them."""

    rows: int = 0
    advice: str = ""


class Pass(Protocol):
    """Read what is new since the checkpoint. Only the pass knows how the checkpoint moves."""

    @property
    def hold(self) -> dict[str, Any] | None: ...

    @property
    def warnings(self) -> Sequence[str]: ...

    # The checkpoint at the beginning of the pass.
    @property
    def checkpoint(self) -> Checkpoint: ...

    def windows(self) -> Iterator[Window]: ...

    def after(self, checkpoint: Checkpoint, part: Part) -> Checkpoint:
        """Return the checkpoint moved past one merged part."""
        ...

    def ended(self, checkpoint: Checkpoint, rows_read: int) -> Checkpoint:
        """Return the checkpoint moved to what the whole pass completed."""
        ...


class Source(Protocol):
    """Provide rows. One run opens a source and reads it from one thread; another thread may close it."""

    # Shown in a plan, such as `the query` or `the Python source shop`.
    @property
    def name(self) -> str: ...

    # Whether describing the source means running it. It is then described only when rows are needed.
    @property
    def runs_when_described(self) -> bool: ...

    def describe(self, window: Window) -> Description:
        """Return the columns of the window's rows. A source that must read to know them keeps what it read."""
        ...

    def mark(self, last: Mark | None) -> Marked:
        """Return, before the first read, the mark that the pass will have reached once it is done."""
        ...

    def read(self, window: Window, form: Form) -> Generator[Batch, None, None]: ...

    def close(self) -> None: ...


class BaseSource:
    """Provide the defaults that suit most sources."""

    runs_when_described = False
    # For sources that implement `Passes`: whether an emptied target is filled from the beginning again, pass by pass.
    refills_in_passes = False

    def mark(self, last: Mark | None) -> Marked:
        return Marked(None)

    def close(self) -> None:
        """Do nothing, because nothing is open."""


@runtime_checkable
class Samples(Protocol):
    """Define a source that can sample rows without reading from its beginning."""

    def sample(self, rows: int, max_bytes: int, max_row_bytes: int) -> "pa.Table": ...


@runtime_checkable
class Passes(Protocol):
    """Define a source with its own rules for how a checkpoint moves."""

    # Types of the version values that decide which of several rows with one key is the latest; read with the rows.
    @property
    def version_types(self) -> tuple[str, ...]: ...

    def guarantee(self) -> str | None:
        """Return a sentence that says what a pass guarantees about rows that commit late."""
        ...

    def warnings(self, found: Checkpoint) -> Sequence[str]: ...

    def disowned(self, found: Checkpoint) -> str | None:
        """Return why the checkpoint does not belong to this source, in which case the run discards it; else None."""
        ...

    def fitting(self, found: Checkpoint) -> Checkpoint:
        """Return the checkpoint without the parts that no longer apply."""
        ...

    def unseen(self) -> Unseen: ...

    def begin_pass(self, found: Checkpoint) -> Pass: ...

    def begin_load(self, found: Checkpoint) -> Marked:
        """Return, beforehand, the mark of a first pass that loads everything in another order than a pass."""
        ...

    def loaded(self, done: Checkpoint, held: Mark | None, rows: int) -> Checkpoint:
        """Return the checkpoint moved to what that load completed."""
        ...


@runtime_checkable
class Rereads(Protocol):
    """Define a source that can be asked for single rows, which replay and repair need."""

    def refuse_keys(self, names: Sequence[str]) -> None:
        """Raise for columns whose values cannot be looked up as text."""
        ...

    def canonical(self, names: Sequence[str], keys: Sequence[Key]) -> list[Key]:
        """Return the canonical text of each key, in the order given. Equal keys have equal text."""
        ...

    def present(self, names: Sequence[str], keys: Sequence[Key]) -> set[Key]:
        """Return those of these canonical keys that the source has now."""
        ...
