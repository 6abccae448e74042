"""ClickHouse through API and runner, as people use it."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.clickhouse.places import Place
from tests.integration.api import api_process
from tests.support.clickhouse_server import PASSWORD
from tests.support.processes import command, environment_of, runner_process
from tests.support.waiting import until
from vitrina import schemas
from vitrina.client import Client
from vitrina.errors import Invalid
from vitrina.services import tokens
from vitrina.services.callers import Caller, Role
from vitrina.settings import Settings
from vitrina.status import RunStatus
from vitrina.store.database import Connection

pytestmark = pytest.mark.timeout(600)

TABLE = """
CREATE TYPE content.mpaa AS ENUM ('G', 'PG', 'R');
CREATE TABLE content.film (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(), number int NOT NULL, title text, rating numeric(3, 1),
    genres text[] NOT NULL DEFAULT '{}', about jsonb, mpaa content.mpaa, released date,
    gone boolean NOT NULL DEFAULT false, changed timestamptz NOT NULL DEFAULT clock_timestamp());
INSERT INTO content.film (number, title, rating, genres, about, mpaa, released)
SELECT i, 'Film ' || i, (i % 100) / 10.0, ARRAY['a,b', 'it''s ' || i], jsonb_build_object('n', i), 'PG',
    DATE '2000-01-01' + i
FROM generate_series(1, 500) AS i;
GRANT SELECT ON content.film TO vitrina_reader;
"""
COLUMNS = "id, number, title, rating, genres, about, mpaa, released, changed"
QUERY = f"SELECT {COLUMNS} FROM content.film"


@dataclass
class Platform:
    """An API, runners and a database in ClickHouse."""

    client: Client
    place: Place
    settings: Settings
    admin: "psycopg.Connection[Any]"
    environment: dict[str, str]
    folder: Path
    url: str
    secret: str
    runners: ExitStack = field(default_factory=ExitStack)

    def start_runner(self, **more: str) -> None:
        known = {runner.id for runner in self.client.list_runners()}
        self.runners.enter_context(runner_process(self.settings, self.folder, **(self.environment | more)))
        until(lambda: {runner.id for runner in self.client.list_runners()} > known)

    def create(self, name: str, **fields: Any) -> None:
        options = {"target_connection": "olap"} | fields.pop("options", {})
        self.client.create_pipeline(
            {"name": name, "source_query": QUERY, "target_table": f"clickhouse:{self.place.database}.{name}"}
            | {"target_key": ["id"], "batch_size": 60, "options": options}
            | fields
        )

    def run(self, name: str) -> schemas.Run:
        accepted = self.client.run(name)
        done = self.client.wait_for_run(name, requested_at=accepted.run_requested_at, timeout_seconds=240)
        assert done.status == RunStatus.SUCCESS, done.error_message
        return done

    def fails(self, name: str) -> str:
        accepted = self.client.run(name)
        done = self.client.wait_for_run(name, requested_at=accepted.run_requested_at, timeout_seconds=240)
        assert done.status == RunStatus.FAILED
        return str(done.error_message)

    def reconcile(self, name: str, **asked: Any) -> dict[str, Any]:
        answered = self.client.wait_for_request(self.client.reconcile(name, **asked), timeout_seconds=240)
        assert answered.result, answered.error
        return answered.result

    def source(self, columns: str = "id::text, title", where: str = "NOT gone") -> list[tuple[Any, ...]]:
        return self.admin.execute(f"SELECT {columns} FROM content.film WHERE {where} ORDER BY 1").fetchall()

    def target(self, name: str, columns: str = "toString(id) AS i, title") -> list[tuple[Any, ...]]:
        found = self.place.session.rows(f"SELECT {columns} FROM {self.place.database}.{name} ORDER BY 1")
        return [tuple(row) for row in found]


@pytest.fixture
def platform(database: Settings, metastore: Connection, tmp_path: Path, place: Place) -> Iterator[Platform]:
    _, secret = tokens.create(metastore, Caller("setup", Role.ADMIN), name="admin", role=Role.ADMIN)
    environment = {
        "PYTHONPATH": str(Path(os.environ["PYTHONPATH"]).resolve()),
        "VITRINA_CONN_OLAP": place.url,
        "VITRINA_ALLOWED_TARGETS": "analytics.*,clickhouse:*",
    }
    assert database.admin_url
    with (
        psycopg.connect(database.admin_url.get_secret_value(), autocommit=True) as admin,
        api_process(database, tmp_path, **environment) as (_, url),
        Client(url, secret) as client,
        ExitStack() as runners,
    ):
        admin.execute(TABLE)
        yield Platform(client, place, database, admin, environment, tmp_path, url, secret, runners)


def test_a_full_load_fills_a_table_and_the_next_one_takes_its_place(platform: Platform) -> None:
    platform.start_runner()
    platform.create("films")
    done = platform.run("films")
    assert (done.rows_read, done.rows_written) == (500, 500)
    exact = "id::text, number, title, rating, genres, about::text, mpaa::text, released, changed AT TIME ZONE 'UTC'"
    there = platform.target("films", "toString(id) AS i, number, title, rating, genres, about, mpaa, released, changed")
    assert [(*row[:4], list(row[4]), *row[5:]) for row in there] == platform.source(exact)

    platform.admin.execute("DELETE FROM content.film WHERE number <= 100")
    platform.admin.execute("UPDATE content.film SET title = 'changed' WHERE number = 101")
    platform.run("films")
    assert platform.target("films") == platform.source()
    assert len(platform.place.tables()) == 2, "the view, and the generation that it shows"


def test_incremental_passes_write_versions_and_tombstones(platform: Platform) -> None:
    platform.start_runner()
    platform.create(
        "films",
        source_query=f"SELECT {COLUMNS}, gone FROM content.film",
        mode="incremental",
        incremental_key="changed",
        incremental_id_key="id",
        options={"delete_when": "gone", "clickhouse": {"partition_by": "toYear(released)"}},
    )
    platform.run("films")
    assert platform.target("films") == platform.source()
    platform.admin.execute("UPDATE content.film SET title = 'x', changed = clock_timestamp() WHERE number % 7 = 0")
    platform.admin.execute("UPDATE content.film SET gone = true, changed = clock_timestamp() WHERE number % 5 = 0")
    platform.admin.execute(
        "UPDATE content.film SET released = '2020-01-01', changed = clock_timestamp() WHERE number = 3"
    )
    platform.run("films")
    assert platform.target("films") == platform.source()

    platform.client.update_pipeline("films", {"options": {"on_schema_change": "add_columns"}})
    more = f"SELECT {COLUMNS}, gone, upper(title) AS shouted FROM content.film"
    platform.client.update_pipeline("films", {"source_query": more})
    platform.admin.execute("UPDATE content.film SET title = 'y', changed = clock_timestamp() WHERE number = 2")
    platform.run("films")
    assert ("Y",) in platform.target("films", "shouted")

    platform.client.update_pipeline("films", {"mode": "full", "incremental_key": None, "incremental_id_key": None})
    platform.run("films")
    assert platform.target("films") == platform.source(), "the name stays when the mode changes"


def test_what_the_types_do_not_hold_is_a_dead_letter_and_is_sent_again(platform: Platform) -> None:
    platform.start_runner()
    platform.admin.execute("UPDATE content.film SET released = '0044-03-15' WHERE number = 7")
    platform.create("films", mode="incremental", incremental_key="changed", incremental_id_key="id")
    platform.run("films")
    [(key,)] = platform.source("id::text", "number = 7")
    [letter] = platform.client.list_dead_letters(pipeline="films")
    assert (letter.document_id, "1900 to 2299" in letter.error) == (key, True)
    assert len(platform.target("films")) == 499
    platform.admin.execute("UPDATE content.film SET released = '2044-03-15' WHERE number = 7")
    answered = platform.client.wait_for_request(platform.client.replay_dead_letters("films"), timeout_seconds=240)
    assert answered.result, answered.error
    assert (answered.result["sent"], answered.result["remaining"]) == (1, 0)
    assert platform.target("films") == platform.source()


def test_a_full_load_stops_at_a_value_that_the_table_cannot_hold(platform: Platform) -> None:
    platform.start_runner()
    platform.create("films")
    platform.run("films")
    platform.admin.execute("UPDATE content.film SET released = '0044-03-15' WHERE number = 7")
    assert "max_dead_letters" in platform.fails("films")
    assert len(platform.target("films")) == 500, "what was shown before is still there"


def test_what_is_wrong_is_said_before_a_row_moves(platform: Platform) -> None:
    platform.start_runner()
    with pytest.raises(Invalid) as caught:
        platform.create("films", options={"clickhouse": {"partition_by": "url('http://x')", "settings": {"disk": "x"}}})
    paths = {error.path for error in caught.value.fields}
    assert paths == {"options.clickhouse.partition_by", "options.clickhouse.settings"}
    platform.create("films", source_query="SELECT id, rating * 1.5 AS r, now() - changed AS age FROM content.film")
    said = platform.fails("films")
    assert "r (numeric)" in said
    assert "age (interval)" in said
    assert "as_string" in said
    platform.create("other", options={"clickhouse": {"order_by": ["title"]}})
    assert "columns of target_key" in platform.fails("other")


def test_what_connects_is_checked_and_no_secret_is_shown(platform: Platform) -> None:
    platform.start_runner()
    environment = environment_of(platform.settings) | platform.environment
    said = command(platform.folder, environment, "doctor")
    assert "ClickHouse 2" in said
    wrong = environment | {"VITRINA_CONN_OLAP": platform.place.url.replace(PASSWORD, "wr0ng-canary")}
    refused = command(platform.folder, wrong, "doctor")
    assert "Authentication failed" in refused
    environment |= {"VITRINA_API_URL": platform.url, "VITRINA_TOKEN": platform.secret}
    listed = command(platform.folder, environment, "connections", "list")
    assert "clickhouse" in listed
    platform.create("films")
    platform.run("films")
    logs = (platform.folder / "runner.log").read_text() + (platform.folder / "api.log").read_text()
    for text in (said, refused, listed, logs):
        assert PASSWORD not in text
        assert "wr0ng-canary" not in text


def test_reconcile_finds_and_repairs_what_differs(platform: Platform) -> None:
    platform.start_runner()
    platform.create("films")
    platform.run("films")
    report = platform.reconcile("films")
    assert (report["equal"], report["source"]["rows"], report["target"]["rows"]) == (True, 500, 500)

    [generation] = [name for name in platform.place.tables() if "__g" in name]
    path = f"{platform.place.database}.`{generation}`"
    keys = {number: key for key, number in platform.source("id::text, number", "number <= 12")}
    change = platform.place.session.command
    change(f"ALTER TABLE {path} DELETE WHERE number <= 3")
    change(f"ALTER TABLE {path} UPDATE title = 'by hand' WHERE number BETWEEN 4 AND 7")
    change(f"ALTER TABLE {path} UPDATE rating = NULL, genres = [] WHERE number = 8")
    change(f"INSERT INTO {path} SELECT * REPLACE (generateUUIDv4() AS id) FROM {path} WHERE number IN (20, 21)")
    report = platform.reconcile("films")
    assert (report["equal"], report["missing"], report["differing"], report["extra"]) == (False, 3, 5, 2)
    told = {detail["key"]["id"]: detail for detail in report["keys"]}
    assert told[keys[4]]["columns"] == {"title": {"source": "Film 4", "target": "by hand"}}

    repaired = platform.reconcile("films", repair=True)["repair"]
    assert (repaired["done"], repaired["deleted"], repaired["remaining"]) == (True, 2, 0)
    assert platform.reconcile("films")["equal"] is True
    assert platform.target("films") == platform.source()
    assert not [name for name in platform.place.tables() if "__r" in name], "nothing is left of the comparison"


def test_reconcile_of_an_incremental_pipeline_knows_what_is_deleted(platform: Platform) -> None:
    platform.start_runner()
    platform.admin.execute("UPDATE content.film SET gone = true WHERE number % 10 = 0")
    query = f"SELECT {COLUMNS}, gone FROM content.film"
    cursor = {"mode": "incremental", "incremental_key": "changed", "incremental_id_key": "id"}
    platform.create("films", source_query=query, options={"delete_when": "gone"}, **cursor)
    platform.run("films")
    assert platform.reconcile("films")["equal"] is True
    assert platform.reconcile("films", level="quick")["equal"] is True
    assert platform.reconcile("films", level="sample")["equal"] is True
