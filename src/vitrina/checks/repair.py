"""Making the mart equal to its source for given keys: a batch at a time, each read anew and written under the fence."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from vitrina.checks.compare import Difference, Kind
from vitrina.ports.batch import Key
from vitrina.ports.compare import Side

TextRow = dict[str, str | None]


@dataclass
class Repaired:
    """What a repair has done so far."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    unchanged: int = 0
    rejected: int = 0  # by the target; they stay different
    keys: int = 0
    paused: bool = False


class Mender(Protocol):
    """Who may write to the mart."""

    def mend(self, rows: Sequence[TextRow], absent: Sequence[Key]) -> Repaired:
        """Upsert the rows and delete the keys, in one fenced transaction."""
        ...

    @property
    def pause_asked(self) -> bool: ...


def plan(differences: Sequence[Difference]) -> dict[str, int]:
    """What a repair would do."""
    extra = sum(difference.kind is Kind.EXTRA for difference in differences)
    return {"upserts": len(differences) - extra, "deletes": extra}


def repair(differences: Sequence[Difference], source: Side, mender: Mender, *, batch_rows: int) -> Repaired:
    """Rows are read again in their batch: what the source has now counts, not what it had when it was compared."""
    done = Repaired()
    for keys in _batches([difference.key for difference in differences], batch_rows):
        with source.snapshot():
            rows = source.texts(keys)
        batch = mender.mend(list(rows.values()), [key for key in keys if key not in rows])
        done.inserted += batch.inserted
        done.updated += batch.updated
        done.deleted += batch.deleted
        done.unchanged += batch.unchanged
        done.keys += len(keys)
        if mender.pause_asked:
            done.paused = True
            break
    return done


def _batches(keys: Sequence[Key], size: int) -> Iterator[Sequence[Key]]:
    for start in range(0, len(keys), size):
        yield keys[start : start + size]


def outcome(done: Repaired, found: int) -> dict[str, Any]:
    return {**vars(done), "done": True, "remaining": found - done.keys}
