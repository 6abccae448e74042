"""The figures of `scripts/structure.py`: what was won by putting the house in order is not lost again."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

# No more than these. When a figure falls, so does its limit here.
AT_MOST = {
    "modules outside connectors/ that import a connector": 0,
    "places that ask for the kind of target with isinstance": 0,
    "classes that are a run of one kind": 0,
    "files in runner/": 9,
    "import cycles, sqlguard aside": 0,
    "import cycles between folders": 0,
    "asserts that only narrow a type": 12,
    "median lines of a function": 6,
}


@pytest.fixture(scope="module")
def structure() -> ModuleType:
    spec = importlib.util.spec_from_file_location("structure", ROOT / "scripts" / "structure.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["structure"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def found(structure: ModuleType) -> dict[str, Any]:
    return {figure.name: figure for figure in structure.figures()}


def test_no_figure_is_worse_than_it_was(found: dict[str, Any]) -> None:
    assert AT_MOST.keys() <= found.keys()
    for name, limit in AT_MOST.items():
        listed = "\n".join(found[name].places)
        assert found[name].value <= limit, f"{name}: {found[name].value}, at most {limit}:\n{listed}"


def test_a_limit_falls_with_its_figure(found: dict[str, Any]) -> None:
    loose = {name: found[name].value for name, limit in AT_MOST.items() if found[name].value < limit}
    assert not loose, f"these have become better: write them into AT_MOST: {loose}"


def test_the_script_finds_what_it_looks_for(structure: ModuleType) -> None:
    """On modules made for it: a figure of zero must not be one of a blind script."""
    source = """
from vitrina.connectors.search import target
if TYPE_CHECKING:
    from vitrina.b import B
class TableRun:
    def run(self):
        assert self.job is not None
        assert isinstance(self.job, SearchTarget)
        assert self.rows == 3
        return isinstance(self.target, PostgresTarget | None)
"""
    modules = [made(structure, "vitrina.loads.a", source), made(structure, "vitrina.b", "from vitrina.loads import a")]
    assert list(structure.imports_of_connectors(modules)) == ["vitrina.loads.a (search)"]
    assert list(structure.questions_of_kind(modules)) == ["vitrina.loads.a:8", "vitrina.loads.a:10"]
    assert list(structure.run_classes(modules)) == ["vitrina.loads.a:5 TableRun"]
    assert list(structure.narrowing_asserts(modules)) == ["vitrina.loads.a:7", "vitrina.loads.a:8"]
    # Also where one way is for the type checker only: who reads the one must know the other.
    assert list(structure.import_cycles(modules)) == [("vitrina.b", "vitrina.loads.a")]


def test_a_cycle_is_found_by_way_of_others(structure: ModuleType) -> None:
    modules = [
        made(structure, "vitrina.a", "from vitrina.b import x"),
        made(structure, "vitrina.b", "def f():\n    import vitrina.c"),
        made(structure, "vitrina.c", "from vitrina import a"),
        made(structure, "vitrina.d", "from vitrina import a"),
    ]
    assert list(structure.import_cycles(modules)) == [("vitrina.a", "vitrina.b", "vitrina.c")]


def test_a_cycle_between_folders_is_found_without_one_of_modules(structure: ModuleType) -> None:
    modules = [
        made(structure, "vitrina.loads.a", "from vitrina.checks.a import x"),
        made(structure, "vitrina.checks.a", ""),
        made(structure, "vitrina.checks.b", "if TYPE_CHECKING:\n    from vitrina.loads.a import y"),
    ]
    assert list(structure.import_cycles(modules)) == []
    assert list(structure.folder_cycles(modules)) == [("vitrina.checks", "vitrina.loads")]


def made(structure: ModuleType, name: str, text: str) -> object:
    return structure.Module(name, structure.ast.parse(text), 0)
