"""Decode the messages of the pgoutput plugin, protocol version 1: whole transactions in the order of their commits."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from vitrina.errors import FatalError
from vitrina.ports.live import Change, ChangeKind, Image

# PostgreSQL counts microseconds since 2000-01-01.
_EPOCH_2000 = 946_684_800.0

_BEGIN = Struct("!xqqI")
_COMMIT = Struct("!xbqqq")
_OID = Struct("!xI")
_TRUNCATE = Struct("!xiB")
_COUNT = Struct("!h")
_LENGTH = Struct("!i")
_COLUMN_TYPE = Struct("!Ii")
_ONE_OID = Struct("!I")

_NULL, _UNCHANGED, _TEXT = b"nut"
_FULL_IDENTITY = "f"


class Begin(NamedTuple):
    """Represent the start of a transaction; `lsn` lies within its commit record."""

    lsn: int
    xid: int


class Commit(NamedTuple):
    """Represent the end of a transaction; `upto` is the end of its commit record."""

    upto: int
    committed_at: float


class Column(NamedTuple):
    """Describe a column as the log describes it."""

    name: str
    in_identity: bool


@dataclass(frozen=True)
class Relation:
    """Describe a table as of the time the change was written."""

    oid: int
    name: str
    identity: str
    columns: tuple[Column, ...]


class Wanted(NamedTuple):
    """Name what is kept of a table: the name that queries use, and the columns."""

    relation: str
    columns: Collection[str]


@dataclass(frozen=True)
class _Layout:
    """Describe a relation by its kept columns; the others are None."""

    relation: str
    columns: tuple[str | None, ...]
    identity: frozenset[str]
    has_full_identity: bool


Message = Begin | Commit | list[Change] | None


class Decoder:
    """Decode messages into changes that contain only the columns that `want` names for their table."""

    def __init__(self, want: Callable[[Relation], Wanted | None]) -> None:
        self._want = want
        self._relations: dict[int, Relation] = {}
        self._layouts: dict[int, _Layout | None] = {}
        self._begun = Begin(0, 0)
        self._number = 0

    def refresh(self) -> None:
        """Ask again which columns of each table are wanted."""
        self._layouts.clear()

    def decode(self, data: bytes) -> Message:
        """Decode one message. Return None for messages that are not about rows (types, origins, relations)."""
        kind = data[0:1]
        if kind == b"I":
            return self._row(data, "insert")
        if kind == b"U":
            return self._row(data, "update")
        if kind == b"D":
            return self._row(data, "delete")
        if kind == b"B":
            return self._begin(data)
        if kind == b"C":
            _, _, upto, at = _COMMIT.unpack_from(data)
            return Commit(upto, at / 1e6 + _EPOCH_2000)
        if kind == b"T":
            return self._truncate(data)
        if kind == b"R":
            self._describe(data)
        elif kind not in (b"O", b"Y", b"M"):
            raise FatalError(f"the source sent a message {kind!r} that version 1 of pgoutput does not have")
        return None

    def _begin(self, data: bytes) -> Begin:
        start, _, xid = _BEGIN.unpack_from(data)
        # One further than the record's start: a record may start where another ends, and everything up to there is
        # stored.
        self._begun, self._number = Begin(start + 1, xid), 0
        return self._begun

    def _describe(self, data: bytes) -> None:
        (oid,) = _OID.unpack_from(data)
        schema, at = _text(data, 5)
        name, at = _text(data, at)
        identity, at = chr(data[at]), at + 1
        (count,) = _COUNT.unpack_from(data, at)
        columns, at = [], at + _COUNT.size
        for _ in range(count):
            in_identity = bool(data[at] & 1)
            column, at = _text(data, at + 1)
            columns.append(Column(column, in_identity))
            at += _COLUMN_TYPE.size
        self._relations[oid] = Relation(oid, f"{schema or 'pg_catalog'}.{name}", identity, tuple(columns))
        self._layouts.pop(oid, None)

    def _layout(self, oid: int) -> _Layout | None:
        try:
            return self._layouts[oid]
        except KeyError:
            found = self._relations[oid]
            wanted = self._want(found)
            layout = _layout(found, wanted) if wanted else None
            self._layouts[oid] = layout
            return layout

    def _row(self, data: bytes, kind: ChangeKind) -> list[Change]:
        (oid,) = _OID.unpack_from(data)
        layout = self._layout(oid)
        if layout is None:
            return []
        old: Image | None = None
        new: Image | None = None
        at, tag = 6, data[5]
        if tag in b"KO":
            image, at = _image(data, at, layout.columns)
            # Columns outside the identity are sent as NULL, whatever their value.
            old = image if tag in b"O" else {name: image[name] for name in image if name in layout.identity}
            at += 1
        if kind != "delete":
            new, at = _image(data, at, layout.columns)
            new, old = _completed(new, old, layout, kind)
        return [self._change(layout.relation, kind, old, new)]

    def _truncate(self, data: bytes) -> list[Change]:
        count, _ = _TRUNCATE.unpack_from(data)
        at = _TRUNCATE.size
        oids = [_ONE_OID.unpack_from(data, at + 4 * place)[0] for place in range(count)]
        layouts = [layout for layout in map(self._layout, oids) if layout]
        return [self._change(name, "truncate", None, None) for name in sorted({each.relation for each in layouts})]

    def _change(self, relation: str, kind: ChangeKind, old: Image | None, new: Image | None) -> Change:
        self._number += 1
        return Change(self._begun.lsn, self._number - 1, self._begun.xid, relation, kind, old, new)


def _layout(found: Relation, wanted: Wanted) -> _Layout:
    return _Layout(
        relation=wanted.relation,
        columns=tuple(column.name if column.name in wanted.columns else None for column in found.columns),
        identity=frozenset(column.name for column in found.columns if column.in_identity),
        has_full_identity=found.identity == _FULL_IDENTITY,
    )


def _completed(new: Image, old: Image | None, layout: _Layout, kind: ChangeKind) -> tuple[Image, Image | None]:
    """Add what the log omits: unchanged large values and unchanged identities."""
    if kind != "update":
        return new, old
    if old is None and not layout.has_full_identity:
        # The old identity is sent only if one of its columns changed.
        return new, {name: new[name] for name in new if name in layout.identity}
    unchanged = {name: old[name] for name in (old or ()) if name not in new} if old else {}
    return {**new, **unchanged}, old


def _image(data: bytes, at: int, columns: Sequence[str | None]) -> tuple[dict[str, str | None], int]:
    """Read a row; unchanged large values are not sent, so the image lacks them."""
    (count,) = _COUNT.unpack_from(data, at)
    at += _COUNT.size
    image: dict[str, str | None] = {}
    for place in range(count):
        kind, at = data[at], at + 1
        name = columns[place]
        if kind == _TEXT:
            (length,) = _LENGTH.unpack_from(data, at)
            at += _LENGTH.size
            if name is not None:
                image[name] = data[at : at + length].decode()
            at += length
        elif kind == _NULL:
            if name is not None:
                image[name] = None
        elif kind != _UNCHANGED:
            raise FatalError(f"the source sent a value of the form {chr(kind)!r}, not text")
    return image, at


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode(), end + 1
