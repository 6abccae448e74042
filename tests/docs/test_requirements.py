"""The table of requirements is whole, and the files and tests that it names exist."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

TABLE = ROOT / "docs" / "Technical_Requirements.md"
ROW = re.compile(r"^\| (?P<number>\d\.\d\.\d) \| (?P<what>.*?) \| (?P<where>.*?) \| (?P<shown>.*?) \|$", re.MULTILINE)
# How many points each section of the requirements document has.
POINTS = {
    "1.1": 3, "1.2": 6, "1.3": 3, "1.4": 4, "1.5": 3, "1.6": 3, "1.7": 2,
    "2.1": 3, "2.2": 4, "2.3": 4, "2.4": 4, "2.5": 4,
}  # fmt: skip
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
FILE = re.compile(r"`((?:src|infra|sql|docs)/[\w./-]+|Makefile|Dockerfile|pyproject\.toml|\.gitignore|\.env\.sample)`")


def rows() -> list[dict[str, str]]:
    return [match.groupdict() for match in ROW.finditer(TABLE.read_text(encoding="utf-8"))]


def test_every_requirement_is_there_and_no_cell_is_empty() -> None:
    wanted = [f"{section}.{point}" for section, count in POINTS.items() for point in range(1, count + 1)]
    assert [row["number"] for row in rows()] == wanted
    for row in rows():
        assert all(value.strip() for value in row.values()), row
        assert FILE.search(row["where"]), f"{row['number']} names no file"
        assert TEST.search(row["shown"]), f"{row['number']} names no test"


def test_every_file_that_is_named_exists() -> None:
    named = {path for row in rows() for path in FILE.findall(row["where"])}
    assert len(named) > 20
    missing = sorted(path for path in named if not (ROOT / path).exists())
    assert not missing, f"docs/Technical_Requirements.md names {missing}"


def test_every_test_that_is_named_exists() -> None:
    named = {found for row in rows() for found in TEST.findall(row["shown"])}
    assert len(named) > 40
    missing = sorted(f"{file}::{name}" for file, name in named if not exists(file, name))
    assert not missing, f"docs/Technical_Requirements.md names {missing}"


@pytest.mark.parametrize("command", ["up", "down", "migrate-db", "logs"])
def test_the_commands_of_the_requirements_exist(command: str) -> None:
    shown = subprocess.run(["make", "-n", command], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    expected = "vitrina migrate" if command == "migrate-db" else f"docker-compose.yml {command}"
    assert expected in shown


def exists(file: str, name: str) -> bool:
    path = ROOT / file
    return path.exists() and (not name or name in functions(path))


def functions(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            yield node.name
