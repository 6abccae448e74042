"""Define the two sides of a comparison and the questions that are asked of both, whatever system holds the rows."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable
from uuid import UUID

from vitrina.ports.batch import Key
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.pipeline import Pipeline
from vitrina.ports.schema import Column
from vitrina.ports.source import Form, Source

if TYPE_CHECKING:
    import pyarrow as pa


class RowImage(NamedTuple):
    """Hold one row of one side: the hash of its key, the key, and a hash of all its columns."""

    place: int
    key_text: str
    key: Key
    image: int | None  # None: the source says that this row must not exist
    in_flight: bool

    @property
    def position(self) -> tuple[int, bytes]:
        return self.place, self.key_text.encode()


@dataclass(frozen=True)
class Extent:
    """Hold what a `quick` comparison asks of a side."""

    rows: int
    in_flight: int
    least: dict[str, str | None]
    greatest: dict[str, str | None]


class ComparableSide(Protocol):
    """Define access to the rows of the source or of the mart. Rows in flight may not have reached the mart yet."""

    @property
    def key_names(self) -> Sequence[str]:
        """Return the names of the key columns, as a report shows them."""
        ...

    # The most rows that are listed in one pass; None: no limit.
    @property
    def listed_at_once(self) -> int | None: ...

    def snapshot(self) -> AbstractContextManager[None]:
        """Open a block that sees everything written before it began."""
        ...

    def extent(self) -> Extent:
        """Count the rows and return their least and greatest values."""
        ...

    def total(self) -> tuple[int, str]:
        """Return the number of rows and one sum over all of them."""
        ...

    def buckets(self, mask: int) -> dict[int, tuple[int, str]]:
        """Group rows by a part of their key's hash; return the count and an order-independent sum of their images."""
        ...

    def images_in(self, mask: int, buckets: Sequence[int]) -> Iterator[RowImage]:
        """Yield the rows of some buckets, ordered by hash and key; of several rows with one key, only the latest."""
        ...

    def images_of(self, keys: Sequence[Key]) -> Iterator[RowImage]:
        """Yield the rows of some keys, in the same order."""
        ...

    def random_keys(self, count: int) -> list[Key]: ...

    def texts(self, keys: Sequence[Key]) -> dict[Key, dict[str, str | None]]:
        """Return whole rows as text, by column."""
        ...


class Kind(StrEnum):
    """Name how the two sides disagree about a key."""

    MISSING = "missing"
    EXTRA = "extra"
    DIFFERING = "differing"


@dataclass(frozen=True)
class Difference:
    """Hold a key on which the sides disagree."""

    kind: Kind
    place: int
    key: Key
    in_flight: bool
    source_image: int | None
    target_image: int | None


@dataclass(frozen=True)
class Correction:
    """Hold rows as the source has them now, and keys that it no longer has."""

    keys: Sequence[Key] = ()
    rows: "pa.Table | None" = None
    absent: Sequence[Key] = field(default_factory=tuple)


class Looked(Protocol):
    """Describe a pipeline that is to be compared, for its target. Inspecting it created and changed nothing."""

    @property
    def definition(self) -> Pipeline: ...

    @property
    def pipeline_id(self) -> UUID: ...

    @property
    def source(self) -> Source: ...

    @property
    def has_steps(self) -> bool: ...

    # The columns that are written, after the steps, and those of them that identify a row.
    @property
    def output(self) -> tuple[Column, ...]: ...

    @property
    def key(self) -> tuple[str, ...]: ...

    # Columns whose values differ in every run, such as now().
    @property
    def stamps(self) -> frozenset[str]: ...

    # The types in which values arrive if they pass through the runner.
    @property
    def arrives_as(self) -> Mapping[str, str] | None: ...

    @property
    def checkpoint(self) -> Checkpoint: ...

    def rows(
        self, found: Checkpoint, *, in_order: bool = False, sample: int | None = None, form: Form = "exact"
    ) -> "Iterator[tuple[pa.Table, bool]]":
        """Read the source again, through the steps, in tables whose rows are all in flight, or all not.

        `found` determines their age. `in_order`: of several rows with one key the latest comes last. A source that
        cannot sample yields all rows.
        """
        ...


class Comparison(Protocol):
    """Compare the target of one pipeline with its source. Both were inspected before."""

    @property
    def compared(self) -> list[str]: ...

    @property
    def not_compared(self) -> list[str]: ...

    @property
    def full_guarantee(self) -> str:
        """Return a sentence that says what a full comparison proves here."""
        ...

    def sides(self, found: Checkpoint) -> AbstractContextManager[tuple[ComparableSide, ComparableSide]]:
        """Open source and target. The caller reads the checkpoint first, then the target, then the source."""
        ...


@runtime_checkable
class ComparesKeys(Protocol):
    """Define a comparison that can be limited to the keys."""

    def key_sides(self, found: Checkpoint) -> AbstractContextManager[tuple[ComparableSide, ComparableSide]]:
        """Open source and target as `sides` does, for their keys only."""
        ...


@dataclass
class SideCut:
    """Report in how many sessions a side was asked, and why not in more."""

    sessions: int = 1
    obstacle: str | None = None


@runtime_checkable
class Cuts(Protocol):
    """Define a comparison whose sides several sessions can be asked about at once."""

    def cut(self, sessions: int) -> tuple[SideCut, SideCut]:
        """Ask source and target in so many sessions each from now on. The reports are filled in by the first look."""
        ...


@runtime_checkable
class AskedBeside(Protocol):
    """Define a side that can be asked while the other side is asked, in a thread of its own."""

    def cancel(self) -> None:
        """End what is being asked, from another thread."""
        ...


@runtime_checkable
class Correctable(Protocol):
    """Define a comparison whose differences can be corrected."""

    @property
    def arrives_as(self) -> dict[str, str] | None:
        """Return the types in which corrections arrive, if they differ from those of a run."""
        ...

    def refuse_shrinking(self, deletes: int) -> None:
        """Refuse to delete more rows than a load may delete."""
        ...

    def corrections(self, wanted: Sequence[Difference], batch_rows: int) -> Iterator[Correction]:
        """Read the rows again, because the source may have changed since the comparison."""
        ...


@runtime_checkable
class Comparable(Protocol):
    """Define a target that can be compared faster than by reading it all back (`Scans`)."""

    def compare(self, looked: Looked) -> Comparison:
        """Return what can be compared, or raise with the reason why nothing can."""
        ...


@runtime_checkable
class Rescans(Protocol):
    """Define a source whose rows can be read again, and which knows which of them no pass can have delivered yet."""

    # The column that says when a row changed; None: the age of rows is unknown.
    @property
    def cursor_name(self) -> str | None: ...

    # The PostgreSQL types of its columns.
    @property
    def types(self) -> Mapping[str, str]: ...

    def guarantee(self) -> str | None:
        """Return a sentence that says what a pass guarantees about rows that commit late."""
        ...

    def rows_by_age(
        self, found: Checkpoint, *, in_order: bool, sample: int | None, natural: bool, batch_rows: int
    ) -> "Iterator[tuple[int, pa.Table, bool]]":
        """Yield all rows, or a random sample, with their batch number and whether they are in flight."""
        ...

    def extent(self, found: Checkpoint, key: Sequence[str], *, unless: str | None) -> Extent:
        """Count the rows except those whose column `unless` is true; find the least and greatest key and cursor."""
        ...
