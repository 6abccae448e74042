"""Read and write JSON of any depth. Recursive parsers and writers fail after some hundreds of levels."""

import json
import re
from collections.abc import Iterator
from typing import Any

import orjson

# Possessive, so that skipping a text of a hundred megabytes takes no memory.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{},:]|[^\s\[\]{},:"]++', re.DOTALL)
_BRACKET = re.compile(r'"(?:[^"\\]++|\\.)*+"|[\[\]{}]', re.DOTALL)


def loads(text: bytes) -> Any:
    """Decode JSON that is too deep for other parsers. Raise ValueError if it is not JSON at all."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    try:
        # Half a surrogate pair, or a number beyond all doubles: JSON allows both.
        return json.loads(text)
    except RecursionError:
        return _Tree().of(text)


def dumps(value: Any) -> bytes:
    """Encode with sorted keys."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        return b"".join(_written(value))


def is_deeper(text: str, levels: int) -> bool:
    """Return whether more than `levels` objects and lists are nested."""
    depth = 0
    for found in _BRACKET.finditer(text):
        if found[0] in ("[", "{"):
            depth += 1
            if depth > levels:
                return True
        elif found[0] in ("]", "}"):
            depth -= 1
    return False


class _Tree:
    """Add values in order to the innermost object or list that is still open."""

    def __init__(self) -> None:
        self._open: list[Any] = [[]]
        self._keys: list[str | None] = [None]

    def of(self, text: bytes) -> Any:
        for found in _TOKEN.finditer(text):
            self._take(found[0])
        if len(self._open) != 1 or len(self._open[0]) != 1:
            raise ValueError("the JSON ends before its last bracket")
        return self._open[0][0]

    def _take(self, token: bytes) -> None:
        if token in (b"{", b"["):
            self._begin({} if token == b"{" else [])
        elif token in (b"}", b"]"):
            self._end()
        elif token not in (b",", b":"):
            self._put(_scalar(token))

    def _begin(self, container: Any) -> None:
        self._put(container)
        self._open.append(container)
        self._keys.append(None)

    def _end(self) -> None:
        if len(self._open) == 1:
            raise ValueError("the JSON has a bracket too many")
        self._open.pop()
        self._keys.pop()

    def _put(self, value: Any) -> None:
        innermost, key = self._open[-1], self._keys[-1]
        if isinstance(innermost, list):
            innermost.append(value)
        elif key is None:
            self._keys[-1] = value
        else:
            innermost[key] = value
            self._keys[-1] = None


def _scalar(token: bytes) -> Any:
    try:
        return orjson.loads(token)
    except orjson.JSONDecodeError:
        return json.loads(token)


def _written(value: Any) -> Iterator[bytes]:
    """Yield the parts of the text, from a stack of what is still to be written."""
    to_say: list[Any] = [value]
    while to_say:
        part = to_say.pop()
        if isinstance(part, bytes):
            yield part
        elif isinstance(part, dict):
            members = [[_said(name) + b":", part[name]] for name in sorted(part)]
            to_say += _enclosed(b"{", members, b"}")
        elif isinstance(part, list):
            to_say += _enclosed(b"[", [[one] for one in part], b"]")
        else:
            yield _said(part)


def _enclosed(begin: bytes, members: list[list[Any]], end: bytes) -> list[Any]:
    """Order parts for a stack, which returns the last one first."""
    parts: list[Any] = [begin]
    for number, member in enumerate(members):
        parts += ([b","] if number else []) + member
    return [*parts, end][::-1]


def _said(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:  # half a surrogate pair, a number beyond 64 bits
        return json.dumps(value).encode()
