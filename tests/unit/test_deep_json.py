"""JSON of any depth is read and written, where the usual readers give up."""

import json
from typing import Any

import pytest

from vitrina import deep_json

DEEP = 5_000


def test_the_depth_of_a_text_is_told_without_its_strings() -> None:
    assert deep_json.is_deeper('[{"a": [1, 2]}]', 2)
    assert not deep_json.is_deeper('[{"a": [1, 2]}, {"b": [3]}]', 3)
    assert not deep_json.is_deeper(r'{"a": "[[[[\"[[[["}', 1)


def test_what_no_reader_takes_is_read_and_written_again() -> None:
    text = '{"b": [1, {"x": "\\ud800"}, "two\\"[", null, -1.5e3], "a":' * DEEP + "[]" + "}" * DEEP
    value = deep_json.loads(text.encode())

    levels, inner = 0, value
    while isinstance(inner, dict):
        assert inner["b"] == [1, {"x": "\ud800"}, 'two"[', None, -1500.0]
        levels, inner = levels + 1, inner["a"]
    assert (levels, inner) == (DEEP, [])
    written = deep_json.dumps(value)
    assert written.startswith(b'{"a":{"a":')
    assert deep_json.dumps(deep_json.loads(written)) == written


@pytest.mark.parametrize("value", [{}, [], [[], {}], {"b": {"a": [1, "x", None, True]}, "a": 2.5}, "text", 7])
def test_one_form_however_deep(value: Any) -> None:
    """The form that is not recursive writes what the other one writes."""
    deep = value
    for _ in range(300):
        deep = {"in": deep}
    plain = json.dumps(value, sort_keys=True, separators=(",", ":"))
    assert deep_json.dumps(deep) == b'{"in":' * 300 + plain.encode() + b"}" * 300
    assert deep_json.dumps(value) == plain.encode()


@pytest.mark.parametrize("spoilt", [b"[" * 20_000, b"[" * 20_000 + b"]" * 19_999, b"[" * 20_000 + b"]" * 20_001])
def test_a_text_that_is_cut_is_no_json(spoilt: bytes) -> None:
    with pytest.raises(ValueError, match="JSON"):
        deep_json.loads(spoilt)
