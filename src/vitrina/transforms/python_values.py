"""Convert columns to Python values for row steps and back, without silent conversions."""

import gc
import json
import math
import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from itertools import accumulate, chain, repeat
from struct import Struct
from typing import Any
from uuid import UUID, SafeUUID

import pyarrow as pa

from vitrina.errors import NotCarried
from vitrina.transforms import arrow_types

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - added to values without a zone
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_JSON_TYPES = ("json", "jsonb")


class Unfit(ValueError):
    """Report values that have no common type that a column could have."""


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Convert to one dict per row: Decimal for numeric, aware datetimes, UUID, lists, parsed json."""
    return rows_from(values_of(batch), batch.schema)


def values_of(batch: pa.RecordBatch) -> list[list[Any]]:
    """Convert to Python values in the same way, by column."""
    return [to_python(column, field) for column, field in zip(batch.columns, batch.schema, strict=True)]


def rows_from(columns: list[list[Any]], schema: pa.Schema) -> list[dict[str, Any]]:
    return _row_maker(tuple(schema.names))(columns) if columns else []


@lru_cache(64)
def _row_maker(names: tuple[str, ...]) -> Callable[[list[list[Any]]], list[dict[str, Any]]]:
    """Generate code like `{"id": v0, "title": v1}`: a dict of known keys takes half the time of dict(zip(...))."""
    variables = [f"v{place}" for place in range(len(names))]
    pairs = ", ".join(f"{name!r}: {variable}" for name, variable in zip(names, variables, strict=True))
    text = f"lambda columns: [{{{pairs}}} for {', '.join(variables)}, in zip(*columns, strict=True)]"
    made: Callable[[list[list[Any]]], list[dict[str, Any]]] = eval(text, {"zip": zip})  # noqa: S307 - names are literals
    return made


@contextmanager
def without_collection() -> Iterator[None]:
    """Disable garbage collection. Repeated scans of a batch of live rows take longer than building it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def to_python(column: pa.Array, field: pa.Field) -> list[Any]:
    """Convert one column. This is much faster than `to_pylist`, which makes an Arrow object of many values first."""
    tag = arrow_types.tag_of(field) or ""
    if pa.types.is_list(column.type):
        return _lists(column, arrow_types.item_field(field))
    try:
        return _decoder(column.type, arrow_types.bare_type(tag))(column)
    except (OverflowError, ValueError) as exc:
        raise NotCarried(
            f"column {field.name!r} holds a value that Python cannot ({exc}): its years go from 1 to 9999 and its"
            " seconds have six decimals; filter it out in the query, or cast the column to text there"
        ) from exc


def _lists(column: pa.ListArray, item: pa.Field) -> list[Any]:
    values = to_python(column.flatten(), item)
    lengths = column.value_lengths().to_pylist()
    if not column.null_count:
        ends = list(accumulate(lengths))
        return list(map(values.__getitem__, map(slice, [0, *ends], ends)))
    found: list[Any] = []
    start = 0
    for length in lengths:
        if length is None:
            found.append(None)
            continue
        found.append(values[start : start + length])
        start += length
    return found


def _decoder(kind: pa.DataType, tag: str) -> Callable[[pa.Array], list[Any]]:
    if tag == "numeric" and pa.types.is_string(kind):
        return lambda column: _each_of(column, Decimal, column.to_pylist())
    if tag in _JSON_TYPES:
        return lambda column: _each_of(column, _parse_json, column.to_pylist())
    for fits, decode in _DECODERS:
        if fits(kind):
            return decode
    return lambda column: column.to_pylist()


def _each(convert: Callable[[Any], Any], values: Iterable[Any]) -> list[Any]:
    return [None if value is None else convert(value) for value in values]


def _each_of(column: pa.Array, convert: Callable[[Any], Any], values: list[Any]) -> list[Any]:
    """Convert each value of a column. Values are checked for NULL only if the column has any."""
    return _each(convert, values) if column.null_count else list(map(convert, values))


class JsonNull:
    """Represent the value `null` of a json column, which is not the same as no value. It is false in conditions."""

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "JSON_NULL"


JSON_NULL = JsonNull()


def _parse_json(text: str) -> Any:
    """Parse JSON and keep all digits of its numbers."""
    value = json.loads(text, parse_float=Decimal, object_pairs_hook=_object)
    return JSON_NULL if value is None else value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise NotCarried(
            "a json value has the same key twice, which a Python dict cannot: cast it to jsonb in the query"
        )
    return found


def _uuids(column: pa.Array) -> list[Any]:
    """Convert from the bytes in the buffer; creating an Arrow object for each value takes longer than the rest."""
    storage = column.storage
    if storage.null_count == len(storage):
        return [None] * len(storage)
    start, end = (place * _UUID.size for place in (storage.offset, storage.offset + len(storage)))
    pairs = _UUID.iter_unpack(memoryview(storage.buffers()[1])[start:end])
    values = _made_uuids([high << 64 | low for high, low in pairs])
    if not storage.null_count:
        return values
    return [value if valid else None for value, valid in zip(values, storage.is_valid().to_pylist(), strict=True)]


def _made_uuids(numbers: list[int]) -> list[UUID]:
    """Create UUIDs without the checks of UUID(int=...), which take several times as long."""
    made = list(map(_NEW, repeat(UUID, len(numbers))))
    deque(map(_SET_INT, made, numbers), maxlen=0)
    deque(map(_SET_SAFETY, made, repeat(_UNKNOWN)), maxlen=0)
    return made


_UUID = Struct(">QQ")
_NEW, _UNKNOWN = object.__new__, SafeUUID.unknown
_SET_INT, _SET_SAFETY = (UUID.__dict__[name].__set__ for name in ("int", "is_safe"))


def uuids_of(texts: Iterable[str | None]) -> pa.Array:
    """Parse texts as UUIDs. Raise ValueError if one is invalid."""
    return pa.array(_each(UUID, texts), pa.uuid())


def _decimals(column: pa.Array) -> list[Any]:
    return _each_of(column, Decimal, column.cast(pa.string()).to_pylist())


def _timestamps(column: pa.Array) -> list[Any]:
    epoch = _EPOCH_UTC if column.type.tz else _EPOCH
    # The cast refuses a finer unit than Python has, rather than truncating it.
    microseconds = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist()
    if column.null_count:
        return [None if value is None else epoch + timedelta(0, 0, value) for value in microseconds]
    return [epoch + timedelta(0, 0, value) for value in microseconds]


def _dates(column: pa.Array) -> list[Any]:
    days = column.cast(pa.date32()).cast(pa.int32()).to_pylist()
    return _each_of(column, lambda day: date.fromordinal(day + _EPOCH_DAY), days)


def _is_uuid(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.UuidType)


_DECODERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], list[Any]]], ...] = (
    (_is_uuid, _uuids),
    (pa.types.is_decimal, _decimals),
    (pa.types.is_timestamp, _timestamps),
    (pa.types.is_date, _dates),
)


@dataclass(frozen=True)
class Original:
    """Hold a column as it was before a step, and the values that the step received from it."""

    column: pa.Array
    field: pa.Field
    # For lists, their items and lengths, because the step may change a list in place.
    values: list[Any]
    lengths: list[int | None] | None = None

    @classmethod
    def of(cls, column: pa.Array, field: pa.Field, values: list[Any]) -> "Original":
        if not pa.types.is_list(field.type):
            return cls(column, field, values)
        return cls(column, field, _items(values), _lengths(values))

    def is_left_alone(self, values: list[Any], hint: pa.Field | None) -> bool:
        """Return whether the step returned the same immutable objects, so that the column need not be rebuilt."""
        if hint is None or not hint.equals(self.field, check_metadata=True) or not self._is_immutable():
            return False
        if self.lengths is not None:
            if not _are_lists(values) or _lengths(values) != self.lengths:
                return False
            values = _items(values)
        return len(values) == len(self.values) and all(map(operator.is_, values, self.values))

    def _is_immutable(self) -> bool:
        field = arrow_types.item_field(self.field) if self.lengths is not None else self.field
        return not pa.types.is_nested(field.type) and (arrow_types.tag_of(field) or "") not in _JSON_TYPES


def _are_lists(values: list[Any]) -> bool:
    return set(map(type, values)) <= {list, tuple, type(None)}


def _items(lists: list[Any]) -> list[Any]:
    return list(chain.from_iterable(filter(None, lists)))


def _lengths(lists: list[Any]) -> list[int | None]:
    return [None if one is None else len(one) for one in lists]


def batch_of(
    rows: Sequence[dict[str, Any]], hints: pa.Schema, originals: Mapping[str, Original] | None = None
) -> pa.RecordBatch:
    """Build columns from rows that all have the same keys. `hints` are the preferred fields by name."""
    fields, columns = [], []
    for name, values in _by_name(rows).items():
        hint = hints.field(name) if hints.get_field_index(name) >= 0 else None
        original = (originals or {}).get(name)
        if original is not None and original.is_left_alone(values, hint):
            column, field = original.column, original.field
        else:
            column, field = column_of(values, name, hint)
        columns.append(column)
        fields.append(field)
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _by_name(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Group values by column. Rows of one length that all have the names of the first have no others."""
    names = list(rows[0])
    try:
        if set(map(len, rows)) == {len(names)}:
            return {name: list(map(operator.itemgetter(name), rows)) for name in names}
    except KeyError:
        pass
    raise Unfit(_difference(names, next(list(row) for row in rows if row.keys() != rows[0].keys())))


def _difference(wanted: list[str], found: list[str]) -> str:
    missing = [name for name in wanted if name not in found]
    extra = [name for name in found if name not in wanted]
    what = f"lacks {missing[0]!r}" if missing else f"has {extra[0]!r} as well"
    return (
        f"the rows differ in their columns: one {what}; give every row the same ones, with None where there is nothing"
    )


def column_of(values: list[Any], name: str, hint: pa.Field | None) -> tuple[pa.Array, pa.Field]:
    """Build a column of the hinted type if the values are of that type, otherwise of the type they have."""
    if hint is not None and not pa.types.is_null(hint.type):
        column = _as_hinted(values, hint)
        if column is not None:
            return column, hint
    return _by_values(values, name)


def _as_hinted(values: list[Any], hint: pa.Field) -> pa.Array | None:
    """Build a column of the hinted type, or return None if the step has changed the type.

    Arrow itself would truncate 1.5 to 1 for an integer column.
    """
    tag = arrow_types.tag_of(hint) or ""
    if pa.types.is_list(hint.type):
        return _list_as_hinted(values, hint)
    encode = _encoder(arrow_types.bare_type(tag), hint.type)
    if encode is not None:
        return pa.array(_each(encode, values), pa.string())
    classes = set(map(type, values)) - {type(None)}
    if not classes <= _classes_for(hint.type) or not _zones_fit(values, hint.type):
        return None
    try:
        return pa.array(values, hint.type)
    except (pa.ArrowInvalid, OverflowError):
        return None  # too large, or with more digits than the type allows


def _encoder(tag: str, kind: pa.DataType) -> Callable[[Any], str] | None:
    if tag in _JSON_TYPES:
        return _encode_json
    if tag == "numeric" and pa.types.is_string(kind):
        return _numeric_text
    return None


def _list_as_hinted(values: list[Any], hint: pa.Field) -> pa.Array | None:
    if not _are_lists(values):
        return None
    flat = _as_hinted(_items(values), arrow_types.item_field(hint))
    return None if flat is None else _grouped(_lengths(values), flat)


def regrouped(lists: pa.ListArray, items: pa.Array) -> pa.ListArray:
    """Build the same lists with other items."""
    return _grouped(lists.value_lengths().to_pylist(), items)


def _grouped(lengths: list[int | None], items: pa.Array) -> pa.ListArray:
    if None not in lengths:
        return pa.ListArray.from_arrays(pa.array([0, *accumulate(lengths)], pa.int32()), items)
    offsets: list[int | None] = []
    end = 0
    for length in lengths:
        offsets.append(None if length is None else end)
        end += length or 0
    return pa.ListArray.from_arrays(pa.array([*offsets, end], pa.int32()), items)


def _classes_for(kind: pa.DataType) -> frozenset[type]:
    for fits, classes in _CLASSES:
        if fits(kind):
            return classes
    return frozenset()


_CLASSES: tuple[tuple[Callable[[pa.DataType], bool], frozenset[type]], ...] = (
    (pa.types.is_boolean, frozenset({bool})),
    (pa.types.is_integer, frozenset({int})),
    (pa.types.is_floating, frozenset({int, float})),
    (pa.types.is_decimal, frozenset({int, Decimal})),
    (pa.types.is_string, frozenset({str})),
    (pa.types.is_binary, frozenset({bytes, bytearray})),
    (_is_uuid, frozenset({UUID})),
    (pa.types.is_timestamp, frozenset({datetime})),
    (pa.types.is_date, frozenset({date})),
    (pa.types.is_time, frozenset({time})),
    (pa.types.is_duration, frozenset({timedelta})),
)


def _zones_fit(values: list[Any], kind: pa.DataType) -> bool:
    """Return whether zones match: a time without a zone is not UTC, and a zone must not get lost."""
    if not pa.types.is_timestamp(kind):
        return True
    aware = kind.tz is not None
    return all(value is None or (value.tzinfo is not None) == aware for value in values)


def _by_values(values: list[Any], name: str) -> tuple[pa.Array, pa.Field]:
    classes = set(map(type, values)) - {type(None)}
    field = _field_for(values, classes, name)
    if field is not None:
        column = _as_hinted(values, field)
        if column is not None:
            return column, field
    if any(issubclass(found, datetime | time) for found in classes):
        raise Unfit(f"column {name!r} mixes moments with and without a time zone, or with other values")
    try:
        column = pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as exc:
        kinds = ", ".join(sorted(found.__name__ for found in classes))
        raise Unfit(f"column {name!r} cannot be made of {kinds}: give all of its values one type") from exc
    return column, pa.field(name, column.type)


def _field_for(values: list[Any], classes: set[type], name: str) -> pa.Field | None:
    """Choose the field that preserves the values exactly, or return None to let Arrow choose."""
    if not classes:
        return pa.field(name, pa.null())
    if classes == {Decimal} or (Decimal in classes and classes <= {Decimal, int}):
        return arrow_types.tagged(name, "numeric")
    if classes == {int}:
        large = any(value is not None and not -(2**63) <= value < 2**63 for value in values)
        return arrow_types.tagged(name, "numeric") if large else pa.field(name, pa.int64())
    if classes == {datetime}:
        aware = next(value for value in values if value is not None).tzinfo is not None
        return pa.field(name, pa.timestamp("us", "UTC" if aware else None))
    if classes == {time} and all(value is None or value.tzinfo is None for value in values):
        return pa.field(name, pa.time64("us"))
    if classes <= {list, tuple}:
        return _list_field_for(values, name)
    # A struct would give every value the keys of all others.
    return arrow_types.tagged(name, "jsonb") if classes == {dict} else None


def _list_field_for(values: list[Any], name: str) -> pa.Field | None:
    items = [item for value in values if value is not None for item in value]
    classes = set(map(type, items)) - {type(None)}
    if classes & {dict, list, tuple}:
        return arrow_types.tagged(name, "jsonb")
    if Decimal in classes:
        return arrow_types.tagged(name, "numeric[]")
    return None


def _numeric_text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, Decimal | int | float | str):
        raise Unfit(f"{type(value).__name__} is not a number")
    return repr(value) if isinstance(value, float) else str(value)


def _encode_json(value: Any) -> str:
    """Write JSON like json.dumps, with all the digits of a Decimal."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))}: {_encode_json(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_encode_json, value)) + "]"
    if isinstance(value, Decimal):
        return format(value, "f") if value.is_finite() else json.dumps(str(value))
    if isinstance(value, datetime | date | time):
        return json.dumps(value.isoformat())
    if isinstance(value, UUID):
        return json.dumps(str(value))
    if isinstance(value, JsonNull):
        return "null"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def json_text_of(value: Any) -> str:
    """Write JSON; values of types that JSON lacks become text."""
    return _encode_json(_readable(value))


def _readable(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, timedelta):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list | tuple):
        return [_readable(item) for item in value]
    if isinstance(value, dict):
        return {key: _readable(item) for key, item in value.items()}
    return value
