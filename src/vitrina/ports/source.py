"""What a source is to a run: columns, windows of rows, and how far a pass has made the next one safe."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from vitrina.ports.batch import Batch, Key, Part, Position
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.schema import Column

if TYPE_CHECKING:
    import pyarrow as pa

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
    # Rows up to this position in the order of reading, and none after it.
    upto: Position | None = None
    # A snapshot that another session holds (`ports.ranges.SharedSnapshot`); None: the reading session's own.
    snapshot: str | None = None
    # The columns to read in the order of, if the source can: a load can then be continued after each batch.
    order: tuple[str, ...] = ()
    # The rows with these values of `order` alone; for sources that are `Rereads`.
    keys: Sequence[Key] | None = None
    # Keep one snapshot, however long the read takes.
    one_snapshot: bool = False
    # Asked before each batch: it may change during a run.
    batch_rows: Callable[[], int] = lambda: 5000


@dataclass(frozen=True)
class Description:
    """What a source knows of its rows before it reads them."""

    # With their types in Postgres, where the source has such; else the natural Arrow schema. Neither: no row came.
    columns: tuple[Column, ...] = ()
    schema: "pa.Schema | None" = None
    # Columns that differ in every run by nature, such as now(): a row is not written again because of them.
    stamps: frozenset[str] = frozenset()
    # The column that says what is new, and its type: `{"key": ..., "type": ...}`.
    cursor: Mapping[str, str] | None = None
    estimated_rows: int = 0
    # Columns in whose order no read can resume: a place among them cannot be compared with another.
    unordered: frozenset[str] = frozenset()
    # How the server would run it, as `vitrina.explain.outline` tells it; None where nobody can say.
    outline: Mapping[str, Any] | None = None
    # Changes with the code that makes the rows: a load of older code is not continued.
    digest: str | None = None


@dataclass(frozen=True)
class Marked:
    """What a pass will have made safe when it is done."""

    mark: Mark | None
    # What holds it back, for people: such as a transaction that has been open for an hour.
    hold: dict[str, Any] | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unseen:
    """Rows that no pass can see, and what to do about them."""

    rows: int = 0
    advice: str = ""


class Pass(Protocol):
    """One pass over what is new since the checkpoint. It alone knows how the checkpoint moves."""

    @property
    def hold(self) -> dict[str, Any] | None: ...

    @property
    def warnings(self) -> Sequence[str]: ...

    # The checkpoint that the pass begins with.
    @property
    def checkpoint(self) -> Checkpoint: ...

    def windows(self) -> Iterator[Window]: ...

    def after(self, checkpoint: Checkpoint, part: Part) -> Checkpoint:
        """Move the checkpoint past one merged part."""
        ...

    def ended(self, checkpoint: Checkpoint, rows_read: int) -> Checkpoint:
        """Move the checkpoint to what the whole pass made safe."""
        ...


class Source(Protocol):
    """Where rows come from. One run opens it, reads it from one thread, and may close it from another."""

    # As people read it in a plan, such as `the query` or `the Python source shop`.
    @property
    def name(self) -> str: ...

    # Whether describing it means running it: it is then described when rows are wanted, not when somebody looks.
    @property
    def runs_when_described(self) -> bool: ...

    def describe(self, window: Window) -> Description:
        """Describe the columns of the window's rows. A source that must read to know them keeps what it read."""
        ...

    def mark(self, last: Mark | None) -> Marked:
        """Return, before the first read, what is safe once the pass is done."""
        ...

    def read(self, window: Window, form: Form) -> Generator[Batch, None, None]: ...

    def close(self) -> None: ...


class BaseSource:
    """What most sources need not say."""

    runs_when_described = False
    # Of one that is `Passes`: whether an emptied target is filled again from its beginning, pass by pass.
    refills_in_passes = False

    def mark(self, last: Mark | None) -> Marked:
        return Marked(None)

    def close(self) -> None:
        """Do nothing: nothing is open."""


@runtime_checkable
class Samples(Protocol):
    """A source that has a better way to some rows than reading from its beginning."""

    def sample(self, rows: int, max_bytes: int, max_row_bytes: int) -> "pa.Table": ...


@runtime_checkable
class Passes(Protocol):
    """A source with rules of its own for how a checkpoint moves."""

    # Types of the values that tell the latest of several rows with one key; they come beside the rows.
    @property
    def version_types(self) -> tuple[str, ...]: ...

    def guarantee(self) -> str | None:
        """Say what a pass promises about rows that commit late."""
        ...

    def warnings(self, found: Checkpoint) -> Sequence[str]: ...

    def disowned(self, found: Checkpoint) -> str | None:
        """Say why the checkpoint is not of this source; the run then forgets it."""
        ...

    def fitting(self, found: Checkpoint) -> Checkpoint:
        """Forget the parts of a checkpoint that no longer apply."""
        ...

    def unseen(self) -> Unseen: ...

    def begin_pass(self, found: Checkpoint) -> Pass: ...

    def begin_load(self, found: Checkpoint) -> Marked:
        """Compute beforehand how far a first pass will come that loads everything, in another order than a pass."""
        ...

    def loaded(self, done: Checkpoint, held: Mark | None, rows: int) -> Checkpoint:
        """Move the checkpoint to what that load made safe."""
        ...


@runtime_checkable
class Rereads(Protocol):
    """A source that can be asked for single rows: replay and repair need it."""

    def refuse_keys(self, names: Sequence[str]) -> None:
        """Refuse columns whose values cannot be asked for as text."""
        ...

    def canonical(self, names: Sequence[str], keys: Sequence[Key]) -> list[Key]:
        """Write equal keys as one text each, in the order given."""
        ...

    def present(self, names: Sequence[str], keys: Sequence[Key]) -> set[Key]:
        """Find which of these canonical keys the source has now."""
        ...
