"""Load rows into files: parts are written aside and accepted by the checkpoint; the manifest makes them visible."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa

from vitrina import failpoints
from vitrina.connectors.files import groups
from vitrina.connectors.files.manifest import Generation, Manifest
from vitrina.connectors.files.names import DATA
from vitrina.connectors.files.opened_folder import OpenedFolder
from vitrina.connectors.files.scan import only_keys
from vitrina.connectors.files.writer import FilesWriter, Group
from vitrina.errors import StageLost
from vitrina.ports.batch import Counts, Key, Part, PartId
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.target import BaseLoad, Done, Fence, Loading

# This connector's key in a checkpoint's identity.
IDENTITY = "files"


@dataclass(frozen=True)
class Begun:
    """Hold what the checkpoint remembers of an unfinished load: its part numbers, and the attempt that wrote each."""

    # The sequence number of the first part, and that part's number.
    base: int
    first: int
    # Epoch, first part and name of each attempt: a part belongs to the last attempt of its epoch that began before it.
    attempts: tuple[tuple[int, int, str], ...]

    def sequence(self, number: int) -> int:
        return self.base + number - self.first

    def attempt_of(self, epoch: int, number: int) -> str | None:
        tries = [name for at, first, name in self.attempts if at == epoch and first <= number]
        return tries[-1] if tries else None

    def as_json(self) -> dict[str, Any]:
        return {"base": self.base, "first": self.first, "attempts": [list(one) for one in self.attempts]}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Begun":
        attempts = tuple((int(epoch), int(first), str(name)) for epoch, first, name in found["attempts"])
        return cls(found["base"], found["first"], attempts)


class FilesLoad(BaseLoad):
    """Provide what both kinds of loads share: groups of files that have arrived."""

    def __init__(self, target: OpenedFolder, loading: Loading) -> None:
        self._target = target
        self._loading = loading
        self._groups: list[Group] = []
        self._begun: Begun | None = None
        self._generation = ""

    @contextmanager
    def writer(self) -> Iterator[FilesWriter]:
        writing = self._target.writing(self._loading, self._generation, self._started.sequence)
        writer = FilesWriter(writing, self._groups.append)
        try:
            yield writer
        finally:
            writer.finish()

    @property
    def _started(self) -> Begun:
        if self._begun is None:
            raise RuntimeError("a load is begun before it is used")
        return self._begun

    def _first_try(self, found: Checkpoint, manifest: Manifest) -> Begun:
        first = found.batch_no + 1
        return Begun(manifest.last_sequence + 1, first, ((self._target.epoch, first, self._target.attempt),))


class ReplaceLoad(FilesLoad):
    """Write a generation aside and publish it in one step; on a shared target, add to what is shown."""

    def __init__(self, target: OpenedFolder, loading: Loading) -> None:
        super().__init__(target, loading)
        # Not in the form that housekeeping records for generations of search indexes: see etl_left_generations.
        self.name: str = loading.name or f"p_{target.pipeline}_{target.epoch}_{target.attempt}"
        self._generation = self.name

    @property
    def is_shown(self) -> bool:  # type: ignore[override]
        return self._is_in(self._target.ledger.read())

    def _is_in(self, manifest: Manifest) -> bool:
        written = manifest.writers.get(self._target.pipeline)
        return written is not None and written.load == self.name

    def obstacle(self, found: Checkpoint) -> str | None:
        if not (found.identity.get(IDENTITY) or {}).get("load"):
            return "the checkpoint does not say which files it counted"
        if found.rows and not self.is_shown and not self._listed():
            return f"its files are missing from {self._target.title}"
        return None

    def begin(self, fence: Fence) -> None:
        target, manifest = self._target, self._target.ledger.read()
        if manifest.shown and not self._loading.deletes:
            target.joined(manifest.shown)
        self._begun = self._first_try(fence.found, manifest)
        fence.after(Done(identity=self._identity(fence.found)))
        failpoints.hit("load.begun")
        target.clean(manifest, but=[self.name])

    def resume(self, fence: Fence) -> bool:
        target, found = self._target, fence.found
        before = Begun.from_json(found.identity[IDENTITY]["load"])
        again = (target.epoch, found.batch_no + 1, target.attempt)
        self._begun = replace(before, attempts=(*before.attempts, again))
        if self.is_shown:
            return False
        fence.after(Done(identity=self._identity(found)))
        target.clean(target.ledger.read(), but=[self.name])
        self._groups = self._settled(self._listed(), found)
        rows = sum(file.rows for group in self._groups for file in group.files)
        if rows != found.rows:
            raise StageLost(
                f"the unfinished load has {rows:,} of {found.rows:,} rows that were written to {target.title}:"
                " files of it are missing, so it starts from scratch"
            )
        return True

    def _identity(self, found: Checkpoint) -> dict[str, Any]:
        return {IDENTITY: {**(found.identity.get(IDENTITY) or {}), "load": self._started.as_json()}}

    def _listed(self) -> list[Group]:
        return groups.listed(self._target.objects, self._target.folder, f"{DATA}/{self.name}/")

    def _settled(self, found: Sequence[Group], checkpoint: Checkpoint) -> list[Group]:
        """Keep what the checkpoint accepted, and remove the rest."""
        target = self._target
        keeper = groups.Keeper(target.objects, target.folder, target.layout.key, target.packing)
        return keeper.settle(found, checkpoint.accepted, self._started.attempt_of, self._started.sequence)

    def publish(self, fence: Fence) -> Counts:
        target, found = self._target, fence.found
        if not self.is_shown:
            kept = self._settled(self._groups, found)
            if self._loading.refuses_repeats:
                groups.refuse_repeats(kept, target.reader, target.layout)
            self._require_files(kept)
            target.ledger.change(lambda manifest: self._shown(manifest, kept, found), fence.record)
        failpoints.hit("publish.applied")
        shown = target.ledger.read().shown
        fence.after(Done(identity={IDENTITY: {"generation": shown.name if shown else None}}))
        return Counts(inserted=found.rows)

    def _require_files(self, kept: Sequence[Group]) -> None:
        """Check again that the files to publish exist; an operator may have removed some by hand."""
        there = {file.path for group in self._listed() for file in group.files}
        missing = [file.path for group in kept for file in group.files if file.path not in there]
        if missing:
            raise StageLost(f"{missing[0]} is missing from {self._target.title}, so the load starts from scratch")

    def _shown(self, manifest: Manifest, kept: Sequence[Group], found: Checkpoint) -> Manifest:
        if self._is_in(manifest):
            return manifest
        target, before = self._target, manifest.shown
        files = tuple(file for group in kept for file in group.files)
        if before and not self._loading.deletes:
            shown = with_files(target.joined(before), kept)
            previous = manifest.previous
        else:
            target.refuse_shrinking(sum(file.rows for file in files), before)
            shown = replace(target.generation(self.name, self._kind), files=files)
            previous = ((before,) if before else ()) + manifest.previous
            previous = previous[: target.definition.options.keep_generations]
        begun = self._started
        sequence = max(manifest.last_sequence, begun.sequence(max(found.batch_no, begun.first)))
        made = replace(manifest, shown=shown, previous=previous, last_sequence=sequence)
        return made.writing(target.pipeline, load=self.name)

    @property
    def _kind(self) -> Literal["snapshot", "log"]:
        """Return the kind of the result: rows whose keys may repeat are entries of a log."""
        return "snapshot" if self._loading.refuses_repeats else "log"

    def discard(self) -> None:
        self._target.clean(self._target.ledger.read())


class MergeLoad(FilesLoad):
    """Add rows to what is shown, as entries of a log: the highest `_version` of a key counts."""

    def __init__(self, target: OpenedFolder, loading: Loading) -> None:
        super().__init__(target, loading)
        # A paused full load of this pipeline, whose files must not be removed.
        self._paused: str | None = None

    def obstacle(self, found: Checkpoint) -> str | None:
        """Return why the target is not the generation of earlier passes, which alone holds what they delivered."""
        if not (found.safe_upto or found.last_key):
            return None
        shown = self._target.ledger.read().shown
        known = (found.identity.get(IDENTITY) or {}).get("generation")
        if shown and known == shown.name:
            return None
        return f"{self._target.title} was deleted or replaced since the last pass"

    def begin(self, fence: Fence) -> None:
        manifest = self._log()
        self._paused = fence.found.stage
        self._begun = self._first_try(fence.found, manifest)
        identity = {**(fence.found.identity.get(IDENTITY) or {}), "generation": self._generation}
        fence.after(Done(identity={IDENTITY: identity}))
        failpoints.hit("pass.begun")
        self._target.clean(manifest, but=[self._paused])

    def _log(self) -> Manifest:
        """Return the manifest with the log to add to, created if missing, with the columns of this pipeline."""
        target = self._target
        made = target.generation(f"p_{target.pipeline}_{target.epoch}_{target.attempt}", "log")

        def opened(found: Manifest) -> Manifest:
            return replace(found, shown=target.joined(found.shown) if found.shown else made)

        manifest = target.ledger.read()
        if opened(manifest) != manifest:
            manifest = target.ledger.change(opened)
        self._generation = manifest.shown.name if manifest.shown else made.name
        return manifest

    def commit(self, part: Part, fence: Fence) -> None:
        """Show the files with the part's rows. They may also hold rows of later parts, which then become visible."""
        self._show(part.number, fence)
        fence.after(Done(part.counts))

    def remove(self, keys: Sequence[Key], number: int, fence: Fence) -> Counts:
        """Add entries that delete the rows of these keys, as part `number`."""
        rows = self._rows_of(keys)
        if rows.num_rows:
            with self.writer() as writer:
                writer.remove(rows, PartId(self._target.epoch, number))()
            self._show(number, fence)
        counts = Counts(deleted=rows.num_rows)
        fence.after(Done(counts))
        return counts

    def _rows_of(self, keys: Sequence[Key]) -> pa.Table:
        """Return the current rows that have these keys. The whole target must be read to find them."""
        layout, shown = self._target.layout, self._target.ledger.read().shown
        scanned = self._target.rows_of(shown) if shown else ()
        found = [only_keys(rows, layout.key, set(keys)) for rows in scanned]
        return pa.concat_tables([layout.schema.empty_table(), *found])

    def _show(self, number: int, fence: Fence) -> None:
        holding = [group for group in self._groups if group.first <= number <= group.last and group.files]
        if holding:
            self._target.ledger.change(lambda manifest: self._with(manifest, holding), fence.record)
            self._groups = [group for group in self._groups if group not in holding]
            failpoints.hit("merge.applied")

    def _with(self, manifest: Manifest, holding: Sequence[Group]) -> Manifest:
        if manifest.shown is None or manifest.shown.name != self._generation:
            raise StageLost(f"{self._target.title} was replaced by hand while it was written")
        sequence = max(manifest.last_sequence, *(self._started.sequence(group.last) for group in holding))
        return replace(manifest, shown=with_files(manifest.shown, holding), last_sequence=sequence)

    def discard(self) -> None:
        self._target.clean(self._target.ledger.read(), but=[self._paused])


def with_files(shown: Generation, added: Sequence[Group]) -> Generation:
    """Add files to a log, each once."""
    named = {file.path for file in shown.files}
    more = (file for group in added for file in group.files if file.path not in named)
    return replace(shown, kind="log", files=(*shown.files, *more))
