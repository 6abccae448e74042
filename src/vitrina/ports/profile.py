"""Define the profile of a target: its rows, its size, and the contents of its columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

# How many of the most frequent values of a column are shown, and how many characters of each.
TOP_VALUES = 5
LONGEST_SHOWN = 100


@dataclass(frozen=True)
class ColumnProfile:
    """Describe what one column holds, with values as text."""

    name: str
    type: str
    nulls: int
    distinct: int
    # None: the column holds no value, or its type has no order.
    least: str | None
    greatest: str | None
    # The most frequent values and their counts.
    top: Sequence[tuple[str, int]]

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "type": self.type,
            "nulls": self.nulls,
            "distinct": self.distinct,
            "min_value": self.least,
            "max_value": self.greatest,
            "top_values": [{"value": value, "rows": rows} for value, rows in self.top],
        }


@dataclass(frozen=True)
class TargetProfile:
    """Describe what a target holds at one moment."""

    rows: int
    # None: the target cannot tell.
    size_bytes: int | None
    # How many rows the column profiles cover: all of them, or a sample of a large target.
    profiled_rows: int
    columns: Sequence[ColumnProfile]

    def as_dict(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "size_bytes": self.size_bytes,
            "profiled_rows": self.profiled_rows,
            "columns": [column.as_dict() for column in self.columns],
        }


@runtime_checkable
class Profiles(Protocol):
    """Define a target that can compute its profile."""

    def profile(self) -> TargetProfile | None:
        """Return the profile of the target, or None if it does not exist yet."""
        ...
