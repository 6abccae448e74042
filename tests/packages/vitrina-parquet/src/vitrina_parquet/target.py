"""A directory of Parquet files and a manifest that names those that count; readers look at nothing else.

A part becomes a file of its own. The manifest is replaced in one step, under a lock, by the claim that seized the
directory last: a runner that was left behind can write files, but nobody is ever told of them. Of several rows with
one key, the one in the later file counts.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from vitrina.errors import LeaseLost, TargetMismatch
from vitrina.ports.batch import Counts, Key, Part, PartId, Written
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.connector import Opening
from vitrina.ports.target import BaseTarget, Done, Fence, Loading, Prepared, Receipt, Wanted
from vitrina_parquet import ParquetOptions

MANIFEST, LOCK = "manifest.json", ".lock"


class ParquetTarget(BaseTarget):
    """One directory."""

    def __init__(self, opening: Opening, place: Path) -> None:
        self.place = place
        self.options = opening.options if isinstance(opening.options, ParquetOptions) else ParquetOptions()
        self.epoch = opening.work.epoch
        self.key = tuple(opening.definition.target_key or ())

    def seize(self) -> None:
        """From here on no older epoch replaces the manifest."""
        self.place.mkdir(parents=True, exist_ok=True)
        with self._locked(), (self.place / LOCK).open("r+") as lock:
            if int(lock.read() or 0) > self.epoch:
                raise LeaseLost(f"{self.place} was seized by a later epoch than {self.epoch}")
            lock.seek(0)
            lock.write(f"{self.epoch:020}")

    def prepare(self, wanted: Wanted, *, create: bool) -> Prepared:
        if not wanted.key:
            raise TargetMismatch("Parquet files have no key of their own: set target_key")
        self.key = wanted.key
        files = self.manifest().get("files", [])
        return Prepared(wanted.key, bool(files), not files, tuple(column.name for column in wanted.columns))

    def fingerprint(self) -> Sequence[object]:
        return (self.options.compression,)

    def open_load(self, loading: Loading) -> "ParquetLoad":
        return ParquetLoad(self, loading)

    # --- what readers see --------------------------------------------------------------------------------------------

    def manifest(self) -> dict[str, Any]:
        found = self.place / MANIFEST
        return json.loads(found.read_text()) if found.exists() else {}

    def show(self, files: list[str], load: str | None) -> None:
        """Replace the manifest in one step, if the directory is still ours."""
        with self._locked():
            if int((self.place / LOCK).read_text() or 0) != self.epoch:
                raise LeaseLost(f"{self.place} was seized by a later epoch than {self.epoch}")
            beside = self.place / f"{MANIFEST}.{self.epoch}"
            with beside.open("w") as written:
                json.dump({"files": files, "load": load, "key": self.key}, written)
                written.flush()
                os.fsync(written.fileno())
            beside.replace(self.place / MANIFEST)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.place / LOCK).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def scan(self, keys: Sequence[Key] | None = None) -> Iterator[pa.Table]:
        found = read(self.place, self.manifest())
        if found is not None and keys is not None:
            wanted = set(keys)
            found = found.filter(pa.array([key in wanted for key in keys_of(found, self.key)], pa.bool_()))
        if found is not None:
            yield found

    def as_written(self, rows: pa.Table) -> pa.Table:
        return rows


@dataclass
class ParquetLoad:
    """Files that are written aside; which of them count, the checkpoint says."""

    target: ParquetTarget
    loading: Loading

    timed_as = "stage"
    ahead = 0

    @property
    def name(self) -> str | None:
        merges = self.loading.kind == "merge"
        return None if merges else self.loading.name or f"load-{self.target.epoch}"

    def obstacle(self, found: Checkpoint) -> str | None:
        missing = [file for file in self._counted(found) if not (self.target.place / file).exists()]
        return f"{missing[0]} is gone" if missing else None

    def begin(self, fence: Fence) -> None:
        fence.after()

    def resume(self, fence: Fence) -> bool:
        fence.after()
        return not self.is_shown

    @property
    def is_shown(self) -> bool:
        return self.name is not None and self.target.manifest().get("load") == self.name

    @contextmanager
    def writer(self) -> "Iterator[ParquetLoad]":
        yield self

    def write(self, rows: pa.Table, part: PartId) -> Receipt:
        self.target.place.joinpath("parts").mkdir(exist_ok=True)
        options = self.target.options
        pq.write_table(
            rows,
            self.target.place / _file(part),
            compression=options.compression,
            row_group_size=options.rows_per_group,
        )
        return lambda: Written(rows.num_rows, counts=Counts(inserted=rows.num_rows))

    def close(self) -> None:
        """Every file is closed when it is written."""

    def commit(self, part: Part, fence: Fence) -> None:
        if self.loading.kind == "merge" and part.staged_rows:
            shown = self.target.manifest().get("files", [])
            self.target.show([*shown, _file(PartId(self.target.epoch, part.number))], None)
        fence.after(Done(part.counts))

    def publish(self, fence: Fence) -> Counts:
        if self.loading.kind == "replace" and not self.is_shown:
            kept = [] if self.loading.deletes else self.target.manifest().get("files", [])
            self.target.show([*kept, *self._counted(fence.found)], self.name)
        fence.after()
        return Counts(inserted=fence.found.rows)

    def _counted(self, found: Checkpoint) -> list[str]:
        return [_file(PartId(epoch, n)) for epoch, (first, last) in found.accepted for n in range(first, last + 1)]

    def discard(self) -> None:
        """Remove files that the manifest does not name: nobody will."""
        shown = set(self.target.manifest().get("files", []))
        for file in self.target.place.glob("parts/*.parquet"):
            if f"parts/{file.name}" not in shown:
                file.unlink(missing_ok=True)


def _file(part: PartId) -> str:
    return f"parts/{part.epoch}-{part.number}.parquet"


def read(place: Path, manifest: dict[str, Any]) -> pa.Table | None:
    """Read what the manifest names; of several rows with one key the latest counts."""
    tables = [pq.read_table(place / file) for file in manifest.get("files", [])]
    if not tables:
        return None
    rows = pa.concat_tables(tables, promote_options="permissive")
    latest = {key: place for place, key in enumerate(keys_of(rows, manifest["key"]))}
    return rows.take(sorted(latest.values()))


def keys_of(rows: pa.Table, key: Sequence[str]) -> list[Key]:
    columns = [rows.column(name).to_pylist() for name in key]
    return [tuple(map(str, values)) for values in zip(*columns, strict=True)]
