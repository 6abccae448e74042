"""Places for files: a folder always, and a real S3 server where `make test-lake` could build one."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pydantic import SecretStr

from tests.chaos.conftest import LONG
from tests.lake import s3_server
from tests.lake.s3_server import S3Server
from tests.support.workbench import Workbench
from vitrina.connectors.files import urls
from vitrina.connectors.files.bucket import BucketObjects
from vitrina.connectors.files.urls import Bucket
from vitrina.settings import Settings

# Where runners are killed, and how many loads a reader polls; `make chaos-lake` does more than CI has time for.
PLACES_OF_KILLS = pytest.mark.parametrize("lake", ["folder", "s3"] if LONG else ["s3"], indirect=True)
LOADS = 50 if LONG else 8


@dataclass(frozen=True)
class Lake:
    """A place for targets, by the URL of its connection, and as the folder that holds its objects."""

    url: str
    folder: Path
    server: S3Server | None = None

    def put(self, name: str, content: str | bytes) -> None:
        """Write a file as its owner would: by rename, or by a request, with which the server makes an ETag."""
        raw = content.encode() if isinstance(content, str) else content
        if self.server:
            place = urls.parse(self.url)
            assert isinstance(place, Bucket)
            BucketObjects(place).put(name, memoryview(raw))
            return
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}")
        aside.write_bytes(raw)
        aside.rename(path)

    def manifest(self, name: str) -> dict[str, Any]:
        found = self.folder / name / "manifest.json"
        return json.loads(found.read_text()) if found.exists() else {"files": [], "generation": None, "previous": []}

    def files(self, name: str) -> list[str]:
        """List the files that the manifest names, in full."""
        return [str(self.folder / name / file["path"]) for file in self.manifest(name)["files"]]

    def stored(self, name: str) -> set[str]:
        """List what is in the folder of the data, finished or not, by paths as the manifest writes them."""
        folder = self.folder / name
        return {path.relative_to(folder).as_posix() for path in (folder / "data").rglob("*") if path.is_file()}

    def named(self, name: str) -> set[str]:
        """List what the manifest names: of what is shown, and of generations that are kept."""
        manifest = self.manifest(name)
        return {file["path"] for one in (manifest, *manifest["previous"]) for file in one["files"]}


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    if not s3_server.PROGRAM.exists():
        pytest.skip("there is no S3 server: `make test-lake` builds one where Go is installed")
    with s3_server.running(tmp_path_factory.mktemp("s3") / "buckets") as server:
        yield server


@pytest.fixture(params=["folder", "s3"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    """A place of the test's own, in a folder and on the S3 server."""
    if request.param == "folder":
        (tmp_path / "lake").mkdir()
        return Lake(f"file://{tmp_path / 'lake'}", tmp_path / "lake")
    server: S3Server = request.getfixturevalue("s3")
    prefix = uuid4().hex
    return Lake(server.url(prefix), server.folder / prefix, server)


@pytest.fixture
def on_lake(database: Settings, lake: Lake) -> Settings:
    return settings_with(database, lake.url)


@pytest.fixture
def lake_bench(workbench: Workbench, on_lake: Settings) -> Workbench:
    """The bench, with the connection `lake`."""
    workbench.settings = on_lake
    return workbench


def settings_with(settings: Settings, url: str) -> Settings:
    return settings.model_copy(
        update={"connections": {"lake": SecretStr(url)}, "allowed_targets": "analytics.*,files:*"}
    )
