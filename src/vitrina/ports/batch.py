"""What the runner's parts promise each other: how staged batches are announced, whoever filled them."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Protocol, TypeVar

T = TypeVar("T")

# Of a refused document, in its letter.
LONGEST_DOCUMENT = 100_000


class Endable(Protocol):
    """What can be ended at once, from another thread."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class DeadLetter:
    """A row that was left out, with the reason: whole, or as much of it as a letter holds."""

    document_id: str
    error: str
    document: str  # JSON

    @classmethod
    def about(cls, document_id: str, error: str, document: bytes) -> "DeadLetter":
        """`document` is JSON. Of a long one the letter holds the beginning, as a text that says so."""
        if len(document) <= LONGEST_DOCUMENT:
            return cls(document_id, error, document.decode(errors="replace") or "null")
        beginning = document[:LONGEST_DOCUMENT].decode(errors="replace")
        # The digest tells two rows without a key apart that begin in the same way.
        cut = f"{beginning}... (cut: {len(document):,} bytes in all, sha256 {sha256(document).hexdigest()})"
        return cls(document_id, error, json.dumps(cut, ensure_ascii=False))


@dataclass(frozen=True)
class Lap:
    """A stage of a batch: when it first began, as a Unix time, and the time spent in it."""

    began: float
    seconds: float


class Stopwatch:
    """Where the time of one batch goes: `read`, `transform`, `stage`, `index`. What comes in pieces is added up."""

    def __init__(self) -> None:
        self.laps: dict[str, Lap] = {}

    @contextmanager
    def lap(self, stage: str) -> Iterator[None]:
        began, started = time.time(), time.monotonic()
        try:
            yield
        finally:
            self.add(stage, time.monotonic() - started, began)

    def add(self, stage: str, seconds: float, began: float) -> None:
        before = self.laps.get(stage)
        self.laps[stage] = Lap(before.began, before.seconds + seconds) if before else Lap(began, seconds)

    def next_of(self, stage: str, pieces: Iterator[T]) -> T | None:
        """The next piece, which somebody else takes the time to make."""
        with self.lap(stage):
            return next(pieces, None)


def delivered_in(letters: Iterable[DeadLetter], *parts: frozenset[str]) -> frozenset[str]:
    """What came through on every leg of its way: a row that is left behind in the same batch has not."""
    return frozenset().union(*parts) - {letter.document_id for letter in letters}


# Where a row stands in the order of reading: values as text, for each column that is read by. NULL comes last.
Position = tuple[str | None, ...]


@dataclass(frozen=True)
class Filled:
    """One batch that is staged but does not count yet."""

    number: int
    rows: int
    # Where the next batch starts. None: not resumable.
    last: Position | None
    seconds: float = 0.0
    # What is in the stage, when steps have changed the number of rows.
    staged: int | None = None
    letters: tuple[DeadLetter, ...] = ()
    laps: Mapping[str, Lap] = field(default_factory=dict)
    # The batches before it were read from an older snapshot.
    reopened: bool = False
    # Rows and documents that were left behind before, and came through now: by their letters' names.
    delivered: frozenset[str] = frozenset()

    @property
    def staged_rows(self) -> int:
        return self.rows if self.staged is None else self.staged


@dataclass(frozen=True)
class Staged:
    """What became of a batch on its way into a stage, or into an index."""

    rows: int
    letters: tuple[DeadLetter, ...] = ()
    delivered: frozenset[str] = frozenset()


class Source(Protocol):
    """Fills a stage batch by batch, from wherever rows come from."""

    def batches(self, first_number: int, after: Position | None) -> Iterator[Filled]:
        """Fill batches numbered from `first_number`, with the rows behind `after`."""
        ...

    def close(self) -> None:
        """End the sessions, also while a batch is being filled by another thread."""
        ...
