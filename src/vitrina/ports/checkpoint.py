"""Define the checkpoint: which parts of a load count, and where the next batch starts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from vitrina.ports.batch import PartId

# The first and the last number of consecutive parts.
Range = tuple[int, int]

# Identity key of a metastore checkpoint that mirrors one in a ledger: the database of that ledger.
MIRROR_OF = "mirror_of"
# Identity key: the latest values that the load has seen so far, by the names of the checks that need them.
FRESHEST = "freshest"
# Identity key: the key ranges of a load that are not accepted yet.
RANGES = "ranges"
# Keys of `Checkpoint.identity` that describe only the unfinished load and are removed with it.
OF_THE_LOAD: tuple[str, ...] = ("snapshot_at", FRESHEST, RANGES)
# Keys that describe the contents of the target. Resetting the checkpoint keeps them.
OF_THE_TARGET: tuple[str, ...] = ("columns", "history")


@dataclass(frozen=True)
class Accepted:
    """Hold a set of parts, as ranges of their numbers for each epoch.

    Parts may be accepted in any order, so every accepted part is listed, not only the last one.
    """

    ranges: Mapping[int, tuple[Range, ...]] = field(default_factory=dict)

    def including(self, part: PartId) -> "Accepted":
        """Add one part."""
        known = self.ranges.get(part.epoch, ())
        return Accepted({**self.ranges, part.epoch: _joined((*known, (part.number, part.number)))})

    def __contains__(self, part: PartId) -> bool:
        return any(first <= part.number <= last for first, last in self.ranges.get(part.epoch, ()))

    def __bool__(self) -> bool:
        return any(self.ranges.values())

    def __iter__(self) -> Iterator[tuple[int, Range]]:
        """Yield each range with its epoch."""
        return ((epoch, one) for epoch, ranges in self.ranges.items() for one in ranges)

    def parts(self) -> Iterator[PartId]:
        """Yield each part."""
        return (PartId(epoch, number) for epoch, (first, last) in self for number in range(first, last + 1))

    def as_json(self) -> dict[str, list[list[int]]]:
        """Return the set as `{epoch: [[1, 40], [43, 43]]}`."""
        return {str(epoch): [list(one) for one in ranges] for epoch, ranges in self.ranges.items()}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Accepted":
        """Build the set from JSON. Versions up to 0.1 stored only the highest number of each epoch."""
        return cls({int(epoch): _ranges(ranges) for epoch, ranges in found.items()})


def _ranges(found: Any) -> tuple[Range, ...]:
    if isinstance(found, int):
        return ((0, found),)
    return _joined(tuple((int(first), int(last)) for first, last in found))


def _joined(ranges: tuple[Range, ...]) -> tuple[Range, ...]:
    """Sort ranges and merge those that touch."""
    joined: list[Range] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return tuple(joined)


@dataclass(frozen=True)
class Checkpoint:
    """Hold the position of a pipeline. Cursor values are text and are compared only in SQL, in their own type."""

    last_key: str | None = None
    last_id: str | None = None
    safe_upto: str | None = None
    held_upto: str | None = None
    batch_no: int = 0
    # The parts of the unfinished load that count.
    accepted: Accepted = Accepted()
    rows: int = 0
    stage: str | None = None
    fingerprint: str | None = None
    load_started_at: datetime | None = None
    # What the checkpoint was taken from. Each key belongs to one component; unknown keys are preserved.
    identity: dict[str, Any] = field(default_factory=dict)

    def accepting(self, part: PartId, rows: int, last_key: str | None) -> "Checkpoint":
        """Return a checkpoint that counts one more part of the load and continues after it."""
        return replace(
            self,
            batch_no=max(self.batch_no, part.number),
            accepted=self.accepted.including(part),
            rows=self.rows + rows,
            last_key=last_key,
            last_id=None,
        )

    def without_load(self) -> "Checkpoint":
        """Return a checkpoint without the unfinished load, whose parts no longer count."""
        return replace(
            self,
            accepted=Accepted(),
            rows=0,
            stage=None,
            fingerprint=None,
            load_started_at=None,
            last_key=None,
            last_id=None,
            identity={name: value for name, value in self.identity.items() if name not in OF_THE_LOAD},
        )

    def without_cursor(self) -> "Checkpoint":
        """Return a checkpoint without the unfinished load and the cursor, for a run that reads everything.

        If the cursor were kept, the next pass would trust it although the load was refused or ran in another mode.
        """
        return replace(self.without_load(), safe_upto=None, held_upto=None)

    def identified(self, **keys: Any) -> "Checkpoint":
        """Return a checkpoint with these identity keys set and the others kept."""
        return replace(self, identity=self.identity | keys)

    @property
    def mirror_of(self) -> str | None:
        found: str | None = self.identity.get(MIRROR_OF)
        return found

    def blank(self) -> "Checkpoint":
        """Return a checkpoint to load from the beginning. Keep the part numbering and what is known of the target."""
        kept = {name: value for name, value in self.identity.items() if name in OF_THE_TARGET}
        return Checkpoint(batch_no=self.batch_no, identity=kept)
