"""`resume`, `run` beside what is paused, ranges that are no values, and what is told of runners that fell silent."""

import os
import re
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from tests.integration.api import create, problem
from tests.support.workbench import Workbench
from vitrina.errors import ConfigError
from vitrina.store import migrate, runners
from vitrina.store.database import Connection

INCREMENTAL = {"mode": "incremental", "incremental_key": "modified", "target_key": ["id"]}
FILMS = "/api/v1/pipelines/films"


def test_resume_continues_what_is_paused_and_nothing_else(api: httpx.Client, api_metastore: Connection) -> None:
    create(api, name="films", **INCREMENTAL)
    refused = api.post(f"{FILMS}/resume")
    assert (refused.status_code, "only a PAUSED pipeline" in problem(refused)["detail"]) == (409, True)
    api_metastore.execute("UPDATE etl.etl_pipelines SET status = 'PAUSED'")

    answer = api.post(f"{FILMS}/resume")

    assert (answer.status_code, answer.json()["status"]) == (202, "RUN_REQUESTED")
    row = api_metastore.execute("SELECT run_requested_at FROM etl.etl_pipelines").fetchone()
    assert row == {"run_requested_at": None}, "nothing was asked for"
    [audited] = api_metastore.execute("SELECT action FROM etl.etl_audit WHERE action = 'resume'").fetchall()
    assert audited


def test_who_resumes_before_the_pause_has_come_is_told_to_wait_for_it(
    api: httpx.Client, api_metastore: Connection
) -> None:
    create(api, name="films", **INCREMENTAL)
    api_metastore.execute("UPDATE etl.etl_pipelines SET status = 'PAUSE_REQUESTED'")
    answer = api.post(f"{FILMS}/pause").json()
    assert "at the next batch boundary, or at once if it runs as one statement" in answer["message"]
    refused = api.post(f"{FILMS}/resume")
    assert refused.status_code == 409
    assert "wait until it is PAUSED, then resume it" in problem(refused)["detail"]


def test_run_on_a_paused_pipeline_says_that_a_second_run_follows(api: httpx.Client, api_metastore: Connection) -> None:
    create(api, name="films", **INCREMENTAL)
    api_metastore.execute("UPDATE etl.etl_pipelines SET status = 'PAUSED'")
    assert "follow-up" in api.post(f"{FILMS}/run").json()["message"]


def test_run_beside_a_backfill_says_that_it_comes_after_it(api: httpx.Client) -> None:
    create(api, name="films", **INCREMENTAL)
    api.post(f"{FILMS}/run", json={"since": "2024-01-01"})
    assert "follows it" in api.post(f"{FILMS}/run").json()["message"]


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"since": "2024-13-01"}, "since"),
        ({"until": "soon"}, "until"),
        ({"since": "2024-02-01", "until": "2024-01-01"}, "until"),
    ],
)
def test_a_range_is_judged_by_the_cursors_type_before_it_is_accepted(
    api: httpx.Client, api_metastore: Connection, asked: dict[str, str], field: str
) -> None:
    create(api, name="films", **INCREMENTAL)
    api_metastore.execute(
        "INSERT INTO etl.etl_runs (pipeline_id, trigger, status, metrics) SELECT id, 'api', 'SUCCESS',"
        """ '{"cursor": {"key": "modified", "type": "timestamp with time zone"}}' FROM etl.etl_pipelines"""
    )

    answer = api.post(f"{FILMS}/run", json=asked)

    assert (answer.status_code, problem(answer)["errors"][0]["path"]) == (422, field)
    assert api.get(FILMS).json()["status"] == "IDLE"


def test_health_tells_that_nobody_runs_anything_and_fails_where_that_matters(api: httpx.Client) -> None:
    told = api.get("/health")
    assert (told.status_code, told.json()["runners"]) == (200, 0)
    assert "no runner is alive" in told.json()["working"]
    assert api.get("/health", params={"runners": "required"}).status_code == 503


def test_status_tells_that_a_lease_is_over_instead_of_a_time_that_is_left(
    api: httpx.Client, api_metastore: Connection
) -> None:
    create(api, name="films")
    api_metastore.execute(
        "UPDATE etl.etl_pipelines SET status = 'RUNNING', claim_id = gen_random_uuid(), claim_format = 2,"
        " lease_until = now() - interval '1 h'"
    )
    api_metastore.execute(
        "INSERT INTO etl.etl_runs (pipeline_id, trigger, status, rows_read, metrics)"
        """ SELECT id, 'api', 'RUNNING', 10, '{"rows_estimate": 1000}' FROM etl.etl_pipelines"""
    )
    seen = api.get(f"{FILMS}/status").json()
    assert (seen["lease_is_over"], seen["progress"]) == (True, None)


@pytest.mark.parametrize("is_known", [True, False])
def test_the_command_line_tells_when_the_runner_was_last_heard_of(
    api: httpx.Client, api_metastore: Connection, tmp_path: Path, is_known: bool
) -> None:
    create(api, name="films")
    runner_id = uuid4()
    runners.heartbeat(
        api_metastore, runner_id, host="quiet.test", pid=77, version="1", capacity=1, running=1, transforms=[]
    )
    api_metastore.execute(
        "UPDATE etl.etl_pipelines SET status = 'RUNNING', claim_id = gen_random_uuid(), claim_format = 2,"
        " runner_id = %s, lease_until = now() - interval '1 h'",
        [runner_id],
    )
    api_metastore.execute("UPDATE etl.etl_runners SET heartbeat_at = now() - interval '3 h'")
    if not is_known:
        api_metastore.execute("DELETE FROM etl.etl_runners")

    shown = subprocess.run(
        [sys.executable, "-m", "vitrina.cli", "status", "films"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "VITRINA_API_URL": str(api.base_url)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout

    who = r"quiet\.test \(pid 77\), last heartbeat 3[^:]* ago" if is_known else "an unknown runner"
    assert re.search(f"{who}: its lease is over, the next runner continues", " ".join(shown.split()))


def test_a_newer_metastore_asks_for_a_newer_program(workbench: Workbench) -> None:
    workbench.sql("UPDATE etl.alembic_version SET version_num = '9999'")
    with pytest.raises(ConfigError, match="this metastore is of version 9999, upgrade Vitrina"):
        migrate.require_current(workbench.metastore)
    with pytest.raises(ConfigError, match="this metastore is of version 9999, upgrade Vitrina"):
        migrate.migrate(workbench.settings)
