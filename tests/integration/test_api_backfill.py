"""A range asked for over HTTP is remembered for the run, and refused where there is no cursor or no room for it."""

import httpx

from tests.integration.api import create, problem
from vitrina.store import pipelines
from vitrina.store.database import Connection

INCREMENTAL = {"mode": "incremental", "incremental_key": "modified", "target_key": ["id"]}


def test_a_range_reaches_the_run(api: httpx.Client, api_metastore: Connection) -> None:
    create(api, name="films", **INCREMENTAL)

    answer = api.post("/api/v1/pipelines/films/run", json={"since": "2024-01-01", "until": "2024-02-01"})

    assert answer.status_code == 202
    row = pipelines.find(api_metastore, "films")
    assert row is not None
    assert row["requested_range"] == {"since": "2024-01-01", "until": "2024-02-01"}


def test_a_full_pipeline_has_no_cursor_to_backfill_by(api: httpx.Client) -> None:
    create(api, name="films")

    answer = api.post("/api/v1/pipelines/films/run", json={"since": "2024-01-01"})

    assert answer.status_code == 422
    assert problem(answer)["errors"][0]["path"] == "since"


def test_a_backfill_waits_for_nobody(api: httpx.Client, api_metastore: Connection) -> None:
    create(api, name="films", **INCREMENTAL)
    api_metastore.execute("UPDATE etl.etl_pipelines SET status = 'RUNNING' WHERE name = 'films'")

    answer = api.post("/api/v1/pipelines/films/run", json={"since": "2024-01-01"})

    assert answer.status_code == 409
    assert "RUNNING" in problem(answer)["detail"]


def test_the_next_plain_run_is_not_a_backfill(api: httpx.Client, api_metastore: Connection) -> None:
    create(api, name="films", **INCREMENTAL)
    api.post("/api/v1/pipelines/films/run", json={"since": "2024-01-01"})
    api_metastore.execute("UPDATE etl.etl_pipelines SET status = 'FAILED' WHERE name = 'films'")

    api.post("/api/v1/pipelines/films/run")

    row = pipelines.find(api_metastore, "films")
    assert row is not None
    assert row["requested_range"] is None
