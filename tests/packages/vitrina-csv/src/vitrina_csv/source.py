"""A CSV file as a source: rows in the order of the file, so that a load can go on after the row it came to."""

from collections.abc import Generator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from vitrina.errors import SourceQueryFailed
from vitrina.ports.batch import Batch, Key, keys_of
from vitrina.ports.source import BaseSource, Description, Form, Mark, Marked, Window


class CsvSource(BaseSource):
    """One file. The greatest value of the cursor, a column of numbers, is the mark of a pass."""

    def __init__(self, file: Path, delimiter: str, cursor: str | None = None) -> None:
        self._file = file
        self._parsing = csv.ParseOptions(delimiter=delimiter)
        self._cursor = cursor

    @property
    def name(self) -> str:
        return f"the file {self._file.name}"

    def describe(self, window: Window) -> Description:
        rows = self._read()
        if self._cursor is not None and self._cursor not in rows.column_names:
            raise SourceQueryFailed(f"{self._file.name} has no column {self._cursor!r}: correct incremental_key")
        return Description(schema=rows.schema, estimated_rows=rows.num_rows)

    def mark(self, last: Mark | None) -> Marked:
        greatest = pc.max(self._read().column(self._cursor)).as_py() if self._cursor else None
        return Marked(last if greatest is None else str(greatest))

    def read(self, window: Window, form: Form) -> Generator[Batch, None, None]:
        rows, at = self._within(window), int((window.after or ("0",))[0] or 0)
        while at < rows.num_rows:
            batch = rows.slice(at, window.batch_rows())
            at += batch.num_rows
            yield Batch(batch, (str(at),))

    def _within(self, window: Window) -> pa.Table:
        rows = self._read()
        if self._cursor and window.since is not None:
            rows = rows.filter(pc.greater(rows.column(self._cursor), int(window.since)))
        if self._cursor and window.until is not None:
            rows = rows.filter(pc.less_equal(rows.column(self._cursor), int(window.until)))
        if window.keys is not None:
            wanted = set(window.keys)
            rows = rows.filter(pa.array([key in wanted for key in keys_of(rows, window.order)], pa.bool_()))
        return rows

    # --- single rows: what makes it `Rereads` ------------------------------------------------------------------------

    def refuse_keys(self, names: Sequence[str]) -> None:
        """Accept all: every value has one text."""

    def canonical(self, names: Sequence[str], keys: Sequence[Key]) -> list[Key]:
        return list(keys)

    def present(self, names: Sequence[str], keys: Sequence[Key]) -> set[Key]:
        return set(keys) & set(keys_of(self._read(), names))

    def _read(self) -> pa.Table:
        try:
            return csv.read_csv(self._file, parse_options=self._parsing)
        except (OSError, pa.ArrowInvalid) as exc:
            raise SourceQueryFailed(f"{self._file.name} cannot be read: {exc}") from exc
