"""Catalogs in the test's own database, with a folder or a bucket as warehouse."""

from pathlib import Path
from uuid import uuid4

import pytest
from pydantic import SecretStr

from tests.lake.iceberg.tables import Tables
from tests.lake.s3_server import S3Server
from tests.support.workbench import Workbench
from vitrina.settings import Settings


def tables_in(database: Settings, folder: Path) -> Tables:
    """Make a folder the warehouse of a catalog."""
    folder.mkdir(exist_ok=True)
    url = database_url(database)
    return Tables(f"iceberg+{url}?warehouse=file://{folder}", url, folder)


def tables_on(database: Settings, server: S3Server, port: int | None = None) -> Tables:
    """Make a prefix of the bucket the warehouse of a catalog; `port`: by way of a proxy."""
    prefix = uuid4().hex
    url = database_url(database)
    warehouse = server.url(prefix, port).replace("?", "&")
    return Tables(f"iceberg+{url}?warehouse={warehouse}", url, server.folder / prefix, server)


def database_url(database: Settings) -> str:
    assert database.admin_url
    return database.admin_url.get_secret_value().partition("?")[0]


@pytest.fixture(params=["folder", "s3"])
def tables(request: pytest.FixtureRequest, database: Settings, tmp_path: Path) -> Tables:
    """A catalog of the test's own, with a folder and with the S3 server."""
    if request.param == "folder":
        return tables_in(database, tmp_path / "warehouse")
    return tables_on(database, request.getfixturevalue("s3"))


@pytest.fixture
def ice_bench(workbench: Workbench, tables: Tables) -> Workbench:
    """The bench, with the connection `lake`."""
    workbench.settings = settings_with(workbench.settings, tables.url)
    return workbench


def settings_with(settings: Settings, url: str) -> Settings:
    return settings.model_copy(
        update={"connections": {"lake": SecretStr(url)}, "allowed_targets": "analytics.*,iceberg:*"}
    )
