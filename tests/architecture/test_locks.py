"""The lock files keep the promises of pyproject.toml: everything is pinned, within its limits, with hashes."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
GROUPS = PYPROJECT["dependency-groups"]

RUNTIME = [*PYPROJECT["project"]["dependencies"], *(line for name in EXTRAS if name != "all" for line in EXTRAS[name])]
BUILD = [*GROUPS["build"], *PYPROJECT["build-system"]["requires"]]
DEVELOPMENT = [*RUNTIME, *BUILD, *(line for line in GROUPS["dev"] if isinstance(line, str))]


@pytest.mark.parametrize(
    ("lock", "wanted"),
    [("build.txt", BUILD), ("dev.txt", DEVELOPMENT), ("runtime.txt", RUNTIME)],
    ids=["build.txt", "dev.txt", "runtime.txt"],
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


@pytest.mark.parametrize("lock", ["build.txt", "dev.txt", "runtime.txt"])
def test_every_pin_has_a_hash(lock: str) -> None:
    text = (ROOT / "requirements" / lock).read_text(encoding="utf-8")
    for entry in re.split(r"\n(?=\S)", text):
        assert "==" in entry.splitlines()[0], f"{lock}: {entry.splitlines()[0]} is not a pin"
        assert "--hash=sha256:" in entry, f"{lock}: {entry.splitlines()[0]} has no hash"


def read_lock(name: str) -> dict[str, list[str]]:
    """Versions by package; more than one where Python versions or platforms need different ones."""
    pins: dict[str, list[str]] = {}
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
    for package, version in re.findall(r"^([A-Za-z0-9_.-]+)(?:\[[^]]*\])?==([^\s;\\]+)", text, re.MULTILINE):
        pins.setdefault(canonicalize_name(package), []).append(version)
    return pins
