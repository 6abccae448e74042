"""Define the preview of what a full load would change in a target, before anything is written to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from vitrina.ports.batch import Counts
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.checks import CheckOutcome
from vitrina.ports.schema import Column
from vitrina.ports.target import Load, Loading

SampleKind = Literal["added", "changed", "removed"]
# Rows of each kind that are shown, and characters of each value.
SAMPLE_ROWS = 3
_LONGEST_SHOWN = 200

Texts = Mapping[str, str | None]


@dataclass(frozen=True)
class Sample:
    """Hold a row that a load would add, change or remove, with its values as text."""

    kind: SampleKind
    before: Texts | None
    after: Texts | None

    def as_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "before": _shown(self.before), "after": _shown(self.after)}


def _shown(row: Texts | None) -> dict[str, str | None] | None:
    return None if row is None else {name: _short(value) for name, value in row.items()}


def _short(value: str | None) -> str | None:
    return value if value is None or len(value) <= _LONGEST_SHOWN else f"{value[:_LONGEST_SHOWN]}..."


@dataclass(frozen=True)
class DataDifference:
    """Describe how the rows would change."""

    # As the run would report them.
    counts: Counts
    rows_before: int
    # How many of the updated rows differ in each column. None: the target cannot tell.
    changed_columns: Mapping[str, int] | None = None
    samples: Sequence[Sample] = ()
    # Rows that the query no longer returns but that stay, because such a run deletes none. None: there are none.
    stay: int | None = None
    # Rows that steps or checks would reject.
    rejected: int = 0
    checks: Sequence[CheckOutcome] = ()
    # Why the run would publish nothing.
    refusals: Sequence[str] = ()
    # What could not be examined.
    notes: Sequence[str] = ()

    @property
    def rows_after(self) -> int:
        return self.rows_before + self.counts.inserted - self.counts.deleted

    def as_dict(self) -> dict[str, Any]:
        changed = self.changed_columns
        return {
            "before": self.rows_before,
            "after": self.rows_after,
            "added": self.counts.inserted,
            "changed": self.counts.updated,
            "removed": self.counts.deleted,
            "unchanged": self.counts.unchanged,
            "stay": self.stay,
            "rejected": self.rejected,
            "changed_columns": dict(changed) if changed is not None else None,
            "sample_rows": [sample.as_dict() for sample in self.samples],
        }


class PlannedLoad(Protocol):
    """Define a load that is filled like any other, compared with the target, and then discarded."""

    @property
    def load(self) -> Load: ...

    # Columns that the run would add to the target, or create it with.
    @property
    def new_columns(self) -> Sequence[Column]: ...

    def begin(self) -> None:
        """Create a place for the rows, beside the target."""
        ...

    def difference(self, found: Checkpoint) -> DataDifference:
        """Compare the accepted rows with those of the target, which is only read."""
        ...

    def discard(self) -> None:
        """Remove the rows."""
        ...


@runtime_checkable
class Foresees(Protocol):
    """Define a target that can tell exactly what a full load would change in it."""

    def plan_load(self, loading: Loading, latest: Sequence[str]) -> PlannedLoad:
        """Open a load that is never published.

        `latest` names the columns that decide which of several rows with one key is the latest. Without any, such rows
        are refused.
        """
        ...
