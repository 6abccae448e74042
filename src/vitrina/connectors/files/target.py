"""Write a folder of Parquet files as the target of a run: its manifest, its layout, and its loads."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from vitrina.connectors.files.columns import PARQUET, Layout
from vitrina.connectors.files.load import MergeLoad, ReplaceLoad
from vitrina.connectors.files.manifest import Generation, Manifest
from vitrina.connectors.files.opened_folder import OpenedFolder
from vitrina.connectors.files.options import FilesOptions
from vitrina.connectors.files.scan import only_keys
from vitrina.errors import CannotConnect, Disconnected, TargetMismatch
from vitrina.ports.batch import Key
from vitrina.ports.profile import TargetProfile
from vitrina.ports.profiling import profile_of
from vitrina.ports.schema import Column
from vitrina.ports.target import BaseTarget, Load, Loading, Prepared, Wanted


class FilesTarget(OpenedFolder, BaseTarget):
    """Make a folder the target of a run."""

    no_shortcut_because = "the target is files"
    format = PARQUET

    def seize(self) -> None:
        require_answer(self.ledger.seize)

    def prepare(self, wanted: Wanted, *, create: bool) -> Prepared:
        if self.definition.mode == "live":
            raise TargetMismatch(
                f"{self.title} cannot be live: each batch would add a file that every reader opens, and only a"
                " full load would remove them; use mode incremental with a schedule_interval, such as 1m, or mode full"
            )
        if not wanted.key:
            raise TargetMismatch(f"{self.title} needs target_key, the columns that tell rows apart")
        self._layout = self._layout_of(wanted.columns, wanted.key)
        shown = require_answer(self.ledger.read).shown
        if shown and self.definition.mode == "incremental":
            self.joined(shown)
        return self._prepared(shown)

    @property
    def _partition_by(self) -> Sequence[str]:
        return self.options.partition_by if isinstance(self.options, FilesOptions) else ()

    def _layout_of(self, columns: Sequence[Column], key: Sequence[str]) -> Layout:
        return Layout.of(
            columns,
            key,
            partition_by=self._partition_by,
            delete_when=self.definition.options.delete_when,
            others=self.options.other_types,
            wanted=self.format,
        )

    def prepare_nothing(self, *, replaces: bool) -> Prepared | None:
        """Prepare to empty the target for a source without rows, if allowed. Its columns stay."""
        shown = require_answer(self.ledger.read).shown
        if not replaces or shown is None or self.definition.options.shared_target:
            return None
        self._layout = self._layout_of_shown(shown)
        return replace(self._prepared(shown), key=())

    def _prepared(self, shown: Generation | None) -> Prepared:
        columns = tuple(column.name for column in self.layout.columns)
        return Prepared(self.layout.key, shown is not None, not (shown and shown.rows), columns)

    def fingerprint(self) -> Sequence[object]:
        """Return the options that decide the form of files. A load resumes only while they stay the same."""
        return (list(self._partition_by), self.options.other_types, self.definition.options.delete_when)

    def open_load(self, loading: Loading) -> Load:
        return ReplaceLoad(self, loading) if loading.kind == "replace" else MergeLoad(self, loading)

    def scan(self, keys: Sequence[Key] | None = None) -> Iterator[pa.Table]:
        shown = self.ledger.read().shown
        if shown is None:
            return
        self._layout = self._layout or self._layout_of_shown(shown)
        for rows in self.rows_of(shown):
            yield rows if keys is None else only_keys(rows, self._layout.key, set(keys))

    def _layout_of_shown(self, shown: Generation) -> Layout:
        """Return the layout of what was written, whose types were checked then."""
        return Layout.of(shown.columns, shown.key, partition_by=shown.partition_by, others="string")

    def profile(self) -> TargetProfile | None:
        shown = require_answer(self.ledger.read).shown
        return profile_of(self.scan(), sum(file.bytes for file in shown.files)) if shown else None

    def as_written(self, rows: pa.Table) -> pa.Table:
        deleted = self.layout.deleted(rows)
        return self.layout.fitted(rows if deleted is None else rows.filter(pc.invert(deleted)))


def require_answer(look: Callable[[], "Manifest | None"]) -> Manifest:
    """Turn an outage into `CannotConnect`: nothing is written yet, so the run can wait and try again."""
    try:
        return look() or Manifest()
    except Disconnected as exc:
        raise CannotConnect(exc.message) from exc
