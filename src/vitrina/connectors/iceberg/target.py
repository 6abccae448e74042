"""Write an Iceberg table as the target of a run: files are written as for a Parquet folder; a catalog lists them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from vitrina.connectors.files.cleaning import Cleaner
from vitrina.connectors.files.columns import Layout
from vitrina.connectors.files.manifest import BaseLedger, Generation, Manifest
from vitrina.connectors.files.target import FilesTarget
from vitrina.connectors.files.writer import Writing
from vitrina.connectors.iceberg import catalogs, schemas
from vitrina.connectors.iceberg.ledger import Place, TableLedger
from vitrina.connectors.iceberg.maintenance import Maintenance
from vitrina.connectors.iceberg.options import IcebergOptions
from vitrina.connectors.iceberg.scan import TableReader
from vitrina.errors import LeaseLost, RunError, StageLost
from vitrina.ports.connector import Opening
from vitrina.ports.schema import Column
from vitrina.ports.target import Loading


class IcebergTarget(FilesTarget):
    """Make a table the target of a run."""

    prefix = "iceberg"
    no_shortcut_because = "the target is an Iceberg table"
    format = schemas.ICEBERG
    # The first pass of an incremental pipeline is one snapshot, too.
    loads_first_pass = True

    def __init__(self, opening: Opening, place: Place) -> None:
        self._place = place
        super().__init__(opening, place.objects)
        self._is_cleaned = False

    def _folder_of(self, name: str) -> str:
        return self._place.folder

    def _open_ledger(self) -> BaseLedger:
        self._table_ledger = TableLedger(self._place, pipeline=self.pipeline, epoch=self.epoch, wait=self.context.wait)
        return self._table_ledger

    def _layout_of(self, columns: Sequence[Column], key: Sequence[str]) -> Layout:
        layout = super()._layout_of(columns, key)
        return replace(layout, schema=schemas.held_in(layout.schema))

    def _layout_of_shown(self, shown: Generation) -> Layout:
        layout = super()._layout_of_shown(shown)
        return replace(layout, schema=schemas.held_in(layout.schema))

    def writing(self, loading: Loading, generation: str, sequence: Callable[[int], int]) -> Writing:
        """Set the ids that the columns of the files have, or will have, in the table."""
        found = super().writing(loading, generation, sequence)
        shown = self.ledger.read().shown
        adds = shown is not None and not (loading.kind == "replace" and loading.deletes)
        columns = self.joined(shown).columns if shown and adds else self.layout.columns
        return replace(found, layout=schemas.with_ids(self.layout, self._table_ledger.reserve(columns)))

    def rows_of(self, shown: Generation) -> Iterator[pa.Table]:
        table = self._place.load()
        if table is None:
            raise StageLost(f"{self.title} was dropped while it was read")
        with catalogs.translated(self._place.url):
            yield from TableReader(table, self.layout).scan(is_log=shown.kind == "log")

    def clean(self, manifest: Manifest, *, but: Sequence[str | None] = ()) -> None:
        """Clean the table once a day, and after a runner was lost. What fails now is done by a later run."""
        if self._is_cleaned:
            return
        self._is_cleaned = True
        options = self.options if isinstance(self.options, IcebergOptions) else IcebergOptions()
        cleaner = Cleaner(self.pipeline, self.epoch, self.context.require_held)
        work = Maintenance(self._place, self._table_ledger.tag, options, cleaner)
        try:
            if self.context.recovers or work.is_due():
                work.clean(but=frozenset(filter(None, but)))
        except LeaseLost:
            raise
        except RunError as exc:
            self.context.log("warning", "iceberg.not_cleaned", reason=exc.message)

    def close(self) -> None:
        catalogs.close(self._place.catalog)
