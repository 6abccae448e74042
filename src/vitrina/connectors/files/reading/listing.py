"""Which files a pattern names, below the folder or prefix of a connection and nowhere else."""

import fnmatch
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, Protocol

from vitrina.connectors.files.bucket import BucketObjects
from vitrina.errors import CannotConnect, FatalError, SourceQueryFailed

# What a checkpoint remembers of each file is small, and there is an end to it.
MOST_FILES = 100_000
_WILD = frozenset("*?[")

Wanted = Callable[[str], bool]


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

    def list(self, folder: str, wanted: Wanted) -> Iterator[File]:
        """List the wanted files below a folder, "" for all, in no particular order."""
        ...


def find(place: Lists, pattern: str) -> list[File]:
    """List the files that a pattern names, by name."""
    parts = split(pattern)
    found = list(place.list("/".join(_fixed(parts)), lambda name: matches(name.split("/"), parts)))
    if len(found) > MOST_FILES:
        raise SourceQueryFailed(f"{pattern!r} names {len(found):,} files, more than {MOST_FILES:,}: name fewer")
    for file in found:
        if _WILD & set(file.name):
            raise SourceQueryFailed(f"{file.name!r} has one of * ? [ in its name, which reads as a pattern: rename it")
    return sorted(found)


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


def _fixed(parts: Sequence[str]) -> list[str]:
    """Return the folders in which every file of the pattern is."""
    fixed = []
    for part in parts[:-1]:
        if _WILD & set(part):
            break
        fixed.append(part)
    return fixed


def matches(names: Sequence[str], parts: Sequence[str]) -> bool:
    """Compare folder by folder. Names that begin with a dot are hidden: files are written under such names."""
    if not parts or not names:
        return not parts and not names
    if names[0].startswith("."):
        return False
    if parts[0] == "**":
        return matches(names, parts[1:]) or matches(names[1:], parts)
    return fnmatch.fnmatchcase(names[0], parts[0]) and matches(names[1:], parts[1:])


class FolderFiles:
    """Files of a folder of the runner's machine."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise CannotConnect(f"{folder} is no folder: make it, for the login of the runners, or mount it")
        self.root = folder.resolve()

    def list(self, folder: str, wanted: Wanted) -> Iterator[File]:
        """List regular files. Linked folders are not entered, and a link that leads out is refused by name."""
        for parent, _, names in os.walk(self._inside(folder), onerror=_refuse_unreadable):
            for path in (Path(parent, name) for name in names):
                if wanted(path.relative_to(self.root).as_posix()):
                    yield from self._file(path)

    def stat(self, name: str) -> File | None:
        """Look at a file again; None when it is gone."""
        return next(self._file(self.root / name), None)

    def _inside(self, folder: str) -> Path:
        found = (self.root / folder).resolve()
        if not found.is_relative_to(self.root):
            raise SourceQueryFailed(f"{folder} is a link that leads out of the connection's folder")
        return self.root / folder

    def _file(self, path: Path) -> Iterator[File]:
        name = path.relative_to(self.root).as_posix()
        try:
            if not path.resolve(strict=True).is_relative_to(self.root):
                raise SourceQueryFailed(f"{name} is a link that leads out of the connection's folder: remove it")
            about = path.stat()
        except FileNotFoundError:
            return  # removed just now, or a link to nothing
        except OSError as exc:
            raise SourceQueryFailed(f"{name} cannot be read: {exc.strerror or exc}") from exc
        if stat.S_ISREG(about.st_mode):
            yield File(name, about.st_size, about.st_mtime, f"{about.st_mtime_ns}")


def _refuse_unreadable(exc: OSError) -> None:
    if not isinstance(exc, FileNotFoundError):
        raise FatalError(f"{exc.filename} cannot be listed by the login of the runner: {exc.strerror}") from exc


class BucketFiles:
    """Objects of a bucket, below the prefix of the connection."""

    def __init__(self, objects: BucketObjects) -> None:
        self._objects = objects

    def list(self, folder: str, wanted: Wanted) -> Iterator[File]:
        for one in self._objects.list(f"{folder}/" if folder else ""):
            parts = one.name.split("/")
            # They become paths of files here: none may lead elsewhere.
            if "\0" not in one.name and not any(part in ("", ".", "..") for part in parts) and wanted(one.name):
                yield File(one.name, one.size, one.modified, one.version)


def newest(files: Sequence[File]) -> str | None:
    """Return when the newest file was written, as a time that lag is counted from."""
    if not files:
        return None
    latest = max(file.modified for file in files)
    return datetime.fromtimestamp(latest, UTC).isoformat(sep=" ", timespec="microseconds")
