"""A streaming standby as the source: exact within the declared lookback, refused by name without it."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from pydantic import SecretStr

from tests.conftest import url_of
from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina.embedded import launch, watchdog
from vitrina.embedded.postgres import STOP_SIGNALS
from vitrina.embedded.temporary import TemporaryServer

QUERY = "SELECT id, title, modified FROM content.film_work"
INCREMENTAL = {
    "target_key": ["id"],
    "mode": "incremental",
    "incremental_key": "modified",
    "incremental_id_key": "id",
    "source_connection": "standby",
}
LOOKBACK = {"lookback_seconds": 60, "cursor_clock": "database"}


@pytest.fixture(scope="module")
def standby_port(server: TemporaryServer) -> Iterator[int]:
    """Made with pg_basebackup from the tests' own server, and following it."""
    directory = Path(tempfile.mkdtemp(prefix="vitrina-test-standby-"))
    cluster = replace(server.cluster, data=directory / "data")
    cluster.account.own(directory)
    copied = cluster.account.run(
        [
            cluster.bindir / "pg_basebackup",
            *("--pgdata", cluster.data, "--dbname", server.urls.admin),
            *("--write-recovery-conf", "--checkpoint", "fast", "--no-sync", "--wal-method", "stream"),
        ]
    )
    assert copied.returncode == 0, copied.stdout
    try:
        yield launch.launch(cluster, launch.ANY_PORT, server.settings, server.home / "standby.log")
    finally:
        watchdog.stop_server(cluster.data, STOP_SIGNALS["immediate"])
        watchdog.remove_socket_directory(launch.socket_directory(cluster))
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def bench(workbench: Workbench, server: TemporaryServer, standby_port: int) -> Workbench:
    workbench.source(
        """
        CREATE TABLE content.film_work (id int PRIMARY KEY, title text, modified timestamptz NOT NULL DEFAULT now());
        INSERT INTO content.film_work SELECT i, 'Film ' || i, now() - interval '1 hour' FROM generate_series(1, 50) AS i
        """
    )
    [row] = workbench.sql("SELECT current_database() AS name")
    parts = urlsplit(url_of(server.urls.reader, row["name"]))
    url = urlunsplit(parts._replace(netloc=f"{parts.netloc.rpartition(':')[0]}:{standby_port}"))
    workbench.settings = workbench.settings.model_copy(update={"connections": {"standby": SecretStr(url)}})
    follow(workbench)
    return workbench


def follow(bench: Workbench) -> None:
    """Wait until the standby has replayed what the primary has written so far."""
    [row] = bench.sql("SELECT pg_current_wal_flush_lsn()::text AS position")
    url = bench.settings.connections["standby"].get_secret_value()

    def has_replayed() -> bool:
        try:
            with psycopg.connect(url, autocommit=True) as standby:
                found = standby.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", [row["position"]]).fetchone()
        except psycopg.OperationalError:
            return False  # the test's database has not arrived yet
        return bool(found and found[0])

    until(has_replayed)


def test_a_full_load_reads_from_a_standby(bench: Workbench) -> None:
    bench.pipeline("films", QUERY, target_key=["id"], source_connection="standby")
    run = bench.run("films")
    assert (run["status"], run["error_message"], run["metrics"]["route"]) == ("SUCCESS", None, "copy")
    assert bench.differences(QUERY, "analytics.films") == 0


def test_a_transaction_of_the_primary_that_commits_late_is_not_lost(bench: Workbench) -> None:
    """The standby cannot see that it is open: only the lookback keeps the checkpoint behind it."""
    bench.pipeline("films", QUERY, **INCREMENTAL, options=LOOKBACK)
    assert bench.settings.admin_url is not None
    with psycopg.connect(bench.settings.admin_url.get_secret_value()) as late:
        late.execute("INSERT INTO content.film_work VALUES (1000, 'Late', now())")
        bench.sql("INSERT INTO content.film_work VALUES (1001, 'In time', clock_timestamp())")
        follow(bench)
        run = bench.run("films")
        assert (run["status"], run["error_message"]) == ("SUCCESS", None)
        assert run["metrics"]["guarantee"] == "bounded-lag"
    follow(bench)
    assert bench.run("films")["status"] == "SUCCESS"
    assert bench.differences(QUERY, "analytics.films") == 0


def test_a_reader_that_reads_a_standby_asks_the_standby(bench: Workbench) -> None:
    """VITRINA_READER_URL points to a copy that is behind: the primary's clock says nothing of what is in it."""
    standby = bench.settings.connections["standby"]
    bench.settings = bench.settings.model_copy(update={"reader_url": standby})
    bench.pipeline("films", QUERY, **INCREMENTAL | {"source_connection": "default"}, options={"lookback_seconds": 1})
    run = bench.run("films")
    assert (run["status"], run["error_message"], run["metrics"]["route"]) == ("SUCCESS", None, "copy")
    with paused_replay(bench, standby.get_secret_value()):
        bench.sql("INSERT INTO content.film_work SELECT i, 'Not replayed', now() FROM generate_series(100, 110) AS i")
        bench.sql("SELECT pg_sleep(2.2)")
        bench.sql("INSERT INTO content.film_work VALUES (200, 'Later', now())")
        assert bench.run("films")["status"] == "SUCCESS"
    follow(bench)
    assert bench.run("films")["status"] == "SUCCESS"
    assert bench.differences(QUERY, "analytics.films") == 0


def test_a_reader_that_reads_a_standby_is_refused_without_a_lookback(bench: Workbench) -> None:
    bench.settings = bench.settings.model_copy(update={"reader_url": bench.settings.connections["standby"]})
    options = {"cursor_clock": "database"}
    bench.pipeline("films", QUERY, **INCREMENTAL | {"source_connection": "default"}, options=options)
    run = bench.run("films")
    assert run["status"] == "FAILED"
    assert "set options.lookback_seconds to more than the longest" in run["error_message"]


@contextmanager
def paused_replay(bench: Workbench, url: str) -> Iterator[None]:
    assert bench.settings.admin_url is not None
    admin = urlsplit(bench.settings.admin_url.get_secret_value())
    there = urlsplit(url)
    netloc = f"{admin.netloc.rpartition('@')[0]}@{there.netloc.rpartition('@')[2]}"
    with psycopg.connect(urlunsplit(there._replace(netloc=netloc)), autocommit=True) as session:
        session.execute("SELECT pg_wal_replay_pause()")
        try:
            yield
        finally:
            session.execute("SELECT pg_wal_replay_resume()")


@pytest.mark.parametrize(
    ("options", "key", "said"),
    [
        ({"cursor_clock": "database"}, "modified", "set options.lookback_seconds to more than the longest"),
        (LOOKBACK, "id", "read from the primary, or by a timestamp"),
    ],
)
def test_what_a_standby_cannot_promise_is_refused(
    bench: Workbench, options: dict[str, object], key: str, said: str
) -> None:
    bench.pipeline("films", QUERY, **INCREMENTAL | {"incremental_key": key}, options=options)
    run = bench.run("films")
    assert run["status"] == "FAILED"
    assert said in run["error_message"]
