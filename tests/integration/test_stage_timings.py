"""Where the time of a run went: each way that rows take names its stages, in the run's metrics and for Prometheus."""

import threading
from typing import Any

import pytest

from tests.support.workbench import NO_HEARTBEAT_SECONDS, Workbench
from vitrina.loads.control import RunControl
from vitrina.observe.prometheus import Instruments
from vitrina.observe.run_meter import STAGES
from vitrina.runner.dispatcher import PipelineDispatcher

FILMS = """
CREATE TABLE content.films (id int PRIMARY KEY, title text, modified timestamptz NOT NULL DEFAULT clock_timestamp());
INSERT INTO content.films (id, title) SELECT n, 'film ' || n FROM generate_series(1, 1000) n;
"""
QUERY = "SELECT id, title, modified FROM content.films"
INCREMENTAL = {"mode": "incremental", "incremental_key": "modified", "incremental_id_key": "id"}
SELECT = {"order_index": 1, "task_type": "PYTHON", "body": "select_columns", "params": {"columns": ["id", "title"]}}


@pytest.mark.parametrize(
    ("fields", "stages"),
    [
        pytest.param({}, {"read", "publish"}, id="inside the database"),
        pytest.param({"options": {"route": "arrow"}}, {"read", "stage", "merge", "publish"}, id="through Arrow"),
        pytest.param(
            {"tasks": [{"order_index": 0, "task_type": "SQL", "body": QUERY}, SELECT]},
            {"read", "transform", "stage", "merge", "publish"},
            id="through steps",
        ),
        pytest.param({**INCREMENTAL, "batch_size": 300}, {"read", "stage", "merge"}, id="in batches"),
    ],
)
def test_stages_of_runs_into_tables(workbench: Workbench, fields: dict[str, Any], stages: set[str]) -> None:
    workbench.source(FILMS)
    workbench.pipeline("films", QUERY, **{"target_key": ["id"], **fields})
    if fields.get("mode") == "incremental":
        workbench.run("films")  # the first pass loads an empty mart at once
        workbench.sql("UPDATE content.films SET title = title || '!', modified = clock_timestamp()")
    instruments = Instruments()
    workbench.request("films")
    claim = workbench.claim()
    PipelineDispatcher(workbench.settings, instruments).work(claim, RunControl(NO_HEARTBEAT_SECONDS, threading.Event()))

    told = workbench.last_run("films")["metrics"]["stage_seconds"]
    assert told.keys() == stages | {"plan", "wait"}
    assert min(told.values()) > 0
    for stage in STAGES:
        counted = instruments.registry.get_sample_value(
            "vitrina_stage_seconds_total", {"pipeline": "films", "stage": stage}
        )
        assert counted == pytest.approx(told.get(stage, 0), abs=1e-5), stage
