"""Exchange messages between a runner and its workers: a JSON header, then Arrow bytes. Nothing is pickled.

A worker runs untrusted code. What it sends is read as data with limits, and checked before it is used.
"""

import json
import os
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import pyarrow as pa

from vitrina import errors
from vitrina.errors import FatalError, FieldError, Invalid, StepFailed, VitrinaError
from vitrina.ports.batch import DeadLetter
from vitrina.transforms.call import NoRowsToTell

_PREFIX = struct.Struct("<I")
# Limit for a header from a worker: parsing JSON blocks other threads and turns few bytes into many objects.
MAX_HEADER_BYTES = 8 << 20
MAX_PARTS = 100
_MESSAGE_CHARACTERS = 10_000
_MOST_FIELDS, _FIELD_PARTS = 100, 3
# Exit code of a worker whose pipes are closed.
PIPES_LOST = 74
# Every system accepts this many pieces in one call of writev.
_PIECES_AT_ONCE = 16


class Packed:
    """Hold Arrow bytes as separate pieces, so that large values are sent without a copy and then freed."""

    def __init__(self, pieces: list[pa.Buffer]) -> None:
        self._pieces = pieces
        self.size: int = sum(piece.size for piece in pieces)

    def take_pieces(self) -> list[pa.Buffer]:
        pieces, self._pieces = self._pieces, []
        return pieces


class Message(NamedTuple):
    """Represent one message between runner and worker. A received message has one buffer for each part."""

    fields: dict[str, Any]
    payload: tuple[pa.Buffer | Packed, ...] = ()

    def numbered(self, number: object) -> "Message":
        """Add the number of the question to an answer, so that a repeated answer is not taken for the next."""
        return Message(self.fields | {"question": number}, self.payload)

    @property
    def number(self) -> object:
        return self.fields.get("question")


class Garbled(Exception):
    """Report that the other side sent something that is not a message."""


def send(descriptor: int, message: Message) -> None:
    """Write the whole message. Raise OSError if the other side has ended."""
    header = json.dumps([message.fields, [part.size for part in message.payload]]).encode()
    pieces = [memoryview(_PREFIX.pack(len(header)) + header)]
    pieces += [memoryview(piece).cast("B") for part in message.payload for piece in _pieces_of(part) if piece.size]
    while pieces:
        written = os.writev(descriptor, pieces[:_PIECES_AT_ONCE])
        while pieces and written >= len(pieces[0]):
            written -= len(pieces.pop(0))
        if written:
            pieces[0] = pieces[0][written:]


def _pieces_of(part: pa.Buffer | Packed) -> list[pa.Buffer]:
    return part.take_pieces() if isinstance(part, Packed) else [part]


def receive(descriptor: int, *, max_payload: int | None = None) -> Message:
    """Read the next message. Raise EOFError if the other side has ended. Limits apply to an untrusted sender."""
    (length,) = _PREFIX.unpack(_read(descriptor, _PREFIX.size))
    if max_payload is not None and length > MAX_HEADER_BYTES:
        raise Garbled(f"a header of {length} bytes")
    try:
        fields, sizes = json.loads(memoryview(_read(descriptor, length)).tobytes())
        total, parts = sum(sizes), len(sizes)
    except (ValueError, TypeError, RecursionError) as exc:
        raise Garbled("a header that is not JSON") from exc
    if not isinstance(fields, dict) or not all(isinstance(n, int) and n >= 0 for n in sizes):
        raise Garbled("a header with invalid content")
    if max_payload is not None and (total > max_payload or parts > MAX_PARTS):
        raise Garbled(f"an answer of {total} bytes in {parts} part(s)")
    return Message(fields, tuple(_read(descriptor, size) for size in sizes))


def _read(descriptor: int, size: int) -> pa.Buffer:
    # From the system's allocator: Arrow's pool would keep the memory of a large value for the next one.
    buffer = pa.allocate_buffer(size, memory_pool=pa.system_memory_pool())
    view = memoryview(buffer).cast("B") if size else memoryview(b"")
    done = 0
    while done < size:
        got = os.readv(descriptor, [view[done:]])
        if not got:
            raise EOFError
        done += got
    return buffer


class _Kept:
    """Keep what is written, like a file, without copying it."""

    closed = False

    def __init__(self) -> None:
        self.pieces: list[pa.Buffer] = []

    def write(self, piece: pa.Buffer | bytes) -> None:
        self.pieces.append(pa.py_buffer(piece))

    def flush(self) -> None:
        """Do nothing, because nothing is buffered."""


def packed(table: pa.Table | pa.RecordBatch) -> Packed:
    kept = _Kept()
    with pa.ipc.new_stream(pa.PythonFile(kept, mode="w"), table.schema) as writer:
        writer.write(table)
    return Packed(kept.pieces)


def unpacked(buffer: pa.Buffer) -> pa.Table:
    """Read a table in place from the buffer of a trusted sender."""
    return pa.ipc.open_stream(buffer).read_all()


def checked(buffer: pa.Buffer) -> pa.Table:
    """Read a table of a worker. Check offsets and texts, which Arrow itself trusts and would crash on."""
    try:
        table = unpacked(buffer)
        table.validate(full=True)
    except (pa.ArrowException, OSError) as exc:
        raise StepFailed(f"the steps returned damaged Arrow data ({exc})") from exc
    return table


def packed_schema(schema: pa.Schema) -> pa.Buffer:
    return schema.serialize()


def unpacked_schema(buffer: pa.Buffer) -> pa.Schema:
    try:
        return pa.ipc.read_schema(buffer)
    except (pa.ArrowException, OSError) as exc:
        raise StepFailed(f"the steps returned damaged columns ({exc})") from exc


_LETTERS = pa.schema([(name, pa.large_string()) for name in ("document_id", "error", "document")])
_NAMES = pa.schema([("name", pa.large_string())])


def packed_letters(letters: Sequence[DeadLetter]) -> Packed:
    columns = [[_encodable(getattr(letter, name)) for letter in letters] for name in _LETTERS.names]
    return packed(pa.table(columns, schema=_LETTERS))


def checked_letters(buffer: pa.Buffer) -> tuple[DeadLetter, ...]:
    rows = zip(*(column.to_pylist() for column in _of_schema(checked(buffer), _LETTERS).columns), strict=True)
    return tuple(DeadLetter(*row) for row in rows)


def packed_names(names: Sequence[str]) -> Packed:
    return packed(pa.table([names], schema=_NAMES))


def checked_names(buffer: pa.Buffer) -> frozenset[str]:
    return frozenset(_of_schema(checked(buffer), _NAMES).column("name").to_pylist())


def _encodable(text: str) -> str:
    """Replace a lone surrogate, which Python allows in texts and Arrow does not, by its number."""
    return text.encode(errors="backslashreplace").decode()


def _of_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    if table.schema != schema or any(column.null_count for column in table.columns):
        raise StepFailed("the steps returned Arrow data with other columns than requested")
    return table


# A step may raise these or subclasses; each arrives as the nearest class listed.
_KNOWN: dict[str, type[VitrinaError]] = {
    known.__name__: known
    for known in (
        errors.TransientError,
        errors.Disconnected,
        errors.FatalError,
        errors.SourceQueryFailed,
        errors.TargetMismatch,
        errors.BadKey,
        errors.StepFailed,
        errors.NotCarried,
        errors.RecordError,
        errors.RunError,
        errors.ConfigError,
        errors.Invalid,
    )
}


def packed_error(exc: BaseException) -> dict[str, Any]:
    if isinstance(exc, NoRowsToTell):
        return {"class": NoRowsToTell.__name__}
    if isinstance(exc, Invalid):
        fields = [[_short(field.path), _short(field.message), field.code] for field in exc.fields[:_MOST_FIELDS]]
        return {"class": "Invalid", "message": _short(exc.message), "fields": fields}
    known = next((kind.__name__ for kind in type(exc).__mro__ if kind.__name__ in _KNOWN), None)
    if known and isinstance(exc, VitrinaError):
        return {"class": known, "message": _short(exc.message)}
    return {"class": "FatalError", "message": _short(f"internal error in a worker: {type(exc).__name__}: {exc}")}


def _short(message: str) -> str:
    return message if len(message) <= _MESSAGE_CHARACTERS else f"{message[:_MESSAGE_CHARACTERS]}..."


def raise_error(found: Any) -> NoReturn:
    """Raise here what was raised on the other side."""
    if not isinstance(found, dict):
        raise StepFailed("the steps returned an invalid error")
    name, message = found.get("class"), str(found.get("message", ""))
    if name == NoRowsToTell.__name__:
        raise NoRowsToTell
    if name == "Invalid":
        fields = found.get("fields")
        told = [part for part in fields if isinstance(part, list)] if isinstance(fields, list) else []
        whole = [list(map(str, part)) for part in told if len(part) == _FIELD_PARTS]
        raise Invalid(message, tuple(FieldError(path, words, code) for path, words, code in whole))
    raise _KNOWN.get(str(name), FatalError)(message)
