"""A database is known by what it is, not by the name of a connection: checkpoints, writers and loads go by it."""

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from pydantic import SecretStr

from tests.chaos import mutants
from tests.conftest import admin, url_of
from tests.support.workbench import Workbench
from vitrina import failpoints
from vitrina.embedded import launch, watchdog
from vitrina.embedded.postgres import STOP_SIGNALS
from vitrina.embedded.temporary import TemporaryServer
from vitrina.errors import Conflict
from vitrina.runner import housekeeping, requests
from vitrina.services import pipelines as service
from vitrina.settings import Settings
from vitrina.store import database as postgres
from vitrina.store import databases, leases, pipelines

FILMS = """
CREATE TABLE content.films (id int PRIMARY KEY, title text, at timestamptz NOT NULL DEFAULT '2024-01-01');
INSERT INTO content.films
SELECT i, 'Film ' || i, timestamptz '2024-01-01' + make_interval(mins => i) FROM generate_series(1, 100) AS i;
"""
QUERY = "SELECT id, title, at FROM content.films"
INCREMENTAL = {"mode": "incremental", "incremental_key": "at", "target_key": ["id"]}


@pytest.fixture
def elsewhere(server: TemporaryServer, template: str) -> Iterator[str]:
    """The name of a second database, migrated as well."""
    name = f"other_{uuid4().hex[:12]}"
    admin(server, sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template)))
    yield name
    admin(server, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def bench(workbench: Workbench, server: TemporaryServer, elsewhere: str) -> Workbench:
    """`warehouse` and `alias` are one database; so are `default` and `here`."""
    url = SecretStr(url_of(server.urls.app, elsewhere))
    names = {"warehouse": url, "alias": url, "here": workbench.settings.database_url}
    workbench.settings = workbench.settings.model_copy(update={"connections": names})
    workbench.source(FILMS)
    return workbench


def run(bench: Workbench, name: str = "films") -> dict[str, Any]:
    found = bench.run(name)
    assert (found["status"], found["error_message"]) == ("SUCCESS", None)
    return found


# --- the checkpoint of another database's mart -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["warehouse", "here"])
def test_a_target_that_moved_to_another_database_and_back_misses_no_row(bench: Workbench, name: str) -> None:
    found = move_and_return(bench, name)

    assert "in another database" in found["metrics"]["started_over"]
    assert bench.differences(QUERY, "analytics.films") == 0
    assert "started_over" not in run(bench)["metrics"], "and goes on from its own checkpoint"


def move_and_return(bench: Workbench, name: str) -> dict[str, Any]:
    bench.pipeline("films", QUERY, **INCREMENTAL)
    run(bench)
    bench.change("films", options={"target_connection": name})
    bench.sql("UPDATE content.films SET title = 'moved', at = now() - interval '1 hour' WHERE id = 7")
    bench.sql("INSERT INTO content.films VALUES (101, 'new', now() - interval '1 hour')")
    run(bench)

    bench.change("films", options={})
    return run(bench)


def test_a_copy_of_another_marts_checkpoint_loses_rows(bench: Workbench) -> None:
    """A look at the mart itself would find it out too: it is switched off, so that this protection stands alone."""
    with mutants.applied("mart_unlooked"), mutants.applied("mirror_trusted"):
        move_and_return(bench, "warehouse")
    assert bench.differences(QUERY, "analytics.films") > 0


def test_the_checkpoints_database_alone_tells_that_a_target_moved(bench: Workbench) -> None:
    with mutants.applied("mart_unlooked"):
        move_and_return(bench, "warehouse")
    assert bench.differences(QUERY, "analytics.films") == 0


def test_the_plan_says_that_a_target_moved(bench: Workbench) -> None:
    bench.pipeline("films", QUERY, **INCREMENTAL, options={"target_connection": "warehouse"})
    run(bench)
    assert not any("another database" in reason for reason in planned(bench)["reasons"])

    bench.change("films", options={})

    assert any("in another database" in reason for reason in planned(bench)["reasons"])


def planned(bench: Workbench) -> dict[str, Any]:
    row = pipelines.find(bench.metastore, "films")
    assert row is not None
    found: dict[str, Any] = requests.validate(
        {"pipeline_id": row["id"], "payload": {}}, bench.metastore, bench.settings
    )["plan"]
    return found


def test_a_load_that_waited_while_the_target_was_elsewhere_is_not_published(
    bench: Workbench, server: TemporaryServer, elsewhere: str
) -> None:
    """Somebody else may have written to the first target meanwhile, and did not see a load that was not there."""
    bench.pipeline("films", QUERY, target_key=["id"], options={"target_connection": "warehouse"})
    fail_to_publish(bench)
    bench.change("films", options={"target_connection": "here"})
    fail_to_publish(bench)
    bench.sql("UPDATE content.films SET title = 'newer'")

    bench.change("films", options={"target_connection": "warehouse"})
    run(bench)

    with postgres.connect(url_of(server.urls.admin, elsewhere), "vitrina:test") as warehouse:
        [row] = warehouse.execute("SELECT count(*) AS rows FROM analytics.films WHERE title = 'newer'").fetchall()
    assert row["rows"] == 100


def fail_to_publish(bench: Workbench) -> None:
    bench.settings = bench.settings.model_copy(update={"backoff_seconds": (0.01,), "max_attempts": 1})
    failpoints.configure("publish.applied:error:1")
    try:
        assert bench.run("films")["status"] == "FAILED"
    finally:
        failpoints.configure("")


# --- several names of one database -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "second"), [("warehouse", "alias"), (None, "here")])
def test_one_writer_for_a_target_that_has_two_names(bench: Workbench, first: str | None, second: str) -> None:
    write_under_two_names(bench, first, second)


def write_under_two_names(bench: Workbench, first: str | None, second: str) -> None:
    for name, connection in (("first", first), ("second", second)):
        options = {"target_connection": connection}
        bench.pipeline(name, QUERY, target_table="analytics.films", **INCREMENTAL, options=options)
        bench.request(name)
    at_work = bench.claim()

    before_it_knew = bench.claim_or_none()
    if before_it_knew:  # nobody has looked at the second name yet: its run does, and finds the target taken
        leases.hold_database(bench.metastore, at_work)
        recognise(bench, first)
        bench.perform(before_it_knew)

        given_back = bench.last_run("second")
        assert (given_back["status"], given_back["error_code"]) == ("CANCELLED", "target_taken")
    assert bench.claim_or_none() is None, "it waits"
    bench.perform(at_work)
    bench.perform(bench.claim())
    assert {bench.last_run(name)["status"] for name in ("first", "second")} == {"SUCCESS"}


def test_names_alone_let_two_write_at_once(bench: Workbench) -> None:
    with mutants.applied("names_only"), pytest.raises(AssertionError, match="CANCELLED"):
        write_under_two_names(bench, "warehouse", "alias")


def recognise(bench: Workbench, name: str | None) -> None:
    if name is None:
        return
    with postgres.connect(bench.settings.connection_url(name), "vitrina:test") as session:
        databases.recognise(bench.metastore, name, session, lambda other: reach(bench.settings, other))


def reach(settings: Settings, name: str) -> postgres.Connection:
    return postgres.connect(settings.connection_url(name), "vitrina:test")


def test_a_full_load_over_what_another_pipeline_wrote_is_refused_by_any_name(bench: Workbench) -> None:
    bench.pipeline("first", QUERY, target_table="analytics.films", target_key=["id"])
    options = {"target_connection": "here"}
    bench.pipeline(
        "second", f"{QUERY} WHERE id < 5", target_table="analytics.films", target_key=["id"], options=options
    )
    run(bench, "first")

    found = bench.run("second")

    assert found["status"] == "FAILED"
    assert "'here' and 'default' are one database" in found["error_message"]
    assert bench.sql("SELECT count(*) AS rows FROM analytics.films") == [{"rows": 100}]
    row = pipelines.find(bench.metastore, "second")
    assert row is not None
    with pytest.raises(Conflict, match="already written by pipeline first"):
        service.refuse_second_writer(bench.metastore, row)


def test_who_saves_a_second_pipeline_is_told_before_it_runs(bench: Workbench) -> None:
    bench.pipeline("first", QUERY, target_table="analytics.films", target_key=["id"])
    bench.pipeline(
        "other", QUERY, target_table="analytics.other", target_key=["id"], options={"target_connection": "here"}
    )
    housekeeping.tidy_up(bench.settings)
    bench.pipeline(
        "second", QUERY, target_table="analytics.films", target_key=["id"], options={"target_connection": "here"}
    )

    row = pipelines.find(bench.metastore, "second")

    assert row is not None
    with pytest.raises(Conflict, match="already written by pipeline first"):
        service.refuse_second_writer(bench.metastore, row)


def test_an_unfinished_load_is_discarded_by_who_writes_under_another_name(bench: Workbench) -> None:
    fields = {"target_table": "analytics.films", "target_key": ["id"]}
    bench.pipeline("films", QUERY, **fields, options={"target_connection": "warehouse", "shared_target": True})
    fail_to_publish(bench)
    assert bench.checkpoint("films").stage
    bench.pipeline("newer", QUERY, **fields, options={"target_connection": "alias", "shared_target": True})

    run(bench, "newer")

    assert bench.checkpoint("films").stage is None


# --- a copy is another database --------------------------------------------------------------------------------------


@pytest.fixture
def copy_url(bench: Workbench, server: TemporaryServer, elsewhere: str) -> Iterator[str]:
    """`elsewhere`, restored from a backup on a server of its own."""
    directory = Path(tempfile.mkdtemp(prefix="vitrina-test-copy-"))
    cluster = replace(server.cluster, data=directory / "data")
    cluster.account.own(directory)
    options = ("--checkpoint", "fast", "--no-sync", "--wal-method", "stream")
    program = cluster.bindir / "pg_basebackup"
    copied = cluster.account.run([program, "--pgdata", cluster.data, "--dbname", server.urls.admin, *options])
    assert copied.returncode == 0, copied.stdout
    try:
        port = launch.launch(cluster, launch.ANY_PORT, server.settings, server.home / "copy.log")
        parts = urlsplit(url_of(server.urls.app, elsewhere))
        yield urlunsplit(parts._replace(netloc=f"{parts.netloc.rpartition(':')[0]}:{port}"))
    finally:
        watchdog.stop_server(cluster.data, STOP_SIGNALS["immediate"])
        watchdog.remove_socket_directory(launch.socket_directory(cluster))
        shutil.rmtree(directory, ignore_errors=True)


def test_a_restored_copy_says_the_same_of_itself_and_is_another_database(bench: Workbench, copy_url: str) -> None:
    names = bench.settings.connections | {"copy": SecretStr(copy_url)}
    bench.settings = bench.settings.model_copy(update={"connections": names})
    with reach(bench.settings, "warehouse") as original, reach(bench.settings, "copy") as copy:
        first, second = databases.look(original), databases.look(copy)
    assert first is not None
    assert second is not None
    assert first.identity == second.identity

    for name in ("warehouse", "alias", "copy"):
        recognise(bench, name)

    known = {name: databases.resolve(bench.metastore, name) for name in ("warehouse", "alias", "copy")}
    assert known == {"warehouse": "warehouse", "alias": "warehouse", "copy": "copy"}

    # The operator lets the name lead to the original: the proof is made again.
    bench.settings = bench.settings.model_copy(update={"connections": names | {"copy": names["alias"]}})
    recognise(bench, "copy")
    assert databases.resolve(bench.metastore, "copy") == "warehouse"


def test_a_database_that_cannot_be_asked_counts_as_the_same_until_it_can(bench: Workbench) -> None:
    recognise(bench, "warehouse")
    names = bench.settings.connections
    bench.settings = bench.settings.model_copy(update={"connections": names | {"warehouse": SecretStr("port=1")}})
    recognise(bench, "alias")
    [row] = bench.sql("SELECT * FROM etl.etl_databases WHERE connection = 'alias'")
    assert (row["database"], row["started_at"]) == ("warehouse", None)

    bench.settings = bench.settings.model_copy(update={"connections": names})
    recognise(bench, "alias")

    [row] = bench.sql("SELECT * FROM etl.etl_databases WHERE connection = 'alias'")
    assert (row["database"], row["started_at"] is None) == ("warehouse", False)


def test_where_the_identity_may_not_be_read_names_are_all_there_is(bench: Workbench) -> None:
    bench.sql("REVOKE EXECUTE ON FUNCTION pg_catalog.pg_control_system() FROM PUBLIC")
    try:
        recognise(bench, "here")
        bench.pipeline("films", QUERY, **INCREMENTAL, options={"target_connection": "here"})
        run(bench)
    finally:
        bench.sql("GRANT EXECUTE ON FUNCTION pg_catalog.pg_control_system() TO PUBLIC")
    assert databases.resolve(bench.metastore, "here") == "here"


# --- runners and checkpoints of the previous version -----------------------------------------------------------------


def test_a_runner_of_the_previous_version_gets_no_claim(bench: Workbench) -> None:
    """It would hold the target by a name, and not see who holds it by its database."""
    bench.pipeline("films", QUERY, **INCREMENTAL)
    bench.request("films")

    with pytest.raises(psycopg.errors.CheckViolation, match="etl_pipelines_target_of_database"):
        bench.metastore.execute(
            """
            UPDATE etl.etl_pipelines p
            SET status = 'RUNNING', epoch = p.epoch + 1, claim_id = gen_random_uuid(), runner_id = gen_random_uuid(),
                lease_until = clock_timestamp() + interval '1 minute', attempts = p.attempts + 1, hold = NULL,
                holds_target = coalesce(nullif(lower(p.options ->> 'target_connection'), 'default'), '') || '|'
                    || p.target_table
            """
        )

    assert bench.status("films") == "RUN_REQUESTED"
    bench.perform(bench.claim())
    assert bench.status("films") == "IDLE"


@pytest.mark.parametrize("name", [None, "warehouse"])
def test_a_checkpoint_of_the_previous_version_is_gone_on_from(
    bench: Workbench, server: TemporaryServer, elsewhere: str, name: str | None
) -> None:
    """It wrote no identity; what a migration can tell of it is on record."""
    bench.pipeline("films", QUERY, **INCREMENTAL, options={"target_connection": name})
    run(bench)
    forget = "UPDATE {} SET identity = '{}'"
    bench.sql(forget.replace("{}", "etl.etl_state", 1))
    if name:
        bench.sql("""UPDATE etl.etl_state SET identity = '{"mirror_of": "unknown"}'""")
        with psycopg.connect(url_of(server.urls.admin, elsewhere), autocommit=True) as warehouse:
            warehouse.execute(forget.replace("{}", "etl_stage.ledger", 1).encode())
    bench.sql("INSERT INTO content.films VALUES (101, 'new', now())")

    found = run(bench)

    assert "started_over" not in found["metrics"]
    assert found["rows_read"] < 100, "it went on from the checkpoint"
    assert found["rows_written"] == 1
