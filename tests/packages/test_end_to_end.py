"""Two installed packages, used through API and runner: nothing of Vitrina knows their names."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.integration.api import api_process
from tests.support.processes import command, environment_of, runner_process
from tests.support.waiting import until
from vitrina import schemas
from vitrina.client import Client
from vitrina.errors import Invalid
from vitrina.ports import registry
from vitrina.services import tokens
from vitrina.services.callers import Caller, Role
from vitrina.settings import Settings
from vitrina.status import RunStatus
from vitrina.store.database import Connection

pytestmark = pytest.mark.timeout(600)

PASSPHRASE = "never-shown-to-anybody"
CSV = "id,title\n" + "".join(f"{i},Film {i}\n" for i in range(1, 26))
FILMS: dict[str, Any] = {
    "name": "films",
    "source_type": "csv",
    "source_connection": "drop",
    "source_table": "films.csv",
    "target_table": "parquet:films",
    "target_key": ["id"],
    "batch_size": 10,
    "options": {"target_connection": "lake", "parquet": {"compression": "snappy"}},
}


@dataclass
class Platform:
    """An API with the packages, and runners with or without them."""

    client: Client
    place: Path
    settings: Settings
    environment: dict[str, str]
    url: str
    secret: str
    runners: ExitStack = field(default_factory=ExitStack)

    def start_runner(self, **more: str) -> None:
        known = {runner.id for runner in self.client.list_runners()}
        self.runners.enter_context(runner_process(self.settings, self.place, **(self.environment | more)))
        until(lambda: {runner.id for runner in self.client.list_runners()} > known)

    def run(self, name: str) -> schemas.Run:
        accepted = self.client.run(name)
        done = self.client.wait_for_run(name, requested_at=accepted.run_requested_at, timeout_seconds=240)
        assert done.status == RunStatus.SUCCESS, done.error_message
        return done

    def reconcile(self, name: str, *, repair: bool = False) -> dict[str, Any]:
        asked = self.client.wait_for_request(self.client.reconcile(name, repair=repair), timeout_seconds=240)
        assert asked.result, asked.error
        return asked.result

    def parquet(self, name: str = "films") -> dict[int, str]:
        """What the manifest names, read by somebody who knows nothing of Vitrina."""
        folder = self.place / "lake" / name
        files = json.loads((folder / "manifest.json").read_text())["files"]
        rows = [row for file in files for row in pq.read_table(folder / file).to_pylist()]
        return {row["id"]: row["title"] for row in rows}


@pytest.fixture
def platform(database: Settings, metastore: Connection, tmp_path: Path, site: Path) -> Iterator[Platform]:
    for folder in ("drop", "lake"):
        (tmp_path / folder).mkdir()
    (tmp_path / "drop" / "films.csv").write_text(CSV)
    _, secret = tokens.create(metastore, Caller("setup", Role.ADMIN), name="admin", role=Role.ADMIN)
    environment = {
        "PYTHONPATH": str(site),
        "VITRINA_CONN_DROP": f"csv://{tmp_path / 'drop'}?passphrase={PASSPHRASE}",
        "VITRINA_CONN_LAKE": f"parquet://{tmp_path / 'lake'}",
        "VITRINA_ALLOWED_TARGETS": "analytics.*,parquet:*",
    }
    with (
        api_process(database, tmp_path, **environment) as (_, url),
        Client(url, secret) as client,
        ExitStack() as runners,
    ):
        yield Platform(client, tmp_path, database, environment, url, secret, runners)


def test_rows_come_from_one_package_and_go_to_the_other(platform: Platform) -> None:
    platform.start_runner()
    platform.client.create_pipeline(FILMS)
    shown = platform.client.wait_for_request(platform.client.preview("films", limit=2), timeout_seconds=240)
    assert shown.result, shown.error
    assert shown.result["rows"] == [{"id": 1, "title": "Film 1"}, {"id": 2, "title": "Film 2"}]
    report = platform.client.validate("films")
    deep = platform.client.wait_for_request(report.deep, timeout_seconds=240) if report.deep else None
    assert deep
    assert (report.valid, deep.error) == (True, None)
    done = platform.run("films")
    assert (done.rows_read, done.rows_written) == (25, 25)
    assert platform.parquet() == {i: f"Film {i}" for i in range(1, 26)}

    (platform.place / "drop" / "films.csv").write_text("id,title\n1,Alien\n2,Brazil\n")
    platform.client.update_pipeline("films", {"options": {"allow_shrink": True}})
    platform.run("films")
    assert platform.parquet() == {1: "Alien", 2: "Brazil"}


def test_reconcile_finds_what_differs(platform: Platform) -> None:
    platform.start_runner()
    platform.client.create_pipeline(FILMS)
    platform.run("films")
    report = platform.reconcile("films")
    assert (report["equal"], report["source"]["rows"], report["target"]["rows"]) == (True, 25, 25)

    first = sorted((platform.place / "lake" / "films" / "parts").iterdir())[0]
    rows = pq.read_table(first).to_pylist()
    pq.write_table(pa.Table.from_pylist([rows[0] | {"title": "changed by hand"}, *rows[2:]]), first)
    report = platform.reconcile("films")
    assert (report["equal"], report["missing"], report["differing"], report["extra"]) == (False, 1, 1, 0)


def test_a_repair_writes_through_the_package(platform: Platform) -> None:
    """Changed, lost and foreign rows: the first two are read again and written, the last are removed."""
    platform.start_runner()
    platform.client.create_pipeline(FILMS)
    platform.run("films")
    first = sorted((platform.place / "lake" / "films" / "parts").iterdir())[0]
    rows = pq.read_table(first).to_pylist()
    foreign = {"id": 99, "title": "of nobody"}
    pq.write_table(pa.Table.from_pylist([rows[0] | {"title": "changed by hand"}, *rows[2:], foreign]), first)

    report = platform.reconcile("films", repair=True)

    assert (report["missing"], report["differing"], report["extra"]) == (1, 1, 1)
    assert {name: report["repair"][name] for name in ("done", "deleted", "keys", "remaining")} == {
        "done": True,
        "deleted": 1,
        "keys": 3,
        "remaining": 0,
    }
    assert platform.parquet() == {i: f"Film {i}" for i in range(1, 26)}
    assert platform.reconcile("films")["equal"] is True
    assert platform.run("films").rows_written == 25


def test_a_repair_deletes_no_more_than_a_load_may(platform: Platform) -> None:
    platform.start_runner()
    platform.client.create_pipeline(FILMS)
    platform.run("films")
    (platform.place / "drop" / "films.csv").write_text("id,title\n1,Film 1\n2,Film 2\n")
    asked = platform.client.wait_for_request(platform.client.reconcile("films", repair=True), timeout_seconds=240)
    assert asked.error
    assert asked.error["code"] == "shrink_refused"
    assert len(platform.parquet()) == 25


def test_a_query_and_steps_go_into_parquet_and_a_file_into_a_mart(platform: Platform, metastore: Connection) -> None:
    assert platform.settings.admin_url
    with psycopg.connect(platform.settings.admin_url.get_secret_value(), autocommit=True) as admin:
        admin.execute("CREATE TABLE content.film (id int PRIMARY KEY, title text, changed timestamptz DEFAULT now())")
        admin.execute("INSERT INTO content.film SELECT i, ' Film ' || i FROM generate_series(1, 30) AS i")
        admin.execute("GRANT SELECT ON content.film TO vitrina_reader")
    platform.start_runner()
    step = {"order_index": 1, "task_type": "PYTHON", "body": "normalise_text", "params": {"columns": ["title"]}}
    query = {"order_index": 0, "task_type": "SQL", "body": "SELECT id, title FROM content.film"}
    platform.client.create_pipeline(
        {"name": "clean", "target_table": "parquet:clean", "target_key": ["id"], "batch_size": 10}
        | {"tasks": [query, step], "options": {"target_connection": "lake"}}
    )
    platform.run("clean")
    assert platform.parquet("clean") == {i: f"Film {i}" for i in range(1, 31)}

    platform.client.create_pipeline(FILMS | {"name": "mart", "target_table": "analytics.films", "options": {}})
    platform.run("mart")
    found = metastore.execute("SELECT id, title FROM analytics.films ORDER BY id").fetchall()
    assert {row["id"]: row["title"] for row in found} == {i: f"Film {i}" for i in range(1, 26)}


def test_incremental_passes_are_merged(platform: Platform) -> None:
    assert platform.settings.admin_url
    with psycopg.connect(platform.settings.admin_url.get_secret_value(), autocommit=True) as admin:
        admin.execute("CREATE TABLE content.film (id int PRIMARY KEY, title text, changed timestamptz DEFAULT now())")
        admin.execute("INSERT INTO content.film SELECT i, 'Film ' || i FROM generate_series(1, 30) AS i")
        admin.execute("GRANT SELECT ON content.film TO vitrina_reader")
        platform.start_runner()
        platform.client.create_pipeline(
            {"name": "passes", "target_table": "parquet:passes", "target_key": ["id"], "batch_size": 10}
            | {"source_query": "SELECT id, title, changed FROM content.film", "options": {"target_connection": "lake"}}
            | {"mode": "incremental", "incremental_key": "changed", "incremental_id_key": "id"}
        )
        platform.run("passes")
        admin.execute("UPDATE content.film SET title = 'Alien', changed = clock_timestamp() WHERE id = 3")
        platform.run("passes")
    assert platform.parquet("passes") == {i: f"Film {i}" for i in range(1, 31)} | {3: "Alien"}


def test_a_pass_over_another_file_begins_at_its_beginning(platform: Platform) -> None:
    """A mark of one file says nothing of another, nor of a target that was removed."""
    platform.start_runner()
    following = FILMS | {"mode": "incremental", "incremental_key": "id", "incremental_id_key": "id"}
    platform.client.create_pipeline(following)
    assert platform.run("films").rows_read == 25
    (platform.place / "drop" / "films.csv").write_text(CSV + "26,Film 26\n")
    assert platform.run("films").rows_read == 1

    (platform.place / "drop" / "old.csv").write_text("id,title\n1,Alien\n2,Brazil\n")
    platform.client.update_pipeline("films", {"source_table": "old.csv"})
    assert platform.run("films").rows_read == 2
    assert platform.parquet() == {i: f"Film {i}" for i in range(1, 27)} | {1: "Alien", 2: "Brazil"}
    assert platform.run("films").rows_read == 0

    shutil.rmtree(platform.place / "lake" / "films")
    assert platform.run("films").rows_read == 2
    assert platform.parquet() == {1: "Alien", 2: "Brazil"}


def test_rejected_rows_are_read_again_by_their_keys(platform: Platform) -> None:
    platform.start_runner()
    file = platform.place / "drop" / "films.csv"
    file.write_text("id,title,year\n1,Alien,1979\n2,Brazil,soon\n3,Casablanca,later\n")
    read = {"order_index": 0, "task_type": "SQL", "body": "films.csv"}
    params = {"types": {"year": "integer"}, "on_error": "dead_letter"}
    step = {"order_index": 1, "task_type": "PYTHON", "body": "cast_columns", "params": params}
    platform.client.create_pipeline(FILMS | {"source_table": None, "tasks": [read, step]})
    platform.run("films")
    assert set(platform.parquet()) == {1}

    file.write_text("id,title,year\n1,Alien,1979\n2,Brazil,1985\n3,Casablanca,later\n")
    asked = platform.client.wait_for_request(platform.client.replay_dead_letters("films"), timeout_seconds=240)
    assert asked.error is None
    assert asked.result
    assert (asked.result["sent"], asked.result["refused"], asked.result["remaining"]) == (1, 1, 1)
    assert set(platform.parquet()) == {1, 2}


def test_secrets_of_a_url_are_shown_to_nobody(platform: Platform, metastore: Connection) -> None:
    """The package quotes its URL wherever it can: in errors of runs and previews, and in what its check says."""
    platform.start_runner()
    platform.client.create_pipeline(FILMS | {"source_table": "../films.csv"})
    accepted = platform.client.run("films")
    done = platform.client.wait_for_run("films", requested_at=accepted.run_requested_at, timeout_seconds=240)
    shown = platform.client.wait_for_request(platform.client.preview("films", limit=2), timeout_seconds=240)
    environment = environment_of(platform.settings) | platform.environment
    shut = {"VITRINA_CONN_SHUT": f"csv:///nowhere?passphrase={PASSPHRASE}"}
    said = command(platform.place, environment | shut, "doctor")
    tried = command(platform.place, environment | shut, "connections", "test", "drop")

    assert done.error_message
    assert "passphrase=***" in done.error_message
    assert "passphrase=***" in str(shown.error)
    assert "passphrase=***" in tried
    assert "the check of the connector csv failed: NotADirectoryError" in said
    assert "Traceback" not in said
    kept = metastore.execute("SELECT error_message FROM etl.etl_runs").fetchall()
    for text in (done.error_message, str(shown.error), said, tried, str(kept)):
        assert PASSPHRASE not in text


def test_what_no_runner_covers_waits_until_one_does(platform: Platform) -> None:
    platform.start_runner(PYTHONPATH="")
    platform.client.create_pipeline(FILMS)
    accepted = platform.client.run("films")
    said = "waits for a runner with connector csv and connector parquet"
    until(lambda: platform.client.status("films").waiting == said)
    assert platform.client.status("films").status == "RUN_REQUESTED"

    platform.start_runner()
    done = platform.client.wait_for_run("films", requested_at=accepted.run_requested_at, timeout_seconds=240)
    assert done.status == RunStatus.SUCCESS, done.error_message
    assert platform.client.status("films").waiting is None


def test_everything_that_a_connector_says_is_heard(platform: Platform) -> None:
    platform.start_runner()
    listed = {found.name: found for found in platform.client.list_connectors()}
    assert (listed["parquet"].prefix, listed["parquet"].version, listed["parquet"].runners) == ("parquet", "0.1.0", 1)
    assert {one.name: one.connector for one in platform.client.list_connections()} == {
        "default": "postgres",
        "drop": "csv",
        "lake": "parquet",
    }
    with pytest.raises(Invalid) as caught:
        platform.client.create_pipeline(FILMS | {"options": {"target_connection": "drop", "parquet": {"level": 3}}})
    assert {error.path for error in caught.value.fields} == {"options.parquet.level"}
    with pytest.raises(Invalid) as caught:
        platform.client.create_pipeline(FILMS | {"options": {"target_connection": "drop"}})
    assert {error.path for error in caught.value.fields} == {"options.target_connection"}

    environment = environment_of(platform.settings) | platform.environment
    said = command(platform.place, environment, "doctor")
    for line in ("csv, files, iceberg, parquet, postgres, python, search, spark", f"{platform.place / 'lake'}"):
        assert line in said
    environment |= {"VITRINA_API_URL": platform.url, "VITRINA_TOKEN": platform.secret}
    assert "parquet:<name>" in command(platform.place, environment, "connectors", "list")
    listing = command(platform.place, environment, "connections", "list")
    assert f"parquet://{platform.place / 'lake'}" in listing


def test_schemas_have_the_options_of_the_package(installed: registry.Installed) -> None:
    from vitrina.services import manifests

    assert installed.connectors["parquet"].package == "vitrina-parquet"
    schema = json.dumps(manifests.json_schema())
    assert "rows_per_group" in schema
    assert "delimiter" in schema


@pytest.mark.parametrize("module", ["vitrina_parquet", "vitrina_csv"])
def test_describing_itself_loads_nothing_heavy(module: str, site: Path, loaded: Callable[[str], set[str]]) -> None:
    assert not loaded(module) & {"pyarrow", "psycopg", "elastic_transport", "fastapi"}


@pytest.fixture
def loaded(site: Path) -> Callable[[str], set[str]]:
    import subprocess
    import sys

    def look(module: str) -> set[str]:
        program = f"import {module}, sys; print(*sys.modules)"
        done = subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONPATH": str(site)}, capture_output=True, text=True, check=True
        )
        return {name.partition(".")[0] for name in done.stdout.split()}

    return look
