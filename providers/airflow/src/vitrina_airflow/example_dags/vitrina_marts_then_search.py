"""Run marts first, then the search indexes that are filled from them, then compare with the source."""

from datetime import UTC, datetime, timedelta

try:
    from airflow.sdk import DAG
except ImportError:  # Airflow 2.11
    from airflow import DAG

from vitrina_airflow.operators import VitrinaReconcileOperator, VitrinaRunPipelineOperator

with DAG(
    "vitrina_marts_then_search",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    schedule=None,
    catchup=False,
    tags=["vitrina"],
    default_args={"retries": 3, "retry_delay": timedelta(seconds=30), "execution_timeout": timedelta(hours=1)},
):
    marts = [
        VitrinaRunPipelineOperator(task_id=f"mart_{name}", pipeline=name) for name in ("film_dim_full", "user_activity")
    ]
    index = VitrinaRunPipelineOperator(task_id="index_films", pipeline="films_index")
    compared = VitrinaReconcileOperator(task_id="compare_films", pipeline="film_dim_full", level="quick")

    marts >> index >> compared
