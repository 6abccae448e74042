"""Measure the CPU of a real triggerer with a thousand deferred tasks: `python -m bench.airflow_deferred`.

Run `make test-airflow` first. A real Airflow and a real API; each task waits for its own pipeline, which waits for a
runner that never comes. The tasks get into the triggerer without a worker each, as if their workers had just put them
there.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psycopg

from bench.report import write_figures
from bench.servers import cpu_seconds, prepared
from tests.airflow.station import AIRFLOW, Station, descendants, station
from tests.integration.api import serving, without_auth
from tests.support.waiting import until
from vitrina.observe import logs
from vitrina.settings import Settings
from vitrina.store import database

# In a pool without slots, so that no worker starts them.
DAG = """
import json
from airflow.sdk import DAG
from vitrina_airflow.operators import VitrinaRunPipelineOperator

with DAG("wave", schedule=None):
    VitrinaRunPipelineOperator.partial(task_id="run", pool="closed").expand(pipeline=json.loads('{pipelines}'))
"""
DEFINE = """
INSERT INTO etl.etl_pipelines (name, source_query, target_table, target_key, status, run_requested_at)
SELECT 'p' || i, 'SELECT 1 AS id', 'analytics.t' || i, '{id}', 'RUN_REQUESTED', clock_timestamp()
FROM generate_series(1, %s) AS i RETURNING name, run_requested_at
"""
# Runs in Airflow's own environment: what its API server does when a worker defers a task.
DEFER = """
import json, sys
from airflow.models.taskinstance import TaskInstance
from airflow.models.trigger import Trigger
from airflow.utils.session import create_session
from airflow.utils.timezone import utcnow
from sqlalchemy import select
from vitrina_airflow.triggers import VitrinaRunTrigger

asked = json.load(sys.stdin)
with create_session() as session:
    tasks = session.scalars(select(TaskInstance).where(TaskInstance.dag_id == "wave")).all()
    for task, (pipeline, moment) in zip(tasks, asked, strict=True):
        watch = VitrinaRunTrigger(conn_id="vitrina_default", poll_seconds=10.0, pipeline=pipeline, requested_at=moment)
        row = Trigger.from_object(watch)
        session.add(row)
        session.flush()
        task.state, task.trigger_id, task.next_method = "deferred", row.id, "execute_complete"
        task.start_date, task.try_number = utcnow(), 1
"""


TAKEN_UP = "SELECT count(*) FROM trigger WHERE triggerer_id IS NOT NULL"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--tasks", type=int, default=1000)
    arguments.add_argument("--seconds", type=float, default=45)
    wanted = arguments.parse_args()
    with prepared() as (settings, directory):
        figures = measure(settings, directory, wanted.tasks, wanted.seconds)
    write_figures(
        "airflow_deferred",
        "A triggerer with a thousand deferred tasks",
        "`python -m bench.airflow_deferred`: a real triggerer and its supervisor; each task has a pipeline.",
        figures,
    )
    sys.exit(max(figures["triggerer_cores_while_taking_them_up"], figures["triggerer_cores_at_rest"]) >= 1)


def measure(settings: Settings, directory: Path, tasks: int, seconds: float) -> dict[str, float]:
    """Return the cores used while the triggerer starts all of them, and in as much time after that."""
    with database.connect(settings.require_database_url(), "bench") as metastore:
        asked = [(row["name"], row["run_requested_at"].isoformat()) for row in metastore.execute(DEFINE, [tasks])]
    assert settings.admin_url
    owner = settings.admin_url.get_secret_value()
    with psycopg.connect(owner, autocommit=True) as admin:
        admin.execute("CREATE DATABASE airflow")
    own = owner.rpartition("/")[0] + "/airflow"
    quiet = without_auth(settings, log_level="error")
    logs.configure(quiet)
    with (
        serving(quiet) as api,
        station(directory, own) as airflow,
        psycopg.connect(own, autocommit=True) as its,
    ):
        pipelines = json.dumps([name for name, _ in asked])
        (airflow.dags / "wave.py").write_text(DAG.format(pipelines=pipelines))
        airflow.open({"conn_type": "vitrina", "host": str(api.base_url)})
        defer(airflow, its, asked)
        taking_up = cores(airflow, seconds)
        until(lambda: count(its, TAKEN_UP) == tasks, seconds=600)
        at_rest = cores(airflow, seconds)
        assert count(its, TAKEN_UP) == tasks
    return {
        "tasks": tasks,
        "seconds": seconds,
        "triggerer_cores_while_taking_them_up": taking_up,
        "triggerer_cores_at_rest": at_rest,
    }


def defer(airflow: Station, its: psycopg.Connection, asked: Sequence[tuple[str, str]]) -> None:
    airflow.wait_for_dags("wave")
    airflow.post("/pools", {"name": "closed", "slots": 0})
    airflow.trigger("wave", "all")
    until(lambda: count(its, "SELECT count(*) FROM task_instance WHERE dag_id = 'wave'") == len(asked), seconds=600)
    subprocess.run(
        [AIRFLOW.with_name("python"), "-c", DEFER],
        input=json.dumps(asked),
        env=airflow.environment,
        cwd=airflow.home,
        text=True,
        check=True,
        stdout=subprocess.DEVNULL,
    )


def count(connection: psycopg.Connection, query: str) -> int:
    row = connection.execute(query.encode()).fetchone()
    return int(row[0]) if row else 0


def cores(airflow: Station, seconds: float) -> float:
    """Return the cores that the triggerer and its processes use."""
    processes = [airflow.processes["triggerer"].pid]
    processes += descendants(processes[0])
    before, began = sum(map(cpu_seconds, processes)), time.monotonic()
    time.sleep(seconds)
    return round((sum(map(cpu_seconds, processes)) - before) / (time.monotonic() - began), 3)


if __name__ == "__main__":
    main()
