"""The first page of the console: what needs attention, what ran lately, what comes next; and when a schedule is due."""

import itertools
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from tests.integration.api import DEFINITION, create, problem
from vitrina.client import Client
from vitrina.services.home import StaleMarts
from vitrina.store import requests
from vitrina.store.database import Connection


def home(api: httpx.Client) -> dict[str, Any]:
    answer = api.get("/api/v1/home")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_an_empty_installation_has_nothing_to_look_at(api: httpx.Client) -> None:
    found = home(api)
    assert (found["pipelines"], found["attention"], found["activity"], found["upcoming"]) == (0, [], [], [])
    assert found["runners"] == {"alive": 0, "capacity": 0, "running": 0}


def test_each_reason_to_look_is_told_the_worst_first(api: httpx.Client, api_metastore: Connection) -> None:
    made = {name: create(api, name=name)["id"] for name in ("queued", "held", "letters", "differs", "fails", "well")}
    late = create(api, name="late", schedule_interval="1h")["id"]
    old = create(api, name="old", options={"max_lag_seconds": 60})["id"]
    fresh = create(api, name="fresh", options={"max_lag_seconds": 86_400})["id"]
    change = api_metastore.execute
    change("UPDATE etl.etl_pipelines SET status = 'FAILED', last_error = 'no' WHERE id = %s", [made["fails"]])
    change("UPDATE etl.etl_pipelines SET hold = '{\"pid\": 1}' WHERE id = %s", [made["held"]])
    change("UPDATE etl.etl_pipelines SET next_run_at = now() - interval '1 hour' WHERE id = %s", [late])
    change("UPDATE etl.etl_pipelines SET status = 'RUN_REQUESTED' WHERE id = %s", [made["queued"]])
    change("UPDATE etl.etl_pipelines SET status_since = now() - interval '1 hour' WHERE id = %s", [made["queued"]])
    change(
        "INSERT INTO etl.etl_dead_letters (pipeline_id, document_id, error, document)"
        " SELECT %s, n::text, 'refused', '{}' FROM generate_series(1, 3) n",
        [made["letters"]],
    )
    _compare(api_metastore, made["differs"], remaining=4)
    _compare(api_metastore, made["well"], remaining=0)
    for pipeline in (old, fresh):
        _run(api_metastore, pipeline, hours_ago=2)
    found = home(api)
    told = [(one["kind"], one["pipeline"], one["count"]) for one in found["attention"]]
    assert told == [
        ("failed", "fails", None),
        ("stale", "old", None),
        ("overdue", "late", None),
        ("differs", "differs", 4),
        ("dead_letters", "letters", 3),
        ("held", "held", None),
        ("queued", "queued", None),
    ]
    assert found["attention"][0]["message"] == "no"
    assert found["attention"][1]["limit_seconds"] == 60
    assert found["attention"][1]["seconds"] == pytest.approx(7200, abs=600)
    assert found["attention_counts"] == dict.fromkeys([kind for kind, _, _ in told], 1)
    assert found["dead_letters"] == 3
    assert found["pipelines"] == 9


def test_a_comparison_that_found_nothing_more_ends_the_alarm(api: httpx.Client, api_metastore: Connection) -> None:
    pipeline = create(api)["id"]
    _compare(api_metastore, pipeline, remaining=4)
    assert home(api)["attention_counts"] == {"differs": 1}
    _compare(api_metastore, pipeline, remaining=0)
    assert home(api)["attention_counts"] == {}


def test_many_of_a_kind_are_counted_and_a_few_are_told(api: httpx.Client, api_metastore: Connection) -> None:
    for number in range(25):
        create(api, name=f"mart_{number:02}")
    api_metastore.execute("UPDATE etl.etl_pipelines SET status = 'FAILED', last_error = 'no'")
    found = home(api)
    assert found["attention_counts"] == {"failed": 25}
    assert len(found["attention"]) == 20


def test_runs_of_the_last_day_stand_in_a_line_for_each_pipeline(api: httpx.Client, api_metastore: Connection) -> None:
    first, second = create(api, name="first")["id"], create(api, name="second")["id"]
    _run(api_metastore, first, hours_ago=30)
    _run(api_metastore, first, hours_ago=3)
    _run(api_metastore, first, hours_ago=2, status="FAILED")
    _run(api_metastore, second, hours_ago=1)
    _run(api_metastore, second, hours_ago=40, status="RUNNING")
    found = home(api)
    assert [line["pipeline"] for line in found["activity"]] == ["second", "first"]
    assert [run["status"] for run in found["activity"][1]["runs"]] == ["SUCCESS", "FAILED"]
    assert [run["status"] for run in found["activity"][0]["runs"]] == ["RUNNING", "SUCCESS"]
    assert found["activity"][1]["runs"][0]["seconds"] == 60
    assert found["activity_left_out"] == 0


def test_what_comes_next_leaves_out_what_the_schedule_rests_for(api: httpx.Client, api_metastore: Connection) -> None:
    create(api, name="hourly", schedule_interval="1h")
    create(api, name="soon", schedule_interval="5m")
    create(api, name="off", schedule_interval="1m", enabled=False)
    paused = create(api, name="paused", schedule_interval="1m")["id"]
    broken = create(api, name="broken", schedule_interval="1m")["id"]
    stubborn = create(api, name="stubborn", schedule_interval="2m", options={"schedule_after_failure": True})["id"]
    api_metastore.execute("UPDATE etl.etl_pipelines SET status = 'PAUSED' WHERE id = %s", [paused])
    api_metastore.execute(
        "UPDATE etl.etl_pipelines SET status = 'FAILED', last_error = 'no' WHERE id = ANY(%s)", [[broken, stubborn]]
    )
    assert [run["pipeline"] for run in home(api)["upcoming"]] == ["stubborn", "soon", "hourly"]


# --- when a schedule is due ----------------------------------------------------------------------------------------


def test_the_next_five_times_of_a_schedule_are_told(api: httpx.Client) -> None:
    with Client(str(api.base_url)) as client:
        times = client.schedule_times("0 3 * * 1 Europe/Moscow")
    assert len(times) == 5
    assert {(time.isoweekday(), time.hour) for time in times} == {(1, 0)}
    assert {later - earlier for earlier, later in itertools.pairwise(times)} == {timedelta(days=7)}


def test_an_interval_is_told_from_now_on(api: httpx.Client) -> None:
    times = api.get("/api/v1/schedule", params={"interval": "15m", "count": 3}).json()["times"]
    moments = [datetime.fromisoformat(time) for time in times]
    assert [later - moments[0] for later in moments] == [timedelta(minutes=15 * n) for n in range(3)]


def test_a_schedule_that_nobody_understands_is_refused(api: httpx.Client) -> None:
    answer = api.get("/api/v1/schedule", params={"interval": "whenever"})
    assert answer.status_code == 422
    assert "is not understood" in problem(answer)["detail"]


# --- drafts --------------------------------------------------------------------------------------------------------


def test_a_preview_needs_the_query_alone(api: httpx.Client) -> None:
    answer = api.post("/api/v1/preview", json={"definition": {"source_query": DEFINITION["source_query"]}})
    assert answer.status_code == 202, answer.text


def test_a_preview_still_needs_a_query_that_may_be_read(api: httpx.Client) -> None:
    for fields, path in [
        ({"source_query": "DELETE FROM content.film_work"}, "source_query"),
        ({}, "source_query"),
        ({"source_query": "SELECT 1", "source_connection": "nowhere"}, "source_connection"),
    ]:
        answer = api.post("/api/v1/preview", json={"definition": fields})
        assert answer.status_code == 422
        assert [error["path"] for error in problem(answer)["errors"]] == [path]


@pytest.mark.parametrize(
    ("fields", "paths"),
    [
        (
            {"name": "no good", "batch_size": 0, "source_query": "DELETE FROM t", "target_table": "pg_catalog.x"},
            {"name", "batch_size", "source_query", "target_table"},
        ),
        ({"name": "no good", "target_table": "analytics.films"}, {"name", "source_query"}),
        ({"name": "films", "source_query": "SELECT 1", "mode": "incremental"}, {"target_table", "incremental_key"}),
        (
            {"source_query": "SELECT 1", "mode": "incremental", "incremental_key": 7, "target_table": "x.y"},
            {"name", "incremental_key", "target_table"},
        ),
        (DEFINITION | {"options": {"no": 1}}, {"options.no"}),
        (DEFINITION | {"type": "PYTHON", "python_task": "No Name", "name": "a b"}, {"name", "python_task"}),
    ],
)
def test_everything_that_is_wrong_is_said_at_once(api: httpx.Client, fields: dict[str, Any], paths: set[str]) -> None:
    report = api.post("/api/v1/validate", json=fields).json()
    assert not report["valid"]
    assert {error["path"] for error in report["errors"]} == paths


# --- figures -------------------------------------------------------------------------------------------------------


def test_repairs_and_replays_do_not_count_as_loads(api: httpx.Client, api_metastore: Connection) -> None:
    pipeline = create(api)["id"]
    _run(api_metastore, pipeline, hours_ago=2, rows=1000, metrics='{"guarantee": "exact"}')
    _run(api_metastore, pipeline, hours_ago=1, rows=2, metrics='{"repair": {}}')
    _run(api_metastore, pipeline, hours_ago=0, rows=3, metrics='{"replay": {}}')
    status = api.get("/api/v1/pipelines/films/status").json()
    assert (status["recent"]["runs"], status["recent"]["rows_written"]) == (1, 1000)
    assert (status["run"]["rows_written"], status["last_load"]["rows_written"]) == (3, 1000)
    assert status["guarantee"] == "exact"
    (line,) = api.get("/api/v1/overview").json()["items"]
    assert [run["rows_written"] for run in line["recent"]] == [1000]
    assert line["last_success_at"] == status["recent"]["last_success_at"]


def _compare(connection: Connection, pipeline_id: str, *, remaining: int) -> None:
    requests.insert(connection, "reconcile", UUID(pipeline_id), {"repair": False}, "schedule")
    runner = uuid4()
    taken = requests.claim_next(connection, runner, 30)
    assert taken
    assert requests.finish(connection, taken["id"], runner, result={"remaining": remaining}, error=None)


def _run(
    connection: Connection,
    pipeline_id: str,
    *,
    hours_ago: int,
    status: str = "SUCCESS",
    rows: int = 0,
    metrics: str = "{}",
) -> None:
    """A run of a minute."""
    connection.execute(
        """
        INSERT INTO etl.etl_runs
            (pipeline_id, pipeline_version, trigger, status, started_at, finished_at, rows_written, metrics)
        VALUES (%(pipeline)s, 1, 'manual', %(status)s, date_trunc('second', now()) - make_interval(hours => %(ago)s),
                CASE WHEN %(status)s <> 'RUNNING'
                     THEN date_trunc('second', now()) - make_interval(hours => %(ago)s, mins => -1) END,
                %(rows)s, %(metrics)s)
        """,
        {"pipeline": pipeline_id, "status": status, "ago": hours_ago, "rows": rows, "metrics": metrics},
    )


def test_ages_of_marts_are_kept_if_computing_them_takes_long(
    api: httpx.Client, api_metastore: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = create(api, name="old", options={"max_lag_seconds": 60})["id"]
    quick, slow = StaleMarts(), StaleMarts()
    assert (quick.read(api_metastore), slow.read(api_metastore)) == ([], [])
    monkeypatch.setattr("vitrina.services.home.QUICK_SECONDS", 0.0)
    monkeypatch.setattr("vitrina.services.home._KEEP_FACTOR", 1e9)
    assert slow.read(api_metastore) == []
    monkeypatch.undo()
    _run(api_metastore, old, hours_ago=2)
    assert [row["pipeline"] for row in quick.read(api_metastore)] == ["old"]
    assert slow.read(api_metastore) == []
