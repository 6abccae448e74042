"""Run one task for each pipeline with a label. A pipeline that gets the label is included from the next DAG run."""

from datetime import UTC, datetime, timedelta

try:
    from airflow.sdk import DAG, task
except ImportError:  # Airflow 2.11
    from airflow import DAG
    from airflow.decorators import task

from vitrina_airflow.assets import TARGETS
from vitrina_airflow.hooks import VitrinaHook
from vitrina_airflow.operators import VitrinaRunPipelineOperator

with DAG(
    "vitrina_by_label",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    schedule=None,
    catchup=False,
    tags=["vitrina"],
    default_args={"retries": 3, "retry_delay": timedelta(seconds=30)},
):

    @task
    def pipelines_of(label: str, value: str) -> list[str]:
        return [found["name"] for found in VitrinaHook().list_pipelines(labels={label: value})]

    VitrinaRunPipelineOperator.partial(
        task_id="run", outlets=[TARGETS], max_active_tis_per_dagrun=8, map_index_template="{{ task.pipeline }}"
    ).expand(pipeline=pipelines_of("team", "content"))
