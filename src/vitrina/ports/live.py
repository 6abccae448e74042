"""What live mode asks of a source: which rows changed, and which keys of the target are stale because of them."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

from vitrina.ports.batch import Batch, Counts, Key, Part

if TYPE_CHECKING:
    import psycopg

    from vitrina.ports.connector import Finding
    from vitrina.ports.source import Form
    from vitrina.ports.target import Fence, Load

# `vitrina.settings.Settings`, which stand above the ports.
Settings = Any

# Values of one row as Postgres writes them. A column that is missing is unknown: it is not in the replica identity, or
# it is a large value that did not change.
Image = Mapping[str, str | None]

ChangeKind = Literal["insert", "update", "delete", "truncate"]


class Change(NamedTuple):
    """One changed row of one followed table, as a committed transaction left it."""

    # A place within the commit record in the source's log, after its start; all changes of one transaction share it.
    # So a transaction counts as stored, or passed, up to a place P exactly when its `lsn <= P`.
    lsn: int
    # The place within the transaction, from 0.
    number: int
    # 32 bits, as the log carries it: compare with a snapshot modulo 2^32.
    xid: int
    # `schema.table` of the table that queries name: a leaf of a partitioned table is mapped to its root.
    relation: str
    kind: ChangeKind
    old: Image | None = None
    new: Image | None = None


@dataclass(frozen=True)
class FollowedTable:
    """How changes of one base table lead to keys of the target."""

    relation: str
    # The columns whose values, old and new, the derivation reads.
    columns: tuple[str, ...]
    # Whether old values outside the primary key are needed: then the table needs REPLICA IDENTITY FULL, or an index
    # identity that covers `old_columns`.
    old_columns: tuple[str, ...] = ()
    # For people who read a plan: `id`, `film_work_id of content.person_film_work`, `every key`.
    leads_to: str = ""
    # A change may concern every key: the target is loaded again, at most every so often.
    every_key: bool = False
    # About how many keys one changed row concerns, by the source's statistics. None: unknown.
    keys_per_row: int | None = None
    # Large tables that are read whole to find them, for want of an index.
    scans: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stale:
    """The keys that a batch of changes made stale."""

    # The columns of the target's key that could be derived: at least one of them, unless everything is stale.
    columns: tuple[str, ...] = ()
    keys: Sequence[Key] = ()
    everything: bool = False
    why: str = ""


class Derivation(Protocol):
    """From changed rows of base tables to stale keys of one query."""

    @property
    def tables(self) -> Sequence[FollowedTable]: ...

    @property
    def warnings(self) -> Sequence[str]: ...

    def stale(self, session: "psycopg.Connection[Any]", changes: Sequence[Change]) -> Stale:
        """Compute the stale keys in the session's open snapshot, from current rows and the old images of the batch."""
        ...


@runtime_checkable
class Derives(Protocol):
    """A source whose query can be followed."""

    def derive(self, key: Sequence[str]) -> Derivation:
        """Say how changes lead to keys; raises with the reason when the query cannot be followed."""
        ...


class Moment(Protocol):
    """One state of the source: everything is read in one snapshot."""

    # The end of the source's log when the snapshot had been taken: what it shows was written before.
    @property
    def lsn(self) -> int: ...

    # When the snapshot was taken, by the source's clock.
    @property
    def at(self) -> datetime: ...

    # Differs when anything changed about the followed tables that their log does not say.
    @property
    def catalog(self) -> str: ...

    def keep(self) -> None:
        """Let the source know that the snapshot is still needed: a session that says nothing for long is ended."""
        ...

    def sees(self, xid: int) -> bool:
        """Tell whether a committed transaction, known by the 32 bits that the log carries, is in the snapshot."""
        ...

    def stale(self, changes: Sequence[Change]) -> Stale: ...

    def ask(self, stale: Stale, form: "Form") -> "Asked":
        """Ask the query again for the stale keys."""
        ...


class Asked(Protocol):
    """What the query gives for stale keys."""

    # The whole keys of the rows that came so far, as texts.
    @property
    def keys(self) -> Sequence[Key]: ...

    def batches(self) -> Generator[Batch, None, None]: ...


class Following(Protocol):
    """A query whose source is followed, through one session."""

    # What the source's database says of itself, by whatever name it is reached.
    @property
    def database(self) -> str: ...

    def watch(self, publication: str) -> None:
        """Let the members of this publication count as a part of the catalog."""
        ...

    def moment(self) -> AbstractContextManager[Moment]:
        """Take a snapshot, and hold it until the block ends."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Followable(Protocol):
    """A source that can be followed once its query is derived."""

    def follow(self, derivation: Derivation) -> Following: ...


# Raises if so many rows must not be deleted: at most this many, and exactly what is asked for where that matters.
RefuseDeletes = Callable[[int, Callable[[], int]], None]


@runtime_checkable
class Corrects(Protocol):
    """A load that makes the rows of given keys equal to what the query gives now."""

    def correct(self, part: Part, stale: Stale, read: Sequence[Key], fence: "Fence", refuse: RefuseDeletes) -> Counts:
        """Show the part's rows and delete those of the stale keys that are not among `read`, in one step.

        `read` are whole keys as the source gave them, before any step: a row that a step or the target rejects has
        not left the source. Rows that a step leaves out on purpose are not among them. A target that cannot take
        deletes back calls `refuse` before it deletes; one with transactions is refused by the fence.
        """
        ...

    def count_rows(self) -> int:
        """Count the rows that the target shows."""
        ...


@runtime_checkable
class CorrectsUnopened(Protocol):
    """A shortcut that brings the rows of given keys from the source to a load without the runner looking at them."""

    def correct(self, load: "Load", moment: Moment, stale: Stale, number: int, fence: "Fence") -> Counts: ...


class Transaction(NamedTuple):
    """The changes of one committed transaction, in pieces when there are many; `last` ends it."""

    lsn: int
    xid: int
    changes: Sequence[Change]
    last: bool
    # Of the last piece: the end of the commit record, and when it was committed, in seconds since 1970.
    upto: int = 0
    committed_at: float = 0.0


class Feed(Protocol):
    """The log of one source database, read by one process at a time."""

    @property
    def position(self) -> int:
        """Give the place before which everything that was committed has been given by `receive`."""
        ...

    def start(self, after: int) -> None:
        """Begin after what was stored."""
        ...

    def receive(self, seconds: float, wake: int | None = None) -> Transaction | None:
        """Give the next piece in the order of commits; None when there is none within so many seconds.

        `wake`: a descriptor; None is given as well when there is something to read from it.
        """
        ...

    def confirm(self, upto: int) -> None:
        """Let the source forget what was stored up to here."""
        ...

    def refresh(self) -> None:
        """Ask again which columns of which tables are wanted; between transactions only."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class SlotState:
    """What the source has of a feed's slot."""

    # The slot was made, or made again: nothing before `confirmed` can be had.
    is_new: bool
    confirmed: int
    timeline: int
    # Why a slot that was there could not be used any more.
    lost: str | None = None


@dataclass(frozen=True)
class Published:
    """Which of the wanted tables are in the publication, and why others are not."""

    # By the name that queries use: the object ids of the tables whose rows it has, its partitions among them.
    tables: Mapping[str, frozenset[int]]
    problems: Mapping[str, str]
    # Those of which a table was added just now: what it was changed by before is not in the log.
    added: frozenset[str]
    # Whether anything was added or taken out just now.
    changed: bool

    def relation_of(self, oid: int) -> str | None:
        return next((name for name, oids in self.tables.items() if oid in oids), None)


@dataclass(frozen=True)
class FeedFigures:
    """How far a feed is behind, and what that costs the source, in bytes."""

    written_upto: int
    retained_bytes: int | None
    wal_status: str | None
    # How much the source may keep for a slot before it is lost; None: without limit.
    keep_bytes: int | None


class FollowedDatabase(Protocol):
    """The owner's view of one source database: slot, publication, catalog. Nothing of users runs in it."""

    @property
    def session(self) -> "psycopg.Connection[Any]":
        """Give the session for statements, to be watched over and ended from another thread."""
        ...

    def identity(self) -> str | None:
        """Say which database this is, as `store.databases` does."""
        ...

    def require_fit(self) -> None:
        """Raise with the statements to run when the database cannot be followed."""
        ...

    def end_other_owners(self) -> None:
        """End what an owner before us left open, and wait until the slot is free."""
        ...

    def ensure_slot(self, timeline: int | None) -> SlotState:
        """Find the slot or make it. `timeline`: that of the source when the slot was made, None before the first."""
        ...

    def drop_slot(self) -> None: ...

    def drop(self) -> None:
        """Drop slot and publication."""
        ...

    def publish(self, wanted: Mapping[str, frozenset[str]]) -> Published:
        """Have these tables in the publication and no others; the columns are those that followers need.

        A table without a replica identity is never added.
        """
        ...

    def started_before(self) -> int:
        """Give the first transaction id that is not handed out yet."""
        ...

    def oldest_running(self) -> int:
        """Give the lowest transaction id that is still at work."""
        ...

    def oldest_transaction(self) -> str | None:
        """Describe it for people."""
        ...

    def written_upto(self) -> int: ...

    def block_bytes(self) -> int: ...

    def write_out(self) -> None:
        """Have what was written so far sent, although nothing else commits."""
        ...

    def figures(self) -> FeedFigures: ...

    def open(self, published: Callable[[], Published], columns: Callable[[], Mapping[str, frozenset[str]]]) -> Feed: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class FeedNames:
    """What a feed is called at the source. Two installations that follow one database have different names."""

    slot: str
    publication: str
    session: str


class Feeds(Protocol):
    """What a connector offers to those who follow its databases."""

    def open(self, url: str, names: FeedNames, settings: Settings) -> FollowedDatabase: ...

    def drop(self, url: str, names: FeedNames, settings: Settings) -> Sequence[str]:
        """Drop slot and publication; returns what was there."""
        ...

    def check(self, url: str, settings: Settings) -> "Iterator[Finding]":
        """Say what the database lacks to be followed; nothing is written."""
        ...
