"""What is in a target: its rows, its size, and what its columns hold."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

# Values of a column that are shown, the most frequent ones, and how much of each.
TOP_VALUES = 5
LONGEST_SHOWN = 100


@dataclass(frozen=True)
class ColumnProfile:
    """What one column holds; values as text."""

    name: str
    type: str
    nulls: int
    distinct: int
    # None: it holds no value, or its type has no order.
    least: str | None
    greatest: str | None
    # The most frequent values, and how often each comes.
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
    """What a target holds at one moment."""

    rows: int
    # None: the target does not tell.
    size_bytes: int | None
    # How many rows the columns were looked at in: all of them, or a sample of a large target.
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
    """A target that tells what is in it."""

    def profile(self) -> TargetProfile | None:
        """Look at the target; None if it does not exist yet."""
        ...
