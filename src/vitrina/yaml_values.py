"""Read YAML 1.2: a date is a text, `010` is ten, and values that JSON cannot represent are refused by position."""

import math
import re
from collections.abc import Iterator
from typing import Any

import yaml
from yaml.constructor import ConstructorError, SafeConstructor

_TAG = "tag:yaml.org,2002:"
_ALLOWED = {_TAG + name for name in ("map", "seq", "str", "int", "float", "bool", "null")}
# The core schema of YAML 1.2: each type with the characters that it may begin with.
_SCALARS = (
    ("null", re.compile(r"~|null|Null|NULL|"), ["~", "n", "N", ""]),
    ("bool", re.compile(r"true|True|TRUE|false|False|FALSE"), list("tTfF")),
    ("int", re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"), list("-+0123456789")),
    (
        "float",
        re.compile(
            r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
        ),
        list("-+.0123456789"),
    ),
)
_MAX_DIGITS = 300


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Compose nodes, with the plain scalars of YAML 1.2."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - as the base class has it


class Constructor(SafeConstructor):
    """Construct values of JSON only."""


def resolvers() -> Iterator[tuple[str, re.Pattern[str], list[str]]]:
    for name, pattern, first in _SCALARS:
        yield _TAG + name, re.compile(rf"(?:{pattern.pattern})\Z"), first


for _tag, _pattern, _first in resolvers():
    Loader.add_implicit_resolver(_tag, _pattern, _first)


def construct(node: yaml.Node) -> Any:
    """Build the value of a composed document. Raise `ConstructorError` with the mark of a value that is refused."""
    _refuse_foreign(node)
    return Constructor().construct_document(node)


def load(text: str) -> Any:
    """Load the only document of a text."""
    node = yaml.compose(text, Loader=Loader)
    return None if node is None else construct(node)


def _refuse_foreign(node: yaml.Node) -> None:
    if node.tag not in _ALLOWED:
        name = node.tag.replace(_TAG, "!!")
        raise _refused(node, f"{name} is not supported: write texts, numbers, true, false, null, lists and mappings")
    if isinstance(node, yaml.SequenceNode):
        for child in node.value:
            _refuse_foreign(child)
    elif isinstance(node, yaml.MappingNode):
        for key, child in node.value:
            _refuse_foreign(key)
            _refuse_foreign(child)


def _refused(node: yaml.Node, problem: str) -> ConstructorError:
    return ConstructorError(None, None, problem, node.start_mark)


def _int(_: SafeConstructor, node: yaml.ScalarNode) -> int:
    text = str(node.value)
    if len(text) > _MAX_DIGITS:
        raise _refused(node, "the number is too long: put it in quotes")
    try:
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    except ValueError:
        raise _refused(node, f"{text!r:.80} is not a whole number") from None


def _float(_: SafeConstructor, node: yaml.ScalarNode) -> float:
    text = str(node.value)
    try:
        value = float(text)
    except ValueError:
        value = float("nan")  # .inf and .nan, in YAML's spelling
    if not math.isfinite(value):
        raise _refused(node, f"{text!r:.80} is not a number in JSON: put it in quotes")
    return value


def _bool(_: SafeConstructor, node: yaml.ScalarNode) -> bool:
    text = str(node.value).lower()
    if text not in ("true", "false"):
        raise _refused(node, f"{text!r:.80} is neither true nor false")
    return text == "true"


for _name, _function in {"int": _int, "float": _float, "bool": _bool}.items():
    Constructor.yaml_constructors = {**Constructor.yaml_constructors, _TAG + _name: _function}
