"""Which files a pattern names, below the folder or prefix of a connection and nowhere else."""

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

# What a checkpoint remembers of each file is small, and there is an end to it.
MOST_FILES = 100_000
_WILD = frozenset("*?[")


class File(NamedTuple):
    """A file as it was listed. `version` differs when its content does: a modification time, or an ETag."""

    name: str
    size: int
    modified: float
    version: str

    @property
    def digest(self) -> bytes:
        """Identify the file and its content in few bytes."""
        return sha256(f"{self.name}\0{self.size}\0{self.version}".encode()).digest()[:8]


class Lists(Protocol):
    """A place whose files can be listed."""

    def list(self, pattern: "Pattern") -> Iterator[File]:
        """List the files of a pattern, in no particular order."""
        ...


class Pattern:
    """Names of files, folder by folder. Names that begin with a dot are hidden: files are written under such names."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._parts = split(text)

    @property
    def folder(self) -> str:
        """The folder in which every file of the pattern is; "" for all."""
        return "/".join(itertools.takewhile(lambda part: not _WILD & set(part), self._parts[:-1]))

    def matches(self, name: str) -> bool:
        return len(self._parts) in self._places(name.split("/"))

    def leads_into(self, folder: str) -> bool:
        """Tell whether files below this folder may match."""
        return any(place < len(self._parts) for place in self._places(folder.split("/")))

    def _places(self, names: Sequence[str]) -> set[int]:
        """Follow all ways through the pattern at once: tried one after the other, several ** would take for ever."""
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
        """Let ** stand for no folder as well."""
        found = set(places)
        for place, part in enumerate(self._parts):
            if place in found and part == "**":
                found.add(place + 1)
        return found


def find(place: Lists, text: str) -> list[File]:
    """List the files that a pattern names, by name."""
    found = list(itertools.islice(place.list(Pattern(text)), MOST_FILES + 1))
    if len(found) > MOST_FILES:
        raise SourceQueryFailed(f"{text!r} names more than {MOST_FILES:,} files: name fewer")
    for file in found:
        _refuse_misread(file.name)
    return sorted(found)


def _refuse_misread(name: str) -> None:
    """Refuse names that DuckDB takes for something else, such as a file elsewhere on this machine."""
    if _WILD & set(name):
        raise SourceQueryFailed(f"{name!r} has one of * ? [ in its name, which reads as a pattern: rename it")
    if not name.isprintable() and name != name.encode(errors="replace").decode():
        raise SourceQueryFailed(f"{name!a} is a name that is no UTF-8: rename it")
    if name.startswith("~") or name.partition("/")[0].endswith(":"):
        raise SourceQueryFailed(f"{name!r} reads as a path outside of the connection's folder: rename it")


def split(pattern: str) -> list[str]:
    """Take a pattern apart. Refuse one that is no relative path, or that could lead out of the folder."""
    if "://" in pattern:
        raise SourceQueryFailed(f"{pattern!r} is an address: name files of the connection alone, such as 'sales/*.csv'")
    parts = pattern.split("/")
    if pattern.startswith(("/", "~")) or "\\" in pattern or "\0" in pattern or any(p in ("", ".", "..") for p in parts):
        raise SourceQueryFailed(
            f"{pattern!r} is no path below the connection's folder: write one without a leading slash, ., .. and \\"
        )
    return parts


class FolderFiles:
    """Files of a folder of the runner's machine."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise CannotConnect(f"{folder} is no folder: make it, for the login of the runners, or mount it")
        self.root = folder.resolve()

    def list(self, pattern: Pattern) -> Iterator[File]:
        """List regular files. Linked folders are not entered, and a link that leads out is refused by name."""
        for parent, folders, names in os.walk(self._inside(pattern.folder), onerror=_refuse_unreadable):
            folders[:] = [name for name in folders if pattern.leads_into(self._name(Path(parent, name)))]
            for path in (Path(parent, name) for name in names):
                if pattern.matches(self._name(path)):
                    yield from self._file(path)

    def stat(self, name: str) -> File | None:
        """Look at a file again; None when it is gone."""
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
            return  # removed just now, or a link to nothing
        except (OSError, RuntimeError) as exc:  # the latter: a link to itself
            raise SourceQueryFailed(f"{name} cannot be read: {getattr(exc, 'strerror', None) or exc}") from exc
        if stat.S_ISREG(about.st_mode):
            yield File(name, about.st_size, about.st_mtime, f"{about.st_mtime_ns}")


def _refuse_unreadable(exc: OSError) -> None:
    if not isinstance(exc, FileNotFoundError | NotADirectoryError):
        raise FatalError(f"{exc.filename} cannot be listed by the login of the runner: {exc.strerror}") from exc


class BucketFiles:
    """Objects of a bucket, below the prefix of the connection."""

    def __init__(self, objects: BucketObjects) -> None:
        self._objects = objects

    def list(self, pattern: Pattern) -> Iterator[File]:
        for one in self._objects.list(f"{pattern.folder}/" if pattern.folder else ""):
            parts = one.name.split("/")
            # They become paths of files here: none may lead elsewhere.
            if (
                "\0" not in one.name
                and not any(part in ("", ".", "..") for part in parts)
                and pattern.matches(one.name)
            ):
                yield File(one.name, one.size, one.modified, one.version)


def newest(files: Sequence[File]) -> str | None:
    """Return when the newest file was written, as a time that lag is counted from."""
    if not files:
        return None
    latest = max(file.modified for file in files)
    return datetime.fromtimestamp(latest, UTC).isoformat(sep=" ", timespec="microseconds")
