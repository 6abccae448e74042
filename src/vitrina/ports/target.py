"""What a target is to a run: prepared once, then written through loads whose parts count when a fence says so."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from vitrina.ports.batch import Counts, Key, Part, PartId, Written
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.schema import Column

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa

# replace: what the source has takes the place of what the target shows. merge: rows are added to it, key by key.
LoadKind = Literal["replace", "merge"]


@dataclass(frozen=True)
class Wanted:
    """What a run asks a target to be prepared for."""

    columns: tuple[Column, ...]
    key: tuple[str, ...] | None = None
    # Columns that the target may lack: a cursor that is read and not kept.
    ignorable: frozenset[str] = frozenset()
    # A row does not differ because of these.
    stamps: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Prepared:
    """What a target found and settled."""

    key: tuple[str, ...]
    exists: bool
    is_empty: bool
    # The columns that are written, a part of those that were wanted.
    columns: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Done:
    """What a load tells its fence: what it did, and what the checkpoint shall know the target by."""

    counts: Counts = field(default_factory=Counts)
    identity: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)


DONE = Done()


class Fence(Protocol):
    """Lets a change of the target count. Exactly one of the two is called, exactly once, and last."""

    # The checkpoint as it will be, for a target with a ledger of its own, such as the summary of a snapshot.
    @property
    def record(self) -> bytes: ...

    def inside(self, connection: "psycopg.Connection[Any]", done: Done = DONE) -> None:
        """Move the checkpoint in the transaction that carries the data; raises `LeaseLost` if it must not commit."""
        ...

    def after(self, done: Done = DONE) -> None:
        """Move the checkpoint in the metastore: every row was acknowledged before."""
        ...


class Receipt(Protocol):
    """A batch that was sent off."""

    def wait(self) -> Written:
        """Return when every row has arrived or is rejected."""
        ...


class Writer(Protocol):
    """The data side of a load; used by the thread that reads, and closed from any."""

    # What the time spent here is called in metrics and traces, such as `stage` or `index`.
    timed_as: str
    # How many batches may be sent off after one that has not arrived yet.
    ahead: int

    def write(self, rows: "pa.Table", part: PartId) -> Receipt:
        """Send a batch off. Called in the order of the parts; a part may come in several pieces."""
        ...

    def close(self) -> None: ...


class Load(Protocol):
    """The control side of one load; used by the run's own thread."""

    # What the checkpoint remembers an unfinished load by; None: there is nothing to go on with but the position.
    @property
    def name(self) -> str | None: ...

    def obstacle(self, found: Checkpoint) -> str | None:
        """Say why this load, which was interrupted, cannot be continued."""
        ...

    def resume(self, found: Checkpoint, fence: Fence) -> None:
        """Take the load over from an earlier claim or try, and discard what does not count."""
        ...

    def begin(self, fence: Fence) -> None:
        """Make room for a new load."""
        ...

    def writer(self) -> Writer: ...

    def commit(self, part: Part, fence: Fence) -> None:
        """Let a part count; in a merge it is visible from here on."""
        ...

    def publish(self, found: Checkpoint, fence: Fence) -> Counts:
        """Show what was counted, in one step; asked twice, it does it once. A merge has nothing left to show."""
        ...

    def discard(self) -> None:
        """Remove what only an unfinished load needs."""
        ...


class Target(Protocol):
    """Where rows go. One run opens it, for one pipeline and one epoch."""

    # part: rows are visible when their part counts. load: all of them when the load is published.
    @property
    def visible(self) -> Literal["part", "load"]: ...

    # The session in whose transactions the checkpoint moves. None: the metastore's own.
    @property
    def session(self) -> "psycopg.Connection[Any] | None": ...

    def seize(self) -> None:
        """Make sure that nothing of an older epoch becomes visible from here on."""
        ...

    def prepare(self, wanted: Wanted, *, create: bool) -> Prepared:
        """Find or create the target; `create=False` looks and changes nothing."""
        ...

    def lost(self, found: Checkpoint) -> str | None:
        """Say why the target no longer holds what the checkpoint says was delivered."""
        ...

    def open_load(self, kind: LoadKind, *, deletes: bool, name: str | None = None) -> Load:
        """Open a load, a new one or the interrupted one of this name."""
        ...

    def close(self) -> None: ...


# --- optional: what is missing is refused with a sentence ------------------------------------------------------------


@runtime_checkable
class Scans(Protocol):
    """A target that can be read back: enough for reconcile."""

    def scan(self, keys: Sequence[Key] | None = None) -> "Iterator[pa.Table]":
        """Give the rows as they are in the target, all or those of some keys."""
        ...

    def as_written(self, rows: "pa.Table") -> "pa.Table":
        """Give rows of the source as they would be read back after being written."""
        ...
