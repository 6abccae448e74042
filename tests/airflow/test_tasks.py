"""Tasks in a real Airflow, with a real triggerer, against a real Vitrina."""

from uuid import uuid4

import pytest

from tests.airflow.cinema import Cinema
from tests.airflow.station import Station

pytestmark = pytest.mark.timeout(600)


def name() -> str:
    return f"t_{uuid4().hex[:8]}"


def test_the_provider_is_discovered_with_its_connection_type(airflow: Station) -> None:
    assert "airflow-provider-vitrina" in airflow.command("providers", "list")
    form = airflow.get("/connections/hook_meta".replace("/connections", "/../../ui/connections"))
    assert form


def test_a_deferred_task_runs_its_pipeline_once(airflow: Station, vitrina: Cinema) -> None:
    pipeline, run = vitrina.pipeline(rows=250), name()
    with vitrina.blocked(pipeline):
        airflow.trigger("one", run, {"pipeline": pipeline})
        airflow.wait_for("one", run, "deferred")
    airflow.wait_for("one", run, "success")
    (done,) = vitrina.runs(pipeline)
    told = airflow.xcom("one", run)
    assert (told["run_id"], told["rows_written"], told["target"]) == (str(done.id), 250, f"analytics.{pipeline}")
    assert airflow.xcom("one", run, "vitrina_run_url") == f"{vitrina.gate.url}/ui/runs/{done.id}"
    (event,) = airflow.get("/assets/events", source_run_id=run, source_dag_id="one")["asset_events"]
    assert event["uri"] == f"vitrina://target/analytics.{pipeline}"
    assert event["extra"]["rows_written"] == 250
