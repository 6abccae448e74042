"""What is in a target: rows, size and columns of a table, for operators with values and for viewers without."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from pydantic import SecretStr

from tests.integration.api import serving
from tests.support.workbench import Workbench
from vitrina.connectors.postgres import mart_profile
from vitrina.errors import FatalError
from vitrina.runner import requests as runner_requests
from vitrina.services import tokens
from vitrina.services.callers import Caller, Role
from vitrina.store import pipelines, requests

FILMS = """
CREATE TABLE content.films (id int PRIMARY KEY, title text, rating numeric(4, 2), told jsonb, tags text[], at point);
INSERT INTO content.films
    SELECT i, CASE WHEN i % 10 > 0 THEN 'Film ' || i % 3 END, i / 10.0, json_build_object('n', i % 2), ARRAY['a'],
           point(1, i % 2)
    FROM generate_series(1, 100) AS i;
"""


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    workbench.source(FILMS)
    return workbench


def profiled(bench: Workbench, name: str = "films") -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    row = pipelines.find(bench.metastore, name)
    assert row
    request = {"id": uuid4(), "kind": "profile", "pipeline_id": row["id"], "payload": {}}
    return runner_requests.perform(request, bench.metastore, bench.settings, _no_lease)


def _no_lease(*args: Any) -> Any:
    raise AssertionError("looking needs no lease")


def make(bench: Workbench, **fields: Any) -> None:
    bench.pipeline("films", "SELECT * FROM content.films", target_key=["id"], **fields)
    assert bench.run("films")["status"] == "SUCCESS"


def test_rows_size_and_columns_are_told(bench: Workbench) -> None:
    make(bench)

    found, error = profiled(bench)

    assert error is None
    assert found
    assert (found["rows"], found["profiled_rows"], found["target"]) == (100, 100, "analytics.films")
    assert found["size_bytes"] == bench.sql("SELECT pg_total_relation_size('analytics.films') AS size")[0]["size"]
    columns = {column["name"]: column for column in found["columns"]}
    assert columns["title"] == {
        "name": "title",
        "type": "text",
        "nulls": 10,
        "distinct": 3,
        "min_value": "Film 0",
        "max_value": "Film 2",
        "top_values": [
            {"value": "Film 0", "rows": 30},
            {"value": "Film 1", "rows": 30},
            {"value": "Film 2", "rows": 30},
        ],
    }
    assert [columns["rating"][name] for name in ("min_value", "max_value", "distinct")] == ["0.10", "10.00", 100]
    assert columns["rating"]["top_values"] == []
    # Types without an order, or without equality.
    assert [(columns[name]["min_value"], columns[name]["distinct"]) for name in ("told", "tags", "at")] == [
        (None, 2), (None, 1), (None, 2),
    ]  # fmt: skip


def test_a_large_table_is_looked_at_in_a_sample(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.sql("INSERT INTO content.films (id, title) SELECT i, repeat('x', 500) FROM generate_series(101, 5000) AS i")
    make(bench)
    monkeypatch.setattr(mart_profile, "MOST_ROWS", 500)

    found, _ = profiled(bench)

    assert found
    assert found["rows"] == 5000
    assert 0 < found["profiled_rows"] < 5000
    assert all(column["nulls"] <= found["profiled_rows"] for column in found["columns"])


def test_a_partitioned_table_has_the_size_of_its_parts(bench: Workbench) -> None:
    make(bench, options={"table": {"partition_by": {"hash": "id", "partitions": 3}}})
    found, _ = profiled(bench)
    assert found
    assert found["size_bytes"] >= 3 * 8192


def test_a_table_that_is_not_there_yet_is_named(bench: Workbench) -> None:
    bench.pipeline("films", "SELECT id FROM content.films", target_key=["id"])
    _, error = profiled(bench)
    assert error == {"code": "not_found", "message": "analytics.films does not exist yet: run the pipeline first"}


def test_files_that_are_not_there_yet_are_named(bench: Workbench, tmp_path: Path) -> None:
    file_films(bench, tmp_path)
    _, error = profiled(bench, "filed")
    assert error == {"code": "not_found", "message": "files:films does not exist yet: run the pipeline first"}


def file_films(bench: Workbench, folder: Path, **options: Any) -> None:
    bench.settings = bench.settings.model_copy(
        update={"connections": {"lake": SecretStr(f"file://{folder}")}, "allowed_targets": "analytics.*,files:*"}
    )
    bench.pipeline(
        "filed",
        "SELECT id, title, rating, told, tags FROM content.films",
        target_table="files:films",
        target_key=["id"],
        options={"target_connection": "lake"} | options,
    )


def test_files_are_read_back(bench: Workbench, tmp_path: Path) -> None:
    file_films(bench, tmp_path, profile=True)
    assert bench.run("filed")["status"] == "SUCCESS"

    found = bench.profile("filed")

    assert (found["rows"], found["profiled_rows"], found["target"]) == (100, 100, "files:films")
    assert found["size_bytes"] == sum(file.stat().st_size for file in tmp_path.rglob("*.parquet"))
    columns = {column["name"]: column for column in found["columns"]}
    title = columns["title"]
    assert (title["nulls"], title["distinct"], title["min_value"], title["max_value"]) == (10, 3, "Film 0", "Film 2")
    assert title["top_values"][0] == {"value": "Film 0", "rows": 30}
    assert [columns["rating"][name] for name in ("min_value", "max_value", "distinct")] == ["0.10", "10.00", 100]
    assert [columns[name]["distinct"] for name in ("told", "tags")] == [2, 1]
    [kept] = bench.sql("SELECT result FROM etl.etl_requests WHERE kind = 'profile'")
    assert kept["result"] == found


def test_a_run_looks_at_its_target_where_the_definition_asks_for_it(bench: Workbench) -> None:
    make(bench, options={"profile": True})
    bench.sql("INSERT INTO content.films (id) VALUES (101)")
    assert bench.run("films")["status"] == "SUCCESS"

    kept = bench.sql("SELECT * FROM etl.etl_requests WHERE kind = 'profile' ORDER BY created_at")

    assert [one["result"]["rows"] for one in kept] == [100, 101]
    assert kept[-1]["payload"] == {"run_id": str(bench.last_run("films")["id"])}
    asked, _ = profiled(bench)
    assert kept[-1]["result"] == asked
    row = pipelines.find(bench.metastore, "films")
    assert row
    latest = requests.find_latest(bench.metastore, row["id"], "profile")
    assert latest
    assert (latest["id"], latest["status"], latest["requested_by"]) == (kept[-1]["id"], "DONE", "run")
    assert latest["finished_at"] is not None


def test_runs_do_not_look_unless_asked_and_not_when_they_fail(bench: Workbench) -> None:
    make(bench)
    bench.pipeline(
        "wrong", "SELECT id, 1 / (id - 1) AS x FROM content.films", target_key=["id"], options={"profile": True}
    )
    assert bench.run("wrong")["status"] == "FAILED"

    assert bench.sql("SELECT 1 FROM etl.etl_requests WHERE kind = 'profile'") == []


@pytest.mark.parametrize(
    ("error", "told"),
    [(FatalError("too many columns"), "too many columns"), (OverflowError("x"), "internal error: OverflowError")],
)
def test_a_look_that_fails_does_not_fail_the_run(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(mart_profile, "profile", fail)
    make(bench, options={"profile": True})

    assert bench.last_run("films")["metrics"]["plan"]["warnings"] == [
        f"the target was not profiled after the run: {told}"
    ]


def test_viewers_see_numbers_and_no_values(bench: Workbench) -> None:
    make(bench)
    setup = Caller("setup", Role.ADMIN)
    headers = {
        role: {"Authorization": f"Bearer {tokens.create(bench.metastore, setup, name=f'a-{role}', role=role)[1]}"}
        for role in (Role.VIEWER, Role.OPERATOR)
    }
    url = "/api/v1/pipelines/films/profile"
    with serving(bench.settings, request_wait_seconds=0.0) as http:
        assert http.post(url, headers=headers[Role.VIEWER]).status_code == 403
        assert http.get(url, headers=headers[Role.VIEWER]).status_code == 404
        assert http.post(url, headers=headers[Role.OPERATOR]).status_code == 202
        _perform(bench)
        assert "Film 0" in http.get(url, headers=headers[Role.OPERATOR]).text
        seen = http.get(url, headers=headers[Role.VIEWER])
    _expect_numbers(seen)


def _expect_numbers(seen: httpx.Response) -> None:
    assert "Film 0" not in seen.text
    assert seen.json()["result"]["columns"][1]["nulls"] == 10
    assert seen.json()["result"]["columns"][1]["top_values"] == "(for operators)"


def _perform(bench: Workbench) -> None:
    runner = uuid4()
    request = requests.claim_next(bench.metastore, runner, 60)
    assert request
    result, error = runner_requests.perform(request, bench.metastore, bench.settings, _no_lease)
    assert requests.finish(bench.metastore, request["id"], runner, result=result, error=error)
