"""A followed source for each test; the server has wal_level = logical by default."""

from collections.abc import Iterator
from contextlib import suppress

import psycopg
import pytest

from tests.live.followed import Source, names
from vitrina.connectors.postgres import feeds
from vitrina.settings import Settings


@pytest.fixture
def source(database: Settings) -> Iterator[Source]:
    assert database.admin_url
    made = Source(database.admin_url.get_secret_value(), database, names())
    yield made
    with suppress(psycopg.Error):
        feeds.drop(made.url, made.names, made.settings)
