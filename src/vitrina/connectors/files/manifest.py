"""Read and replace the manifest of a target, the one object that lists the files that are visible."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from uuid import uuid4

from vitrina.connectors.files.objects import Changed, Objects, Version
from vitrina.errors import Disconnected, FatalError, LeaseLost
from vitrina.ports.schema import Column

MANIFEST = "manifest.json"
FORMAT = 1
# How often a change is retried when other pipelines write to a shared target at the same time.
_TRIES = 20
_PAUSE_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0)


@dataclass(frozen=True)
class DataFile:
    """Describe a Parquet file by its path below the target's folder."""

    path: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class Generation:
    """Describe what readers see. `log`: a key may occur several times, and its highest `_version` counts."""

    name: str
    kind: Literal["snapshot", "log"]
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    partition_by: tuple[str, ...] = ()
    files: tuple[DataFile, ...] = ()

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def as_json(self) -> dict[str, Any]:
        return {
            "generation": self.name,
            "kind": self.kind,
            "key": list(self.key),
            "columns": [{"name": column.name, "type": column.type} for column in self.columns],
            "partition_by": list(self.partition_by),
            "rows": self.rows,
            "files": [vars(file) for file in self.files],
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Generation":
        return cls(
            found["generation"],
            found["kind"],
            tuple(found["key"]),
            tuple(Column(column["name"], column["type"]) for column in found["columns"]),
            tuple(found["partition_by"]),
            tuple(DataFile(file["path"], file["rows"], file["bytes"]) for file in found["files"]),
        )


@dataclass(frozen=True)
class Writing:
    """Record what a pipeline did to the target: the epoch of its last claim, and the last load that it published."""

    epoch: int = 0
    load: str | None = None


@dataclass(frozen=True)
class Manifest:
    """Hold the whole manifest. Unknown fields are not preserved, because another format is refused."""

    shown: Generation | None = None
    # Replaced generations that are kept, the latest first.
    previous: tuple[Generation, ...] = ()
    # Pipelines that write here, by id.
    writers: Mapping[str, Writing] = field(default_factory=dict)
    # The highest sequence number of a visible file; new `_version` values continue from it.
    last_sequence: int = 0
    # Identifies this content, so that a writer whose reply was lost recognises its own change.
    change: str = ""

    def named(self) -> set[str]:
        """Return the paths of all files that may be read."""
        generations = (*((self.shown,) if self.shown else ()), *self.previous)
        return {file.path for generation in generations for file in generation.files}

    def writing(self, pipeline: str, **what: Any) -> "Manifest":
        now = replace(self.writers.get(pipeline, Writing()), **what)
        return replace(self, writers={**self.writers, pipeline: now})

    def to_bytes(self) -> bytes:
        shown = self.shown.as_json() if self.shown else {"generation": None, "files": []}
        found = {
            "format": FORMAT,
            **shown,
            "previous": [generation.as_json() for generation in self.previous],
            "writers": {pipeline: vars(writing) for pipeline, writing in self.writers.items()},
            "last_sequence": self.last_sequence,
            "change": self.change,
        }
        return json.dumps(found, ensure_ascii=False, indent=1).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Manifest":
        try:
            found = json.loads(content)
            if found["format"] != FORMAT:
                raise FatalError(f"{MANIFEST} is of format {found['format']}, and this version reads {FORMAT}: upgrade")
            return cls(
                Generation.from_json(found) if found["generation"] else None,
                tuple(map(Generation.from_json, found["previous"])),
                {pipeline: Writing(**writing) for pipeline, writing in found["writers"].items()},
                found["last_sequence"],
                found["change"],
            )
        except (ValueError, KeyError, TypeError) as exc:
            raise FatalError(f"{MANIFEST} was not written by Vitrina: move it away, or choose another target") from exc


class BaseLedger(ABC):
    """Read and change what a target shows, on behalf of one claim of a pipeline."""

    def __init__(self, name: str, *, pipeline: str, epoch: int, wait: Callable[[float], object]) -> None:
        self._name = name
        self._pipeline = pipeline
        self._epoch = epoch
        self._wait = wait

    def read(self) -> Manifest:
        return self._find()[0]

    def seize(self) -> None:
        """Record the claim's epoch. Requests of an older claim expect a manifest that no longer exists, and fail."""

        def take(found: Manifest) -> Manifest:
            if found.writers.get(self._pipeline, Writing()).epoch > self._epoch:
                raise self._late()
            return found.writing(self._pipeline, epoch=self._epoch)

        self._change(take)

    def change(self, make: Callable[[Manifest], Manifest], record: bytes = b"") -> Manifest:
        """Replace the manifest by the result of `make`, as long as the claim is the latest of its pipeline.

        `record` is the checkpoint, for storage that keeps it with the change.
        """

        def held(found: Manifest) -> Manifest:
            if found.writers.get(self._pipeline, Writing()).epoch != self._epoch:
                raise self._late()
            return make(found)

        return self._change(held, record)

    def _change(self, make: Callable[[Manifest], Manifest], record: bytes = b"") -> Manifest:
        change = uuid4().hex
        for attempt in range(_TRIES):
            pause = _PAUSE_SECONDS[min(attempt, len(_PAUSE_SECONDS) - 1)]
            found, version = self._find()
            if self._is_applied(change, found, version):
                return found  # it was applied, and the reply was lost
            wanted = replace(make(found), change=change)
            try:
                self._store(wanted, version, record)
            except Changed:
                self._wait(pause)
            except Disconnected:
                # It may have been applied, or still be under way. The next read shows it; a late request finds another
                # version.
                if attempt >= len(_PAUSE_SECONDS):
                    raise
                self._wait(pause)
            else:
                return wanted
        raise Disconnected(f"{self._name} keeps changing: other pipelines write to it all the time")

    @abstractmethod
    def _find(self) -> tuple[Manifest, Any]:
        """Return the manifest, and a version that shows whether it has been replaced since."""

    @abstractmethod
    def _store(self, wanted: Manifest, version: Any, record: bytes) -> None:
        """Replace the manifest that was found with `version`. Raise `Changed` if it was replaced since."""

    def _is_applied(self, change: str, found: Manifest, version: Any) -> bool:
        return found.change == change

    def _late(self) -> LeaseLost:
        return LeaseLost(f"{self._name} was seized by a later claim than that of epoch {self._epoch}")


class Ledger(BaseLedger):
    """Store the manifest as an object beside the files."""

    def __init__(
        self, objects: Objects, folder: str, *, pipeline: str, epoch: int, wait: Callable[[float], object]
    ) -> None:
        super().__init__(f"{folder}/{MANIFEST}", pipeline=pipeline, epoch=epoch, wait=wait)
        self._objects = objects

    def _find(self) -> tuple[Manifest, Version | None]:
        found = self._objects.find(self._name)
        return (Manifest.from_bytes(found.content), found.version) if found else (Manifest(), None)

    def _store(self, wanted: Manifest, version: Version | None, record: bytes) -> None:
        self._objects.replace(self._name, wanted.to_bytes(), version)
