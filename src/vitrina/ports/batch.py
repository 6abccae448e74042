"""Rows on their way: a source gives batches, a writer answers for each, the loop counts them as parts of a load."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

# The values of a key as the canonical texts that the source makes of them: 1.0 and 1.00 are one key.
Key = tuple[str, ...]
# Where a row stands in the order of reading: values as text, for each column that is read by. NULL comes last.
Position = tuple[str | None, ...]

# Wide rows must not exhaust memory: a batch ends early when it holds this much.
MAX_BATCH_BYTES = 64 << 20
# Of a refused document, in its letter.
LONGEST_DOCUMENT = 100_000


class Endable(Protocol):
    """What can be ended at once, from another thread."""

    def close(self) -> None: ...


def keys_of(rows: "pa.Table", names: Iterable[str]) -> list[Key]:
    """Return the key of each row, as texts."""
    columns = [rows.column(name).to_pylist() for name in names]
    return [tuple(map(str, values)) for values in zip(*columns, strict=True)]


@dataclass(frozen=True)
class DeadLetter:
    """A row that was rejected, with the reason: whole, or as much of it as a dead letter holds."""

    document_id: str
    error: str
    document: str  # JSON
    # Whether a check of the definition rejected it, which has its own limit.
    by_check: bool = False

    @classmethod
    def about(cls, document_id: str, error: str, document: bytes, *, by_check: bool = False) -> "DeadLetter":
        """Make a dead letter; `document` is JSON. Of a long one it holds the beginning, as a text that says so."""
        if len(document) <= LONGEST_DOCUMENT:
            return cls(document_id, error, document.decode(errors="replace") or "null", by_check)
        beginning = document[:LONGEST_DOCUMENT].decode(errors="replace")
        # The digest tells two rows without a key apart that begin in the same way.
        cut = f"{beginning}... (cut: {len(document):,} bytes in all, sha256 {sha256(document).hexdigest()})"
        return cls(document_id, error, json.dumps(cut, ensure_ascii=False), by_check)


@dataclass(frozen=True)
class Timing:
    """A stage of a batch: when it first began, as a Unix time, and the time spent in it."""

    began: float
    seconds: float


class Stopwatch:
    """Where the time of one batch goes: `read`, `transform`, `stage`, `index`. What comes in pieces is added up."""

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
        """Take the next piece, and add the time that it took."""
        with self.lap(stage):
            return next(pieces, None)


def delivered_in(letters: Iterable[DeadLetter], *parts: frozenset[str]) -> frozenset[str]:
    """Find rows that came through every stage; a row that was rejected in the same batch did not."""
    return frozenset().union(*parts) - {letter.document_id for letter in letters}


class PartId(NamedTuple):
    """Name one part of a load: the epoch of the claim that wrote it, and its number, which only grows."""

    epoch: int
    number: int


class Batch:
    """Rows as a source gives them.

    The caller that takes the rows owns them alone: a large table must not be kept twice.
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
        # Where the next batch starts. None: a load cannot be continued after it.
        self.last = last
        self.watch = watch or Stopwatch()
        # The batches before it were read from an older snapshot.
        self.reopened = reopened

    def take(self) -> "pa.Table":
        """Hand the rows over, once."""
        rows, self._rows = self._rows, None
        if rows is None:
            raise RuntimeError("the rows of a batch are taken once")
        return rows


@dataclass(frozen=True)
class Counts:
    """What a target did with rows."""

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
    """What a writer answers for a batch: every row of it is counted here, or recorded as a dead letter."""

    rows: int
    letters: tuple[DeadLetter, ...] = ()
    delivered: frozenset[str] = frozenset()
    # Of a target in which a row is visible as soon as it is written; others count when they publish or merge.
    counts: Counts = Counts()
    # What the run's metrics shall say, such as how many ids had to be shortened.
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """One batch that has arrived at the target but does not count yet: the checkpoint has to accept it."""

    number: int
    rows: int
    # Where the next batch starts. None: not resumable.
    last: Position | None
    seconds: float = 0.0
    # What has arrived, when steps have changed the number of rows.
    staged: int | None = None
    letters: tuple[DeadLetter, ...] = ()
    timings: Mapping[str, Timing] = field(default_factory=dict)
    # The batches before it were read from an older snapshot.
    reopened: bool = False
    # Rows and documents that were left behind before, and came through now: by their letters' names.
    delivered: frozenset[str] = frozenset()
    counts: Counts = Counts()
    notes: Mapping[str, Any] = field(default_factory=dict)
    # What came of the checks of its rows, where they were judged on their way: a `ports.checks.Judgement`.
    judged: Any = None
    # Positions, among the rows that were read, of those that the steps left out; where it was asked for.
    filtered: tuple[int, ...] = ()

    @property
    def staged_rows(self) -> int:
        return self.rows if self.staged is None else self.staged


class Filling(Protocol):
    """Bring a window of a source to the target, part by part."""

    def parts(self, first_number: int, after: Position | None) -> Iterator[Part]:
        """Bring the rows after `after`, as parts numbered from `first_number`."""
        ...

    def close(self) -> None:
        """End the sessions, also while a part is being filled by another thread."""
        ...
