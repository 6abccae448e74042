"""Canaries in every login, address and token: nothing that leaves the platform repeats them."""

from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest
from psycopg import sql
from psycopg.rows import scalar_row

from tests.integration.api import api_process
from tests.support.processes import command, runner_process
from tests.support.waiting import until
from vitrina.client import Client
from vitrina.services import tokens
from vitrina.services.callers import Caller, Role
from vitrina.settings import Settings
from vitrina.store.database import Connection

pytestmark = pytest.mark.timeout(400)

PASSWORD, PLACE = "canary-secret", "canary-place"  # nobody may see the one; authors may not see the other


@pytest.fixture
def canaries(database: Settings) -> dict[str, str]:
    """Connections that fail in all the ways in which servers and libraries like to tell too much."""
    server = urlsplit(database.require_database_url())
    return {
        "VITRINA_CONN_REFUSED": f"postgresql://{PLACE}-user:{PASSWORD}-1@{server.hostname}:{server.port}/{PLACE}-db",
        "VITRINA_CONN_ABSENT": f"postgresql://{PLACE}-user:{PASSWORD}-2@127.0.0.1:1/{PLACE}-db",
        "VITRINA_CONN_UNKNOWN": f"postgresql://{PLACE}-user:{PASSWORD}-3@{PLACE}-host.invalid/{PLACE}-db",
        "ELASTICSEARCH_URL": f"http://{PLACE}-user:{PASSWORD}-4@{PLACE}-search.invalid:9299",
        "ELASTICSEARCH_API_KEY": f"{PASSWORD}-5",
        "VITRINA_WEBHOOK_URL": f"http://127.0.0.1:1/{PASSWORD}-6",
        "VITRINA_WEBHOOK_SECRET": f"{PASSWORD}-7",
        "VITRINA_SLACK_WEBHOOK_URL": f"http://127.0.0.1:1/{PASSWORD}-8",
        "VITRINA_ALLOWED_TARGETS": "analytics.*,es:*",
        "VITRINA_LOG_LEVEL": "debug",
    }


def test_nothing_repeats_a_secret(
    database: Settings, metastore: Connection, tmp_path: Path, canaries: dict[str, str]
) -> None:
    _, token = tokens.create(metastore, Caller("setup", Role.ADMIN), name="admin", role=Role.ADMIN)
    with (
        api_process(database, tmp_path, **canaries) as (_, url),
        runner_process(database, tmp_path, **canaries),
        Client(url, token) as client,
    ):
        until(lambda: bool(client.list_runners()))
        names = define(client)
        for name in names:
            client.run(name)
        until(lambda: all(told_why(client, name) for name in names), seconds=120)
        seen_by_authors = answers_of(url, token, names) + commands(tmp_path, url, token, names)
        seen_by_operators = command(tmp_path, operators_environment(database, canaries), "doctor")
    stored = everything_stored(database)
    logged = "".join((tmp_path / name).read_text() for name in ("api.log", "runner.log"))

    assert "cannot open the connection 'refused'" in seen_by_authors
    assert "no search server answers" in seen_by_authors
    assert "connection.failed" in logged
    own = urlsplit(database.require_database_url()).password
    assert own
    for secret in (PASSWORD, own, token):
        assert secret not in seen_by_authors
        assert secret not in seen_by_operators
        assert secret not in logged
        assert secret not in stored
    assert PLACE not in seen_by_authors
    assert PLACE not in stored


def define(client: Client) -> list[str]:
    query = {"source_query": "SELECT 1 AS id", "target_key": ["id"]}
    for connection in ("refused", "absent", "unknown"):
        client.create_pipeline(
            {"name": connection, "target_table": f"analytics.{connection}", "source_connection": connection, **query}
        )
    client.create_pipeline({"name": "searched", "target_table": "es:searched", **query})
    return ["refused", "absent", "unknown", "searched"]


def told_why(client: Client, name: str) -> bool:
    """The run says what it waits for, or has failed."""
    run = client.status(name).run
    return run is not None and (
        run.error_message is not None
        or any(line.topic in ("run.retrying", "run.failed") for line in client.run_log(run.id))
    )


def answers_of(url: str, token: str, names: list[str]) -> str:
    heard = []
    with httpx.Client(base_url=f"{url}/api/v1", headers={"Authorization": f"Bearer {token}"}, trust_env=False) as http:
        for name in names:
            heard += [http.get(f"/pipelines/{name}{part}").text for part in ("", "/status", "/runs", "/versions")]
            heard += [http.post(f"/pipelines/{name}/{verb}").text for verb in ("validate", "preview", "cancel")]
        heard += [http.get(path).text for path in ("/runs", "/runners", "/audit", "/health", "/export")]
    return "\n".join(heard)


def commands(directory: Path, url: str, token: str, names: list[str]) -> str:
    environment = {"VITRINA_API_URL": url, "VITRINA_TOKEN": token}
    verbs = [words for name in names for words in (["status", name], ["logs", name], ["preview", name])]
    said = [command(directory, environment, *words) for words in [*verbs, ["runs"], ["status"], ["tokens", "list"]]]
    said.append(command(directory, environment | {"VITRINA_TOKEN": "vtr_wrong"}, "status"))
    return "\n".join(said)


def operators_environment(database: Settings, canaries: dict[str, str]) -> dict[str, str]:
    assert database.reader_url
    return canaries | {
        "VITRINA_DATABASE_URL": database.require_database_url(),
        "VITRINA_READER_URL": database.reader_url.get_secret_value(),
    }


def everything_stored(database: Settings) -> str:
    assert database.admin_url
    with psycopg.connect(database.admin_url.get_secret_value(), row_factory=scalar_row) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'etl'").fetchall()
        return "\n".join(
            row
            for table in tables
            for row in connection.execute(sql.SQL("SELECT t::text FROM etl.{} t").format(sql.Identifier(table)))
        )
