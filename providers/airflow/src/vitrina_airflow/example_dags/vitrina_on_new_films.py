"""Start when another DAG has updated the films, and wait for a pipeline with its own schedule."""

from datetime import UTC, datetime

try:
    from airflow.sdk import DAG
except ImportError:  # Airflow 2.11
    from airflow import DAG

from vitrina_airflow.assets import target_asset
from vitrina_airflow.sensors import VitrinaRunSensor

with DAG(
    "vitrina_on_new_films",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    schedule=[target_asset("analytics.film_dim")],
    catchup=False,
    tags=["vitrina"],
):
    VitrinaRunSensor(task_id="views_are_in", pipeline="user_activity", poke_interval=10, timeout=3600)
