"""Installs the packages of this folder as `pip install` would, beside Vitrina, for the tests of this folder alone."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vitrina.ports import registry

HERE = Path(__file__).parent
PACKAGES = ("vitrina-csv", "vitrina-parquet")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the installed packages, for PYTHONPATH."""
    place = tmp_path_factory.mktemp("site")
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv), "pip", "install", "--quiet", "--python", sys.executable, "--target", str(place)]
    offline = ["--no-deps", "--no-build-isolation", "--offline"]
    subprocess.run([*command, *offline, *(str(HERE / name) for name in PACKAGES)], check=True)
    return place


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[registry.Installed]:
    """The same for this process, while the test lasts."""
    monkeypatch.syspath_prepend(str(site))
    registry.installed.cache_clear()
    yield registry.installed()
    monkeypatch.undo()
    registry.installed.cache_clear()
