"""The shape of the source tree: who may import whom, and what a committed file may not contain."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "src" / "vitrina").rglob("*.py"))


def test_import_contracts_hold() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    linter = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert linter.returncode == 0, linter.stdout + linter.stderr


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_says_what_it_is_for(module: Path) -> None:
    docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8")))
    assert docstring, f"{module.relative_to(ROOT)} opens without a docstring: one line that says what it is for"
