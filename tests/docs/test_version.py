"""The version is stated in `src/vitrina/__init__.py`; everything else reads it from there or is compared with it."""

import json
import re
import subprocess
import tomllib

from tests.docs.blocks import ROOT
from vitrina import __version__

RELEASE = re.compile(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d{2}-\d{2})$", re.MULTILINE)
# Where the version of Vitrina may stand as text.
STATED = (
    "src/vitrina/__init__.py",
    "CHANGELOG.md",
    "infra/docker-compose.yml",
    "infra/kubernetes/vitrina.yml",
    "infra/kubernetes/run-once.yml",
    "docs/how-to/kubernetes.md",
)
IMAGE = re.compile(r"\bvitrina:(\d[\w.]*)")
# Other distributions with versions of their own, and locked packages of others.
ELSEWHERE = ("providers/", "requirements/", "console/package-lock.json", "tests/", "bench/results/")


def test_the_package_reads_its_version_from_the_module() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" not in project["project"]
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/vitrina/__init__.py"


def test_the_console_states_no_version() -> None:
    assert "version" not in json.loads((ROOT / "console" / "package.json").read_text(encoding="utf-8"))


def test_the_newest_release_of_the_changelog_is_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = RELEASE.findall(text)
    assert releases[0][0] == __version__
    assert text.index("## [Unreleased]") < text.index(f"## [{__version__}]")
    assert releases == sorted(releases, key=lambda release: tuple(map(int, release[0].split("."))), reverse=True)


def test_images_are_tagged_with_the_version() -> None:
    tags = {path: set(IMAGE.findall((ROOT / path).read_text(encoding="utf-8"))) for path in STATED[2:]}
    assert all(found == {__version__} for found in tags.values()), tags


def test_no_other_file_states_the_version() -> None:
    found = subprocess.run(
        ["git", "grep", "--fixed-strings", "--word-regexp", "--files-with-matches", "-I", __version__],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    unexpected = [path for path in found if path not in STATED and not path.startswith(ELSEWHERE)]
    assert not unexpected, f"read the version from vitrina.__version__ instead: {unexpected}"
    assert set(STATED) <= set(found)
