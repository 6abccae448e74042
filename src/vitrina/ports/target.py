"""What a target is to a run: prepared once, then written through loads whose parts count when a fence says so."""

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
    found: Checkpoint = field(default_factory=Checkpoint)
    # Whether rows of these columns come: not so when a source gave none and could not tell its columns.
    has_rows: bool = True


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
class Loading:
    """How rows will come to a load."""

    kind: LoadKind
    # replace: rows that the source no longer has are deleted.
    deletes: bool = False
    # The unfinished load to go on with.
    name: str | None = None
    # The type in which the values of each column arrive, where the runner carries them. None: a shortcut brings them.
    arrives_as: Mapping[str, str] | None = None
    # Types of the values that tell the latest of several rows with one key; they come beside the rows.
    version_types: tuple[str, ...] = ()
    shortcut: "Shortcut | None" = None
    route: str = "arrow"
    # replace: all rows come as one part. What was filled and is not counted is filled again, never continued.
    in_one_statement: bool = False
    # merge: no more rows are expected than one batch takes. More may come all the same.
    in_one_batch: bool = False
    # Whether several rows with one key are an error, and not versions of which the latest counts.
    refuses_repeats: bool = False
    # Rows that were rejected before, by the names of their letters: the writer tells which of them are taken now.
    watched: set[str] | None = None
    # For a target that judges rows itself (`ports.checks.Judges`). None: there is nothing to judge.
    checks: "Checks | None" = None


@dataclass(frozen=True)
class Done:
    """What a load tells its fence: what it did, and what the checkpoint shall know the target by."""

    counts: Counts = field(default_factory=Counts)
    identity: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)
    # What came of the checks, and the rows that they left out.
    judged: "Judgement | None" = None


DONE = Done()


class Fence(Protocol):
    """Let a change of the target count. Exactly one of `inside` and `after` is called, exactly once, and last."""

    # The checkpoint so far.
    @property
    def found(self) -> Checkpoint: ...

    # The checkpoint as it will be, for a target with a ledger of its own, such as the summary of a snapshot.
    @property
    def record(self) -> bytes: ...

    def inside(self, connection: "psycopg.Connection[Any]", done: Done = DONE) -> None:
        """Move the checkpoint in the transaction that carries the data. Raise `LeaseLost` if it must not commit."""
        ...

    def after(self, done: Done = DONE) -> None:
        """Move the checkpoint in the metastore: every row was acknowledged before."""
        ...


# Returns when every row of a batch that was sent off has arrived or is rejected.
Receipt = Callable[[], Written]


class Writer(Protocol):
    """The data side of a load; used by the thread that reads, and closed from any."""

    # What the time spent here is called in metrics and traces, such as `stage` or `index`.
    timed_as: str

    # How many batches may be sent off after one that has not arrived yet. Asked after each batch: it may change.
    @property
    def ahead(self) -> int: ...

    def write(self, rows: "pa.Table", part: PartId) -> Receipt:
        """Send a batch. Called in the order of the parts; a part may come in several pieces."""
        ...

    def close(self) -> None: ...


class Load(Protocol):
    """The control side of one load; used by the run's own thread."""

    # What the checkpoint remembers an unfinished load by; None: there is nothing to go on with but the position.
    @property
    def name(self) -> str | None: ...

    def obstacle(self, found: Checkpoint) -> str | None:
        """Say why this interrupted load cannot be resumed."""
        ...

    def begin(self, fence: Fence) -> None:
        """Make room for a new load. A merge that creates nothing for it need not pass the fence."""
        ...

    def resume(self, fence: Fence) -> bool:
        """Take an interrupted load over and discard what does not count; False when it is shown already."""
        ...

    # Whether it was published before it was interrupted.
    @property
    def is_shown(self) -> bool: ...

    def writer(self) -> AbstractContextManager[Writer]:
        """Open what takes the rows of one window."""
        ...

    def commit(self, part: Part, fence: Fence) -> None:
        """Let a part count; in a merge it is visible from here on."""
        ...

    def publish(self, fence: Fence) -> Counts:
        """Show what was counted, in one step; a second call changes nothing. A merge has nothing left to show."""
        ...

    def discard(self) -> None:
        """Remove what only an unfinished load needs; called when the published one is recorded."""
        ...


class BaseLoad:
    """What most loads need not say."""

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
        """Do nothing: nothing is left of it."""


class DirectLoad(BaseLoad):
    """A load that takes its rows itself, with `write`: what one needs that keeps nothing open between batches."""

    timed_as = "stage"
    ahead = 0

    def write(self, rows: "pa.Table", part: PartId) -> Receipt:
        raise NotImplementedError

    def writer(self) -> AbstractContextManager[Writer]:
        return nullcontext(self)

    def close(self) -> None:
        """Do nothing: nothing is open."""


class Target(Protocol):
    """Where rows go. One run opens it, for one pipeline and one epoch. `BaseTarget` has what most need not say."""

    # part: rows are visible when their part counts. load: all of them when the load is published.
    @property
    def visible(self) -> Literal["part", "load"]: ...

    # How rows are to come: in their natural Arrow types, or as the exact texts and numbers that Postgres reads.
    @property
    def form(self) -> Form: ...

    # Whether the first pass of an incremental pipeline may be loaded at once, like a full load.
    @property
    def loads_first_pass(self) -> bool: ...

    # Whether the rows of a full load may come in any order, all as one part.
    @property
    def takes_any_order(self) -> bool: ...

    # Whether several processes can write to a full load at once (`ports.ranges.TakesRanges`).
    @property
    def takes_ranges(self) -> bool: ...

    # Whether its merges make the rows of given keys equal to the source, deleted ones too (`ports.live.Corrects`).
    @property
    def corrects(self) -> bool: ...

    # Between two corrections, so that many small ones do not burden it.
    @property
    def correction_seconds(self) -> float: ...

    # How many rows it may reject, by mode, unless options.max_dead_letters says. None: it rejects none.
    @property
    def letter_budget(self) -> Mapping[str, int] | None: ...

    # The session in whose transactions the checkpoint moves. None: the metastore's own.
    @property
    def session(self) -> "psycopg.Connection[Any] | None": ...

    def seize(self) -> None:
        """Make sure that nothing of an older epoch becomes visible from here on."""
        ...

    def known(self) -> Known | None:
        """Return the columns that the target has now; None if it does not exist, or has no types of its own."""
        ...

    def meet(self, source: Source) -> "Shortcut | None":
        """Refuse what cannot pass between source and target, and tell whether rows can bypass the runner."""
        ...

    # Why there is no shortcut, for people who read a plan.
    @property
    def no_shortcut_because(self) -> str: ...

    def prepare(self, wanted: Wanted, *, create: bool) -> Prepared:
        """Find or create the target; `create=False` changes nothing."""
        ...

    def prepare_nothing(self, *, replaces: bool) -> Prepared | None:
        """Prepare for a source that gave no row, and so no columns; None when there is nothing to change."""
        ...

    def adjust(self, fence: Fence) -> Mapping[str, Any] | None:
        """Carry out what `prepare` warned of, such as emptying a column.

        None: nothing was done, and no fence passed.
        """
        ...

    def lost(self, found: Checkpoint) -> str | None:
        """Say why the target no longer holds what the checkpoint says was delivered."""
        ...

    def fingerprint(self) -> Sequence[object]:
        """Return what decides how rows are written; a load that began with other values is not resumed."""
        ...

    def open_load(self, loading: Loading) -> Load: ...

    def close(self) -> None: ...


class BaseTarget:
    """What most targets need not say."""

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
        """Do nothing: there is nothing to take from an older epoch."""

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
        """Do nothing: nothing is open."""


# --- optional: what is missing is refused with a sentence ------------------------------------------------------------


class Route(Protocol):
    """What a plan chose for a shortcut."""

    @property
    def route(self) -> str: ...

    @property
    def paging(self) -> str: ...

    @property
    def isolate(self) -> bool: ...

    @property
    def page_rows(self) -> int | None: ...


class Shortcut(Protocol):
    """A way from one source to one target on which no row passes through the runner's hands."""

    # Whether both are in one database: it moves the rows by itself.
    @property
    def same_database(self) -> bool: ...

    # Whether the source can be read in pages, and which functions of unknown effect it calls.
    @property
    def pageable(self) -> bool: ...

    @property
    def foreign_functions(self) -> frozenset[str]: ...

    def fill(self, load: Load, window: Window, route: Route) -> AbstractContextManager[Filling]:
        """Open what fills the load; its sessions are closed with the block."""
        ...


@runtime_checkable
class Removes(Protocol):
    """A load that can remove single rows: repair needs it."""

    def remove(self, keys: Sequence[Key], number: int, fence: Fence) -> Counts:
        """Remove the rows of these keys, as part `number`."""
        ...


@runtime_checkable
class Scans(Protocol):
    """A target that can be read back: enough for reconcile."""

    def scan(self, keys: Sequence[Key] | None = None) -> "Iterator[pa.Table]":
        """Yield the rows as they are in the target, all or those of some keys."""
        ...

    def as_written(self, rows: "pa.Table") -> "pa.Table":
        """Return rows of the source as they would be read back after being written."""
        ...
