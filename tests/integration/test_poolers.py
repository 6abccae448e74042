"""A real pgbouncer between the platform and PostgreSQL: session mode works, transaction mode is refused."""

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from pydantic import SecretStr

from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina.errors import CannotConnect, ConfigError
from vitrina.store import database, setup
from vitrina.store.prepared import Statement
from vitrina.store.session_pool import SessionPool

CONFIG = """
[databases]
* = host={host} port={port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = trust
auth_file = {logins}
pool_mode = {mode}
ignore_startup_parameters = options, extra_float_digits
"""

Pooled = Callable[[str, str], str]


@pytest.fixture
def pooled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pooled]:
    """The same URL through a pgbouncer in the given mode."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    assert program, "pgbouncer is missing: run scripts/install-system-packages pgbouncer"
    started: list[subprocess.Popen[bytes]] = []

    def through(url: str, mode: str) -> str:
        parts, listen = urlsplit(url), free_port()
        directory = Path("/tmp") / f"vitrina-pgbouncer-{os.getpid()}-{listen}"
        directory.mkdir(mode=0o755)
        logins, config = directory / "logins", directory / "config"
        logins.write_text(f'"{parts.username}" "{parts.password}"\n')
        config.write_text(CONFIG.format(host=parts.hostname, port=parts.port, listen=listen, logins=logins, mode=mode))
        account = ["-u", "nobody"] if os.getuid() == 0 else []
        process = subprocess.Popen([program, "-q", *account, str(config)], stderr=subprocess.DEVNULL)
        started.append(process)
        until(lambda: answers(listen))
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition(":")[0] + f":{listen}"))

    yield through
    for process in started:
        process.kill()
        process.wait()
    for directory in Path("/tmp").glob(f"vitrina-pgbouncer-{os.getpid()}-*"):
        shutil.rmtree(directory)


def free_port() -> int:
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        return int(line.getsockname()[1])


def answers(port: int) -> bool:
    with socket.socket() as line:
        return line.connect_ex(("127.0.0.1", port)) == 0


def test_transaction_mode_is_refused_with_a_sentence(workbench: Workbench, pooled: Pooled) -> None:
    url = pooled(workbench.settings.require_database_url(), "transaction")
    with psycopg.connect(url) as plain:  # it is there, and looks like a database
        assert plain.execute("SELECT 1").fetchone() == (1,)
    with pytest.raises(CannotConnect, match=r"pooler in transaction mode.*pool_mode = session"):
        database.connect(url, "vitrina:test")


def test_a_source_behind_transaction_mode_is_named(workbench: Workbench, pooled: Pooled) -> None:
    assert workbench.settings.reader_url
    url = pooled(workbench.settings.reader_url.get_secret_value(), "transaction")
    workbench.settings = workbench.settings.model_copy(
        update={"connections": {"shop": SecretStr(url)}, "backoff_seconds": (0.01,)}
    )
    workbench.source("CREATE TABLE content.films AS SELECT 1 AS id")
    workbench.pipeline("films", "SELECT id FROM content.films", target_key=["id"], source_connection="shop")
    workbench.request("films")
    workbench.perform(workbench.claim())
    [row] = workbench.sql("SELECT last_error FROM etl.etl_pipelines")
    assert "is behind a pooler in transaction mode; it needs session mode" in str(row["last_error"])


def test_session_mode_gives_sessions_with_our_settings(workbench: Workbench, pooled: Pooled) -> None:
    assert workbench.settings.reader_url
    url = pooled(workbench.settings.reader_url.get_secret_value(), "session")
    with database.connect(url, "vitrina:test", settings={"statement_timeout": "7000"}) as connection:
        for _ in range(2):
            for name, value in (("TimeZone", "UTC"), ("search_path", ""), ("statement_timeout", "7s")):
                found = connection.execute("SELECT current_setting(%s) AS value", [name]).fetchone()
                assert found == {"value": value}
            database.reset(connection, "vitrina:test")


@pytest.mark.parametrize("steps", [False, True])
def test_a_source_behind_session_mode_is_read(workbench: Workbench, pooled: Pooled, steps: bool) -> None:
    assert workbench.settings.reader_url
    url = pooled(workbench.settings.reader_url.get_secret_value(), "session")
    workbench.settings = workbench.settings.model_copy(update={"connections": {"shop": SecretStr(url)}})
    workbench.source("CREATE TABLE content.films AS SELECT i AS id, now() AS at FROM generate_series(1, 100) AS i")
    query = "SELECT id, at FROM content.films"
    tasks = [
        {"order_index": 0, "task_type": "SQL", "body": query},
        {"order_index": 1, "task_type": "PYTHON", "body": "deduplicate", "params": {"by": ["id"]}},
    ]
    fields = {"tasks": tasks} if steps else {}
    workbench.pipeline("films", query, target_key=["id"], source_connection="shop", **fields)
    for _ in range(3):  # the second and third in sessions that the first has left
        run = workbench.run("films")
        assert (run["status"], run["error_message"]) == ("SUCCESS", None)
        assert workbench.differences(query, "analytics.films") == 0


def test_kept_sessions_are_refused_in_transaction_mode(workbench: Workbench, pooled: Pooled) -> None:
    """Before a statement is prepared: another client of the pooler would find it."""
    url = pooled(workbench.settings.require_database_url(), "transaction")
    pool = SessionPool(most=2, idle_seconds=60.0)
    with pytest.raises(CannotConnect, match="pooler in transaction mode"):
        pool.connect(url, "vitrina:test", connect_timeout_seconds=5, settings={})


def test_a_session_of_the_pooler_is_clean_after_a_kept_one(workbench: Workbench, pooled: Pooled) -> None:
    """The pooler gives the server's session to the next client, which prepares statements under the same names."""
    url = pooled(workbench.settings.require_database_url(), "session")
    for _ in range(2):
        pool = SessionPool(most=2, idle_seconds=60.0)
        for _ in range(2):
            session = pool.connect(url, "vitrina:test", connect_timeout_seconds=5, settings={})
            assert Statement(b"SELECT %s::int AS number").fetch_one(session, [7]) == {"number": 7}
            pool.give_back(session, keep=True)
        pool.close()


def test_an_installation_is_not_set_up_through_a_pooler(workbench: Workbench, pooled: Pooled) -> None:
    """The logins that are made would be unknown to it."""
    assert workbench.settings.admin_url
    url = pooled(workbench.settings.admin_url.get_secret_value(), "session")
    with pytest.raises(ConfigError, match="is a connection pooler such as pgbouncer"):
        setup.connect(url)
