"""Define batches of rows, what a writer returns for each, and the parts that a load counts."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa

T = TypeVar("T")

# The values of a key as the canonical texts that the source makes of them, so that 1.0 and 1.00 are one key.
Key = tuple[str, ...]
# The position of a row in the read order: the value of each ordering column as text. NULL sorts last.
Position = tuple[str | None, ...]

# A batch ends early when it holds this many bytes, so that wide rows cannot exhaust memory.
MAX_BATCH_BYTES = 64 << 20
# Bytes of a rejected document that a dead letter keeps.
LONGEST_DOCUMENT = 100_000


class Endable(Protocol):
    """Define an object that can be closed at once, from another thread."""

    def close(self) -> None: ...


def keys_of(rows: "pa.Table", names: Iterable[str]) -> list[Key]:
    """Return the key of each row, as text values."""
    columns = [rows.column(name).to_pylist() for name in names]
    return [tuple(map(str, values)) for values in zip(*columns, strict=True)]


@dataclass(frozen=True)
class DeadLetter:
    """Hold a rejected row and the reason; a long row is cut."""

    document_id: str
    error: str
    document: str  # JSON
    # Whether a check of the definition rejected the row. Such rows have their own limit.
    by_check: bool = False

    @classmethod
    def about(cls, document_id: str, error: str, document: bytes, *, by_check: bool = False) -> "DeadLetter":
        """Build a dead letter from `document`, which is JSON. Keep the start of a long one, as text that says so."""
        if len(document) <= LONGEST_DOCUMENT:
            return cls(document_id, error, document.decode(errors="replace") or "null", by_check)
        beginning = document[:LONGEST_DOCUMENT].decode(errors="replace")
        # The digest distinguishes two rows without a key that begin alike.
        cut = f"{beginning}... (cut: {len(document):,} bytes in all, sha256 {sha256(document).hexdigest()})"
        return cls(document_id, error, json.dumps(cut, ensure_ascii=False), by_check)


@dataclass(frozen=True)
class Timing:
    """Hold when a stage of a batch first began, as a Unix time, and the time spent in it."""

    began: float
    seconds: float


class Stopwatch:
    """Measure the stages of one batch: `read`, `transform`, `stage`, `index`. Times of one stage are added up."""

    def __init__(self) -> None:
        self.timings: dict[str, Timing] = {}

    @contextmanager
    def lap(self, stage: str) -> Iterator[None]:
        began, started = time.time(), time.monotonic()
        try:
            yield
        finally:
            self.add(stage, time.monotonic() - started, began)

    def add(self, stage: str, seconds: float, began: float) -> None:
        before = self.timings.get(stage)
        self.timings[stage] = Timing(before.began, before.seconds + seconds) if before else Timing(began, seconds)

    def next_of(self, stage: str, pieces: Iterator[T]) -> T | None:
        """Return the next piece, and add the time it took to its stage."""
        with self.lap(stage):
            return next(pieces, None)


def delivered_in(letters: Iterable[DeadLetter], *parts: frozenset[str]) -> frozenset[str]:
    """Return the rows that passed every stage. A row rejected later in the same batch did not."""
    return frozenset().union(*parts) - {letter.document_id for letter in letters}


class PartId(NamedTuple):
    """Identify a part of a load by the epoch of the claim that wrote it and by its number, which only increases."""

    epoch: int
    number: int


class Batch:
    """Hold the rows that a source read.

    `take` hands them over and keeps no reference, so that a large table is not kept in memory twice.
    """

    def __init__(
        self,
        rows: "pa.Table",
        last: Position | None = None,
        *,
        watch: Stopwatch | None = None,
        reopened: bool = False,
    ) -> None:
        self._rows: pa.Table | None = rows
        self.read: int = rows.num_rows
        self.size: int = rows.nbytes
        # Where the next batch starts. None: a load cannot be resumed after this batch.
        self.last = last
        self.watch = watch or Stopwatch()
        # Whether the batches before it were read from an older snapshot.
        self.reopened = reopened

    def take(self) -> "pa.Table":
        """Return the rows and drop the reference to them. It can be called once."""
        rows, self._rows = self._rows, None
        if rows is None:
            raise RuntimeError("the rows of a batch are taken once")
        return rows


@dataclass(frozen=True)
class Counts:
    """Count the rows that a target inserted, updated, deleted and left unchanged."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    unchanged: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.inserted + other.inserted,
            self.updated + other.updated,
            self.deleted + other.deleted,
            self.unchanged + other.unchanged,
        )

    def __sub__(self, other: "Counts") -> "Counts":
        return Counts(
            self.inserted - other.inserted,
            self.updated - other.updated,
            self.deleted - other.deleted,
            self.unchanged - other.unchanged,
        )


@dataclass(frozen=True)
class Written:
    """Report what a writer did with a batch: each row is either counted here or recorded as a dead letter."""

    rows: int
    letters: tuple[DeadLetter, ...] = ()
    delivered: frozenset[str] = frozenset()
    # For targets that show a row as soon as it is written. Other targets count when they publish or merge.
    counts: Counts = Counts()
    # Values for the metrics of the run, such as how many ids had to be shortened.
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """Describe a batch that has arrived at the target but does not count until the checkpoint accepts it."""

    number: int
    rows: int
    # Where the next batch starts. None: not resumable.
    last: Position | None
    seconds: float = 0.0
    # Rows that arrived, if steps changed their number.
    staged: int | None = None
    letters: tuple[DeadLetter, ...] = ()
    timings: Mapping[str, Timing] = field(default_factory=dict)
    # Whether the batches before it were read from an older snapshot.
    reopened: bool = False
    # Document ids of earlier dead letters whose rows were delivered this time.
    delivered: frozenset[str] = frozenset()
    counts: Counts = Counts()
    notes: Mapping[str, Any] = field(default_factory=dict)
    # A `ports.checks.Judgement` if the rows were checked before they reached the target.
    judged: Any = None
    # Positions, among the rows read, of those that the steps filtered out. Recorded only on request.
    filtered: tuple[int, ...] = ()
    # Whether no part follows it in its window; False if the source does not know yet.
    ends: bool = False
    # Finds `last` in the run's own session, which is idle between parts. Set only in a part that ends its window:
    # the thread that fills needs no position to read on.
    locate: "Callable[[psycopg.Connection[Any]], Position | None] | None" = None

    @property
    def staged_rows(self) -> int:
        return self.rows if self.staged is None else self.staged


class Filling(Protocol):
    """Copy a window of a source to the target, part by part."""

    def parts(self, first_number: int, after: Position | None) -> Iterator[Part]:
        """Copy the rows after `after` and yield them as parts numbered from `first_number`."""
        ...

    def close(self) -> None:
        """Close the sessions, even while another thread is filling a part."""
        ...
