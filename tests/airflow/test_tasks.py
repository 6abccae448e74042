"""Tasks in a real Airflow, with a real triggerer, against a real Vitrina."""

from uuid import uuid4

import pytest

from tests.airflow.cinema import Cinema
from tests.airflow.station import PATIENCE, Station
from tests.support.waiting import until
from vitrina.status import RunStatus

pytestmark = pytest.mark.timeout(1800)

MANIFEST = """\
apiVersion: vitrina/v1
kind: Pipeline
metadata:
  name: {name}
  labels: {{team: content}}
spec:
  source_query: SELECT id FROM content.{source}_rows
  target_table: analytics.{name}
  target_key: [id]
"""


def fresh() -> str:
    return f"t_{uuid4().hex[:8]}"


def test_the_provider_is_discovered_with_its_connection_type_and_test_button(airflow: Station, vitrina: Cinema) -> None:
    assert "airflow-provider-vitrina" in airflow.command("providers", "list")
    forms = {form["connection_type"]: form for form in airflow.ui("/connections/hook_meta")}
    assert forms["vitrina"]["hook_name"] == "Vitrina"
    assert "console_url" in forms["vitrina"]["extra_fields"]
    assert "Connection success" in airflow.command("connections", "test", "vitrina_default")


def test_a_deferred_task_runs_its_pipeline_once_and_a_cleared_one_again(airflow: Station, vitrina: Cinema) -> None:
    pipeline, run = vitrina.pipeline(rows=250), fresh()
    with vitrina.blocked(pipeline):
        airflow.trigger("one", run, {"pipeline": pipeline})
        airflow.wait_for("one", run, "deferred")
    airflow.wait_for("one", run, "success")
    (done,) = vitrina.runs(pipeline)
    told = airflow.xcom("one", run)
    assert (told["run_id"], told["rows_written"], told["target"]) == (str(done.id), 250, f"analytics.{pipeline}")
    links = airflow.get(f"/dags/one/dagRuns/{run}/taskInstances/run/links")["extra_links"]
    assert links == {"Vitrina run": f"{vitrina.gate.url}/ui/runs/{done.id}"}
    events = airflow.get("/assets/events", source_run_id=run, source_dag_id="one")["asset_events"]
    # Airflow counts a task twice that it takes for lost while it ends.
    assert {event["uri"] for event in events} == {f"vitrina://target/analytics.{pipeline}"}
    assert events[0]["extra"]["rows_written"] == 250

    airflow.clear("one", run)
    until(lambda: len(vitrina.runs(pipeline)) == 2, seconds=PATIENCE)
    airflow.wait_for("one", run, "success")
    assert len(vitrina.runs(pipeline)) == 2


def test_a_deferred_task_that_is_marked_cancels_its_run_and_one_that_is_cleared_asks_again(
    airflow: Station, vitrina: Cinema
) -> None:
    marked, cleared, run = vitrina.pipeline(), vitrina.pipeline(), fresh()
    with vitrina.blocked(marked, cleared):
        for pipeline in (marked, cleared):
            airflow.trigger("one", f"{run}_{pipeline}", {"pipeline": pipeline})
        for pipeline in (marked, cleared):
            airflow.wait_for("one", f"{run}_{pipeline}", "deferred")
            until(lambda: [found.status for found in vitrina.runs(pipeline)] == [RunStatus.RUNNING], seconds=PATIENCE)  # noqa: B023
        airflow.patch(f"/dags/one/dagRuns/{run}_{marked}/taskInstances/run", {"new_state": "failed"})
        airflow.clear("one", f"{run}_{cleared}")
        until(lambda: [found.status for found in vitrina.runs(marked)] == [RunStatus.CANCELLED], seconds=PATIENCE)
    airflow.wait_for("one", f"{run}_{cleared}", "success")
    assert airflow.state("one", f"{run}_{marked}") == "failed"
    # The first one is cancelled, unless the second was asked for before the triggerer heard of it.
    second, first = vitrina.runs(cleared)
    assert (second.status, first.status in (RunStatus.CANCELLED, RunStatus.SUCCESS)) == (RunStatus.SUCCESS, True)


def test_after_a_run_that_failed_the_retry_asks_for_another(airflow: Station, vitrina: Cinema) -> None:
    pipeline, run = vitrina.pipeline(source_query="SELECT id / 0 AS id FROM content.film_work_that_is_missing"), fresh()
    airflow.trigger("once_more", run, {"pipeline": pipeline})
    airflow.wait_for("once_more", run, "failed")
    tries = airflow.tasks("once_more", run)[0]["try_number"]
    assert len(vitrina.runs(pipeline)) == tries == 2
    assert "film_work_that_is_missing" in airflow.task_log("once_more", run)


def test_a_paused_pipeline_is_waited_for_and_not_resumed(airflow: Station, vitrina: Cinema) -> None:
    pipeline, run = vitrina.pipeline(), fresh()
    vitrina.client.pause(pipeline)
    until(lambda: vitrina.client.status(pipeline).status == "PAUSED", seconds=PATIENCE)
    airflow.trigger("one", run, {"pipeline": pipeline})
    airflow.wait_for("one", run, "deferred")
    assert vitrina.runs(pipeline) == []
    assert vitrina.client.status(pipeline).status == "PAUSED"
    vitrina.client.resume(pipeline)
    airflow.wait_for("one", run, "success")
    assert airflow.xcom("one", run)["run_id"] in [str(found.id) for found in vitrina.runs(pipeline)]


def test_execution_timeout_leaves_no_run_behind(airflow: Station, vitrina: Cinema) -> None:
    deferred, working, run = vitrina.pipeline(), vitrina.pipeline(), fresh()
    with vitrina.blocked(deferred, working):
        airflow.trigger("hasty", run, {"pipeline": deferred, "other": working})
        airflow.wait_for("hasty", run, "failed", task="run")
        airflow.wait_for("hasty", run, "failed", task="run_in_a_worker")
        for pipeline in (deferred, working):
            assert vitrina.client.status(pipeline).status == "IDLE"
            assert {found.status for found in vitrina.runs(pipeline)} <= {RunStatus.CANCELLED}


def test_the_example_dags_run(airflow: Station, vitrina: Cinema) -> None:
    vitrina.pipeline(name="film_dim_full", target_table="analytics.film_dim")
    vitrina.pipeline(name="user_activity")
    vitrina.pipeline(name="films_index")
    labelled = [f"labelled_{number}" for number in range(3)]
    vitrina.client.apply("---\n".join(MANIFEST.format(name=name, source="films_index") for name in labelled))
    run = fresh()
    airflow.trigger("vitrina_marts_then_search", run)
    airflow.trigger("vitrina_by_label", run)
    airflow.wait_for("vitrina_marts_then_search", run, "success", task="compare_films")
    until(lambda: [len(vitrina.runs(name)) for name in labelled] == [1, 1, 1], seconds=PATIENCE)
    until(lambda: airflow.get(f"/dags/vitrina_by_label/dagRuns/{run}")["state"] == "success", seconds=PATIENCE)

    def waiting() -> list[str]:
        return [found["dag_run_id"] for found in airflow.get("/dags/vitrina_on_new_films/dagRuns")["dag_runs"]]

    # The asset of the films has begun it; it waits for a run of user_activity from then on.
    until(lambda: bool(waiting()), seconds=PATIENCE)
    vitrina.client.run("user_activity")
    airflow.wait_for("vitrina_on_new_films", waiting()[0], "success", task="views_are_in")
