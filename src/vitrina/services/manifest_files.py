"""Read and write pipelines as YAML. Reading keeps the position of every value; writing is deterministic."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from vitrina import yaml_values
from vitrina.errors import FieldError, Invalid

API_VERSION = "vitrina/v1"
KIND = "Pipeline"
MAX_LENGTH = 4 * 1024 * 1024
MAX_DOCUMENTS = 1_000
_MAX_DEPTH = 50

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Place:
    """Represent a position in a file, by line and column."""

    file: str | None
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.file else f"line {self.line}, column {self.column}"


@dataclass(frozen=True)
class Document:
    """Represent one YAML document with the positions of its values."""

    content: dict[str, Any]
    places: Mapping[Path, Place] = field(repr=False)

    def place_of(self, path: Path) -> Place:
        """Find the position of a value, or of the nearest value around it: a missing field has no position."""
        while path not in self.places:
            path = path[:-1]
        return self.places[path]


def read(text: str, file: str | None = None) -> list[Document]:
    """Read the documents of a text. Raise `Invalid` with line and column when it is not acceptable YAML."""
    if len(text) > MAX_LENGTH:
        raise Invalid(f"{file or 'the text'} is longer than {MAX_LENGTH // 1024 // 1024} MiB; apply less at once")
    try:
        _refuse_traps(text, file)
        nodes = list(yaml.compose_all(text, Loader=_Loader))
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        place = Place(file, mark.line + 1, mark.column + 1) if mark else Place(file, 1, 1)
        raise _wrong(place, exc.problem or exc.context or "this is not YAML", "yaml") from None
    except yaml.YAMLError as exc:
        raise _wrong(Place(file, 1, 1), " ".join(str(exc).split()), "yaml") from None
    return [_document(node, file) for node in nodes if node is not None and not _is_empty(node)]


def too_many() -> Invalid:
    said = f"these are more than {MAX_DOCUMENTS} documents: apply less at once"
    return Invalid(said, (FieldError("documents", said, "too_many"),))


def write(documents: list[dict[str, Any]]) -> str:
    """Write documents one after another, with fields in their order and long texts as blocks."""
    return "---\n".join(
        yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000, line_break="\n")
        for document in documents
    )


_Loader: Any = yaml_values.Loader


def _refuse_traps(text: str, file: str | None) -> None:
    """Refuse aliases, which can expand a small text, and depth, which can exhaust the stack of the parser."""
    depth = documents = 0
    for event in yaml.parse(text, Loader=_Loader):
        place = Place(file, event.start_mark.line + 1, event.start_mark.column + 1)
        documents += isinstance(event, yaml.DocumentStartEvent)
        if documents > MAX_DOCUMENTS:
            raise too_many()
        if isinstance(event, yaml.AliasEvent):
            raise _wrong(place, f"aliases (*{event.anchor}) are not supported: write the value out", "yaml")
        if isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            depth += 1
        if isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            depth -= 1
        if depth > _MAX_DEPTH:
            raise _wrong(place, f"nested deeper than {_MAX_DEPTH} levels", "yaml")


def _document(node: yaml.Node, file: str | None) -> Document:
    if not isinstance(node, yaml.MappingNode):
        raise _wrong(_place(node, file), "a document is a mapping with apiVersion, kind, metadata and spec", "manifest")
    places = dict(_places(node, (), file))
    try:
        content = yaml_values.construct(node)
    except yaml.constructor.ConstructorError as exc:
        mark = exc.problem_mark or node.start_mark
        raise _wrong(Place(file, mark.line + 1, mark.column + 1), str(exc.problem), "yaml") from None
    return Document(content, places)


def _places(node: yaml.Node, path: Path, file: str | None) -> Iterator[tuple[Path, Place]]:
    yield path, _place(node, file)
    if isinstance(node, yaml.SequenceNode):
        for index, child in enumerate(node.value):
            yield from _places(child, (*path, index), file)
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, child in node.value:
            name = _key(key, file)
            if name in seen:
                raise _wrong(_place(key, file), f"{name} is given twice", "yaml")
            seen.add(name)
            yield from _places(child, (*path, name), file)


def _key(node: yaml.Node, file: str | None) -> str:
    if not isinstance(node, yaml.ScalarNode) or node.tag != "tag:yaml.org,2002:str":
        raise _wrong(_place(node, file), "a field's name is a text; put it in quotes if it looks like more", "yaml")
    return str(node.value)


def _place(node: yaml.Node, file: str | None) -> Place:
    return Place(file, node.start_mark.line + 1, node.start_mark.column + 1)


def _is_empty(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _wrong(place: Place, message: str, code: str) -> Invalid:
    said = f"{place}: {message}"
    return Invalid(said, (FieldError("documents", said, code),))


class _Dumper(yaml.SafeDumper):
    """Write text of several lines as a block, which keeps queries readable."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    if any(character in text for character in _FOLDED):
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


# YAML parsers treat these as line breaks or drop them unless they are escaped.
_FOLDED = "\x85\u2028\u2029\ufeff\r"


_Dumper.add_representer(str, _text)
# Texts that YAML 1.2 parsers read as a number (1e3, 0o7) are quoted as well.
for _tag, _pattern, _first in yaml_values.resolvers():
    _Dumper.add_implicit_resolver(_tag, _pattern, _first)
