"""Catalogs in the test's own database, with a folder or a bucket as warehouse."""

from pathlib import Path
from uuid import uuid4

import pytest
from pydantic import SecretStr

from tests.lake.iceberg.tables import Tables
from tests.lake.s3_server import S3Server
from tests.support.workbench import Workbench
from vitrina.embedded.temporary import TemporaryServer
from vitrina.settings import Settings


@pytest.fixture
def catalog(server: TemporaryServer) -> str:
    """The URL of a catalog of the test's own; all of them are in one database."""
    return f"{server.urls.admin.partition('?')[0]}?catalog=c{uuid4().hex}"


def tables_in(catalog: str, folder: Path) -> Tables:
    """Make a folder the warehouse of a catalog."""
    folder.mkdir(exist_ok=True)
    return Tables(f"iceberg+{catalog}&warehouse=file://{folder}", folder)


def tables_on(catalog: str, server: S3Server, port: int | None = None) -> Tables:
    """Make a prefix of the bucket the warehouse of a catalog; `port`: by way of a proxy."""
    prefix = uuid4().hex
    warehouse = server.url(prefix, port).replace("?", "&")
    return Tables(f"iceberg+{catalog}&warehouse={warehouse}", server.folder / prefix, server)


@pytest.fixture(params=["folder", "s3"])
def tables(request: pytest.FixtureRequest, catalog: str, tmp_path: Path) -> Tables:
    """A catalog with a folder, and one with the S3 server."""
    if request.param == "folder":
        return tables_in(catalog, tmp_path / "warehouse")
    return tables_on(catalog, request.getfixturevalue("s3"))


@pytest.fixture
def folder_tables(catalog: str, tmp_path: Path) -> Tables:
    """A catalog with a folder: for what does not depend on the kind of warehouse."""
    return tables_in(catalog, tmp_path / "warehouse")


@pytest.fixture
def ice_bench(workbench: Workbench, tables: Tables) -> Workbench:
    """The bench, with the connection `lake`."""
    workbench.settings = settings_with(workbench.settings, tables.url)
    return workbench


def settings_with(settings: Settings, url: str) -> Settings:
    return settings.model_copy(
        update={"connections": {"lake": SecretStr(url)}, "allowed_targets": "analytics.*,iceberg:*"}
    )
