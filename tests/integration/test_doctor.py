"""`vitrina doctor` on installations that are not well: what it says is wrong, and what to do about it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from pydantic import SecretStr

from tests.support.ports import kept_port
from tests.support.workbench import Workbench
from vitrina.cli import doctor
from vitrina.cli.doctor import Finding
from vitrina.definition import ReconcileSchedule
from vitrina.embedded.temporary import TemporaryServer
from vitrina.ports import registry
from vitrina.settings import Settings
from vitrina.store import connections, database, runners

FILMS = """
CREATE TABLE content.film (id int PRIMARY KEY, title text);
INSERT INTO content.film VALUES (1, 'Star Wars'), (2, 'Star Trek');
"""


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    workbench.source(FILMS)
    workbench.pipeline("films", "SELECT id, title FROM content.film")
    return workbench


def pipelines(bench: Workbench) -> list[Finding]:
    return list(doctor._check_pipelines(bench.metastore, bench.settings))


def age(bench: Workbench, status: str, **columns: str) -> None:
    """The pipeline has been like this for an hour."""
    wanted = {"status": f"'{status}'", "status_since": "clock_timestamp() - interval '1 hour'"} | columns
    assignments = ", ".join(f"{name} = {value}" for name, value in wanted.items())
    bench.sql(f"SET session_replication_role = replica; UPDATE etl.etl_pipelines SET {assignments}")


# --- pipelines -----------------------------------------------------------------------------------------------------


def test_pipelines_at_rest_and_at_work_are_well(bench: Workbench) -> None:
    bench.request("films")
    bench.claim()
    assert [found.status for found in pipelines(bench)] == ["OK"]


def test_a_runner_that_vanished_with_a_pipeline_is_named(bench: Workbench) -> None:
    bench.request("films")
    bench.claim()
    age(bench, "RUNNING", lease_until="clock_timestamp() - interval '1 hour'")
    [found] = pipelines(bench)
    assert (found.check, found.status) == ("pipeline films", "PROBLEM")
    assert found.finding == "RUNNING, but its runner no longer sends heartbeats"
    assert "start a runner" in found.next_step


@pytest.mark.parametrize("status", ["RUN_REQUESTED", "PAUSE_REQUESTED"])
def test_a_request_that_nobody_takes_up_is_named(bench: Workbench, status: str) -> None:
    age(bench, status)
    [found] = pipelines(bench)
    assert found.status == "PROBLEM"
    assert found.finding.startswith(f"{status} for 36")
    assert "another pipeline may hold the target" in found.next_step


def test_a_failed_pipeline_is_named_with_its_error(bench: Workbench) -> None:
    age(bench, "FAILED", last_error="'division by zero'")
    [found] = pipelines(bench)
    assert found.finding == "FAILED: division by zero"
    assert "vitrina run films" in found.next_step


# --- stages --------------------------------------------------------------------------------------------------------


def test_a_stage_that_nobody_needs_is_named(bench: Workbench) -> None:
    assert doctor._check_stages(bench.metastore).status == "OK"
    name = "p_0123456789abcdef0123456789abcdef_1"
    bench.sql(f"CREATE TABLE etl_stage.{name} (id int); ALTER TABLE etl_stage.{name} OWNER TO vitrina_app")
    found = doctor._check_stages(bench.metastore)
    assert found.status == "PROBLEM"
    assert name in found.finding


# --- the write-ahead log -------------------------------------------------------------------------------------------


def test_a_log_that_may_forget_commits_is_a_problem(bench: Workbench) -> None:
    """The tests' own server is of that kind: it is fast, and nobody needs its data tomorrow."""
    found = doctor._check_log(bench.metastore)
    assert found.status == "PROBLEM"
    assert found.finding.startswith("fsync is off, full_page_writes is off: a crash may lose committed transactions")
    assert found.next_step == "set fsync = on and full_page_writes = on on the server"


def test_what_needs_which_level_of_the_log_is_said() -> None:
    settings = {"fsync": "on", "full_page_writes": "on", "wal_level": "minimal", "max_wal_senders": "0"}
    with TemporaryServer(settings=settings) as server:
        with database.connect(server.urls.admin, "vitrina:test") as connection:
            minimal = doctor._check_log(connection)
            connection.execute("SET synchronous_commit = off")
            hasty = doctor._check_log(connection)
        server.settings["wal_level"] = "replica"
        server.restart("fast")
        with database.connect(server.urls.admin, "vitrina:test") as connection:
            good = doctor._check_log(connection)
    assert (minimal.status, minimal.next_step) == ("PROBLEM", "set wal_level = replica and restart the server")
    assert (hasty.status, hasty.next_step) == ("PROBLEM", "set synchronous_commit = on on the server")
    assert (good.status, good.finding.partition(":")[0]) == ("OK", "wal_level is replica")


# --- connections ---------------------------------------------------------------------------------------------------


def with_connection(bench: Workbench, url: str) -> Settings:
    return bench.settings.model_copy(update={"connections": {"shop": SecretStr(url)}})


def verdicts(bench: Workbench, url: str) -> list[connections.ConnectionFinding]:
    return list(connections.examine(with_connection(bench, url), "shop"))


def make_login(bench: Workbench, *, rights: str = "") -> str:
    """A login of the test's own, which is dropped with what it was granted."""
    assert bench.settings.admin_url
    name = f"shop_{uuid4().hex[:8]}"
    bench.sql(f"CREATE ROLE {name} LOGIN PASSWORD 'p' {rights}")
    return database.with_login(bench.settings.admin_url.get_secret_value(), name, "p")


@pytest.fixture
def login(bench: Workbench) -> Iterator[Callable[..., str]]:
    made: list[str] = []

    def make(rights: str = "") -> str:
        made.append(make_login(bench, rights=rights))
        return made[-1]

    yield make
    for url in made:
        name = urlsplit(url).username
        bench.sql(f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_a_connection_that_can_be_used(bench: Workbench, login: Callable[..., str]) -> None:
    url = login()
    name = urlsplit(url).username
    for schema in ("content", "ugc"):
        bench.sql(f"GRANT USAGE ON SCHEMA {schema} TO {name}; GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {name}")
    bench.sql(f"GRANT USAGE ON SCHEMA etl_stage TO {name}; GRANT pg_read_all_stats TO {name}")
    [found] = verdicts(bench, url)
    assert found.status == "OK", found
    assert found.finding.startswith(f"{name}@")  # and no password


def test_missing_grants_are_written_out(bench: Workbench, login: Callable[..., str]) -> None:
    url = login()
    name = urlsplit(url).username
    steps = [found.next_step for found in verdicts(bench, url)]
    assert f'GRANT USAGE ON SCHEMA "content" TO "{name}"' in steps
    assert f'GRANT SELECT ON "content"."film" TO "{name}"' in steps
    assert f'GRANT pg_read_all_stats TO "{name}"' in steps


def test_a_superuser_s_login_is_warned_of(bench: Workbench, login: Callable[..., str]) -> None:
    found = [verdict for verdict in verdicts(bench, login("SUPERUSER")) if verdict.status == "WARNING"]
    assert any("is a superuser" in verdict.finding and "NOSUPERUSER" in verdict.next_step for verdict in found)


@pytest.mark.parametrize(
    ("change", "step"),
    [
        ({"password": "wrong"}, "correct the login or the password in VITRINA_CONN_SHOP"),
        ({"path": "/nothing"}, "create the database, or correct its name in VITRINA_CONN_SHOP"),
        ({"port": "1"}, "start that server"),
    ],
)
def test_what_keeps_a_connection_from_being_made(bench: Workbench, change: dict[str, str], step: str) -> None:
    assert bench.settings.admin_url
    parts = urlsplit(bench.settings.admin_url.get_secret_value())
    password, port = change.get("password", parts.password), change.get("port", parts.port)
    wrong = parts._replace(
        netloc=f"{parts.username}:{password}@{parts.hostname}:{port}", path=change.get("path", parts.path)
    )
    [found] = verdicts(bench, wrong.geturl())
    assert found.status == "PROBLEM"
    assert found.next_step.startswith(step)


def test_every_connection_is_looked_at_whether_used_or_not(bench: Workbench) -> None:
    assert bench.settings.admin_url
    settings = with_connection(bench, bench.settings.admin_url.get_secret_value() + "_gone")
    [found] = doctor._check_connections(bench.metastore, settings)
    assert (found.check, found.status) == ("connection shop", "PROBLEM")
    assert "VITRINA_CONN_SHOP" in found.next_step


def test_a_schema_that_is_nowhere_is_warned_of(bench: Workbench) -> None:
    settings = bench.settings.model_copy(update={"allowed_source_schemas": "content,contnet"})
    [found] = doctor._check_source_schemas(bench.metastore, settings)
    assert found.status == "WARNING"
    assert "names contnet, which the database does not have" in found.finding
    assert doctor.problems([found]) == 0
    assert not list(doctor._check_source_schemas(bench.metastore, bench.settings))


# --- connectors ----------------------------------------------------------------------------------------------------


def test_what_is_installed_is_listed() -> None:
    [found] = doctor._check_connectors()
    assert (found.status, found.finding) == ("OK", "clickhouse, files, iceberg, postgres, python, search, spark")


def test_a_connector_that_is_left_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    usable = registry.installed()
    refused = registry.Refused("lake", "vitrina-lake", "ImportError: No module named 'boto3'")
    named_like_an_option = replace(usable.connectors["search"], name="index", options=ReconcileSchedule, package="odd")
    found = registry.Installed(usable.connectors | {"index": named_like_an_option}, (refused,))
    monkeypatch.setattr(registry, "installed", lambda: found)
    first, second, _ = doctor._check_connectors()
    assert (first.status, "vitrina-lake is left out: ImportError" in first.finding) == ("PROBLEM", True)
    assert (second.status, "options.index is an option of Vitrina itself" in second.finding) == ("PROBLEM", True)


def test_a_connection_that_no_connector_opens_is_a_problem(bench: Workbench) -> None:
    url = "mysql://ada:hidden@db.example/shop"
    settings = bench.settings.model_copy(update={"connections": {"old": SecretStr(url)}})
    [found] = doctor._check_connections(bench.metastore, settings)
    assert (found.check, found.status) == ("connection old", "PROBLEM")
    known = "clickhouse, files, iceberg, postgres, python, search, spark"
    assert f"no connector for mysql:// is installed here, only {known}" in found.finding
    assert "hidden" not in found.finding + found.next_step


def test_a_search_cluster_that_does_not_answer_is_a_problem(bench: Workbench) -> None:
    with kept_port() as port:
        url = f"elasticsearch+http://ada:hidden@127.0.0.1:{port}"
        settings = bench.settings.model_copy(update={"connections": {"logs": SecretStr(url)}})
        [found] = doctor._check_connections(bench.metastore, settings)
    assert (found.check, found.status) == ("connection logs", "PROBLEM")
    assert "hidden" not in found.finding + found.next_step


def test_a_pipeline_that_waits_for_a_connector_is_named(bench: Workbench) -> None:
    about: dict[str, Any] = {"host": "h", "pid": 1, "version": "1", "capacity": 1, "running": 0, "transforms": []}
    runners.heartbeat(bench.metastore, uuid4(), **about, covers=["source:postgres", "target:"])
    bench.request("films")
    assert [found.status for found in pipelines(bench)] == ["OK"]
    bench.sql("UPDATE etl.etl_pipelines SET target_table = 'lake:films'")
    [found] = pipelines(bench)
    assert (found.status, found.finding) == ("PROBLEM", "waits for a runner with connector lake")
