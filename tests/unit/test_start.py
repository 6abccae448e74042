"""What is loaded for a command, and for a runner at rest: as little as they need."""

import subprocess
import sys

import pytest

from vitrina.cli.app import COMMANDS, called

_LARGE = ("alembic", "fastapi", "httpx", "psycopg", "pyarrow", "rich", "sqlalchemy", "vitrina.sqlguard", "yaml")


def loaded_by(code: str, *names: str) -> list[str]:
    asked = f"{code}\nimport sys\nprint([name for name in {names!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    names_found: list[str] = eval(found.stdout.splitlines()[-1])
    return names_found


@pytest.mark.parametrize("command", ["pipelines", "status films", "run films", "pause films", "runs"])
def test_a_command_that_calls_the_api_loads_nothing_large(command: str) -> None:
    """Nobody listens there: that is said, and all that a call takes has been loaded by then."""
    code = f"""
import os, sys
os.environ["VITRINA_API_URL"] = "http://127.0.0.1:1"
sys.argv = ["vitrina", *{command.split()!r}]
import vitrina.cli
try:
    vitrina.cli.main()
except SystemExit as ended:
    assert ended.code == 4, ended.code
"""
    assert loaded_by(code, *_LARGE) == []


def test_a_runner_at_rest_has_no_arrow() -> None:
    code = """
from vitrina.loads import steps
from vitrina.runner import manager
from vitrina.settings import Settings
assert any(step["name"] == "select_columns" for step in steps.describe(Settings()))
"""
    assert loaded_by(code, "pyarrow", "adbc_driver_manager") == []


def test_one_command_is_made_for_its_name_and_all_for_anything_else() -> None:
    assert [entry.place for entry in called(["status", "films"])] == ["pipelines.status"]
    for words in ([], ["--help"], ["--version"], ["satus"]):
        assert called(words) == COMMANDS
