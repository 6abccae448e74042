"""Define a target: prepared once, then written through loads whose parts count when a fence accepts them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from vitrina.ports.batch import Counts, Filling, Key, Part, PartId, Written
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.schema import Column, Known
from vitrina.ports.source import Form, Source, Window
from vitrina.sentences import say

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa

    from vitrina.ports.checks import Checks, Judgement

# replace: the rows of the source take the place of those the target shows. merge: rows are added to it by key.
LoadKind = Literal["replace", "merge"]


@dataclass(frozen=True)
class Wanted:
    """Describe what a run asks a target to be prepared for."""

    columns: tuple[Column, ...]
    key: tuple[str, ...] | None = None
    # Columns that the target may lack, such as a cursor that is read but not kept.
    ignorable: frozenset[str] = frozenset()
    # Columns whose difference alone does not make a row differ.
    stamps: frozenset[str] = frozenset()
    found: Checkpoint = field(default_factory=Checkpoint)
    # Whether rows of these columns will arrive. False if a source had no rows and could not tell its columns.
    has_rows: bool = True


@dataclass(frozen=True)
class Prepared:
    """Report what a target found and decided."""

    key: tuple[str, ...]
    exists: bool
    is_empty: bool
    # The columns that are written, a subset of those requested.
    columns: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Loading:
    """Describe how rows will arrive at a load."""

    kind: LoadKind
    # replace: delete the rows that the source no longer has.
    deletes: bool = False
    # The unfinished load to resume.
    name: str | None = None
    # The type in which the values of each column arrive if they pass through the runner. None: a shortcut copies them.
    arrives_as: Mapping[str, str] | None = None
    # Types of the version values that decide which of several rows with one key is the latest; read with the rows.
    version_types: tuple[str, ...] = ()
    shortcut: "Shortcut | None" = None
    route: str = "arrow"
    # replace: all rows arrive as one part. A part that was filled but not accepted is filled again, never resumed.
    in_one_statement: bool = False
    # merge: no more rows are expected than one batch holds, but more may arrive.
    in_one_batch: bool = False
    # Whether several rows with one key are an error. Otherwise they are versions, of which the latest counts.
    refuses_repeats: bool = False
    # Document ids of rows that were rejected before: the writer reports which of them it accepts now.
    watched: set[str] | None = None
    # For a target that checks rows itself (`ports.checks.Judges`). None: there is nothing to check.
    checks: "Checks | None" = None


@dataclass(frozen=True)
class Done:
    """Report to the fence what a load did, and the identity by which the checkpoint will know the target."""

    counts: Counts = field(default_factory=Counts)
    identity: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)
    # The results of the checks, and the rows they rejected.
    judged: "Judgement | None" = None


DONE = Done()


class Fence(Protocol):
    """Make a change of the target count. Exactly one of `inside` and `after` must be called, once, as the last step."""

    # The checkpoint so far.
    @property
    def found(self) -> Checkpoint: ...

    # The checkpoint as it will be, for a target with its own ledger, such as the summary of a snapshot.
    @property
    def record(self) -> bytes: ...

    def inside(self, connection: "psycopg.Connection[Any]", done: Done = DONE) -> None:
        """Move the checkpoint in the transaction that carries the data. Raise `LeaseLost` if it must not commit."""
        ...

    def after(self, done: Done = DONE) -> None:
        """Move the checkpoint in the metastore. Every row must have been acknowledged before."""
        ...


# Returns once every row of a sent batch has arrived or is rejected.
Receipt = Callable[[], Written]


class Writer(Protocol):
    """Write the rows of a load. The reading thread uses it; any thread may close it."""

    # The name of the time spent here in metrics and traces, such as `stage` or `index`.
    timed_as: str

    # How many batches may be sent after one that has not arrived yet. Read after each batch, because it may change.
    @property
    def ahead(self) -> int: ...

    def write(self, rows: "pa.Table", part: PartId) -> Receipt:
        """Send a batch. Parts come in order; one part may come in several pieces."""
        ...

    def close(self) -> None: ...


class Load(Protocol):
    """Control one load. Only the run's own thread uses it."""

    # The name by which the checkpoint remembers an unfinished load; None: only the position can be resumed.
    @property
    def name(self) -> str | None: ...

    def obstacle(self, found: Checkpoint) -> str | None:
        """Return why this interrupted load cannot be resumed, or None."""
        ...

    def begin(self, fence: Fence) -> None:
        """Prepare a new load. A merge that creates nothing need not call the fence."""
        ...

    def resume(self, fence: Fence) -> bool:
        """Take over an interrupted load and discard what does not count; return False if it is published already."""
        ...

    # Whether it was published before it was interrupted.
    @property
    def is_shown(self) -> bool: ...

    def writer(self) -> AbstractContextManager[Writer]:
        """Open the writer for the rows of one window."""
        ...

    def commit(self, part: Part, fence: Fence) -> None:
        """Make a part count. In a merge it becomes visible now."""
        ...

    def publish(self, fence: Fence) -> Counts:
        """Show the accepted rows in one step; a second call changes nothing. A merge has nothing left to show."""
        ...

    def discard(self) -> None:
        """Remove what only an unfinished load needs. Called after the publication is recorded."""
        ...


class BaseLoad:
    """Provide the defaults that suit most loads."""

    name: str | None = None
    is_shown = False

    def obstacle(self, found: Checkpoint) -> str | None:
        return None

    def begin(self, fence: Fence) -> None:
        fence.after()

    def resume(self, fence: Fence) -> bool:
        self.begin(fence)
        return not self.is_shown

    def commit(self, part: Part, fence: Fence) -> None:
        fence.after(Done(part.counts))

    def publish(self, fence: Fence) -> Counts:
        fence.after()
        return Counts()

    def discard(self) -> None:
        """Do nothing, because nothing is left to remove."""


class DirectLoad(BaseLoad):
    """Provide a load that is its own writer, for targets that keep nothing open between batches."""

    timed_as = "stage"
    ahead = 0

    def write(self, rows: "pa.Table", part: PartId) -> Receipt:
        raise NotImplementedError

    def writer(self) -> AbstractContextManager[Writer]:
        return nullcontext(self)

    def close(self) -> None:
        """Do nothing, because nothing is open."""


class Target(Protocol):
    """Receive rows. One run opens a target, for one pipeline and one epoch. `BaseTarget` has the usual defaults."""

    # part: rows become visible when their part counts. load: all rows become visible when the load is published.
    @property
    def visible(self) -> Literal["part", "load"]: ...

    # How rows must arrive: in their natural Arrow types, or as the exact text and numbers that PostgreSQL reads.
    @property
    def form(self) -> Form: ...

    # Whether the first pass of an incremental pipeline may be loaded at once, like a full load.
    @property
    def loads_first_pass(self) -> bool: ...

    # Whether the rows of a full load may arrive in any order, all as one part.
    @property
    def takes_any_order(self) -> bool: ...

    # Whether several processes can write to a full load at once (`ports.ranges.TakesRanges`).
    @property
    def takes_ranges(self) -> bool: ...

    # Whether merges can make the rows of given keys equal to the source, with deletes (`ports.live.Corrects`).
    @property
    def corrects(self) -> bool: ...

    # The least time between two corrections, so that many small ones do not overload the target.
    @property
    def correction_seconds(self) -> float: ...

    # How many rows it may reject, by mode, unless options.max_dead_letters is set. None: it rejects none.
    @property
    def letter_budget(self) -> Mapping[str, int] | None: ...

    # The session whose transactions move the checkpoint. None: the metastore's session.
    @property
    def session(self) -> "psycopg.Connection[Any] | None": ...

    def seize(self) -> None:
        """Ensure that nothing an older epoch writes becomes visible from now on."""
        ...

    def known(self) -> Known | None:
        """Return the current columns of the target; None if it does not exist, or has no column types."""
        ...

    def meet(self, source: Source) -> "Shortcut | None":
        """Raise if rows cannot pass from source to target. Return a shortcut if they can bypass the runner."""
        ...

    # Why there is no shortcut; shown in a plan.
    @property
    def no_shortcut_because(self) -> str: ...

    def prepare(self, wanted: Wanted, *, create: bool) -> Prepared:
        """Find or create the target; `create=False` changes nothing."""
        ...

    def prepare_nothing(self, *, replaces: bool) -> Prepared | None:
        """Prepare for a source that had no rows and so no columns; return None if there is nothing to change."""
        ...

    def adjust(self, fence: Fence) -> Mapping[str, Any] | None:
        """Carry out what `prepare` warned about, such as emptying a column.

        Return None if nothing was done and the fence was not called.
        """
        ...

    def lost(self, found: Checkpoint) -> str | None:
        """Return why the target no longer holds what the checkpoint says was delivered, or None."""
        ...

    def fingerprint(self) -> Sequence[object]:
        """Return what decides how rows are written. A load that began with other values is not resumed."""
        ...

    def open_load(self, loading: Loading) -> Load: ...

    def close(self) -> None: ...


class BaseTarget:
    """Provide the defaults that suit most targets."""

    visible: Literal["part", "load"] = "load"
    form: Form = "natural"
    loads_first_pass = False
    takes_any_order = False
    takes_ranges = False
    corrects = False
    correction_seconds = 0.0
    letter_budget: Mapping[str, int] | None = None
    session: "psycopg.Connection[Any] | None" = None
    no_shortcut_because: str = say("plan.through_runner")

    def seize(self) -> None:
        """Do nothing, because an older epoch leaves nothing to take over."""

    def known(self) -> Known | None:
        return None

    def meet(self, source: Source) -> "Shortcut | None":
        return None

    def prepare_nothing(self, *, replaces: bool) -> Prepared | None:
        return None

    def adjust(self, fence: Fence) -> Mapping[str, Any] | None:
        return None

    def lost(self, found: Checkpoint) -> str | None:
        return None

    def fingerprint(self) -> Sequence[object]:
        return ()

    def close(self) -> None:
        """Do nothing, because nothing is open."""


# Optional protocols. A pipeline that needs one that its target lacks is refused with a message.


class Route(Protocol):
    """Hold what a plan chose for a shortcut."""

    @property
    def route(self) -> str: ...

    @property
    def paging(self) -> str: ...

    @property
    def isolate(self) -> bool: ...

    @property
    def page_rows(self) -> int | None: ...


class Shortcut(Protocol):
    """Copy rows from one source to one target without passing them through the runner."""

    # Whether source and target are in one database, which then moves the rows itself.
    @property
    def same_database(self) -> bool: ...

    # Whether the source can be read in pages, and which functions with unknown effects it calls.
    @property
    def pageable(self) -> bool: ...

    @property
    def foreign_functions(self) -> frozenset[str]: ...

    def fill(self, load: Load, window: Window, route: Route) -> AbstractContextManager[Filling]:
        """Open what fills the load; its sessions are closed with the block."""
        ...


@runtime_checkable
class EndsWithPart(Protocol):
    """Define a load that can end a pass together with its last part, which saves a transaction."""

    def commit_last(self, part: Part, fence: Fence) -> None:
        """Do what `commit` and `publish` do, with one fence."""
        ...


@runtime_checkable
class Removes(Protocol):
    """Define a load that can remove single rows, which repair needs."""

    def remove(self, keys: Sequence[Key], number: int, fence: Fence) -> Counts:
        """Remove the rows of these keys, as part `number`."""
        ...


@runtime_checkable
class Scans(Protocol):
    """Define a target that can be read back, which is enough for reconcile."""

    def scan(self, keys: Sequence[Key] | None = None) -> "Iterator[pa.Table]":
        """Yield the rows as they are in the target: all of them, or those of some keys."""
        ...

    def as_written(self, rows: "pa.Table") -> "pa.Table":
        """Return rows of the source as they would be read back after being written."""
        ...
