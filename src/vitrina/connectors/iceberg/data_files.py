"""Describe Parquet files as entries of a table, with the statistics by which readers skip files."""

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record

from vitrina.connectors.files.objects import Listed, Objects, Stored, Version
from vitrina.connectors.iceberg import schemas
from vitrina.errors import StageLost

_DATA = ".parquet"
# Footers beyond this number are read again on publication, so that memory stays bounded.
_REMEMBERED = 1000


class RememberedObjects:
    """Store objects and remember the footers of the Parquet files among them."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._footers: dict[str, tuple[pq.FileMetaData, int]] = {}

    def footer(self, name: str) -> tuple[pq.FileMetaData, int]:
        """Return the footer and the size of a file. A file that another runner wrote is read for it."""
        found = self._footers.get(name)
        try:
            return found or _footer(memoryview(self._objects.get(name)))
        except FileNotFoundError as exc:
            raise StageLost(f"{name} is missing from the warehouse, so the load starts from scratch") from exc

    def forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._footers.pop(name, None)

    def find(self, name: str) -> Stored | None:
        return self._objects.find(name)

    def get(self, name: str) -> bytes:
        return self._objects.get(name)

    def put(self, name: str, content: memoryview) -> None:
        self._objects.put(name, content)
        if name.endswith(_DATA) and len(self._footers) < _REMEMBERED:
            self._footers[name] = _footer(content)

    def replace(self, name: str, content: bytes, expected: Version | None) -> None:
        self._objects.replace(name, content, expected)

    def list(self, prefix: str) -> Iterator[Listed]:
        return self._objects.list(prefix)

    def delete(self, names: Iterable[str]) -> None:
        every = list(names)
        self.forget(every)
        self._objects.delete(every)


def _footer(content: memoryview) -> tuple[pq.FileMetaData, int]:
    return pq.read_metadata(pa.BufferReader(content)), content.nbytes


def entry(location: str, footer: pq.FileMetaData, size: int, table: TableMetadata) -> DataFile:
    """Describe a file as the table's manifests do."""
    schema = table.schema()
    schemas.require_ids(footer.schema.to_arrow_schema(), schema)
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer,
        stats_columns=compute_statistics_plan(schema, table.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(schema),
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        file_size_in_bytes=size,
        sort_order_id=None,
        spec_id=table.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )
