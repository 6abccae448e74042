"""What no committed file may contain: where packages are fetched from, and where somebody's checkout lives."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOT_COMMITTED = {".git", ".venv", ".vitrina", "node_modules", "__pycache__", "build", "dist", "site"}

# Put together from parts, so that this file does not contain what it forbids.
REGISTRIES = [
    ("pypi", "org"),
    ("pythonhosted", "org"),
    ("npmjs", "org"),
    ("npmjs", "com"),
    ("yarnpkg", "com"),
    ("crates", "io"),
    ("golang", "org"),
    ("maven", "org"),
    ("maven", "apache", "org"),
    ("debian", "org"),
    ("docker", "io"),
    ("docker", "elastic", "co"),
    ("ghcr", "io"),
]
PRIVATE_FOLDERS = ["ro" + "ot", "wo" + "rk", "Us" + "ers", "ho" + r"me(?!/vitrina\b)"]

REGISTRY_HOST = re.compile("|".join(rf"\b{re.escape('.'.join(parts))}\b" for parts in REGISTRIES))
MACHINE_PATH = re.compile(rf"(?<![\w./~-])/(?:{'|'.join(PRIVATE_FOLDERS)})/\w")


@pytest.mark.parametrize(
    ("pattern", "advice"),
    [
        pytest.param(REGISTRY_HOST, "package clients know their registry; leave its name out", id="registry host"),
        pytest.param(MACHINE_PATH, "use a path relative to the repository", id="path of one machine"),
    ],
)
def test_no_committed_file_names(pattern: re.Pattern[str], advice: str) -> None:
    found = [f"{path.relative_to(ROOT)}:{number}: {text}" for path, number, text in matches(pattern)]
    assert not found, f"{advice}:\n" + "\n".join(found)


@pytest.mark.parametrize("host", [".".join(parts) for parts in REGISTRIES])
def test_a_registry_host_would_be_noticed(host: str) -> None:
    assert REGISTRY_HOST.search(f'"resolved": "https://registry.{host}/react"')


@pytest.mark.parametrize("folder", ["ro" + "ot/src", "wo" + "rk/main", "Us" + "ers/ann", "ho" + "me/ann"])
def test_a_machine_path_would_be_noticed(folder: str) -> None:
    assert MACHINE_PATH.search(f"see /{folder}/README.md")


def matches(pattern: re.Pattern[str]) -> Iterator[tuple[Path, int, str]]:
    for path in committed_files():
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue  # a picture
        for number, line in enumerate(lines, start=1):
            if match := pattern.search(line):
                yield path, number, match[0]


def committed_files() -> list[Path]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    except (FileNotFoundError, subprocess.CalledProcessError):
        files = list(walk(ROOT))  # a source archive, or no git on this machine
    else:
        files = [ROOT / name for name in listing.split("\0") if name]
    assert ROOT / "pyproject.toml" in files
    return [path for path in files if path.is_file()]


def walk(directory: Path) -> Iterator[Path]:
    for path in directory.iterdir():
        if path.name in NOT_COMMITTED or path.name.endswith("_cache"):
            continue
        if path.is_dir():
            yield from walk(path)
        else:
            yield path
