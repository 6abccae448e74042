"""Check that the generated pages of the reference are up to date, and that each field has a description."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from vitrina.definition import Definition, Options, ReconcileSchedule, Task
from vitrina.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "reference"
GENERATED = ["api", "cli", "definition", "errors", "exit-codes", "metrics", "settings"]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(script: ModuleType) -> dict[str, str]:
    found: dict[str, str] = script.pages()
    return found


@pytest.mark.parametrize("name", GENERATED)
def test_a_page_is_what_the_code_says(name: str, pages: dict[str, str]) -> None:
    committed = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    assert committed == pages[f"{name}.md"], f"docs/reference/{name}.md is old: make reference"


def test_every_generated_page_is_compared(pages: dict[str, str]) -> None:
    assert set(pages) == {f"{name}.md" for name in GENERATED}


@pytest.mark.parametrize("model", [Definition, Options, ReconcileSchedule, Task, Settings], ids=lambda m: m.__name__)
def test_every_field_says_what_it_is_for(model: type) -> None:
    fields = model.model_fields  # type: ignore[attr-defined]
    silent = [name for name, field in fields.items() if not field.description and name != "connections"]
    assert not silent, f"{model.__name__} has fields without a description: {silent}"


def test_every_request_of_the_api_is_listed(pages: dict[str, str], script: ModuleType) -> None:
    listed = set(re.findall(r"^### ([A-Z]+) (\S+)$", pages["api.md"], re.MULTILINE))
    paths = script.api_document()["paths"]
    assert listed == {(method.upper(), path) for path, operations in paths.items() for method in operations}
    assert len(listed) > 40
