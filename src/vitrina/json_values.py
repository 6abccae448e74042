"""Limit the depth and size of JSON values from outside, and read stored values that exceed the limits."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

from pydantic import AfterValidator

from vitrina.sentences import say

# Limit of one value of a definition (parameters of a step, settings of an index). All code that walks or writes JSON,
# here and in clients, handles far more than this.
MAX_DEPTH = 32
MAX_CHARACTERS = 262_144
# Limit of a whole request, and of values read from the metastore: a definition is wrapped in a few more levels.
MAX_DEPTH_WRAPPED = 64
MAX_DIGITS = 4000
CUT = "(nested too deeply to be shown)"
# As in `json.loads`, without detecting the encoding, which is known.
_decode = json.JSONDecoder().decode


def is_deeper(value: object, most: int) -> bool:
    """Return whether objects and lists are nested deeper than that, without recursion."""
    level = [value]
    for _ in range(most + 1):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return False
    return True


def text_is_deeper(text: bytes, most: int) -> bool:
    """Return the same for a text. A text that is not JSON is left for the parser to refuse."""
    if not may_be_deeper(text, most):
        return False
    try:
        return is_deeper(json.loads(text), most)
    except RecursionError:
        return True
    except ValueError:
        return False


def may_be_deeper(text: bytes, most: int) -> bool:
    """Return quickly whether a text may be deeper: a text with few brackets cannot."""
    return text.count(b"[") + text.count(b"{") > most


def loads_cut(text: bytes | bytearray | memoryview | str) -> Any:
    """Read a stored value; what is nested too deeply for an answer becomes a text that says so."""
    # Most values are empty, and a list of pipelines has hundreds of them.
    if text == b"{}":
        return {}
    if text == b"[]":
        return []
    data = text.encode() if isinstance(text, str) else bytes(text)
    try:
        value = _decode(data.decode())
    except RecursionError:
        return json.loads(_cut(data), parse_int=_integer)
    except ValueError:
        # PostgreSQL's numbers may have more digits than Python parses.
        value = json.loads(data, parse_int=_integer)
    if not may_be_deeper(data, MAX_DEPTH_WRAPPED) or not is_deeper(value, MAX_DEPTH_WRAPPED):
        return value
    return json.loads(_cut(data), parse_int=_integer)


def _integer(digits: str) -> int | str:
    return digits if len(digits) > MAX_DIGITS else int(digits)


def _cut(data: bytes) -> bytes:
    kept, depth, begins = [], 0, 0
    for match in _STRING_OR_BRACKET.finditer(data):
        if match[0] in b"[{":
            depth += 1
            if depth == MAX_DEPTH_WRAPPED + 1:
                kept.append(data[begins : match.start()])
        elif match[0] in b"]}":
            if depth == MAX_DEPTH_WRAPPED + 1:
                kept.append(json.dumps(CUT).encode())
                begins = match.end()
            depth -= 1
    return b"".join([*kept, data[begins:]])


_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*+"|[][{}]')


def _inside(value: object) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _bounded(value: dict[str, Any]) -> dict[str, Any]:
    if is_deeper(value, MAX_DEPTH):
        raise ValueError(say("definition.value_nested", levels=MAX_DEPTH))
    if any(isinstance(leaf, float) and leaf - leaf != 0 for leaf in _leaves(value)):
        raise ValueError(say("definition.value_nan"))
    if len(json.dumps(value, ensure_ascii=False, default=str)) > MAX_CHARACTERS:
        raise ValueError(say("definition.value_long", most=MAX_CHARACTERS))
    return value


def _leaves(value: object) -> Iterator[object]:
    level = [value]
    while level:
        yield from level
        level = [inner for outer in level for inner in _inside(outer)]


# A free-form object of the author, within the limits above.
BoundedObject = Annotated[dict[str, Any], AfterValidator(_bounded)]
