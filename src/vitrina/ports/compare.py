"""The two sides of a comparison, whatever holds their rows: the questions that are put to both of them."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from vitrina.ports.batch import Key


class RowImage(NamedTuple):
    """One row of one side: where its key falls, the key itself, and what stands for all of its columns."""

    place: int
    key_text: str
    key: Key
    image: int | None  # None: the source says that there shall be no such row
    young: bool

    @property
    def position(self) -> tuple[int, bytes]:
        return self.place, self.key_text.encode()


@dataclass(frozen=True)
class Extent:
    """What `quick` asks of a side."""

    rows: int
    young: int
    least: dict[str, str | None]
    greatest: dict[str, str | None]


class Side(Protocol):
    """Rows of the source, or of the mart. `young` rows are those that the mart may not have yet."""

    @property
    def key_names(self) -> Sequence[str]:
        """What the parts of a key are called in a report."""
        ...

    # So many rows at most are listed in one go; None: as many as there are.
    @property
    def listed_at_once(self) -> int | None: ...

    def snapshot(self) -> AbstractContextManager[None]:
        """Everything that was there before the block is seen in it."""
        ...

    def extent(self) -> Extent:
        """How many rows there are, and between which values."""
        ...

    def total(self) -> tuple[int, str]:
        """All rows in one sum."""
        ...

    def buckets(self, mask: int) -> dict[int, tuple[int, str]]:
        """Rows by a part of their key's hash: how many, and a sum of their images that no order changes."""
        ...

    def images_in(self, mask: int, buckets: Sequence[int]) -> Iterator[RowImage]:
        """The rows of some buckets, by place and key; of several with one key, the latest alone."""
        ...

    def images_of(self, keys: Sequence[Key]) -> Iterator[RowImage]:
        """The rows of some keys, in the same way."""
        ...

    def random_keys(self, count: int) -> list[Key]: ...

    def texts(self, keys: Sequence[Key]) -> dict[Key, dict[str, str | None]]:
        """Whole rows, column by column, as text."""
        ...
