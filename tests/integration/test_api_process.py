"""The API as people start it: a process of its own, over real sockets, through a lost database and a clean stop."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.integration.api import DEFINITION
from vitrina.client import Client
from vitrina.errors import CannotConnect, Unauthenticated
from vitrina.services import tokens
from vitrina.services.callers import Caller, Role
from vitrina.settings import Settings
from vitrina.store.database import Connection

pytestmark = pytest.mark.timeout(180)


@contextmanager
def api_process(settings: Settings, directory: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    environment = {
        "PATH": os.environ["PATH"],
        "VITRINA_DATABASE_URL": settings.require_database_url(),
        "VITRINA_LOG_FORMAT": "json",
    }
    log = directory / "api.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name("vitrina")), "api", "--port", str(port)],
            env=environment,
            cwd=directory,
            stdout=output,
            stderr=output,
            text=True,
        )
        url = f"http://127.0.0.1:{port}"
        try:
            wait_until_healthy(process, url, log)
            yield process, url
        finally:
            process.kill()
            process.wait()


def wait_until_healthy(process: subprocess.Popen[str], url: str, log: Path, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    with Client(url) as client:
        while time.monotonic() < deadline:
            assert process.poll() is None, log.read_text()
            try:
                if client.health().status == "ok":
                    return
            except CannotConnect:
                pass
            time.sleep(0.1)
    pytest.fail(f"no healthy API within {seconds} s: {log.read_text()}")


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
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name LIKE 'vitrina:%' AND datname = current_database()"
                )
            assert [client.get_pipeline("films").name for _ in range(5)] == ["films"] * 5
            stream.close()

            # An open stream must not keep the process from stopping.
            listening = client.events(last_event_id=0)
            assert next(listening).topic == "status"
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=15)
            with pytest.raises(CannotConnect):
                list(listening)
    log = (tmp_path / "api.log").read_text()
    assert secret not in log
    assert "Traceback" not in log, log
