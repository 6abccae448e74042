"""Compare two tables in ClickHouse: what is shown, and the rows of the source in a table beside it.

Rows of the source are written as a load would write them, so the server computes both hashes from the same types.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from vitrina.connectors.clickhouse import types
from vitrina.connectors.clickhouse.client import literal, quoted
from vitrina.connectors.clickhouse.names import Named, new_load
from vitrina.connectors.clickhouse.opened_table import OpenedTable
from vitrina.connectors.clickhouse.tables import DELETED, VERSION
from vitrina.connectors.clickhouse.writer import Converter
from vitrina.errors import FatalError
from vitrina.ports.batch import Key, PartId
from vitrina.ports.compare import ComparableSide, Extent, RowImage

# Reads the rows of the source once, as a run would deliver them; each table comes with whether its rows are in flight.
ComparedRows = Callable[[], Iterator[tuple[pa.Table, bool]]]

# Keys in one query.
_KEYS_AT_ONCE = 2_000
_IN_FLIGHT_PART, _OLD_PART = 1, 0


@contextmanager
def sides(
    target: OpenedTable, rows: ComparedRows, compared: Sequence[str]
) -> Iterator[tuple[ComparableSide, ComparableSide]]:
    """Write the source's rows into a table beside the target, which is dropped when the block ends."""
    shown = target.tables.shown()
    if shown is None:
        raise FatalError(f"{target.tables} does not exist yet: run the pipeline first")
    tables = target.tables
    tables.drop_left_comparisons()
    # Taken before the source is read. The parts are shared, not copied.
    there = tables.create_like(shown.generation, "r", new_load())
    here = Named(tables.table, "r", tables.owner, new_load())
    try:
        tables.snapshot(shown.generation, there)
        target.server.command(_create(tables.path(here), target))
        _fill(target, tables.path(here), rows)
        final = " FINAL" if shown.is_versioned else ""
        yield (
            TableSide(target, f"{tables.path(here)} FINAL", compared, is_source=True),
            TableSide(target, f"{tables.path(there)}{final}", compared, is_source=False),
        )
    finally:
        tables.drop(here)
        tables.drop(there)


def _create(path: str, target: OpenedTable) -> str:
    fields = target.layout.fields
    columns = [f"{quoted(one.name)} {one.full_kind}" for one in fields]
    order = ", ".join(map(quoted, target.layout.key))
    return (
        f"CREATE TABLE {path} ({', '.join(columns)}, {VERSION} UInt64, {DELETED} UInt8)"
        f" ENGINE = ReplacingMergeTree({VERSION}) ORDER BY ({order})"
    )


def _fill(target: OpenedTable, path: str, rows: ComparedRows) -> None:
    """Insert the source's rows with the batch number as their version, so that the later of two rows counts.

    The last bit of the version marks in-flight rows.
    """
    converter = Converter(target.layout, target.definition.options.delete_when, merges=True)
    for number, (table, in_flight) in enumerate(rows(), 1):
        part = PartId(0, number << 1 | (_IN_FLIGHT_PART if in_flight else _OLD_PART))
        converted = converter.convert(table, part)
        # Rows that the table cannot hold are recorded as dead letters and are not compared.
        if converted.rows.num_rows:
            target.server.insert(path, converted.rows, token=f"r-{number}")


@dataclass(frozen=True)
class TableSide:
    """Query one table in SQL."""

    target: OpenedTable
    table: str
    compared: Sequence[str]
    is_source: bool

    listed_at_once = None

    @property
    def key_names(self) -> Sequence[str]:
        return self.target.layout.key

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        yield

    @property
    def _key(self) -> str:
        return ", ".join(map(quoted, self.target.layout.key))

    @property
    def _place(self) -> str:
        return f"reinterpretAsInt64(sipHash64({self._key}))"

    @property
    def _image(self) -> str:
        """Return the hash of a row. Separate flags distinguish NULL from text that looks like it."""
        values = ", ".join(f"isNull({quoted(name)}), ifNull(toString({quoted(name)}), '')" for name in self.compared)
        return f"sipHash128({values or '1'})"

    @property
    def _lives(self) -> str:
        return f"{DELETED} = 0"

    def extent(self) -> Extent:
        in_flight = f"countIf(bitAnd({VERSION}, 1) = 1)" if self.is_source else "0"
        [(rows, in_flight_rows)] = self.target.server.rows(
            f"SELECT count(), {in_flight} FROM {self.table} WHERE {self._lives}"
        )
        return Extent(int(rows), int(in_flight_rows), {}, {})

    def total(self) -> tuple[int, str]:
        [(rows, total)] = self.target.server.rows(
            f"SELECT count(), toString({self._sum}) FROM {self.table} WHERE {self._lives}"
        )
        return int(rows), str(total)

    @property
    def _sum(self) -> str:
        """Return an order-independent sum, in halves that cannot overflow into each other."""
        image = f"reinterpretAsUInt128({self._image})"
        return f"tuple(sum(bitAnd({image}, 18446744073709551615)), sum(bitShiftRight({image}, 64)), sum({self._place}))"

    def buckets(self, mask: int) -> dict[int, tuple[int, str]]:
        found = self.target.server.rows(
            f"SELECT bitAnd({self._place}, {mask}) AS bucket, count(), toString({self._sum}) FROM {self.table}"
            f" WHERE {self._lives} GROUP BY bucket"
        )
        return {int(bucket): (int(rows), str(total)) for bucket, rows, total in found}

    def images_in(self, mask: int, buckets: Sequence[int]) -> Iterator[RowImage]:
        wanted = ", ".join(map(str, buckets))
        return self._images(f"bitAnd({self._place}, {mask}) IN ({wanted})")

    def images_of(self, keys: Sequence[Key]) -> Iterator[RowImage]:
        found = [image for where in self._wheres(keys) for image in self._images(where)]
        return iter(sorted(found, key=lambda image: image.position))

    def _wheres(self, keys: Sequence[Key], columns: Sequence[str] | None = None) -> Iterator[str]:
        names = columns or self.target.layout.key
        fields = {one.name: one for one in self.target.layout.fields}
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            some = keys[start : start + _KEYS_AT_ONCE]
            tuples = ", ".join(
                "("
                + ", ".join(
                    f"CAST({literal(part)}, {literal(fields[name].kind)})"
                    for name, part in zip(names, key, strict=True)
                )
                + ")"
                for key in some
            )
            yield f"({', '.join(map(quoted, names))}) IN ({tuples})"

    def _images(self, where: str) -> Iterator[RowImage]:
        """Sort by hash, then by the bytes of the key's text. Both sides are sorted here, by the same rule."""
        in_flight = f"bitAnd({VERSION}, 1)" if self.is_source else "0"
        found = self.target.server.arrow(
            f"SELECT {self._key}, {self._place} AS _p, toString(reinterpretAsUInt128({self._image})) AS _i,"
            f" {in_flight} AS _y, {DELETED} AS _d FROM {self.table} WHERE {where}"
        )
        keys = keys_of(found, self.target.layout.key)
        places, images = found.column("_p").to_pylist(), found.column("_i").to_pylist()
        ages, deleted = found.column("_y").to_pylist(), found.column("_d").to_pylist()
        rows = [
            RowImage(place, "\x00".join(key), key, None if is_deleted else int(image), bool(age))
            for key, place, image, age, is_deleted in zip(keys, places, images, ages, deleted, strict=True)
            if self.is_source or not is_deleted
        ]
        return iter(sorted(rows, key=lambda row: row.position))

    def count_of(self, keys: Sequence[Key]) -> int:
        """Count how many of the keys have a row."""
        statement = f"SELECT count() FROM {self.table} WHERE {self._lives} AND"
        return sum(
            int(rows) for where in self._wheres(keys) for [rows] in self.target.server.rows(f"{statement} {where}")
        )

    def keys_with(self, columns: Sequence[str], values: Sequence[Key]) -> Iterator[Key]:
        """Yield the keys of rows that have one of these values in some columns of the key."""
        for where in self._wheres(values, columns):
            found = self.target.server.arrow(f"SELECT {self._key} FROM {self.table} WHERE {self._lives} AND {where}")
            yield from keys_of(found, self.target.layout.key)

    def random_keys(self, count: int) -> list[Key]:
        found = self.target.server.arrow(
            f"SELECT {self._key} FROM {self.table} WHERE {self._lives} ORDER BY rand() LIMIT {int(count)}"
        )
        return keys_of(found, self.target.layout.key)

    def texts(self, keys: Sequence[Key]) -> dict[Key, dict[str, str | None]]:
        told: dict[Key, dict[str, str | None]] = {}
        columns = ", ".join(f"toString({quoted(name)}) AS {quoted('t_' + name)}" for name in self.compared)
        for where in self._wheres(keys):
            found = self.target.server.arrow(
                f"SELECT {', '.join(filter(None, [self._key, columns]))} FROM {self.table}"
                f" WHERE {where} AND {self._lives}"
            )
            for key, row in zip(keys_of(found, self.target.layout.key), found.to_pylist(), strict=True):
                told[key] = {name: _text(row[f"t_{name}"]) for name in self.compared}
        return told


def keys_of(found: pa.Table, names: Sequence[str]) -> list[Key]:
    """Return keys as reports show them and as the server reads them back."""
    columns = []
    for name in names:
        column = found.column(name)
        if isinstance(column.type, pa.BaseExtensionType):
            column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
        if pa.types.is_binary(column.type):
            column = column.cast(pa.string())
        columns.append(types.key_texts(column))
    return [tuple(str(part) for part in key) for key in zip(*columns, strict=True)]


def _text(value: bytes | str | None) -> str | None:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value
