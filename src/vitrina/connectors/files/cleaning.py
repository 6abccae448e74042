"""Removing files that nothing names: of loads that were given up, and of generations that are no longer kept."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from vitrina.connectors.files import names
from vitrina.connectors.files.objects import Objects

# Another pipeline may be at work on such a file; one that has been so for a week is given up.
_OTHERS_SECONDS = 7 * 86_400.0


@dataclass(frozen=True)
class Cleaner:
    """The claim that cleans. It leaves what later claims of its pipeline wrote."""

    pipeline: str
    epoch: int
    require_held: Callable[[], object]


def clean(objects: Objects, folder: str, named: set[str], cleaner: Cleaner, *, but: frozenset[str]) -> int:
    """Delete files that are not named, except in the folders of the loads in `but`; return how many."""
    left = [path for path in _left(objects, folder, named, cleaner) if names.generation_of(path) not in but]
    if left:
        cleaner.require_held()
        objects.delete(f"{folder}/{path}" for path in left)
    return len(left)


def _left(objects: Objects, folder: str, named: set[str], cleaner: Cleaner) -> Iterator[str]:
    listed = [(one.name.removeprefix(f"{folder}/"), one.modified) for one in objects.list(f"{folder}/{names.DATA}/")]
    # By the clock of the place itself: that of this machine may be wrong.
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
