"""Copy rows with large values into a stage: binary COPY in pieces.

The driver serialises a whole row before it sends it, and libpq copies it again: a value of 200 MB would be in memory
three times. Here a large value is sent directly from the Arrow buffer.
"""

import struct
from collections.abc import Callable

import psycopg
import pyarrow as pa
from psycopg.sql import SQL, Identifier

from vitrina.store.database import Connection

# The driver copies smaller tables: it is faster, and its copies are small.
_MIN_TABLE_BYTES = 16 << 20
# Rows of this size are wide: the cost of Python code for each row is then negligible.
_MIN_ROW_BYTES = 1 << 20
_PIECE_BYTES = 256 << 10

_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = struct.pack(">h", -1)
_NULL = struct.pack(">i", -1)
# PostgreSQL counts from 2000, Arrow from 1970.
_EPOCH_DAYS = 10_957
_EPOCH_MICROSECONDS = _EPOCH_DAYS * 86_400_000_000

# Returns the value of a column in a row in the server's binary format.
Encoder = Callable[[pa.Array, int], memoryview | bytes]


def is_wide(table: pa.Table) -> bool:
    """Return whether rows are large enough for this path and of types supported here; the driver copies all others."""
    size = table.nbytes
    return (
        size > _MIN_TABLE_BYTES
        and size > table.num_rows * _MIN_ROW_BYTES
        and all(_storage(kind) in _ENCODERS for kind in table.schema.types)
    )


def copy_into(connection: Connection, place: Identifier, table: pa.Table) -> None:
    """Append the rows to a table whose columns have the same names, and the types of the Arrow columns."""
    names = SQL(", ").join(map(Identifier, table.schema.names))
    encoders = [_ENCODERS[_storage(kind)] for kind in table.schema.types]
    statement = SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(place, names)
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        copy.write(_HEADER)
        for batch in table.to_batches():
            columns = [_plain(column) for column in batch.columns]
            for row in range(batch.num_rows):
                copy.write(struct.pack(">h", len(columns)))
                for column, encode in zip(columns, encoders, strict=True):
                    _write(copy, encode(column, row) if column[row : row + 1].null_count == 0 else None)
        copy.write(_TRAILER)


def _write(copy: psycopg.Copy, value: memoryview | bytes | None) -> None:
    if value is None:
        copy.write(_NULL)
        return
    copy.write(struct.pack(">i", len(value)))
    for start in range(0, len(value), _PIECE_BYTES):
        copy.write(value[start : start + _PIECE_BYTES])


def _plain(column: pa.Array) -> pa.Array:
    return column.storage if isinstance(column.type, pa.BaseExtensionType) else column


def _storage(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    # A time zone affects how a moment is shown, not which one it is.
    return pa.timestamp(kind.unit) if pa.types.is_timestamp(kind) else kind


def _as_it_lies(form: str) -> Encoder:
    """Encode a value as the bytes between two offsets; an Arrow scalar would be a copy."""
    offsets = struct.Struct(f"={form}{form}")

    def encode(column: pa.Array, row: int) -> memoryview:
        _, places, data = column.buffers()
        start, end = offsets.unpack_from(places, (column.offset + row) * offsets.size // 2)
        return memoryview(data)[start:end] if end > start else memoryview(b"")

    return encode


def _packed(form: str) -> Encoder:
    return lambda column, row: struct.pack(form, column[row].as_py())


def _counted(form: str, epoch: int = 0) -> Encoder:
    return lambda column, row: struct.pack(form, column[row].value - epoch)


_ENCODERS: dict[pa.DataType, Encoder] = {
    pa.bool_(): _packed(">?"),
    pa.int16(): _packed(">h"),
    pa.int32(): _packed(">i"),
    pa.int64(): _packed(">q"),
    pa.float32(): _packed(">f"),
    pa.float64(): _packed(">d"),
    pa.date32(): _counted(">i", _EPOCH_DAYS),
    pa.time64("us"): _counted(">q"),
    pa.timestamp("us"): _counted(">q", _EPOCH_MICROSECONDS),
    pa.binary(16): lambda column, row: bytes(column[row].as_py()),  # uuid
    **dict.fromkeys((pa.string(), pa.binary()), _as_it_lies("i")),
    **dict.fromkeys((pa.large_string(), pa.large_binary()), _as_it_lies("q")),
}
