"""List the files that a pattern matches, below the folder or prefix of a connection and nowhere else."""

import fnmatch
import itertools
import os
import stat
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, Protocol

from vitrina.connectors.files.bucket import BucketObjects
from vitrina.errors import CannotConnect, FatalError, SourceQueryFailed

# Bounds the checkpoint, which remembers a few bytes of each file.
MOST_FILES = 100_000
_WILD = frozenset("*?[")


class File(NamedTuple):
    """Describe a file as it was listed. `version` changes with its content: a modification time, or an ETag."""

    name: str
    size: int
    modified: float
    version: str

    @property
    def digest(self) -> bytes:
        """Return a short digest of the file and its content."""
        return sha256(f"{self.name}\0{self.size}\0{self.version}".encode()).digest()[:8]


class Lists(Protocol):
    """Define a place whose files can be listed."""

    def list(self, pattern: "Pattern") -> Iterator[File]:
        """Yield the files that match a pattern, in no particular order."""
        ...


class Pattern:
    """Match file names by folder. Names that begin with a dot are hidden; writers use them for partial files."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._parts = split(text)

    @property
    def folder(self) -> str:
        """Return the folder that contains every file of the pattern; "" for all."""
        return "/".join(itertools.takewhile(lambda part: not _WILD & set(part), self._parts[:-1]))

    def matches(self, name: str) -> bool:
        return len(self._parts) in self._places(name.split("/"))

    def leads_into(self, folder: str) -> bool:
        """Return whether files below this folder may match."""
        return any(place < len(self._parts) for place in self._places(folder.split("/")))

    def _places(self, names: Sequence[str]) -> set[int]:
        """Return all positions in the pattern after these names. Backtracking over several ** would be exponential."""
        places = self._with_none({0})
        for name in names:
            places = self._with_none({after for place in places for after in self._after(place, name)})
        return places

    def _after(self, place: int, name: str) -> Iterator[int]:
        if place == len(self._parts) or name.startswith("."):
            return
        if self._parts[place] == "**":
            yield place
        elif fnmatch.fnmatchcase(name, self._parts[place]):
            yield place + 1

    def _with_none(self, places: set[int]) -> set[int]:
        """Add the positions that are reached when ** matches no folder."""
        found = set(places)
        for place, part in enumerate(self._parts):
            if place in found and part == "**":
                found.add(place + 1)
        return found


def find(place: Lists, text: str) -> list[File]:
    """Return the files that match a pattern, sorted by name."""
    found = list(itertools.islice(place.list(Pattern(text)), MOST_FILES + 1))
    if len(found) > MOST_FILES:
        raise SourceQueryFailed(f"{text!r} names more than {MOST_FILES:,} files: name fewer")
    for file in found:
        _refuse_misread(file.name)
    return sorted(found)


def _refuse_misread(name: str) -> None:
    """Refuse names that DuckDB would interpret otherwise, such as as a file elsewhere on this machine."""
    if _WILD & set(name):
        raise SourceQueryFailed(f"{name!r} has one of * ? [ in its name, which reads as a pattern: rename it")
    if not name.isprintable() and name != name.encode(errors="replace").decode():
        raise SourceQueryFailed(f"{name!a} is a name that is no UTF-8: rename it")
    if name.startswith("~") or name.partition("/")[0].endswith(":"):
        raise SourceQueryFailed(f"{name!r} reads as a path outside of the connection's folder: rename it")


def split(pattern: str) -> list[str]:
    """Split a pattern into its parts. Refuse one that is not a relative path or could leave the folder."""
    if "://" in pattern:
        raise SourceQueryFailed(f"{pattern!r} is an address: name files of the connection alone, such as 'sales/*.csv'")
    parts = pattern.split("/")
    if pattern.startswith(("/", "~")) or "\\" in pattern or "\0" in pattern or any(p in ("", ".", "..") for p in parts):
        raise SourceQueryFailed(
            f"{pattern!r} is no path below the connection's folder: write one without a leading slash, ., .. and \\"
        )
    return parts


class FolderFiles:
    """List files in a folder of the runner's machine."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise CannotConnect(f"{folder} is no folder: make it, for the login of the runners, or mount it")
        self.root = folder.resolve()

    def list(self, pattern: Pattern) -> Iterator[File]:
        """Yield regular files. Linked folders are not entered, and a link that leaves the folder is refused by name."""
        for parent, folders, names in os.walk(self._inside(pattern.folder), onerror=_refuse_unreadable):
            folders[:] = [name for name in folders if pattern.leads_into(self._name(Path(parent, name)))]
            for path in (Path(parent, name) for name in names):
                if pattern.matches(self._name(path)):
                    yield from self._file(path)

    def stat(self, name: str) -> File | None:
        """Return the file as it is now; None if it was removed."""
        return next(self._file(self.root / name), None)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _inside(self, folder: str) -> Path:
        found = (self.root / folder).resolve()
        if not found.is_relative_to(self.root):
            raise SourceQueryFailed(f"{folder} is a link that leads out of the connection's folder")
        return self.root / folder

    def _file(self, path: Path) -> Iterator[File]:
        name = self._name(path)
        try:
            if not path.resolve(strict=True).is_relative_to(self.root):
                raise SourceQueryFailed(f"{name} is a link that leads out of the connection's folder: remove it")
            about = path.stat()
        except FileNotFoundError:
            return  # removed just now, or a broken link
        except (OSError, RuntimeError) as exc:  # the latter: a link to itself
            raise SourceQueryFailed(f"{name} cannot be read: {getattr(exc, 'strerror', None) or exc}") from exc
        if stat.S_ISREG(about.st_mode):
            yield File(name, about.st_size, about.st_mtime, f"{about.st_mtime_ns}")


def _refuse_unreadable(exc: OSError) -> None:
    if not isinstance(exc, FileNotFoundError | NotADirectoryError):
        raise FatalError(f"{exc.filename} cannot be listed by the login of the runner: {exc.strerror}") from exc


class BucketFiles:
    """List objects of a bucket, below the prefix of the connection."""

    def __init__(self, objects: BucketObjects) -> None:
        self._objects = objects

    def list(self, pattern: Pattern) -> Iterator[File]:
        for one in self._objects.list(f"{pattern.folder}/" if pattern.folder else ""):
            parts = one.name.split("/")
            # The names become paths of local files, so none may lead elsewhere.
            if (
                "\0" not in one.name
                and not any(part in ("", ".", "..") for part in parts)
                and pattern.matches(one.name)
            ):
                yield File(one.name, one.size, one.modified, one.version)


def newest(files: Sequence[File]) -> str | None:
    """Return when the newest file was written, the time from which lag is counted."""
    if not files:
        return None
    latest = max(file.modified for file in files)
    return datetime.fromtimestamp(latest, UTC).isoformat(sep=" ", timespec="microseconds")
