"""A followed source for each test; the server has wal_level = logical by default."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from tests.live.followed import Source, names
from tests.live.marts import SOURCE, Marts
from tests.live.platform import Platform
from tests.support.workbench import Workbench
from vitrina.connectors.postgres import feeds
from vitrina.runner import feeds as runner_feeds
from vitrina.settings import Settings
from vitrina.store import database as postgres


@pytest.fixture
def source(database: Settings) -> Iterator[Source]:
    assert database.admin_url
    made = Source(database.admin_url.get_secret_value(), database, names())
    yield made
    with suppress(psycopg.Error):
        feeds.drop(made.url, made.names, made.settings)


@pytest.fixture
def marts(database: Settings, metastore: postgres.Connection, tmp_path: Path) -> Iterator[Marts]:
    """A source with a few tables; runners are started by the test, and ended with it."""
    assert database.admin_url
    with postgres.connect(database.admin_url.get_secret_value(), "vitrina:test-admin") as admin:
        made = Marts(database, admin, metastore, tmp_path)
        made.sql(SOURCE)
        yield made
        made.stop()
        made.drop_feeds()


@pytest.fixture
def platform(workbench: Workbench, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    monkeypatch.setattr(runner_feeds, "FIGURES_SECONDS", 0.2)
    monkeypatch.setattr(runner_feeds, "CATALOG_SECONDS", 0.3)
    monkeypatch.setattr(runner_feeds, "BACKOFF_SECONDS", (0.2,))
    made = Platform(workbench)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def followed(marts: Marts) -> Marts:
    """One runner, and the pipeline `films` that follows its source."""
    marts.live("films")
    marts.start_runner()
    marts.await_following("films")
    return marts
