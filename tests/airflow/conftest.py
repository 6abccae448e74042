"""One Airflow and one Vitrina for all tests: each test has pipelines and DAG runs of its own."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from psycopg import sql

from tests.airflow.cinema import Cinema, cinema
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
def airflow(vitrina: Cinema, server: TemporaryServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    own = f"airflow_own_{uuid4().hex[:12]}"
    admin(server, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(own)))
    home = tmp_path_factory.mktemp("airflow")
    dags = home / "dags"
    shutil.copytree(ROOT / "providers/airflow/src/vitrina_airflow/example_dags", dags)
    shutil.copy(Path(__file__).with_name("dags.py"), dags / "tested.py")
    connection = {"conn_type": "vitrina", "host": vitrina.gate.url, "password": vitrina.token}
    owner = settings_for(server, own).admin_url
    assert owner
    with station(home, dags, connection, owner.get_secret_value()) as running:
        running.wait_for_dags("one", "once_more", "hasty", *(path.stem for path in dags.glob("vitrina_*.py")))
        yield running
