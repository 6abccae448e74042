"""Define fixtures for all tests: one real PostgreSQL per session, one fresh migrated database per test."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import psycopg
import pytest
import structlog
from _pytest.nodeid import coerce_node_id
from psycopg import sql
from pydantic import SecretStr
from xdist.scheduler import LoadScopeScheduling

from tests.support import step_threads
from tests.support.ahead import Ahead
from tests.support.quick_logins import quick_login
from tests.support.search_servers import EXISTING, QUICK_START, SETTINGS, Target, kinds
from tests.support.workbench import Workbench
from vitrina.embedded import search_server
from vitrina.embedded.cluster import SUPERUSER
from vitrina.embedded.temporary import TemporaryServer
from vitrina.settings import APP_ROLE, READER_ROLE, Settings
from vitrina.store import database as postgres
from vitrina.store.migrate import migrate
from vitrina.transforms import process

TEMPLATE = "vitrina_template"

# Directories whose tests take minutes, then files with few tests of many seconds each; the rest is short.
LONG_FIRST = (
    *search_server.KINDS,
    *("tests/chaos/", "tests/docs/", "tests/acceptance/"),
    *(f"tests/integration/test_{name}" for name in ("cli", "security_layers", "step_properties", "late_commits")),
    "tests/integration/",
)

# `make test-frames`, `make test-lake` and `make test-airflow` run these, with pandas and polars, an S3 server and
# DuckDB, or a whole Airflow installed.
collect_ignore = [] if os.environ.get("VITRINA_TEST_FRAMES") else ["frames"]
# `make test-clickhouse` runs these, with an engine installed.
collect_ignore += [] if os.environ.get("VITRINA_TEST_CLICKHOUSE") else ["clickhouse"]
collect_ignore += [] if os.environ.get("VITRINA_TEST_LAKE") else ["lake"]
# `make test-spark` runs these, with a Spark Connect server.
collect_ignore += [] if os.environ.get("VITRINA_TEST_SPARK") else ["spark"]
collect_ignore += [] if os.environ.get("VITRINA_TEST_AIRFLOW") else ["airflow/test_tasks.py", "airflow/test_kills.py"]

# Plain lines: the default console renderer spends seconds on drawing a traceback that a test expects.
structlog.configure(
    processors=[
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.format_exc_info,
        structlog.processors.KeyValueRenderer(key_order=["event"]),
    ]
)


# Tests that a script starts in the background ignore Ctrl-C; the processes that they start must not inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


class ByFileAndServer(LoadScopeScheduling):  # type: ignore[misc]  # has no types
    """Distribute tests to processes so that those of one file, and those of one search server, stay together."""

    def _split_scope(self, nodeid: str) -> str:
        return share_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFileAndServer:
    config.option.loadscopereorder = False  # keep the order below
    return ByFileAndServer(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order long groups first, so that no process begins with one when the others have nothing left to do."""
    name_each(items)
    if os.environ.get("VITRINA_CHAOS") != "long":
        config.hook.pytest_deselected(items=[item for item in items if "takes_long" in item.keywords])
        items[:] = [item for item in items if "takes_long" not in item.keywords]
    sizes = Counter(share_of(item.nodeid) for item in items)

    def place(item: pytest.Item) -> tuple[int, int, str]:
        share = share_of(item.nodeid)
        return next((n for n, name in enumerate(LONG_FIRST) if name in share), len(LONG_FIRST)), -sizes[share], share

    items.sort(key=place)


def name_each(items: list[pytest.Item]) -> None:
    """Give each test a distinct id: schemathesis repeats ids, and pytest-xdist runs only the first of each."""
    for item in items:
        if item.parent and "[" in item.name and not item.nodeid.endswith("]"):
            item._id = coerce_node_id(f"{item.parent.nodeid}::{item.name}")
    several = [nodeid for nodeid, number in Counter(item.nodeid for item in items).items() if number > 1]
    if several:
        raise pytest.UsageError(f"several tests have the id {several[0]}: all but one would be left out")


def share_of(nodeid: str) -> str:
    """Return the group that one process runs as a whole: the tests of a search server, or of a file."""
    file, _, name = nodeid.partition("::")
    return next((kind for kind in search_server.KINDS if kind in name), file)


@pytest.fixture(autouse=True)
def _steps_in_threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run steps in threads, because they share state with tests, except for tests marked `step_processes`."""
    if "step_processes" not in request.keywords:
        monkeypatch.setattr(process, "start", step_threads.start)


@pytest.fixture(scope="session")
def server() -> Iterator[TemporaryServer]:
    """Start the embedded server, or the one whose programs are in VITRINA_TEST_PG_BINDIR."""
    bindir = os.environ.get("VITRINA_TEST_PG_BINDIR")
    with TemporaryServer(Path(bindir) if bindir else None) as running:
        admin(running, quick_login(SUPERUSER, running.cluster.passwords.superuser))
        yield running


@pytest.fixture(scope="session", params=kinds())
def search(request: pytest.FixtureRequest) -> Iterator[Target]:
    """Start a search server, one kind at a time; tests of one kind and tests of every kind share it."""
    if request.param == EXISTING:
        yield Target(EXISTING, os.environ[EXISTING], None)
        return
    with search_server.running(request.param, settings=SETTINGS, java_options=QUICK_START) as process:
        yield Target(request.param, process.url, process)


@pytest.fixture(scope="session")
def template(server: TemporaryServer) -> str:
    """Migrate a database with empty source schemas; copying it is much faster than migrating each time."""
    admin(server, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(TEMPLATE)))
    settings = settings_for(server, TEMPLATE)
    with psycopg.connect(url_of(server.urls.admin, TEMPLATE), autocommit=True) as connection:
        connection.execute("CREATE SCHEMA content; CREATE SCHEMA ugc")
    migrate(settings)
    admin(server, quick_login(APP_ROLE, server.urls.app_password))
    admin(server, quick_login(READER_ROLE, server.urls.reader_password))
    return TEMPLATE


@pytest.fixture(scope="session")
def copies(server: TemporaryServer, template: str) -> Iterator[Ahead[str]]:
    """Yield names of fresh copies of the template."""

    def copy() -> str:
        name = f"test_{uuid4().hex[:12]}"
        admin(server, sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template)))
        return name

    with Ahead(copy) as copies:
        yield copies


@pytest.fixture
def database(server: TemporaryServer, copies: Ahead[str]) -> Iterator[Settings]:
    """Return settings for a fresh, migrated database of this test only."""
    name = copies.take()
    yield settings_for(server, name)
    admin(server, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def metastore(database: Settings) -> Iterator[postgres.Connection]:
    """Open a session on the test's database, with the application's rights."""
    with postgres.connect(database.require_database_url(), "vitrina:test") as connection:
        yield connection


@pytest.fixture
def workbench(database: Settings, metastore: postgres.Connection) -> Iterator[Workbench]:
    """Provide sources, pipelines and runs on the test's database, in this process."""
    assert database.admin_url is not None
    with postgres.connect(database.admin_url.get_secret_value(), "vitrina:test-admin") as admin_session:
        bench = Workbench(database, admin_session, metastore)
        yield bench
        bench.pool.close()


def settings_for(server: TemporaryServer, name: str) -> Settings:
    return Settings(
        database_url=SecretStr(url_of(server.urls.app, name)),
        admin_url=SecretStr(url_of(server.urls.admin, name)),
        reader_url=SecretStr(url_of(server.urls.reader, name)),
        app_password=SecretStr(server.urls.app_password),
        reader_password=SecretStr(server.urls.reader_password),
    )


def url_of(url: str, name: str) -> str:
    """Return the URL of the same login on another database."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def admin(server: TemporaryServer, statement: sql.Composed) -> None:
    with psycopg.connect(server.urls.admin, autocommit=True) as connection:
        connection.execute(statement)
