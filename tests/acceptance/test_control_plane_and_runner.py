"""The whole platform as people use it: a real API, a real runner, pipelines that are only configuration."""

import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.integration.api import api_process
from tests.support.processes import runner_process
from tests.support.waiting import until
from vitrina import schemas
from vitrina.client import Client
from vitrina.services import tokens
from vitrina.services.callers import Caller, Role
from vitrina.settings import Settings
from vitrina.status import RunStatus, Status
from vitrina.store.database import Connection

pytestmark = pytest.mark.timeout(240)

FILMS = {
    "name": "films",
    "source_query": "SELECT id, title, rating FROM content.film_work",
    "target_table": "analytics.films",
    "target_key": ["id"],
    "batch_size": 100,
}


@pytest.fixture
def client(database: Settings, metastore: Connection, tmp_path: Path) -> Iterator[Client]:
    assert database.admin_url
    with psycopg.connect(database.admin_url.get_secret_value(), autocommit=True) as admin:
        admin.execute(
            """
            CREATE TABLE content.film_work (id integer PRIMARY KEY, title text NOT NULL, rating numeric,
                                            updated_at timestamptz NOT NULL DEFAULT now());
            INSERT INTO content.film_work (id, title, rating)
            SELECT n, 'Star Trek ' || n, n %% 10 FROM generate_series(1, 250) n;
            GRANT SELECT ON content.film_work TO vitrina_reader
            """.replace("%%", "%")
        )
    _, secret = tokens.create(metastore, Caller("setup", Role.ADMIN), name="admin", role=Role.ADMIN)
    with api_process(database, tmp_path) as (_, url), runner_process(database, tmp_path), Client(url, secret) as made:
        deadline = time.monotonic() + 60
        while not made.list_runners() and time.monotonic() < deadline:
            time.sleep(0.1)
        yield made


def run(client: Client, name: str = "films") -> schemas.Run:
    accepted = client.run(name)
    return client.wait_for_run(name, requested_at=accepted.run_requested_at, timeout_seconds=90, poll_seconds=0.1)


def column(metastore: Connection, query: str) -> list[object]:
    return [next(iter(row.values())) for row in metastore.execute(query.encode()).fetchall()]


def test_a_mart_is_one_post_away_and_follows_its_configuration(client: Client, metastore: Connection) -> None:
    client.create_pipeline(FILMS)
    first = run(client)
    assert (first.status, first.rows_read, first.rows_written) == (RunStatus.SUCCESS, 250, 250)
    assert column(metastore, "SELECT count(*) FROM analytics.films") == [250]

    client.update_pipeline("films", {"source_query": "SELECT id, upper(title) AS title, rating FROM content.film_work"})
    run(client)
    assert column(metastore, "SELECT title FROM analytics.films WHERE id = 1") == ["STAR TREK 1"]

    client.update_pipeline("films", {"target_table": "analytics.other_films", "batch_size": 50})
    moved = run(client)
    assert moved.pipeline_version == 3
    assert column(metastore, "SELECT count(*) FROM analytics.other_films") == [250]

    cursor = {"mode": "incremental", "incremental_key": "updated_at", "incremental_id_key": "id"}
    query = {"source_query": "SELECT id, title, rating, updated_at FROM content.film_work"}
    client.update_pipeline("films", cursor | query | {"target_table": "analytics.newest_films"})
    assert run(client).rows_read >= 250
    status = client.status("films")
    assert status.status == Status.IDLE
    assert status.checkpoint
    assert status.recent.success_rate == 1.0
    assert status.run
    run_id = status.run.id
    until(lambda: bool(client.run_log(run_id)))  # lines follow their run within a second


def test_preview_and_validate_ask_the_real_source(client: Client) -> None:
    client.create_pipeline(FILMS)
    report = client.validate("films")
    if report.deep and not report.deep.is_finished:
        report.deep = client.wait_for_request(report.deep)
    assert report.valid
    assert report.deep
    assert report.deep.status == "DONE", report.deep.error
    shown = client.wait_for_request(client.preview("films", limit=3))
    assert shown.result, shown.error
    assert len(shown.result["rows"]) == 3
    assert [found["name"] for found in shown.result["columns"]] == ["id", "title", "rating"]


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"source_query": "SELECT id, titel FROM content.film_work"}, "source_query_failed", "titel"),
        ({"source_query": "SELECT id, title FROM content.film_works"}, "source_query_failed", "film_works"),
        ({"target_key": ["film_id"]}, "target_mismatch", "film_id"),
        ({"source_query": "SELECT id / 2 AS id, title, rating FROM content.film_work"}, "bad_key", "id"),
    ],
    ids=["a missing column", "a missing table", "a missing key", "a key that is not unique"],
)
def test_what_only_the_source_knows_fails_the_run_with_its_reason(
    client: Client, fields: dict[str, object], code: str, words: str
) -> None:
    client.create_pipeline(FILMS | fields)
    failed = run(client)
    assert (failed.status, failed.error_code) == (RunStatus.FAILED, code), failed.error_message
    assert words in (failed.error_message or "")
    status = client.status("films")
    assert status.status == Status.FAILED
    assert status.last_error
    assert status.last_error.code == code
    assert status.last_error.next_step
    client.update_pipeline("films", {"source_query": FILMS["source_query"], "target_key": ["id"]})
    assert run(client).status == RunStatus.SUCCESS
