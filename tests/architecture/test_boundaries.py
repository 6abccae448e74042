"""The shape of the source tree: who may import whom, and what each module says of itself."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "src" / "vitrina").rglob("*.py"))

WEB = {"fastapi", "sse_starlette", "starlette", "uvicorn"}
DATA = {"adbc_driver_manager", "adbc_driver_postgresql", "elastic_transport", "pyarrow"}
MIGRATIONS = {"alembic", "sqlalchemy"}
SQL = MIGRATIONS | {"psycopg", "psycopg_pool"}

# Imports a package with everything in it; a package whose __init__ is empty would prove nothing. What the worker that
# reads files needs is an extra, which is not installed here.
IMPORT_WHOLE_PACKAGE = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as exc:
        if exc.name not in ("duckdb", "pyiceberg"):
            raise
print(*sys.modules)
"""

ASK_FOR_HELP = """
import contextlib, io, sys
from vitrina.cli import main
sys.argv = ["vitrina", "--help"]
with contextlib.redirect_stdout(io.StringIO()) as help, contextlib.suppress(SystemExit):
    main()
assert "runner" in help.getvalue(), help.getvalue()
print(*sys.modules)
"""


def test_import_contracts_hold() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"]
    linter = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert linter.returncode == 0, linter.stdout + linter.stderr


@pytest.mark.parametrize(
    "package", ["vitrina.runner", "vitrina.loads", "vitrina.checks", "vitrina.connectors", "vitrina.transforms"]
)
def test_the_data_plane_loads_no_web_framework(package: str) -> None:
    assert not loaded_by(IMPORT_WHOLE_PACKAGE, package) & WEB


def test_the_control_plane_loads_nothing_that_moves_data() -> None:
    loaded = loaded_by(IMPORT_WHOLE_PACKAGE, "vitrina.api")
    assert "fastapi" in loaded
    assert not loaded & DATA


@pytest.mark.parametrize("package", ["vitrina.runner", "vitrina.api"])
def test_what_serves_does_not_wait_for_what_migrates(package: str) -> None:
    assert not loaded_by(IMPORT_WHOLE_PACKAGE, package) & MIGRATIONS


def test_asking_for_help_loads_nothing_heavy() -> None:
    assert not loaded_by(ASK_FOR_HELP) & (WEB | DATA | SQL | {"httpx"})


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_says_what_it_is_for(module: Path) -> None:
    docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8")))
    assert docstring, f"{module.relative_to(ROOT)} opens without a docstring: one line that says what it is for"


def loaded_by(program: str, *arguments: str) -> set[str]:
    """The top-level packages that a fresh interpreter has loaded after running the program."""
    command = [sys.executable, "-c", program, *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return {module.partition(".")[0] for module in finished.stdout.split()}
