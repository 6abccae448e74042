"""What the runner's parts promise each other: how staged batches are announced, whoever filled them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class DeadLetter:
    """A row that was left out, whole, with the reason."""

    document_id: str
    error: str
    document: str  # JSON


@dataclass(frozen=True)
class Filled:
    """One batch that is staged but does not count yet."""

    number: int
    rows: int
    # Where the next batch starts: values as text, in the order of the columns that are read by. None: not resumable.
    last: tuple[str, ...] | None
    seconds: float
    # What is in the stage, when steps have changed the number of rows.
    staged: int | None = None
    letters: tuple[DeadLetter, ...] = ()

    @property
    def staged_rows(self) -> int:
        return self.rows if self.staged is None else self.staged


@dataclass(frozen=True)
class Staged:
    """What became of a batch on its way into a stage, or into an index."""

    rows: int
    letters: tuple[DeadLetter, ...] = ()


class Source(Protocol):
    """Fills a stage batch by batch, from wherever rows come from."""

    def batches(self, first_number: int, after: tuple[str, ...] | None) -> Iterator[Filled]:
        """Fill batches numbered from `first_number`, with the rows behind `after`."""
        ...

    def close(self) -> None:
        """End the sessions, also while a batch is being filled by another thread."""
        ...
