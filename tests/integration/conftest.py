"""One API for all tests of it: real HTTP, real database, emptied before each test."""

from collections.abc import Iterator
from uuid import uuid4

import httpx
import psycopg
import pytest
from psycopg import sql

from tests.conftest import admin, settings_for
from tests.integration.api import serving, without_auth
from vitrina.connectors.postgres import target
from vitrina.embedded.temporary import TemporaryServer
from vitrina.observe import logs
from vitrina.settings import Settings
from vitrina.store import database as postgres


@pytest.fixture(scope="session")
def api_settings(server: TemporaryServer, template: str) -> Settings:
    name = f"api_{uuid4().hex[:12]}"
    admin(server, sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template)))
    settings = without_auth(settings_for(server, name), log_level="error")
    logs.configure(settings)
    return settings


@pytest.fixture(scope="session")
def running_api(api_settings: Settings) -> Iterator[httpx.Client]:
    with serving(api_settings, request_wait_seconds=0.5) as client:
        yield client


@pytest.fixture
def api(running_api: httpx.Client, api_settings: Settings) -> httpx.Client:
    """An HTTP client of an API without auth whose metastore is empty."""
    assert api_settings.admin_url
    with psycopg.connect(api_settings.admin_url.get_secret_value(), autocommit=True) as connection:
        # The audit refuses to be emptied, even by us, unless triggers are off.
        connection.execute("SET session_replication_role = replica")
        connection.execute(
            "TRUNCATE etl.etl_pipelines, etl.etl_audit, etl.etl_runners, etl.etl_requests, etl.etl_api_tokens,"
            " etl.etl_connections CASCADE"
        )
    return running_api


@pytest.fixture
def api_metastore(api: httpx.Client, api_settings: Settings) -> Iterator[postgres.Connection]:
    """A session on the database of `api`."""
    with postgres.connect(api_settings.require_database_url(), "vitrina:test") as connection:
        yield connection


@pytest.fixture(params=[target.FEW_ROWS, 0], ids=["one statement", "a difference"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small marts are written in one statement, large ones by way of a difference: both, with small ones."""
    monkeypatch.setattr(target, "FEW_ROWS", request.param)
