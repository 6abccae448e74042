"""The two sides of a comparison, whatever holds their rows: the questions that are put to both of them."""

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
    """One row of one side: where its key falls, the key itself, and what stands for all of its columns."""

    place: int
    key_text: str
    key: Key
    image: int | None  # None: the source says that there shall be no such row
    in_flight: bool

    @property
    def position(self) -> tuple[int, bytes]:
        return self.place, self.key_text.encode()


@dataclass(frozen=True)
class Extent:
    """What `quick` asks of a side."""

    rows: int
    in_flight: int
    least: dict[str, str | None]
    greatest: dict[str, str | None]


class ComparableSide(Protocol):
    """Rows of the source, or of the mart. Rows in flight are those that the mart may not have yet."""

    @property
    def key_names(self) -> Sequence[str]:
        """Name the parts of a key, as a report calls them."""
        ...

    # So many rows at most are listed in one go; None: as many as there are.
    @property
    def listed_at_once(self) -> int | None: ...

    def snapshot(self) -> AbstractContextManager[None]:
        """Open a block that sees everything that was there before it."""
        ...

    def extent(self) -> Extent:
        """Count the rows, and find their least and greatest values."""
        ...

    def total(self) -> tuple[int, str]:
        """Return one sum over all rows."""
        ...

    def buckets(self, mask: int) -> dict[int, tuple[int, str]]:
        """Group rows by a part of their key's hash; return the count and an order-independent sum of their images."""
        ...

    def images_in(self, mask: int, buckets: Sequence[int]) -> Iterator[RowImage]:
        """Yield the rows of some buckets, by place and key; of several with one key, only the latest."""
        ...

    def images_of(self, keys: Sequence[Key]) -> Iterator[RowImage]:
        """Yield the rows of some keys, in the same way."""
        ...

    def random_keys(self, count: int) -> list[Key]: ...

    def texts(self, keys: Sequence[Key]) -> dict[Key, dict[str, str | None]]:
        """Return whole rows, column by column, as text."""
        ...


class Kind(StrEnum):
    """How the two sides disagree about a key."""

    MISSING = "missing"
    EXTRA = "extra"
    DIFFERING = "differing"


@dataclass(frozen=True)
class Difference:
    """A key on which the sides do not agree."""

    kind: Kind
    place: int
    key: Key
    in_flight: bool
    source_image: int | None
    target_image: int | None


@dataclass(frozen=True)
class Correction:
    """Rows as the source has them now, and keys that it no longer has."""

    keys: Sequence[Key] = ()
    rows: "pa.Table | None" = None
    absent: Sequence[Key] = field(default_factory=tuple)


class Looked(Protocol):
    """A pipeline that is to be compared: what its target may know of it. Nothing was created or changed."""

    @property
    def definition(self) -> Pipeline: ...

    @property
    def pipeline_id(self) -> UUID: ...

    @property
    def source(self) -> Source: ...

    @property
    def has_steps(self) -> bool: ...

    # The columns that are written, behind the steps, and those of them that identify a row.
    @property
    def output(self) -> tuple[Column, ...]: ...

    @property
    def key(self) -> tuple[str, ...]: ...

    # Columns that differ in every run by nature.
    @property
    def stamps(self) -> frozenset[str]: ...

    # The types in which values arrive where the runner carries them.
    @property
    def arrives_as(self) -> Mapping[str, str] | None: ...

    @property
    def checkpoint(self) -> Checkpoint: ...

    def rows(
        self, found: Checkpoint, *, in_order: bool = False, sample: int | None = None, form: Form = "exact"
    ) -> "Iterator[tuple[pa.Table, bool]]":
        """Read the source again, through the steps, in tables whose rows are all in flight, or all not.

        `found` tells their age. `in_order`: of several rows with one key the latest comes last. A source that cannot
        give a sample gives all.
        """
        ...


class Comparison(Protocol):
    """One pipeline's target and its source, which have been looked at before they are compared."""

    @property
    def compared(self) -> list[str]: ...

    @property
    def not_compared(self) -> list[str]: ...

    @property
    def full_guarantee(self) -> str:
        """Say what a full comparison proves here."""
        ...

    def sides(self, found: Checkpoint) -> AbstractContextManager[tuple[ComparableSide, ComparableSide]]:
        """Open source and target. They are read in this order: checkpoint, target, source."""
        ...


@runtime_checkable
class ComparesKeys(Protocol):
    """A comparison that can leave out everything but the keys."""

    def key_sides(self, found: Checkpoint) -> AbstractContextManager[tuple[ComparableSide, ComparableSide]]:
        """Open source and target as `sides` does, for their keys alone."""
        ...


@runtime_checkable
class Correctable(Protocol):
    """A comparison whose differences can be written."""

    @property
    def arrives_as(self) -> dict[str, str] | None:
        """Return the types in which corrections come, where they are not those of a run."""
        ...

    def refuse_shrinking(self, deletes: int) -> None:
        """Refuse to delete more than a load may."""
        ...

    def corrections(self, wanted: Sequence[Difference], batch_rows: int) -> Iterator[Correction]:
        """Read again: what the source has now counts, not what it had when it was compared."""
        ...


@runtime_checkable
class Comparable(Protocol):
    """A target with a faster way to be compared than reading it all back (`Scans`)."""

    def compare(self, looked: Looked) -> Comparison:
        """Describe what there is to compare, or refuse it with the reason."""
        ...


@runtime_checkable
class Rescans(Protocol):
    """A source that can be asked for its rows again, and tells which of them no pass can have delivered yet."""

    # The column that says when a row changed; None: its rows do not tell their age.
    @property
    def cursor_name(self) -> str | None: ...

    # Of its columns, in Postgres' words.
    @property
    def types(self) -> Mapping[str, str]: ...

    def guarantee(self) -> str | None:
        """Say what a pass promises about rows that commit late."""
        ...

    def rows_by_age(
        self, found: Checkpoint, *, in_order: bool, sample: int | None, natural: bool, batch_rows: int
    ) -> "Iterator[tuple[int, pa.Table, bool]]":
        """Yield all rows, or a random sample, with the number of their batch and whether they are in flight."""
        ...

    def extent(self, found: Checkpoint, key: Sequence[str], *, unless: str | None) -> Extent:
        """Count the rows, without those whose column `unless` is true, and find the ends of key and cursor."""
        ...
