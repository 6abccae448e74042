"""A CSV file as a source: rows in the order of the file, so that a load can go on after the row it came to."""

from collections.abc import Generator
from pathlib import Path

import pyarrow as pa
from pyarrow import csv

from vitrina.errors import SourceQueryFailed
from vitrina.ports.batch import Batch
from vitrina.ports.source import BaseSource, Description, Form, Window


class CsvSource(BaseSource):
    """One file."""

    def __init__(self, file: Path, delimiter: str) -> None:
        self._file = file
        self._parsing = csv.ParseOptions(delimiter=delimiter)

    @property
    def name(self) -> str:
        return f"the file {self._file.name}"

    def describe(self, window: Window) -> Description:
        rows = self._read()
        return Description(schema=rows.schema, estimated_rows=rows.num_rows)

    def read(self, window: Window, form: Form) -> Generator[Batch, None, None]:
        rows, at = self._read(), int((window.after or ("0",))[0] or 0)
        while at < rows.num_rows:
            batch = rows.slice(at, window.batch_rows())
            at += batch.num_rows
            yield Batch(batch, (str(at),))

    def _read(self) -> pa.Table:
        try:
            return csv.read_csv(self._file, parse_options=self._parsing)
        except (OSError, pa.ArrowInvalid) as exc:
            raise SourceQueryFailed(f"{self._file.name} cannot be read: {exc}") from exc
