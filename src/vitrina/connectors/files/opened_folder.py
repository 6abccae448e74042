"""Open a folder of files for writing: its manifest, its layout, and what the loads need of it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from secrets import token_hex

import pyarrow as pa

from vitrina.connectors.files import cleaning
from vitrina.connectors.files.columns import Layout
from vitrina.connectors.files.manifest import BaseLedger, Generation, Ledger, Manifest
from vitrina.connectors.files.objects import Objects
from vitrina.connectors.files.options import ParquetOptions
from vitrina.connectors.files.parquet import Packing
from vitrina.connectors.files.scan import Reader
from vitrina.connectors.files.writer import Writing
from vitrina.data_checks import EMPTY
from vitrina.errors import LeaseLost, RunError, ShrinkRefused, TargetMismatch
from vitrina.ports.connector import Opening
from vitrina.ports.schema import Column
from vitrina.ports.target import Loading


class OpenedFolder:
    """Hold one folder, for one claim of one pipeline; `FilesTarget` makes a target of it."""

    prefix = "files"

    def __init__(self, opening: Opening, objects: Objects) -> None:
        self.objects = objects
        # Its name in messages.
        self.title = f"{self.prefix}:{opening.name}"
        self.folder = self._folder_of(opening.name)
        self.definition = opening.definition
        self.context = opening.context
        self.epoch = opening.work.epoch
        self.pipeline = opening.work.pipeline_id.hex
        self.options = opening.options if isinstance(opening.options, ParquetOptions) else ParquetOptions()
        self.ledger = self._open_ledger()
        self._layout: Layout | None = None
        # Identifies this attempt: see names.FileName.
        self.attempt = token_hex(4)

    def _folder_of(self, name: str) -> str:
        return name

    def _open_ledger(self) -> BaseLedger:
        return Ledger(self.objects, self.folder, pipeline=self.pipeline, epoch=self.epoch, wait=self.context.wait)

    @property
    def layout(self) -> Layout:
        if self._layout is None:
            raise RuntimeError("prepare() comes first")
        return self._layout

    @property
    def reader(self) -> Reader:
        return Reader(self.objects, self.folder, self.layout)

    def rows_of(self, shown: Generation) -> Iterator[pa.Table]:
        """Yield the rows that count."""
        return self.reader.scan(shown)

    def generation(self, name: str, kind: str = "snapshot") -> Generation:
        """Return an empty generation with the layout of this pipeline."""
        layout = self.layout
        return Generation(name, "log" if kind == "log" else "snapshot", layout.key, layout.columns, layout.partition_by)

    def joined(self, shown: Generation) -> Generation:
        """Add this pipeline's columns to what is shown. Refuse columns that cannot be in one log."""
        if shown.key != self.layout.key or shown.partition_by != self.layout.partition_by:
            raise TargetMismatch(
                f"{self.title} has the key ({', '.join(shown.key)}) and the partitions"
                f" ({', '.join(shown.partition_by)}), and the pipeline others: let a full load write it from scratch"
            )
        known = {column.name: column for column in shown.columns}
        given = {column.name: column for column in self.layout.columns}
        self._refuse_differences(known, given)
        added = tuple(column for name, column in given.items() if name not in known)
        return replace(shown, kind="log", columns=(*shown.columns, *added))

    def _refuse_differences(self, known: dict[str, Column], given: dict[str, Column]) -> None:
        options = self.definition.options
        for name, column in given.items():
            if name in known and known[name].type != column.type:
                problem = f"column {name!r} is {known[name].type} there and {column.type} in the query's result"
            elif name not in known and options.on_schema_change != "add_columns":
                problem = f"column {name!r} is new; options.on_schema_change = 'add_columns' lets it in"
            else:
                continue
            raise TargetMismatch(f"{self._does_not_fit}: {problem}, or let a full load write it from scratch")
        lacking = sorted(known.keys() - given.keys())
        if lacking and options.on_missing_columns != "null":
            raise TargetMismatch(
                f"{self._does_not_fit}: column {lacking[0]!r} is no longer given; options.on_missing_columns = 'null'"
                " writes NULL from now on"
            )

    @property
    def _does_not_fit(self) -> str:
        return f"{self.title} does not fit the query"

    @property
    def packing(self) -> Packing:
        return Packing(self.options.compression, self.options.row_group_mb << 20)

    def writing(self, loading: Loading, generation: str, sequence: Callable[[int], int]) -> Writing:
        return Writing(
            objects=self.objects,
            folder=self.folder,
            generation=generation,
            owner=self.pipeline,
            epoch=self.epoch,
            attempt=self.attempt,
            layout=self.layout,
            packing=self.packing,
            file_bytes=self.options.file_mb << 20,
            sequence=sequence,
            keeps_deleted=loading.kind == "merge",
            refuses_repeats=loading.refuses_repeats,
            wait=self.context.wait,
        )

    def refuse_shrinking(self, rows: int, shown: Generation | None) -> None:
        options, before = self.definition.options, shown.rows if shown else 0
        if rows == 0 and before and not options.allow_empty:
            raise ShrinkRefused(
                f"the source has no rows, but {self.title} has; if it should be emptied, set options.allow_empty",
                EMPTY,
            )
        # The number of current rows of a log is unknown without reading it.
        counts = shown is not None and shown.kind == "snapshot"
        if counts and 0 < rows < before * (1 - options.shrink_limit):
            raise ShrinkRefused(
                f"publishing would leave {rows:,} of {before:,} rows in {self.title}; if the source really"
                " shrank that much, set options.allow_shrink and run again"
            )

    def clean(self, manifest: Manifest, *, but: Sequence[str | None] = ()) -> None:
        """Remove files that no reader needs; a later load removes what cannot be removed now."""
        try:
            cleaning.clean(
                self.objects,
                self.folder,
                manifest.named(),
                cleaning.Cleaner(self.pipeline, self.epoch, self.context.require_held),
                but=frozenset(filter(None, but)),
            )
        except LeaseLost:
            raise
        except RunError as exc:
            self.context.log("warning", "files.not_cleaned", reason=exc.message)
