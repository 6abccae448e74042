"""Remove files that no manifest names: those of abandoned loads, and of generations that are no longer kept."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from vitrina.connectors.files import names
from vitrina.connectors.files.objects import Objects

# Another pipeline may still be writing such a file; after a week it is considered abandoned.
_OTHERS_SECONDS = 7 * 86_400.0


@dataclass(frozen=True)
class Cleaner:
    """Identify the claim that cleans. It keeps what later claims of its pipeline wrote."""

    pipeline: str
    epoch: int
    require_held: Callable[[], object]


def clean(objects: Objects, folder: str, named: set[str], cleaner: Cleaner, *, but: frozenset[str]) -> int:
    """Delete files that are not named, except in the folders of the loads in `but`; return their number."""
    left = [path for path in _left(objects, folder, named, cleaner) if names.generation_of(path) not in but]
    if left:
        cleaner.require_held()
        objects.delete(f"{folder}/{path}" for path in left)
    return len(left)


def _left(objects: Objects, folder: str, named: set[str], cleaner: Cleaner) -> Iterator[str]:
    listed = [(one.name.removeprefix(f"{folder}/"), one.modified) for one in objects.list(f"{folder}/{names.DATA}/")]
    # Use the storage's own clock, because that of this machine may be wrong.
    now = max((modified for _, modified in listed), default=0.0)
    for path, modified in listed:
        about = names.parse(path)
        if about is None or path in named:
            continue
        if about.owner == cleaner.pipeline:
            if about.epoch <= cleaner.epoch:
                yield path
        elif modified < now - _OTHERS_SECONDS:
            yield path
