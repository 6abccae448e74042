"""DAGs for the tests; the pipeline to run is in the configuration of the DAG run."""

from datetime import timedelta

try:
    from airflow.sdk import DAG
except ImportError:  # Airflow 2
    from airflow import DAG

from vitrina_airflow.operators import VitrinaRunPipelineOperator

# On a machine that is busy the API takes longer to come back than a worker asks for it.
QUICK = {"retries": 50, "retry_delay": timedelta(0)}

with DAG("one", schedule=None, default_args=QUICK):
    VitrinaRunPipelineOperator(task_id="run", pipeline="{{ dag_run.conf['pipeline'] }}", poll_seconds=0.5)

with DAG("once_more", schedule=None, default_args=QUICK | {"retries": 1}):
    VitrinaRunPipelineOperator(task_id="run", pipeline="{{ dag_run.conf['pipeline'] }}", poll_seconds=0.5)

# More than a worker needs to begin; its run never ends.
with DAG("hasty", schedule=None, default_args={"retries": 0, "execution_timeout": timedelta(seconds=45)}):
    VitrinaRunPipelineOperator(task_id="run", pipeline="{{ dag_run.conf['pipeline'] }}", poll_seconds=0.5)
    VitrinaRunPipelineOperator(
        task_id="run_in_a_worker", pipeline="{{ dag_run.conf['other'] }}", poll_seconds=0.5, deferrable=False
    )
