"""Define what live mode needs from a source: which rows changed, and which keys of the target they make stale."""

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

# `vitrina.settings.Settings`, a layer above the ports.
Settings = Any

# Values of one row as PostgreSQL writes them. The value of a missing column is unknown: the column is not part of the
# replica identity, or it is a large value that did not change.
Image = Mapping[str, str | None]

ChangeKind = Literal["insert", "update", "delete", "truncate"]


class Change(NamedTuple):
    """Describe one changed row of one followed table, as a committed transaction left it."""

    # A position within the commit record in the source's log, after its start; all changes of a transaction share it.
    # So a transaction is stored, or passed, up to a position P exactly when its `lsn <= P`.
    lsn: int
    # The position within the transaction, from 0.
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
    """Describe how changes of one base table lead to keys of the target."""

    relation: str
    # The columns whose old and new values the derivation reads.
    columns: tuple[str, ...]
    # Columns whose old values are needed although they are not in the primary key. If there are any, the table needs
    # REPLICA IDENTITY FULL, or an index identity that covers them.
    old_columns: tuple[str, ...] = ()
    # Shown in a plan: `id`, `film_work_id of content.person_film_work`, `every key`.
    leads_to: str = ""
    # A change may concern every key, so the whole target is reloaded, at most once per interval.
    every_key: bool = False
    # How many keys one changed row concerns, estimated from the source's statistics. None: unknown.
    keys_per_row: int | None = None
    # Large tables that are scanned to find the keys because an index is missing.
    scans: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stale:
    """Hold the keys that a batch of changes made stale."""

    # The columns of the target's key that could be derived: at least one, unless everything is stale.
    columns: tuple[str, ...] = ()
    keys: Sequence[Key] = ()
    everything: bool = False
    why: str = ""


class Derivation(Protocol):
    """Derive the stale keys of one query from changed rows of its base tables."""

    @property
    def tables(self) -> Sequence[FollowedTable]: ...

    @property
    def warnings(self) -> Sequence[str]: ...

    def stale(self, session: "psycopg.Connection[Any]", changes: Sequence[Change]) -> Stale:
        """Compute the stale keys in the session's open snapshot, from current rows and the old images of the batch."""
        ...


@runtime_checkable
class Derives(Protocol):
    """Define a source whose query can be followed."""

    def derive(self, key: Sequence[str]) -> Derivation:
        """Return how changes lead to keys. Raise with the reason if the query cannot be followed."""
        ...


class Moment(Protocol):
    """Define one state of the source: everything is read in one snapshot."""

    # The end of the source's log after the snapshot was taken: everything the snapshot shows was written before it.
    @property
    def lsn(self) -> int: ...

    # When the snapshot was taken, by the source's clock.
    @property
    def at(self) -> datetime: ...

    # Changes when anything about the followed tables changes that their log does not carry.
    @property
    def catalog(self) -> str: ...

    def keep(self) -> None:
        """Keep the session alive: the source ends a session that has been idle for too long."""
        ...

    def sees(self, xid: int) -> bool:
        """Return whether the snapshot shows a committed transaction, given the 32 bits of its id in the log."""
        ...

    def stale(self, changes: Sequence[Change]) -> Stale: ...

    def ask(self, stale: Stale, form: "Form") -> "Asked":
        """Run the query again for the stale keys."""
        ...


class Asked(Protocol):
    """Return the rows of the query for stale keys."""

    # The whole keys of the rows read so far, as text.
    @property
    def keys(self) -> Sequence[Key]: ...

    def batches(self) -> Generator[Batch, None, None]: ...


class Following(Protocol):
    """Follow the source of one query, through one session."""

    # Identifies the source's database, by whatever name it is reached.
    @property
    def database(self) -> str: ...

    def watch(self, publication: str) -> None:
        """Treat the members of this publication as a part of the catalog."""
        ...

    def moment(self) -> AbstractContextManager[Moment]:
        """Take a snapshot and hold it until the block ends."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Followable(Protocol):
    """Define a source that can be followed once its query is derived."""

    def follow(self, derivation: Derivation) -> Following: ...


# Raises if the deletes must be refused. Takes an upper bound of their number, and a function that counts them exactly.
RefuseDeletes = Callable[[int, Callable[[], int]], None]


@runtime_checkable
class Corrects(Protocol):
    """Define a load that makes the rows of given keys equal to what the query returns now."""

    def correct(self, part: Part, stale: Stale, read: Sequence[Key], fence: "Fence", refuse: RefuseDeletes) -> Counts:
        """Write the part's rows and delete those rows of the stale keys that are not in `read`, in one atomic step.

        `read` holds whole keys as the source returned them, before any step: a row that a step or the target rejects is
        still in the source. Rows that a step filters out on purpose are not in it. A target that cannot roll back
        deletes calls `refuse` before it deletes; one with transactions is refused by the fence.
        """
        ...

    def count_rows(self) -> int:
        """Count the rows that the target shows."""
        ...


@runtime_checkable
class CorrectsUnopened(Protocol):
    """Define a shortcut that copies the rows of given keys from the source to a load without decoding them."""

    def correct(self, load: "Load", moment: Moment, stale: Stale, number: int, fence: "Fence") -> Counts: ...


class Transaction(NamedTuple):
    """Hold changes of one committed transaction. A large one comes in pieces; `last` marks the final piece."""

    lsn: int
    xid: int
    changes: Sequence[Change]
    last: bool
    # Set on the last piece: the end of the commit record, and the commit time in seconds since 1970.
    upto: int = 0
    committed_at: float = 0.0


class Feed(Protocol):
    """Read the log of one source database, in one process at a time."""

    @property
    def position(self) -> int:
        """Return the position up to which `receive` has returned every committed change."""
        ...

    def start(self, after: int) -> None:
        """Begin after the stored position."""
        ...

    def receive(self, seconds: float, wake: int | None = None) -> Transaction | None:
        """Return the next piece in commit order, or None if there is none within so many seconds.

        `wake`: a file descriptor. When it becomes readable, None is returned as well.
        """
        ...

    def confirm(self, upto: int) -> None:
        """Allow the source to discard its log up to here, because it is stored."""
        ...

    def refresh(self) -> None:
        """Query again which columns of which tables are needed; call it only between transactions."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class SlotState:
    """Describe the state of a feed's slot at the source."""

    # The slot was created, or created again: changes before `confirmed` are not available.
    is_new: bool
    confirmed: int
    timeline: int
    # Why an existing slot could no longer be used.
    lost: str | None = None


@dataclass(frozen=True)
class Published:
    """Report which of the wanted tables are in the publication, and why others are not."""

    # By the name that queries use: the object ids of the published tables, including partitions.
    tables: Mapping[str, frozenset[int]]
    problems: Mapping[str, str]
    # Tables added just now: the log lacks their earlier changes.
    added: frozenset[str]
    # Whether anything was added or removed just now.
    changed: bool

    def relation_of(self, oid: int) -> str | None:
        return next((name for name, oids in self.tables.items() if oid in oids), None)


@dataclass(frozen=True)
class FeedFigures:
    """Report how far a feed is behind, and how much log the source retains for it, in bytes."""

    written_upto: int
    retained_bytes: int | None
    wal_status: str | None
    # How much log the source may retain for a slot before it drops the slot; None: no limit.
    keep_bytes: int | None


class FollowedDatabase(Protocol):
    """Manage slot, publication and catalog of one source database. It runs no SQL written by users."""

    @property
    def session(self) -> "psycopg.Connection[Any]":
        """Return the session for statements, which another thread may watch and end."""
        ...

    def identity(self) -> str | None:
        """Return which database this is, as `store.databases` does."""
        ...

    def require_fit(self) -> None:
        """Raise, with the statements to run, if the database cannot be followed."""
        ...

    def end_other_owners(self) -> None:
        """End the sessions that an earlier owner left open, and wait until the slot is free."""
        ...

    def ensure_slot(self, timeline: int | None) -> SlotState:
        """Find or create the slot. `timeline`: the source's timeline when the slot was created, None the first time."""
        ...

    def drop_slot(self) -> None: ...

    def drop(self) -> None:
        """Drop slot and publication."""
        ...

    def publish(self, wanted: Mapping[str, frozenset[str]]) -> Published:
        """Make the publication contain exactly these tables, with the columns that followers need.

        A table without a replica identity is never added.
        """
        ...

    def started_before(self) -> int:
        """Return the first transaction id that is not assigned yet."""
        ...

    def oldest_running(self) -> int:
        """Return the lowest transaction id that is still running."""
        ...

    def oldest_transaction(self) -> str | None:
        """Describe the oldest running transaction for people."""
        ...

    def written_upto(self) -> int: ...

    def block_bytes(self) -> int: ...

    def write_out(self) -> None:
        """Force what was written so far to be sent, even if nothing else commits."""
        ...

    def figures(self) -> FeedFigures: ...

    def open(self, published: Callable[[], Published], columns: Callable[[], Mapping[str, frozenset[str]]]) -> Feed: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class FeedNames:
    """Hold the names of a feed at the source. Two installations that follow one database have different names."""

    slot: str
    publication: str
    session: str


class Feeds(Protocol):
    """Define what a connector offers to follow its databases."""

    def open(self, url: str, names: FeedNames, settings: Settings) -> FollowedDatabase: ...

    def drop(self, url: str, names: FeedNames, settings: Settings) -> Sequence[str]:
        """Drop slot and publication; return what existed."""
        ...

    def check(self, url: str, settings: Settings) -> "Iterator[Finding]":
        """Yield what the database lacks to be followed; write nothing."""
        ...
