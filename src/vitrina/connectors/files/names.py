"""Build and parse the names of files, which hold their parts, and the folders of their partition."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from vitrina.errors import FatalError

DATA = "data"
# The name that Hive and its successors give to a partition whose value is NULL.
_NULL = "__HIVE_DEFAULT_PARTITION__"
_LONGEST_FOLDER = 240

_FILE = re.compile(
    r"(?P<owner>[0-9a-f]{32})-(?P<epoch>\d+)-(?P<attempt>[0-9a-f]+)-(?P<first>\d+)-(?P<last>\d+)-(?P<place>\d+)"
    r"-(?P<rows>\d+)\.parquet"
)


@dataclass(frozen=True)
class FileName:
    """Hold the owner of a file, the parts whose rows it holds, its position among their files, and its rows."""

    owner: str
    epoch: int
    # Identifies one attempt of a claim, so that a late file of an earlier attempt is not taken for one of a later.
    attempt: str
    first: int
    last: int
    place: int
    rows: int

    def __str__(self) -> str:
        parts = (self.owner, self.epoch, self.attempt, self.first, self.last, self.place, self.rows)
        return "-".join(map(str, parts)) + ".parquet"


def parse(path: str) -> FileName | None:
    """Parse the name of a file, finished or not; return None if Vitrina did not write it."""
    found = _FILE.search(path.rpartition("/")[2])
    if not found:
        return None
    numbers = {name: int(found[name]) for name in ("epoch", "first", "last", "place", "rows")}
    return FileName(found["owner"], attempt=found["attempt"], **numbers)


def get(path: str) -> FileName:
    """Parse the name of a file that Vitrina wrote."""
    found = parse(path)
    if found is None:
        raise ValueError(f"{path} is not the name of a file that Vitrina wrote")
    return found


def generation_of(path: str) -> str:
    """Return the generation that a path below the target's folder belongs to."""
    return path.split("/")[1]


def partition_folder(columns: Sequence[str], values: Sequence[str | None]) -> str:
    """Return the folders of a partition: `country=PT/day=2026-01-31/`."""
    return "".join(f"{_folder(name, value)}/" for name, value in zip(columns, values, strict=True))


def _folder(name: str, value: str | None) -> str:
    made = f"{quote(name, safe='')}={_NULL if value is None else quote(value, safe=' ')}"
    if len(made) > _LONGEST_FOLDER:
        raise FatalError(f"column {name!r} has a value of {len(value or '')} characters: too long to name a folder")
    return made


def partition_values(path: str) -> Mapping[str, str | None]:
    """Return the values of a partition from a path."""
    folders = (folder.partition("=") for folder in path.split("/")[2:-1])
    return {unquote(name): None if value == _NULL else unquote(value) for name, _, value in folders}
