"""What the console asks: who am I, every pipeline with its latest runs, alerts, comparisons, previews before saving."""

from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from tests.integration.api import DEFINITION, create, problem, serving
from vitrina.services import tokens
from vitrina.services.callers import Caller, Role
from vitrina.settings import Settings
from vitrina.store import requests
from vitrina.store.database import Connection


def test_without_auth_everybody_is_the_local_admin(api: httpx.Client) -> None:
    assert api.get("/api/v1/me").json() == {"name": "local", "role": "admin", "auth": "off"}


def test_a_token_is_told_its_name_and_role(api_settings: Settings, api_metastore: Connection) -> None:
    _, secret = tokens.create(api_metastore, Caller("setup", Role.ADMIN), name="airflow", role=Role.VIEWER)
    with serving(api_settings.model_copy(update={"auth": "token"})) as guarded:
        answer = guarded.get("/api/v1/me", headers={"Authorization": f"Bearer {secret}"})
    assert answer.json() == {"name": "airflow", "role": "viewer", "auth": "token"}


def test_the_overview_shows_the_latest_ten_runs_oldest_first(api: httpx.Client, api_metastore: Connection) -> None:
    created = create(api)
    for minute in range(12):
        _insert_run(api_metastore, created["id"], minute, "FAILED" if minute == 11 else "SUCCESS")
    (line,) = api.get("/api/v1/overview").json()["items"]
    assert (line["name"], line["status"], line["dead_letters"], line["is_held"]) == ("films", "IDLE", 0, False)
    assert [run["rows_written"] for run in line["recent"]] == list(range(2, 12))
    assert line["recent"][-1]["status"] == "FAILED"
    assert line["recent"][-1]["seconds"] == 30
    assert line["last_success_at"] == "2026-01-01T00:10:30Z"


def test_an_older_success_is_found_behind_ten_failures(api: httpx.Client, api_metastore: Connection) -> None:
    created = create(api)
    for minute in range(12):
        _insert_run(api_metastore, created["id"], minute, "SUCCESS" if minute == 0 else "FAILED")
    (line,) = api.get("/api/v1/overview").json()["items"]
    assert line["last_success_at"] == "2026-01-01T00:00:30Z"


def test_the_overview_is_compressed_for_whoever_accepts_it_and_hides_values_from_viewers(
    api: httpx.Client, api_settings: Settings, api_metastore: Connection
) -> None:
    for number in range(10):
        create(api, name=f"mart_{number}")
    api_metastore.execute("UPDATE etl.etl_pipelines SET last_error = 'bad key: Key (id)=(secret 7) exists'")
    _, secret = tokens.create(api_metastore, Caller("setup", Role.ADMIN), name="viewer", role=Role.VIEWER)
    with serving(api_settings.model_copy(update={"auth": "token"})) as guarded:
        found = {}
        for accepted in ("gzip", "gzip;q=0, *", "identity", "*"):
            headers = {"Authorization": f"Bearer {secret}", "Accept-Encoding": accepted}
            found[accepted] = guarded.get("/api/v1/overview", headers=headers)
    assert [answer.headers.get("content-encoding") for answer in found.values()] == ["gzip", None, None, "gzip"]
    assert all(answer.headers["vary"] == "Accept-Encoding" for answer in found.values())
    assert all(answer.json() == found["gzip"].json() for answer in found.values())
    small, large = (int(found[accepted].headers["content-length"]) for accepted in ("gzip", "identity"))
    assert small < large / 4
    assert len(found["gzip"].json()["items"]) == 10
    assert "secret 7" not in found["gzip"].text


def test_a_short_answer_is_sent_as_it_is(api: httpx.Client) -> None:
    answer = api.get("/api/v1/overview", headers={"Accept-Encoding": "gzip"})
    assert (answer.json()["items"], answer.headers.get("content-encoding")) == ([], None)


def test_the_overview_comes_in_pages_and_for_chosen_pipelines(api: httpx.Client) -> None:
    ids = [create(api, name=f"mart_{number}")["id"] for number in range(5)]
    names, cursor = [], None
    while True:
        page = api.get("/api/v1/overview", params={"limit": 2} | ({"cursor": cursor} if cursor else {})).json()
        names += [line["name"] for line in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert names == [f"mart_{number}" for number in range(5)]
    chosen = api.get("/api/v1/overview", params={"pipeline": [ids[3], ids[1]]}).json()["items"]
    assert [line["name"] for line in chosen] == ["mart_1", "mart_3"]


def test_a_preview_of_a_draft_waits_for_a_runner(api: httpx.Client) -> None:
    answer = api.post("/api/v1/preview", json={"definition": DEFINITION})
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/api/v1/requests/{answer.json()['id']}"
    assert answer.json()["pipeline_id"] is None


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"source_query": "DELETE FROM content.film_work"}, "source_query"),
        ({"target_table": "pg_catalog.pg_class"}, "target_table"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_a_draft_is_judged_like_a_pipeline(api: httpx.Client, change: dict[str, object], path: str) -> None:
    answer = api.post("/api/v1/preview", json={"definition": DEFINITION | change})
    assert answer.status_code == 422
    assert path in [error["path"] for error in problem(answer)["errors"]]


def test_alerts_tell_of_failures_recoveries_and_drift(api: httpx.Client, api_metastore: Connection) -> None:
    created = create(api)
    _insert_run(api_metastore, created["id"], 0, "RUNNING")
    _fail(api_metastore, created["id"], "column titel does not exist")
    api_metastore.execute("UPDATE etl.etl_runs SET status = 'SUCCESS'")
    _reconcile(api_metastore, created["id"], {"differences": 3, "remaining": 3})
    drift, recovered, failed = api.get("/api/v1/pipelines/films/alerts").json()["items"]
    assert (drift["kind"], drift["differences"], drift["delivered"]) == ("drift", 3, [])
    assert (recovered["kind"], failed["kind"]) == ("recovered", "failed")
    assert recovered["failing_since"] == failed["failing_since"]
    assert failed["error"] == "column titel does not exist"
    assert failed["run_id"] is not None
    assert [one["kind"] for one in api.get("/api/v1/pipelines/films/alerts?limit=1").json()["items"]] == ["drift"]


def test_comparisons_are_listed_with_what_they_found(api: httpx.Client, api_metastore: Connection) -> None:
    created = create(api)
    _reconcile(api_metastore, created["id"], {"differences": 3, "remaining": 0, "keys": [{}] * 3}, repair=True)
    api.post("/api/v1/pipelines/films/reconcile", json={"level": "quick"})
    waiting, done = api.get("/api/v1/pipelines/films/reconciles").json()["items"]
    assert (waiting["status"], waiting["level"], waiting["repair"]) == ("QUEUED", "quick", False)
    assert (waiting["requested_by"], waiting["differences"]) == ("local", None)
    assert (done["status"], done["level"], done["repair"]) == ("DONE", "full", True)
    assert (done["differences"], done["remaining"]) == (3, 0)
    assert "keys" not in done


def _fail(connection: Connection, pipeline_id: str, error: str) -> None:
    connection.execute(
        "UPDATE etl.etl_pipelines SET status = 'FAILED', last_error = %s WHERE id = %s", [error, pipeline_id]
    )


def _reconcile(connection: Connection, pipeline_id: str, result: dict[str, Any], *, repair: bool = False) -> None:
    """Asked for by nobody, answered at once."""
    requests.insert(connection, "reconcile", UUID(pipeline_id), {"repair": repair}, "schedule")
    runner = uuid4()
    taken = requests.claim_next(connection, runner, 30)
    assert taken
    assert requests.finish(connection, taken["id"], runner, result=result, error=None)


def _insert_run(connection: Connection, pipeline_id: str, minute: int, status: str) -> None:
    connection.execute(
        """
        INSERT INTO etl.etl_runs (pipeline_id, pipeline_version, trigger, status, started_at, finished_at, rows_written)
        VALUES (%(pipeline)s, 1, 'manual', %(status)s, %(start)s::timestamptz + make_interval(mins => %(minute)s),
                %(start)s::timestamptz + make_interval(mins => %(minute)s, secs => 30), %(minute)s)
        """,
        {"pipeline": pipeline_id, "status": status, "start": "2026-01-01T00:00:00Z", "minute": minute},
    )
