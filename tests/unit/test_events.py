"""One vocabulary of log events: what the code says is what the reference explains, name by name and level by level."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LEVELS = {"debug", "info", "warning", "error", "exception"}
ROW = re.compile(r"^\| `([^`]+)` \| (\w+) \|", re.MULTILINE)


def test_every_event_in_the_code_is_explained_and_every_explained_one_is_in_the_code() -> None:
    reference = (ROOT / "docs" / "reference" / "events.md").read_text(encoding="utf-8")
    explained = set(ROW.findall(reference))
    said = {(name, level) for path in sources() for name, level in events_in(path)}
    assert not said - explained, f"explain these in docs/reference/events.md: {sorted(said - explained)}"
    assert not explained - said, f"nothing says these any more: {sorted(explained - said)}"
    assert len(said) > 30


def test_names_of_events_are_a_noun_and_what_became_of_it() -> None:
    for path in sources():
        for name, _ in events_in(path):
            assert re.fullmatch(r"[a-z]+\.[a-z_]+", name), f"{path.name} says {name!r}"


def sources() -> Iterator[Path]:
    yield from sorted((ROOT / "src" / "vitrina").rglob("*.py"))


def events_in(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        yield from told_by_a_connector(path, node)
        for method in methods_of(node.func):
            if method.attr in LEVELS and speaks_to_a_logger(method.value):
                assert node.args, f"{path}:{node.lineno}: an event without a name"
                [name] = node.args
                assert isinstance(name, ast.Constant), f"{path}:{node.lineno}: the name of an event is written out"
                yield str(name.value), "error" if method.attr == "exception" else method.attr


def told_by_a_connector(path: Path, call: ast.Call) -> Iterator[tuple[str, str]]:
    """`context.log("info", "load.begun", ...)`: a connector has no logger of its own."""
    if isinstance(call.func, ast.Attribute) and ast.unparse(call.func).endswith("context.log"):
        level, name = call.args
        assert isinstance(level, ast.Constant), f"{path}:{call.lineno}: a level is written out"
        assert level.value in LEVELS, f"{path}:{call.lineno}: {level.value!r} is no level"
        assert isinstance(name, ast.Constant), f"{path}:{call.lineno}: the name of an event is written out"
        yield str(name.value), str(level.value)


def methods_of(function: ast.expr) -> Iterator[ast.Attribute]:
    """`log.info(...)`, and `(log.debug if quiet else log.info)(...)`."""
    if isinstance(function, ast.Attribute):
        yield function
    elif isinstance(function, ast.IfExp):
        yield from methods_of(function.body)
        yield from methods_of(function.orelse)


def speaks_to_a_logger(value: ast.expr) -> bool:
    return bool(
        re.fullmatch(r"((self|run|self\._run)\.)?_?log|structlog\.get_logger\(.*\)(\.bind\(.*\))?", ast.unparse(value))
    )
