"""The API as people start it: a process of its own, over real sockets, through a lost database and a clean stop."""

import re
import signal
from contextlib import ExitStack
from pathlib import Path

import httpx
import psycopg
import pytest

from tests.integration.api import DEFINITION, api_process
from vitrina.api.pool import make_pool
from vitrina.client import Client
from vitrina.errors import CannotConnect, Unauthenticated
from vitrina.services import tokens
from vitrina.services.callers import Caller, Role
from vitrina.settings import Settings
from vitrina.store.database import Connection

pytestmark = pytest.mark.timeout(180)


def test_a_real_process_serves_survives_a_lost_database_and_stops_cleanly(
    database: Settings, metastore: Connection, tmp_path: Path
) -> None:
    _, secret = tokens.create(metastore, Caller("setup", Role.ADMIN), name="admin", role=Role.ADMIN)
    with api_process(database, tmp_path) as (process, url):
        with Client(url) as stranger, pytest.raises(Unauthenticated):
            stranger.list_pipelines()
        with Client(url, secret) as client:
            client.create_pipeline(DEFINITION)
            stream = client.events()
            assert client.run("films").status == "RUN_REQUESTED"

            # Every session of the API ends, as in a restart of the database; the next requests find new ones.
            assert database.admin_url
            with psycopg.connect(database.admin_url.get_secret_value(), autocommit=True) as admin:
                admin.execute(
                    "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
                    " WHERE application_name LIKE 'vitrina:%' AND datname = current_database()"
                )
            assert [client.get_pipeline("films").name for _ in range(5)] == ["films"] * 5
            stream.close()

            # An open stream must not keep the process from stopping.
            listening = client.events(last_event_id=0)
            assert next(listening).topic == "pipeline"
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)
            with pytest.raises(CannotConnect):
                list(listening)
    log = (tmp_path / "api.log").read_text()
    assert secret not in log
    assert "Traceback" not in log, log


def test_a_restart_of_the_database_delays_no_request(database: Settings, metastore: Connection) -> None:
    """Require that a request passes all dead sessions of the pool, however many there are."""
    sessions = 12
    with make_pool(database, max_connections=sessions) as pool:
        with ExitStack() as taken:
            for _ in range(sessions):
                taken.enter_context(pool.connection(timeout=60))
        end = "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = 'vitrina:api'"
        assert metastore.execute(f"{end} AND datname = current_database()".encode()).rowcount == sessions
        with pool.connection() as connection:  # with the timeout of requests
            assert connection.execute("SELECT 1 AS one").fetchone() == {"one": 1}


def test_workers_share_a_port_and_each_tells_what_all_have_counted(
    database: Settings, metastore: Connection, tmp_path: Path
) -> None:
    """Every call has a connection of its own, which any of the workers may take."""
    _, secret = tokens.create(metastore, Caller("setup", Role.ADMIN), name="admin", role=Role.ADMIN)
    with api_process(database, tmp_path, arguments=["--workers", "3"]) as (process, url):
        workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(workers) == 3
        for _ in range(30):
            with Client(url, secret) as client:
                client.list_targets()
        assert {_answered(url, "/targets") for _ in range(12)} == {30}
        # Connections that stay open, as of a console, are with one worker each.
        with ExitStack() as opened:
            known = [opened.enter_context(Client(url, secret)) for _ in range(6)]
            for client in known:
                client.list_feeds()
            tokens.revoke(metastore, Caller("setup", Role.ADMIN), "admin")
            for client in known:
                with pytest.raises(Unauthenticated):
                    client.list_feeds()
        for _ in range(4):
            with Client(url, secret) as client, pytest.raises(Unauthenticated):
                client.list_targets()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
        assert not [worker for worker in workers if Path(f"/proc/{worker}").exists()]
    log = (tmp_path / "api.log").read_text()
    assert log.count("api.started") == 3
    assert "Traceback" not in log, log


def _answered(url: str, route: str) -> int:
    """How many requests to a route were answered with 200, as whichever worker is asked has it."""
    page = httpx.get(f"{url}/metrics", trust_env=False, timeout=60).text
    found = re.search(
        rf'^vitrina_http_request_duration_seconds_count{{.*route="{route}",status="200"}} (\S+)$', page, re.M
    )
    assert found, page
    return int(float(found[1]))
