"""How fast a pipeline's rows were read before: what the plan goes by when it decides on the size of its chunks."""

from typing import Any

import pytest

from tests.support.workbench import Workbench
from vitrina.runner import requests
from vitrina.store import pipelines, runs

LARGE = runs.LARGE_ROWS


@pytest.fixture
def pipeline(workbench: Workbench) -> Any:
    workbench.source("CREATE TABLE content.films (id int PRIMARY KEY)")
    workbench.pipeline("films", "SELECT id FROM content.films", target_key=["id"])
    row = pipelines.find(workbench.metastore, "films")
    assert row is not None
    return row["id"]


def record(
    bench: Workbench,
    pipeline: Any,
    rows: int,
    seconds: float,
    *,
    hour: int,
    status: str = "SUCCESS",
    paging: str = "ordered stream",
) -> None:
    bench.metastore.execute(
        """
        INSERT INTO etl.etl_runs (pipeline_id, pipeline_version, status, trigger, rows_read, metrics,
                                  started_at, finished_at)
        SELECT %(id)s, 1, %(status)s, 'manual', %(rows)s, jsonb_build_object('paging', %(paging)s::text), s.at,
               s.at + make_interval(secs => %(seconds)s)
        FROM (SELECT timestamptz '2026-01-01' + make_interval(hours => %(hour)s) AS at) AS s
        """,
        {"id": pipeline, "status": status, "rows": rows, "seconds": seconds, "hour": hour, "paging": paging},
    )


def test_without_a_large_run_there_is_no_rate(workbench: Workbench, pipeline: Any) -> None:
    assert runs.find_rate(workbench.metastore, pipeline) is None
    record(workbench, pipeline, LARGE - 1, 10, hour=1)
    assert runs.find_rate(workbench.metastore, pipeline) is None


def test_the_rate_is_that_of_the_last_large_run_that_succeeded(workbench: Workbench, pipeline: Any) -> None:
    record(workbench, pipeline, LARGE, 10, hour=2)
    record(workbench, pipeline, 2 * LARGE, 10, hour=1)
    record(workbench, pipeline, 5 * LARGE, 10, hour=3, status="FAILED")
    record(workbench, pipeline, 100, 10, hour=4)
    assert runs.find_rate(workbench.metastore, pipeline) == pytest.approx(LARGE / 10)


def test_the_rate_is_not_that_of_several_processes(workbench: Workbench, pipeline: Any) -> None:
    """A plan compares the time of one stream with it, so a faster run in ranges would make the next one stream."""
    record(workbench, pipeline, LARGE, 10, hour=1)
    record(workbench, pipeline, LARGE, 1, hour=2, paging="key ranges")
    assert runs.find_rate(workbench.metastore, pipeline) == pytest.approx(LARGE / 10)


def test_a_run_that_took_no_time_has_a_rate(workbench: Workbench, pipeline: Any) -> None:
    record(workbench, pipeline, LARGE, 0, hour=1)
    assert runs.find_rate(workbench.metastore, pipeline) == pytest.approx(LARGE * 1000)


def test_a_slow_pipeline_is_loaded_in_smaller_chunks(workbench: Workbench, pipeline: Any) -> None:
    """Of 300,000 rows, at a thousand a second: a minute is 60,000, so it is not one statement any more."""
    workbench.sql("INSERT INTO content.films SELECT generate_series(1, 300000); ANALYZE content.films")
    plan = requests.validate({"pipeline_id": pipeline, "payload": {}}, workbench.metastore, workbench.settings)["plan"]
    assert any(reason.startswith("one batch, because about 3") for reason in plan["reasons"])

    record(workbench, pipeline, LARGE, LARGE / 1000, hour=1)

    plan = requests.validate({"pipeline_id": pipeline, "payload": {}}, workbench.metastore, workbench.settings)["plan"]
    assert any("chunks of 10000 rows, each with a checkpoint" in reason for reason in plan["reasons"]), plan["reasons"]
