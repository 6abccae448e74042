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
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from vitrina.errors import LeaseLost, TargetMismatch
from vitrina.ports.batch import Counts, Key, Part, PartId, Written, keys_of
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.connector import Opening
from vitrina.ports.target import BaseTarget, DirectLoad, Done, Fence, Loading, Prepared, Receipt, Wanted
from vitrina_parquet import ParquetOptions


class ParquetTarget(BaseTarget):
    """One directory."""

    def __init__(self, opening: Opening, place: Path) -> None:
        self.place = place
        self.options = opening.options if isinstance(opening.options, ParquetOptions) else ParquetOptions()
        self.epoch = opening.work.epoch
        self.key = tuple(opening.definition.target_key or ())

    def seize(self) -> None:
        """From here on no older epoch replaces the manifest."""
        (self.place / "parts").mkdir(parents=True, exist_ok=True)
        with self._locked() as lock:
            lock.truncate(0)
            lock.write(f"{self.epoch}")

    @contextmanager
    def _locked(self) -> Iterator[IO[str]]:
        with (self.place / ".lock").open("a+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lock.seek(0)
            if int(lock.read() or 0) > self.epoch:
                raise LeaseLost(f"{self.place} was seized by a later epoch than {self.epoch}")
            yield lock

    def prepare(self, wanted: Wanted, *, create: bool) -> Prepared:
        if not wanted.key:
            raise TargetMismatch("Parquet files have no key of their own: set target_key")
        self.key = wanted.key
        files = self.files()
        return Prepared(wanted.key, bool(files), not files, tuple(column.name for column in wanted.columns))

    def fingerprint(self) -> Sequence[object]:
        return (self.options.compression,)

    def open_load(self, loading: Loading) -> "ParquetLoad":
        return ParquetLoad(self, loading)

    # --- what readers see --------------------------------------------------------------------------------------------

    def manifest(self) -> dict[str, Any]:
        found = self.place / "manifest.json"
        return json.loads(found.read_text()) if found.exists() else {}

    def files(self) -> list[str]:
        return list(self.manifest().get("files", []))

    def show(self, files: list[str], load: str | None) -> None:
        """Replace the manifest in one step, if the directory is still ours."""
        beside = self.place / f"manifest.json.{self.epoch}"
        with beside.open("w") as written:
            json.dump({"files": files, "load": load, "key": self.key}, written)
            written.flush()
            os.fsync(written.fileno())
        with self._locked():
            beside.replace(self.place / "manifest.json")

    def scan(self, keys: Sequence[Key] | None = None) -> Iterator[pa.Table]:
        found = read(self.place, self.manifest())
        if found is not None:
            yield found if keys is None else _picked(found, self.key, keys, there=True)

    def as_written(self, rows: pa.Table) -> pa.Table:
        return rows


class ParquetLoad(DirectLoad):
    """Files that are written aside; which of them count, the checkpoint says."""

    def __init__(self, target: ParquetTarget, loading: Loading) -> None:
        self.target = target
        self.loading = loading
        self.name = None if loading.kind == "merge" else loading.name or f"load-{target.epoch}"
        # The part that is being written, which may come in several pieces, and what has come of it.
        self._part: PartId | None = None
        self._pieces: list[pa.Table] = []

    def obstacle(self, found: Checkpoint) -> str | None:
        missing = [file for file in self._counted(found) if not (self.target.place / file).exists()]
        return f"{missing[0]} is gone" if missing else None

    @property
    def is_shown(self) -> bool:  # type: ignore[override]
        return self.name is not None and self.target.manifest().get("load") == self.name

    def write(self, rows: pa.Table, part: PartId) -> Receipt:
        if part != self._part:
            self._part, self._pieces = part, []
        self._pieces.append(rows)
        packed = {"compression": self.target.options.compression, "row_group_size": self.target.options.rows_per_group}
        pq.write_table(pa.concat_tables(self._pieces), self.target.place / _file(part), **packed)
        return lambda: Written(rows.num_rows, counts=Counts(inserted=rows.num_rows))

    def commit(self, part: Part, fence: Fence) -> None:
        if self.loading.kind == "merge" and part.staged_rows:
            self.target.show([*self.target.files(), _file(PartId(self.target.epoch, part.number))], None)
        fence.after(Done(part.counts))

    def publish(self, fence: Fence) -> Counts:
        if self.loading.kind == "replace" and not self.is_shown:
            kept = [] if self.loading.deletes else self.target.files()
            self.target.show([*kept, *self._counted(fence.found)], self.name)
        fence.after()
        return Counts(inserted=fence.found.rows)

    def remove(self, keys: Sequence[Key], number: int, fence: Fence) -> Counts:
        """Write what is left into one file, which takes the place of all others."""
        found, part = next(self.target.scan()), PartId(self.target.epoch, number)
        left = _picked(found, self.target.key, keys, there=False)
        self.write(left, part)
        self.target.show([_file(part)], None)
        counts = Counts(deleted=found.num_rows - left.num_rows)
        fence.after(Done(counts))
        return counts

    def _counted(self, found: Checkpoint) -> list[str]:
        return [_file(part) for part in found.accepted.parts()]

    def discard(self) -> None:
        """Remove files that the manifest does not name: nobody will."""
        shown = set(self.target.files())
        for file in self.target.place.glob("parts/*.parquet"):
            if f"parts/{file.name}" not in shown:
                file.unlink(missing_ok=True)


def _file(part: PartId) -> str:
    return f"parts/{part.epoch}-{part.number}.parquet"


def _picked(rows: pa.Table, names: Sequence[str], keys: Sequence[Key], *, there: bool) -> pa.Table:
    wanted = set(keys)
    return rows.filter(pa.array([(key in wanted) == there for key in keys_of(rows, names)], pa.bool_()))


def read(place: Path, manifest: dict[str, Any]) -> pa.Table | None:
    """Read what the manifest names; of several rows with one key the latest counts."""
    tables = [pq.read_table(place / file) for file in manifest.get("files", [])]
    if not tables:
        return None
    rows = pa.concat_tables(tables, promote_options="permissive")
    latest = {key: place for place, key in enumerate(keys_of(rows, manifest["key"]))}
    return rows.take(sorted(latest.values()))
