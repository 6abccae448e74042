"""Transaction numbers have 64 bits in a snapshot and 32 in the log: on a server that has wrapped around they differ."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from tests.conftest import settings_for, url_of
from tests.live.marts import SOURCE, Marts
from tests.live.test_moments import a_commit_that_is_not_visible_yet_is_left, breaks
from vitrina.embedded import watchdog
from vitrina.embedded.accounts import server_account
from vitrina.embedded.postgres import STOP_SIGNALS
from vitrina.embedded.temporary import TemporaryServer
from vitrina.store import database as postgres
from vitrina.store.migrate import migrate

EPOCH = 3


@pytest.fixture(scope="module")
def wrapped(server: TemporaryServer) -> Iterator[TemporaryServer]:
    """A server on which transaction numbers have wrapped around three times."""
    with TemporaryServer(server.cluster.bindir) as made:
        data = made.cluster.data
        watchdog.stop_server(data, STOP_SIGNALS["fast"])
        done = server_account(data).run([made.cluster.bindir / "pg_resetwal", "-e", str(EPOCH), data])
        assert done.returncode == 0, done.stderr
        made.start()
        yield made


@pytest.fixture
def marts(wrapped: TemporaryServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Marts]:
    name = f"test_{abs(hash(request.node.name))}"
    with psycopg.connect(wrapped.urls.admin, autocommit=True) as session:
        session.execute(f"CREATE DATABASE {name}".encode())
    settings = settings_for(wrapped, name)
    admin_url = url_of(wrapped.urls.admin, name)
    with psycopg.connect(admin_url, autocommit=True) as session:
        session.execute("CREATE SCHEMA content; CREATE SCHEMA ugc")
    migrate(settings)
    with (
        postgres.connect(admin_url, "vitrina:test-admin") as admin,
        postgres.connect(settings.require_database_url(), "vitrina:test") as metastore,
    ):
        made = Marts(settings, admin, metastore, tmp_path)
        made.sql(SOURCE)
        yield made
        made.stop()
        with suppress(psycopg.Error):
            made.drop_feeds()


def test_a_transaction_of_a_later_epoch_is_compared_by_its_lower_bits(marts: Marts) -> None:
    [row] = marts.sql("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8 >> 32 AS epoch")
    assert row["epoch"] == EPOCH
    a_commit_that_is_not_visible_yet_is_left(marts)


def test_without_the_modulo_it_shows(marts: Marts) -> None:
    breaks(marts, "no_modulo", a_commit_that_is_not_visible_yet_is_left)
