"""Convert PostgreSQL values to JSON, one at a time, if they arrive as text or Arrow prints them differently."""

import base64
import re
from collections.abc import Callable
from typing import Any, Literal

import orjson

# Converts the text of one value to its JSON token.
TextToken = Callable[[str], str]

NUMBER_FIELDS = frozenset(
    {"double", "float", "half_float", "scaled_float", "long", "integer", "short", "byte", "unsigned_long"}
)
_INTEGERS = frozenset({"smallint", "integer", "bigint", "oid", "xid", "cid"})
_FLOATS = frozenset({"real", "double precision"})
_NOT_FINITE = frozenset({"NaN", "Infinity", "-Infinity", "nan", "inf", "-inf"})
NUMBER = r"^-?\d+(\.\d+)?([eE][+-]?\d+)?$"  # JSON's syntax
_RANGE_BOUNDS = {
    "int4range": "integer",
    "int8range": "bigint",
    "numrange": "numeric",
    "daterange": "date",
    "tsrange": "timestamp without time zone",
    "tstzrange": "timestamp with time zone",
}

_NATIVE = _INTEGERS | _FLOATS | {"boolean", "text", "character varying", "bytea", "uuid", "json", "jsonb"}
_SAME_IN_JSON = _INTEGERS | {"boolean", "text", "character varying", "uuid", "date", "json", "jsonb"}

_BOUND = r'"(?:[^"\\]|\\.|"")*"|[^,"()\[\]]*'
_RANGE = re.compile(rf"empty|([\[(])({_BOUND}),({_BOUND})([\])])")
_TIMESTAMP = re.compile(
    r"(?P<year>\d{4,})(?P<rest>-\d\d-\d\d)"
    r"(?: (?P<time>\d\d:\d\d:\d\d(?:\.\d+)?)(?P<zone>[+-]\d\d(?::\d\d){0,2})?)?(?P<bc> BC)?"
)
_INTERVAL = re.compile(
    r"(?:(?P<years>[+-]?\d+) years? ?)?(?:(?P<months>[+-]?\d+) mons? ?)?(?:(?P<days>[+-]?\d+) days? ?)?"
    r"(?:(?P<sign>[+-]?)(?P<hours>\d+):(?P<minutes>\d\d):(?P<seconds>\d\d)(?:\.(?P<fraction>\d+))?)?"
)
_ARRAY_BOUNDS = re.compile(r"(?:\[-?\d+:-?\d+\])+=")
_ARRAY_PART = re.compile(r'\{|\}|,|"((?:[^"\\]|\\.)*)"|([^{},"]+)', re.DOTALL)


class NotJson(ValueError):
    """Signal that a value has no form in a document; the message says why and what to do."""


def base_type(pg_type: str) -> str:
    """Strip array and precision: `numeric(10,2)[]` is `numeric`, `timestamp(3) with time zone` loses `(3)`."""
    return re.sub(r"\(\d+(?:,-?\d+)?\)", "", pg_type.removesuffix("[]"))


def is_array(pg_type: str) -> bool:
    return pg_type.endswith("[]")


def is_range(pg_type: str) -> bool:
    return range_type(pg_type) in _RANGE_BOUNDS


def range_type(pg_type: str) -> str:
    """Return the range type of a multirange, or the type itself."""
    return base_type(pg_type).replace("multirange", "range")


def travels_as(pg_type: str) -> Literal["native", "text", "json"]:
    """Return how a reader selects a column for documents: unchanged, cast to text, or as `to_jsonb(...)::text`.

    JSON is used only where it is exact: it has hexadecimal digits for bytea, and numbers without trailing zeros.
    """
    base = base_type(pg_type)
    if is_array(pg_type):
        return "json" if base in _SAME_IN_JSON else "text"
    return "native" if base in _NATIVE else "text"


def text_token(pg_type: str, field_type: str) -> TextToken:
    """Return the function that converts the text form of a PostgreSQL type to JSON for a field of that type."""
    if is_array(pg_type):
        return _array_token(text_token(pg_type.removesuffix("[]"), field_type))
    base = base_type(pg_type)
    if base in ("json", "jsonb"):
        return one_line
    if base in _INTEGERS | _FLOATS or (base == "numeric" and field_type in NUMBER_FIELDS):
        return _number
    if is_range(base) and field_type.endswith("_range"):
        return _ranges_token(base)
    return _TEXT_TOKENS.get((base, field_type)) or _TEXT_TOKENS.get((base, "")) or quoted


def quoted(text: str) -> str:
    return orjson.dumps(text).decode()


def one_line(text: str) -> str:
    """Replace line breaks in JSON.

    They occur only between its tokens and would end the line of the bulk request.
    """
    return text.replace("\n", " ").replace("\r", " ")


def _number(text: str) -> str:
    if not re.match(NUMBER, text):
        raise NotJson(why_no_number(text))
    return text


def why_no_number(text: str) -> str:
    return f"{text} has no form in JSON" if text in _NOT_FINITE else f"{text[:100]!r} is not a number"


def _numeric_as_text(text: str) -> str:
    return f'"{_number(text)}"'


def _boolean(text: str) -> str:
    return "true" if text in ("t", "true") else "false"


def _bytes(text: str) -> str:
    return f'"{base64.b64encode(bytes.fromhex(text.removeprefix(chr(92) + "x"))).decode()}"'


def _address(text: str) -> str:
    """Strip the mask of a single host, which a cast of inet to text adds and an `ip` field does not accept."""
    address, _, bits = text.partition("/")
    return quoted(address if bits == ("128" if ":" in address else "32") else text)


def iso_timestamp(text: str) -> str:
    """Convert PostgreSQL's ISO style to ISO 8601, which also has years before 1 and after 9999."""
    found = _TIMESTAMP.fullmatch(text)
    if not found:
        raise NotJson(f"{text} is not a date that a document can hold: convert it to NULL in the query")
    date = iso_year(1 - int(found["year"]) if found["bc"] else int(found["year"])) + found["rest"]
    if not found["time"]:
        return date
    zone = found["zone"] or ""
    zone = "Z" if zone in ("+00", "+00:00") else f"{zone}:00" if len(zone) == 3 else zone
    return f"{date}T{found['time']}{zone}"


def iso_year(year: int) -> str:
    return f"{year:04d}" if 0 <= year <= 9999 else f"{year:+05d}"


def _interval(text: str) -> str:
    return quoted(interval_from_text(text))


def _date(text: str) -> str:
    return f'"{iso_timestamp(text)}"'


def far_date(days: int) -> str:
    """Return days since 1970 as ISO 8601, for years that Python and Arrow cannot print."""
    # Civil date from days, in eras of 400 years that begin on 1 March.
    shifted = days + 719_468
    era, day_of_era = divmod(shifted, 146_097)
    year_of_era = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted_month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * shifted_month + 2) // 5 + 1
    month = shifted_month + 3 if shifted_month < 10 else shifted_month - 9
    year = year_of_era + era * 400 + (1 if month <= 2 else 0)
    return f"{iso_year(year)}-{month:02d}-{day:02d}"


def far_timestamp(microseconds: int) -> str:
    days, rest = divmod(microseconds, 86_400_000_000)
    return f"{far_date(days)}T{clock_time(rest)}"


def clock_time(microseconds: int) -> str:
    """Return a time of day as text; PostgreSQL also has 24:00:00."""
    seconds, fraction = divmod(microseconds, 1_000_000)
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:06d}"


def iso_interval(months: int, days: int, nanoseconds: int) -> str:
    """Return ISO 8601 with a sign on each part, like PostgreSQL's iso_8601 style; keep months, days and time apart."""
    sign = -1 if months < 0 else 1
    years, months = sign * (abs(months) // 12), sign * (abs(months) % 12)
    date = _parts((years, "Y"), (months, "M"), (days, "D"))
    clock = _clock_parts(nanoseconds)
    if not date and not clock:
        return "PT0S"
    return f"P{date}{'T' if clock else ''}{clock}"


def interval_from_text(text: str) -> str:
    """Convert PostgreSQL's style, `-1 mons +2 days 00:00:03.5`, to ISO 8601; return other text unchanged."""
    found = _INTERVAL.fullmatch(text)
    if not found:
        return text
    months = int(found["years"] or 0) * 12 + int(found["months"] or 0)
    nanoseconds = 0
    if found["hours"]:
        seconds = int(found["hours"]) * 3600 + int(found["minutes"]) * 60 + int(found["seconds"])
        nanoseconds = seconds * 1_000_000_000 + int((found["fraction"] or "").ljust(9, "0"))
    return iso_interval(months, int(found["days"] or 0), -nanoseconds if found["sign"] == "-" else nanoseconds)


def _clock_parts(nanoseconds: int) -> str:
    sign = -1 if nanoseconds < 0 else 1
    seconds, fraction = divmod(abs(nanoseconds), 1_000_000_000)
    hours, minutes, seconds = sign * (seconds // 3600), sign * (seconds // 60 % 60), seconds % 60
    parts = _parts((hours, "H"), (minutes, "M"))
    if not seconds and not fraction:
        return parts
    decimals = f".{fraction:09d}".rstrip("0") if fraction else ""
    return f"{parts}{'-' if sign < 0 else ''}{seconds}{decimals}S"


def _parts(*amounts: tuple[int, str]) -> str:
    return "".join(f"{amount}{unit}" for amount, unit in amounts if amount)


def _ranges_token(pg_type: str) -> TextToken:
    bound_type = _RANGE_BOUNDS[range_type(pg_type)]
    # A range field accepts numbers as text too, and text keeps all of their digits.
    bound_token = _number if bound_type in _INTEGERS else text_token(bound_type, "keyword")

    def token(text: str) -> str:
        ranges = [_one_range(found, bound_token) for found in _RANGE.finditer(text)]
        return f"[{','.join(ranges)}]" if "multirange" in pg_type else ranges[0]

    return token


def _one_range(found: re.Match[str], bound_token: TextToken) -> str:
    if found[0] == "empty":
        raise NotJson("an empty range cannot be indexed: convert it to NULL in the query, or map the field as keyword")
    opening, lower, upper, closing = found.groups()
    bounds = [
        _bound("gte" if opening == "[" else "gt", lower, bound_token),
        _bound("lte" if closing == "]" else "lt", upper, bound_token),
    ]
    return "{" + ",".join(bounds) + "}"


def _bound(operator: str, text: str, bound_token: TextToken) -> str:
    plain = re.sub(r'""|\\(.)', lambda escaped: escaped[1] or '"', text[1:-1]) if text.startswith('"') else text
    unbounded = plain in ("", "infinity", "-infinity")
    return f'"{operator}":{"null" if unbounded else bound_token(plain)}'


def _array_token(element_token: TextToken) -> TextToken:
    def token(text: str) -> str:
        bounds = _ARRAY_BOUNDS.match(text)
        if not bounds and not text.startswith("{"):
            return one_line(text)  # it is JSON already
        return _render(_parse_array(text[bounds.end() :] if bounds else text), element_token)

    return token


def _parse_array(text: str) -> Any:
    """Parse PostgreSQL's `{{1,2},{3,NULL}}` into nested lists of strings."""
    stack: list[list[Any]] = [[]]
    for part in _ARRAY_PART.finditer(text):
        if part[0] == "{":
            stack.append([])
        elif part[0] == "}":
            stack[-2].append(stack.pop())
        elif part[1] is not None:
            stack[-1].append(re.sub(r"\\(.)", r"\1", part[1], flags=re.DOTALL))
        elif part[2] is not None:
            stack[-1].append(None if part[2].upper() == "NULL" else part[2])
    return stack[0][0]


def _render(value: Any, element_token: TextToken) -> str:
    if isinstance(value, list):
        return "[" + ",".join(_render(element, element_token) for element in value) + "]"
    return "null" if value is None else element_token(value)


# By PostgreSQL type and, where it matters, field type.
_TEXT_TOKENS: dict[tuple[str, str], TextToken] = {
    ("numeric", ""): _numeric_as_text,
    ("boolean", ""): _boolean,
    ("bytea", ""): _bytes,
    ("date", ""): _date,
    ("timestamp without time zone", ""): _date,
    ("timestamp with time zone", ""): _date,
    ("interval", ""): _interval,
    ("inet", "ip"): _address,
}
