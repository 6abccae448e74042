"""The checkpoint: which parts of a load count, and where the next batch starts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from vitrina.ports.batch import PartId

# The first and the last number of a run of parts.
Range = tuple[int, int]

# Key of the identity of a checkpoint in the metastore that is a copy of one in a ledger: the database of that ledger.
MIRROR_OF = "mirror_of"
# Key of the identity: the latest values of the load so far, by the names of the checks that ask for them.
FRESHEST = "freshest"
# Key of the identity: the ranges of the key that a load is cut into and that are not accepted yet.
RANGES = "ranges"
# Keys of `Checkpoint.identity` that say something of the unfinished load only: they go with it.
OF_THE_LOAD: tuple[str, ...] = ("snapshot_at", FRESHEST, RANGES)
# Keys that say what is in the target: a checkpoint that is reset keeps them.
OF_THE_TARGET: tuple[str, ...] = ("columns", "history")


@dataclass(frozen=True)
class Accepted:
    """A set of parts, as ranges of their numbers for each epoch.

    Parts may be accepted in any order: what counts is named, not what came last.
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
        """Write it as `{epoch: [[1, 40], [43, 43]]}`."""
        return {str(epoch): [list(one) for one in ranges] for epoch, ranges in self.ranges.items()}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Accepted":
        """Read it. Versions up to 0.1 wrote only the highest number of each epoch, which counted with all below."""
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
    """Cursor values are text and are compared only in SQL, in their own type."""

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
    # What all this was taken of. Each key belongs to one part of the platform; an unknown one is kept as it is.
    identity: dict[str, Any] = field(default_factory=dict)

    def accepting(self, part: PartId, rows: int, last_key: str | None) -> "Checkpoint":
        """Count one more part of the load, and continue after it."""
        return replace(
            self,
            batch_no=max(self.batch_no, part.number),
            accepted=self.accepted.including(part),
            rows=self.rows + rows,
            last_key=last_key,
            last_id=None,
        )

    def without_load(self) -> "Checkpoint":
        """Forget the unfinished load: its parts no longer count."""
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
        """Forget the unfinished load and its position, for a run that reads everything.

        The next pass would trust a position that was kept, although the load was refused, or was one of another mode.
        """
        return replace(self.without_load(), safe_upto=None, held_upto=None)

    def identified(self, **keys: Any) -> "Checkpoint":
        """Set these keys of the identity and keep the others."""
        return replace(self, identity=self.identity | keys)

    @property
    def mirror_of(self) -> str | None:
        found: str | None = self.identity.get(MIRROR_OF)
        return found

    def blank(self) -> "Checkpoint":
        """Begin from the beginning. The numbering of parts continues, and what the target holds is still known."""
        kept = {name: value for name, value in self.identity.items() if name in OF_THE_TARGET}
        return Checkpoint(batch_no=self.batch_no, identity=kept)
