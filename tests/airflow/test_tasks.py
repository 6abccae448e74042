"""Tasks in a real Airflow, with a real triggerer, against a real Vitrina."""

from collections.abc import Iterator
from typing import NamedTuple
from uuid import uuid4

import pytest

from tests.airflow.cinema import PATIENCE, Cinema, connection_of
from tests.airflow.station import Station
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


class Hasty(NamedTuple):
    """A DAG run whose tasks run out of time, one in the triggerer and one in a worker."""

    run: str
    deferred: str
    working: str


@pytest.fixture(scope="module", autouse=True)
def hasty(airflow: Station, vitrina: Cinema) -> Iterator[Hasty]:
    """Begun first, because their time is long; their runs never get on."""
    begun = Hasty(fresh(), vitrina.pipeline(), vitrina.pipeline())
    with vitrina.blocked(begun.deferred, begun.working):
        airflow.trigger("hasty", begun.run, {"pipeline": begun.deferred, "other": begun.working})
        yield begun


def test_the_provider_is_discovered_with_its_connection_type_and_test_button(airflow: Station, vitrina: Cinema) -> None:
    assert "airflow-provider-vitrina" in {found["package_name"] for found in airflow.get("/providers")["providers"]}
    name, fields = airflow.form_of("vitrina")
    assert (name, "console_url" in fields) == ("Vitrina", True)
    told = airflow.post("/connections/test", {"connection_id": "typed_in", **connection_of(vitrina)})
    assert (told["status"], "role admin" in told["message"]) == (True, True), told


def test_a_deferred_task_runs_its_pipeline_once_and_a_cleared_one_again(airflow: Station, vitrina: Cinema) -> None:
    pipeline, run = vitrina.pipeline(rows=250), fresh()
    with vitrina.blocked(pipeline):
        airflow.trigger("one", run, {"pipeline": pipeline})
        airflow.wait_for("one", run, "deferred")
    airflow.wait_for("one", run, "success")
    (done,) = vitrina.runs(pipeline)
    told = airflow.xcom("one", run)
    assert (told["run_id"], told["rows_written"], told["target"]) == (str(done.id), 250, f"analytics.{pipeline}")
    assert airflow.links("one", run) == {"Vitrina run": f"{vitrina.gate.url}/ui/runs/{done.id}"}
    # Airflow counts a task twice that it takes for lost while it ends.
    (uri, extra), *_ = airflow.events("one", run)
    assert (uri, extra["rows_written"]) == (f"vitrina://target/analytics.{pipeline}", 250)

    airflow.wait_for_end("one", run)  # a scheduler that is about to end the run would forget that it was cleared
    airflow.clear("one", run)
    until(lambda: len(vitrina.runs(pipeline)) == 2, seconds=PATIENCE)
    airflow.wait_for("one", run, "success")
    assert len(vitrina.runs(pipeline)) == 2


def test_a_deferred_task_that_is_marked_cancels_its_run_and_one_that_is_cleared_asks_again(
    airflow: Station, vitrina: Cinema
) -> None:
    marked, cleared, run = vitrina.pipeline(), vitrina.pipeline(), fresh()
    looks = [vitrina.holds.triggerer_looks_at(pipeline) for pipeline in (marked, cleared)]
    with vitrina.blocked(marked, cleared):
        for pipeline in (marked, cleared):
            airflow.trigger("one", f"{run}_{pipeline}", {"pipeline": pipeline})
        for pipeline, look in zip((marked, cleared), looks, strict=True):
            look.wait()
            look.let_go()
            until(lambda: [found.status for found in vitrina.runs(pipeline)] == [RunStatus.RUNNING], seconds=PATIENCE)  # noqa: B023
        airflow.mark_failed("one", f"{run}_{marked}")
        airflow.clear("one", f"{run}_{cleared}")
        until(lambda: [found.status for found in vitrina.runs(marked)] == [RunStatus.CANCELLED], seconds=PATIENCE)
    airflow.wait_for("one", f"{run}_{cleared}", "success")
    assert airflow.state("one", f"{run}_{marked}") == "failed"
    assert vitrina.asked(cleared) == 2
    # The first one is cancelled, unless the second was asked for before the triggerer heard of it.
    *later, first = vitrina.runs(cleared)
    assert first.status in (RunStatus.CANCELLED, RunStatus.SUCCESS)
    # What was cancelled may be continued before the answer is read.
    assert {found.status for found in later} == {RunStatus.SUCCESS}


def test_after_a_run_that_failed_the_retry_asks_for_another(airflow: Station, vitrina: Cinema) -> None:
    pipeline, run = vitrina.pipeline(source_query="SELECT id / 0 AS id FROM content.film_work_that_is_missing"), fresh()
    airflow.trigger("once_more", run, {"pipeline": pipeline})
    airflow.wait_for("once_more", run, "failed")
    assert len(vitrina.runs(pipeline)) == airflow.tries("once_more", run) == 2
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


def test_execution_timeout_leaves_no_run_behind(airflow: Station, vitrina: Cinema, hasty: Hasty) -> None:
    airflow.wait_for("hasty", hasty.run, "failed", task="run")
    airflow.wait_for("hasty", hasty.run, "failed", task="run_in_a_worker")
    for pipeline in (hasty.deferred, hasty.working):
        until(lambda: vitrina.client.status(pipeline).status == "IDLE", seconds=PATIENCE)  # noqa: B023
        assert {found.status for found in vitrina.runs(pipeline)} <= {RunStatus.CANCELLED}
