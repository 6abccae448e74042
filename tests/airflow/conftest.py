"""One Airflow and one Vitrina for all tests: each test has pipelines and DAG runs of its own."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from psycopg import sql

from tests.airflow.cinema import Cinema, cinema, connection_of
from tests.airflow.station import ROOT, Station, station
from tests.conftest import admin, settings_for
from tests.integration.conftest import api, api_metastore, api_settings, running_api  # noqa: F401
from vitrina.embedded.temporary import TemporaryServer


@pytest.fixture(scope="session")
def vitrina(server: TemporaryServer, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cinema]:
    name = f"airflow_{uuid4().hex[:12]}"
    admin(server, sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template)))
    with cinema(settings_for(server, name), tmp_path_factory.mktemp("vitrina")) as running:
        yield running


@pytest.fixture(scope="session")
def begun(server: TemporaryServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    """An Airflow that makes its database while Vitrina starts."""
    own = f"airflow_own_{uuid4().hex[:12]}"
    admin(server, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(own)))
    owner = settings_for(server, own).admin_url
    assert owner
    with station(tmp_path_factory.mktemp("airflow"), owner.get_secret_value()) as begun:
        for example in (ROOT / "providers/airflow/src/vitrina_airflow/example_dags").glob("vitrina_*.py"):
            shutil.copy(example, begun.dags)
        shutil.copy(Path(__file__).with_name("dags.py"), begun.dags / "tested.py")
        yield begun


@pytest.fixture(scope="session")
def airflow(begun: Station, vitrina: Cinema) -> Station:
    begun.open(connection_of(vitrina))
    begun.wait_for_dags("one", "once_more", "hasty", *(path.stem for path in begun.dags.glob("vitrina_*.py")))
    return begun
