"""Encode Arrow columns as JSON tokens, a column at a time; rows without a JSON form are reported as problems."""

import base64
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from vitrina import deep_json, errors
from vitrina.connectors.search import values

# All bytes except control characters, the quote and the backslash are allowed unescaped in a JSON string.
_PLAIN_BYTES = bytes(byte for byte in range(256) if byte >= 0x20 and byte not in b'"\\')
_NOT_PLAIN = r'["\\\x00-\x1f]'

# Years 0000 to 9999, which Arrow prints with four digits.
_FIRST_PLAIN_DAY, _LAST_PLAIN_DAY = -719_528, 2_932_896
_DAY_MICROSECONDS = 86_400_000_000
# The range of PostgreSQL's types; 'infinity' arrives as a number outside it.
_FIRST_DAY, _LAST_DATE_DAY, _LAST_TIMESTAMP_DAY = -2_440_588, 2_145_042_905, 106_751_990
# Levels of nested objects and lists.
DEEPEST = 500
TOO_DEEP = f"the JSON is more than {DEEPEST} levels deep, which crashes search servers: flatten it in the query"
INFINITE = "infinity is not a date that a document can hold: convert it to NULL in the query"


@dataclass
class Texts:
    """Hold a column as text: `quoted` if JSON needs quotes around it, `plain` if nothing in it needs escaping."""

    texts: pa.StringArray
    quoted: bool = False
    plain: bool = True
    # Why the value at a position cannot be in a document.
    problems: dict[int, str] = field(default_factory=dict)
    # Whether values may be JSON objects.
    objects: bool = False
    # The value for an id, if `texts` already contains JSON quotes or brackets.
    in_id: pa.StringArray | None = None

    def tokens(self) -> pa.StringArray:
        """Return JSON tokens, with NULL where the column has NULL."""
        return json_strings(self.texts, plain=self.plain) if self.quoted else self.texts

    def has_objects(self) -> bool:
        return self.objects and _any(pc.match_substring_regex(self.texts, r"^\s*\{"))


def encode(column: pa.Array, pg_type: str, field_type: str) -> Texts:
    """Encode one column.

    `pg_type` is as `format_type` writes it (empty when unknown), `field_type` is from the index mapping.
    """
    if isinstance(column.type, pa.BaseExtensionType):
        if column.type.extension_name == "arrow.uuid":
            return _uuids(column.storage)
        implied = "json" if column.type.extension_name == "arrow.json" else ""
        return encode(column.storage, pg_type or implied, field_type)
    if pa.types.is_dictionary(column.type):
        return encode(column.dictionary_decode(), pg_type, field_type)
    if pa.types.is_fixed_size_list(column.type):
        return encode(column.cast(pa.list_(column.type.value_type)), pg_type, field_type)
    for fits, encoder in _ENCODERS:
        if fits(column.type):
            return encoder(column, pg_type, field_type)
    raise errors.FatalError(f"a column of Arrow type {column.type} cannot be put into a document: cast it in the query")


def json_strings(texts: pa.StringArray, *, plain: bool) -> pa.StringArray:
    """Quote the text values, and escape them where needed."""
    tokens = _join('"', texts, '"')
    if plain or _all_plain(texts):
        return tokens
    mask = pc.fill_null(pc.match_substring_regex(texts, _NOT_PLAIN), False)
    escaped = [orjson.dumps(text).decode() for text in texts.filter(mask).to_pylist()]
    return pc.replace_with_mask(tokens, mask, pa.array(escaped, pa.string()))


def _join(*parts: str | pa.Array) -> pa.StringArray:
    return pc.binary_join_element_wise(*parts, "")


def _all_plain(texts: pa.StringArray) -> bool:
    """Check the characters of the whole column in one pass, which is much cheaper than matching each row."""
    _, offsets, characters = texts.buffers()
    if characters is None or not len(texts):
        return True
    ends = memoryview(offsets).cast("i")
    used = memoryview(characters)[ends[texts.offset] : ends[texts.offset + len(texts)]]
    return not bytes(used).translate(None, _PLAIN_BYTES)


def _as_printed(column: pa.Array, pg_type: str, field_type: str) -> Texts:
    return Texts(column.cast(pa.string()))


def _floats(column: pa.Array, pg_type: str, field_type: str) -> Texts:
    texts = (column.cast(pa.float32()) if pa.types.is_float16(column.type) else column).cast(pa.string())
    wrong = pc.invert(pc.is_finite(column))
    if not _any(wrong):
        return Texts(texts)
    return Texts(texts, problems={i: values.why_no_number(texts[i].as_py()) for i in _positions(wrong)})


def _decimals(column: pa.Array, pg_type: str, field_type: str) -> Texts:
    return _numerics(column.cast(pa.string()), field_type)


def _strings(column: pa.Array, pg_type: str, field_type: str) -> Texts:
    texts = column if pa.types.is_string(column.type) else column.cast(pa.string())
    if pg_type == "numeric" or (pg_type.startswith("numeric(") and not values.is_array(pg_type)):
        return _numerics(texts, field_type)
    if pg_type in ("json", "jsonb"):
        return Texts(_without_line_breaks(texts), objects=True, problems=_too_deep(texts))
    if values.base_type(pg_type) in _PLAIN_DATES and not values.is_array(pg_type):
        return _dates_from_text(texts, values.base_type(pg_type))
    if values.base_type(pg_type) in ("character", "bpchar") and not values.is_array(pg_type):
        return Texts(pc.ascii_rtrim(texts, characters=" "), quoted=True, plain=False)  # padding is not significant
    if values.is_array(pg_type):
        return _arrays_from_text(texts, pg_type, field_type)
    token = values.text_token(pg_type, field_type)
    if token is values.quoted:
        return Texts(texts, quoted=True, plain=False)
    return replace(_one_by_one(texts, token), objects=values.is_range(pg_type))


def _numerics(texts: pa.StringArray, field_type: str) -> Texts:
    """Validate numbers, because a transform may have replaced them with other text.

    One invalid token would spoil the whole request.
    """
    wrong = pc.invert(pc.match_substring_regex(texts, values.NUMBER))
    problems = {}
    if _any(wrong):
        problems = {position: values.why_no_number(texts[position].as_py()) for position in _positions(wrong)}
    return Texts(texts, quoted=field_type not in values.NUMBER_FIELDS, plain=not problems, problems=problems)


def _without_line_breaks(texts: pa.StringArray) -> pa.StringArray:
    """Replace line breaks, which occur only between JSON tokens and would end the line of the bulk request."""
    if not _any(pc.match_substring_regex(texts, r"[\r\n]")):
        return texts
    return pc.replace_substring_regex(texts, r"[\r\n]", " ")


def _too_deep(texts: pa.StringArray) -> dict[int, str]:
    """Find JSON that is too deep. A server accepts it and crashes when a search returns a part of the document."""
    brackets = pc.add(pc.count_substring(texts, "["), pc.count_substring(texts, "{"))
    candidates = pc.greater(brackets, DEEPEST)
    if not _any(candidates):
        return {}
    return {i: TOO_DEEP for i in _positions(candidates) if deep_json.is_deeper(texts[i].as_py(), DEEPEST)}


# One dimension and no escapes, as in most arrays of words.
_ELEMENT = r'(?:"[^"\\\x00-\x1f]*"|[^{},"\\\x00-\x1f]+)'
_SIMPLE_ARRAY = rf"^\{{(?:{_ELEMENT}(?:,{_ELEMENT})*)?\}}$"
_NULL_ELEMENT = r"[{,]NULL[,}]"
_ARRAY_WITH_BOUNDS = r"^\[-?\d+:"


def _arrays_from_text(texts: pa.StringArray, pg_type: str, field_type: str) -> Texts:
    """Encode PostgreSQL's `{a,b}`, or JSON if the query built it with `to_jsonb`."""
    if _all(pc.starts_with(texts, "[")) and not _any(pc.match_substring_regex(texts, _ARRAY_WITH_BOUNDS)):
        return Texts(_without_line_breaks(texts), in_id=texts)
    token = values.text_token(pg_type, field_type)
    if values.text_token(pg_type.removesuffix("[]"), field_type) is not values.quoted:
        return _one_by_one(texts, token)
    # Among quoted elements, NULL may be a word inside one of them.
    unclear = pc.and_(pc.match_substring_regex(texts, _NULL_ELEMENT), pc.match_substring(texts, '"'))
    simple = pc.and_not(pc.match_substring_regex(texts, _SIMPLE_ARRAY), unclear)
    if _all(simple):
        return Texts(_simple_arrays(texts), in_id=texts)
    others = _one_by_one(pc.if_else(simple, None, texts), token)
    return Texts(pc.coalesce(others.texts, _simple_arrays(texts)), problems=others.problems, in_id=texts)


def _simple_arrays(texts: pa.StringArray) -> pa.StringArray:
    inner = pc.utf8_slice_codeunits(texts, 1, -1)
    elements = pc.replace_substring_regex(inner, r'"([^"]*)"|([^,"]+)', r'"\1\2"')
    nulls = pc.match_substring_regex(texts, _NULL_ELEMENT)
    if _any(nulls):
        elements = pc.if_else(nulls, pc.replace_substring(elements, '"NULL"', "null"), elements)
    return _join("[", elements, "]")


def _all(mask: pa.BooleanArray) -> bool:
    return bool(pc.all(mask, min_count=0).as_py())


def _any(mask: pa.BooleanArray) -> bool:
    return bool(pc.any(mask, min_count=0).as_py())


# Dates as a session in UTC prints them, except 'infinity' and years before 1 or after 9999.
_PLAIN_DATES = {
    "date": r"^\d{4}-\d\d-\d\d$",
    "timestamp without time zone": r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?$",
    "timestamp with time zone": r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?\+00$",
}


def _dates_from_text(texts: pa.StringArray, base_type: str) -> Texts:
    if not _all(pc.match_substring_regex(texts, _PLAIN_DATES[base_type])):
        return _one_by_one(texts, values.iso_timestamp, quoted=True)
    if base_type == "date":
        return Texts(texts, quoted=True)
    iso = pc.binary_replace_slice(texts.cast(pa.binary()), 10, 11, b"T")
    if base_type == "timestamp with time zone":
        iso = pc.binary_replace_slice(iso, -3, _TO_THE_END, b"Z")
    return Texts(iso.cast(pa.string()), quoted=True)


_TO_THE_END = 2**31 - 1


def _one_by_one(texts: pa.StringArray, convert: Callable[[str], str], *, quoted: bool = False) -> Texts:
    """Convert each value, into text if `quoted`, else into JSON."""
    problems: dict[int, str] = {}
    converted: list[str | None] = []
    for position, text in enumerate(texts.to_pylist()):
        try:
            converted.append(None if text is None else convert(text))
        except values.NotJson as exc:
            problems[position] = str(exc)
            converted.append(None)
    return Texts(pa.array(converted, pa.string()), quoted, problems=problems, in_id=None if quoted else texts)


def _timestamps(column: pa.Array, pg_type: str, field_type: str) -> Texts:
    zone = "Z" if column.type.tz else ""
    naive = column.cast(pa.timestamp(column.type.unit))  # the instant in UTC; printing with a zone is 40 times slower
    texts = pc.binary_replace_slice(naive.cast(pa.string()).cast(pa.binary()), 10, 11, b"T").cast(pa.string())
    result = Texts(_join(texts, zone) if zone else texts, quoted=True)
    if column.type.unit != "us":
        return result  # made by a transform, so not PostgreSQL's infinity
    first, last = _FIRST_PLAIN_DAY * _DAY_MICROSECONDS, (_LAST_PLAIN_DAY + 1) * _DAY_MICROSECONDS - 1
    limits = (_FIRST_DAY * _DAY_MICROSECONDS, (_LAST_TIMESTAMP_DAY + 1) * _DAY_MICROSECONDS)
    return _repair_far(
        result, column.cast(pa.int64()), (first, last), limits, lambda us: values.far_timestamp(us) + zone
    )


def _dates(column: pa.Array, pg_type: str, field_type: str) -> Texts:
    days = column.cast(pa.date32()).cast(pa.int32())
    result = Texts(column.cast(pa.string()), quoted=True)
    plain = (_FIRST_PLAIN_DAY, _LAST_PLAIN_DAY)
    return _repair_far(result, days, plain, (_FIRST_DAY, _LAST_DATE_DAY), values.far_date)


def _repair_far(
    result: Texts, numbers: pa.Array, plain: tuple[int, int], finite: tuple[int, int], printed: Callable[[int], str]
) -> Texts:
    """Print values far from today, which Arrow cannot print, and report the infinite ones."""
    extremes = pc.min_max(numbers).as_py()
    if extremes["min"] is None or (extremes["min"] >= plain[0] and extremes["max"] <= plain[1]):
        return result
    texts = result.texts.to_pylist()
    for position, number in enumerate(numbers.to_pylist()):
        if number is None or plain[0] <= number <= plain[1]:
            continue
        if finite[0] <= number <= finite[1]:
            texts[position] = printed(number)
        else:
            result.problems[position] = INFINITE
    result.texts = pa.array(texts, pa.string())
    return result


def _times(column: pa.Array, pg_type: str, field_type: str) -> Texts:
    microseconds = column.cast(pa.time64("us")).cast(pa.int64())
    latest = pc.max(microseconds).as_py()
    if latest is not None and latest >= _DAY_MICROSECONDS:  # 24:00:00, which Arrow cannot print
        texts = [None if value is None else values.clock_time(value) for value in microseconds.to_pylist()]
        return Texts(pa.array(texts, pa.string()), quoted=True)
    return Texts(column.cast(pa.string()), quoted=True)


def _intervals(column: pa.Array, pg_type: str, field_type: str) -> Texts:
    texts = [None if value is None else values.iso_interval(*value) for value in column.to_pylist()]
    return Texts(pa.array(texts, pa.string()), quoted=True)


def _durations(column: pa.Array, pg_type: str, field_type: str) -> Texts:
    scale = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[column.type.unit]
    amounts = column.cast(pa.int64()).to_pylist()
    texts = [None if amount is None else values.iso_interval(0, 0, amount * scale) for amount in amounts]
    return Texts(pa.array(texts, pa.string()), quoted=True)


def _binaries(column: pa.Array, pg_type: str, field_type: str) -> Texts:
    texts = [None if value is None else base64.b64encode(value).decode() for value in column.to_pylist()]
    return Texts(pa.array(texts, pa.string()), quoted=True)


def _fixed_binaries(column: pa.Array, pg_type: str, field_type: str) -> Texts:
    return _uuids(column) if pg_type == "uuid" else _binaries(column, pg_type, field_type)


def _uuids(column: pa.FixedSizeBinaryArray) -> Texts:
    """Convert the whole column to hexadecimal digits at once, then split them into the five groups."""
    characters = memoryview(column.buffers()[1])[column.offset * 16 : (column.offset + len(column)) * 16]
    digits = bytes(characters).hex().encode()
    offsets = array("i", range(0, 32 * len(column) + 1, 32))
    whole = pa.StringArray.from_buffers(len(column), pa.py_buffer(offsets), pa.py_buffer(digits))
    groups = [pc.binary_slice(whole.cast(pa.binary()), start, stop) for start, stop in _UUID_GROUPS]
    texts = pc.binary_join_element_wise(*groups, b"-").cast(pa.string())
    return Texts(_null_where(column, texts), quoted=True)


_UUID_GROUPS = ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))


def _lists(column: pa.Array, pg_type: str, field_type: str) -> Texts:
    elements = encode(column.flatten(), pg_type.removesuffix("[]"), field_type)
    tokens = pc.fill_null(elements.tokens(), "null")
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    ends = pc.cumulative_sum(lengths.cast(pa.int32()))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    texts = _join("[", pc.binary_join(pa.ListArray.from_arrays(offsets, tokens), ","), "]")
    parents = pc.list_parent_indices(column).to_pylist() if elements.problems else []
    problems = {parents[position]: reason for position, reason in elements.problems.items()}
    return Texts(_null_where(column, texts), problems=problems)


def _structs(column: pa.StructArray, pg_type: str, field_type: str) -> Texts:
    members = {part.name: column.field(part.name) for part in column.type}
    encoded = {name: encode(member, "", "") for name, member in members.items()}
    problems = {position: reason for member in encoded.values() for position, reason in member.problems.items()}
    return Texts(_null_where(column, objects(encoded)), problems=problems, objects=True)


def objects(members: Mapping[str, Texts]) -> pa.StringArray:
    """Return JSON objects built from columns of equal length."""
    parts: list[str | pa.Array] = []
    for number, (name, member) in enumerate(members.items()):
        parts += [("," if number else "{") + orjson.dumps(name).decode() + ":", member.tokens()]
    return pc.binary_join_element_wise(*parts, "}", "", null_handling="replace", null_replacement="null")


def _nulls(column: pa.Array, pg_type: str, field_type: str) -> Texts:
    return Texts(pa.nulls(len(column), pa.string()))


def _null_where(column: pa.Array, texts: pa.StringArray) -> pa.StringArray:
    if not column.null_count:
        return texts
    return pc.if_else(column.is_null(), pa.scalar(None, pa.string()), texts)


def _positions(mask: pa.BooleanArray) -> list[int]:
    positions: list[int] = pc.indices_nonzero(pc.fill_null(mask, False)).to_pylist()
    return positions


_Encoder = Callable[[pa.Array, str, str], Texts]
_ENCODERS: Sequence[tuple[Callable[[pa.DataType], bool], _Encoder]] = (
    (pa.types.is_string, _strings),
    (pa.types.is_large_string, _strings),
    (pa.types.is_string_view, _strings),
    (pa.types.is_boolean, _as_printed),
    (pa.types.is_integer, _as_printed),
    (pa.types.is_floating, _floats),
    (pa.types.is_decimal, _decimals),
    (pa.types.is_timestamp, _timestamps),
    (pa.types.is_date, _dates),
    (pa.types.is_time, _times),
    (pa.types.is_interval, _intervals),
    (pa.types.is_duration, _durations),
    (pa.types.is_fixed_size_binary, _fixed_binaries),
    (pa.types.is_binary, _binaries),
    (pa.types.is_large_binary, _binaries),
    (pa.types.is_binary_view, _binaries),
    (pa.types.is_list, _lists),
    (pa.types.is_large_list, _lists),
    (pa.types.is_struct, _structs),
    (pa.types.is_null, _nulls),
)
