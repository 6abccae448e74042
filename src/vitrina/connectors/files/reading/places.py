"""Provide files to DuckDB: in the folder of the connection itself, or in a folder for downloaded objects."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from vitrina.connectors.files.bucket import BucketObjects
from vitrina.connectors.files.objects import Changed, Listed
from vitrina.connectors.files.reading.listing import BucketFiles, File, FolderFiles, Lists
from vitrina.connectors.files.reading.process import Private
from vitrina.connectors.files.urls import Bucket, Folder, Place
from vitrina.errors import FatalError, TransientError

# Raises if the files are no longer needed.
Check = Callable[[], None]


class Staging(Protocol):
    """Make files readable, and release them afterwards."""

    @property
    def files(self) -> Lists: ...

    # The folder that file names are relative to.
    @property
    def root(self) -> Path: ...

    # How many files are read to learn the columns; few for a bucket, because each must be downloaded.
    @property
    def sampled(self) -> int: ...

    def bring(self, files: Sequence[File], check: Check) -> None:
        """Make files readable below `root`. Raise if one is no longer what was listed, or if `check` raises."""
        ...

    def let_go(self, files: Sequence[File]) -> None:
        """Release files that were read. Raise if one was changed meanwhile."""
        ...


def open_staging(place: Place, private: Private) -> Staging:
    return FolderStaging(place) if isinstance(place, Folder) else BucketStaging(place, private)


class FolderStaging:
    """Read files where they are."""

    sampled = 3

    def __init__(self, place: Folder) -> None:
        self.files = FolderFiles(place.path)
        self.root = self.files.root

    def bring(self, files: Sequence[File], check: Check) -> None:
        self._require_unchanged(files)

    def let_go(self, files: Sequence[File]) -> None:
        self._require_unchanged(files)

    def _require_unchanged(self, files: Sequence[File]) -> None:
        for file in files:
            if self.files.stat(file.name) != file:
                raise changed(file.name)


class BucketStaging:
    """Download objects before they are read, and remove them afterwards."""

    sampled = 1

    def __init__(self, place: Bucket, private: Private) -> None:
        self._objects = BucketObjects(place)
        self.files = BucketFiles(self._objects)
        self.root = private.objects

    def bring(self, files: Sequence[File], check: Check) -> None:
        lacking = [file for file in files if not (self.root / file.name).exists()]
        self._require_room(sum(file.size for file in lacking))
        for file in lacking:
            check()
            self._download(file, check)

    def _download(self, file: File, check: Check) -> None:
        path = self.root / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        # Renamed only when complete, so that a later attempt does not take a part of an object for all of it.
        aside = self.root / f".{uuid4().hex}"
        try:
            self._objects.download(Listed(*file), aside, check)
            aside.rename(path)
        except (Changed, FileNotFoundError) as exc:
            raise changed(file.name) from exc
        finally:
            aside.unlink(missing_ok=True)

    def let_go(self, files: Sequence[File]) -> None:
        for file in files:
            (self.root / file.name).unlink(missing_ok=True)

    def _require_room(self, size: int) -> None:
        free = shutil.disk_usage(self.root).free
        if size > free:
            raise FatalError(
                f"the objects that are read together have {size >> 20} MB, and {self.root.parent.parent} has"
                f" {free >> 20} MB left: set TMPDIR of the runners to a larger disk, or read fewer at once"
            )


def changed(name: str) -> TransientError:
    return TransientError(
        f"{name} was changed or removed while it was read: write files under a name that begins with a dot, then rename"
    )
