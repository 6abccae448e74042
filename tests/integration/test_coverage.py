"""A runner takes up only what it has the connectors and steps for; what none covers waits, and says for what."""

from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from psycopg.types.json import Jsonb

from tests.integration.api import create
from tests.support.workbench import Workbench
from vitrina.ports import registry
from vitrina.runner.manager import PipelineManager
from vitrina.store import coverage, leases, requests, runners
from vitrina.store.database import Connection

OWN = coverage.covered(registry.installed().connectors.values(), [{"name": "title_case"}])


def alive(metastore: Connection, covers: list[str]) -> UUID:
    runner = uuid4()
    about: dict[str, Any] = {"host": "here", "pid": 1, "version": "1", "capacity": 1, "running": 0, "transforms": []}
    runners.heartbeat(metastore, runner, **about, covers=covers)
    return runner


def requested(bench: Workbench, name: str, **row: Any) -> UUID:
    """A pipeline that asks for a run; `row` is written as with psql, so that no connector has to be installed."""
    pipeline = bench.pipeline(name, "SELECT 1 AS id", target_key=["id"])
    for column, value in row.items():
        bench.metastore.execute(
            f"UPDATE etl.etl_pipelines SET {column} = %s WHERE id = %s",
            [Jsonb(value) if isinstance(value, dict) else value, pipeline],
        )
    bench.request(name)
    return pipeline


def claimed(bench: Workbench, covers: list[str]) -> str | None:
    claim = leases.claim_next(bench.metastore, uuid4(), 30, covers=covers)
    return claim.name if claim else None


def test_a_runner_leaves_what_it_cannot_do_to_others(workbench: Workbench) -> None:
    requested(workbench, "into_a_lake", target_table="lake:films")
    requested(workbench, "from_a_lake", source_type="lake")
    requested(workbench, "plain")

    assert claimed(workbench, OWN) == "plain"
    assert claimed(workbench, OWN) is None
    assert claimed(workbench, [*OWN, "target:lake"]) == "into_a_lake"
    assert claimed(workbench, [*OWN, "target:lake"]) is None
    assert claimed(workbench, [*OWN, "source:lake"]) == "from_a_lake"


def test_a_step_is_a_reason_too(workbench: Workbench) -> None:
    requested(workbench, "with_step", type="PYTHON", python_task="title_case")
    requested(workbench, "with_other", type="PYTHON", python_task="shout")
    assert claimed(workbench, OWN) == "with_step"
    assert claimed(workbench, OWN) is None
    assert claimed(workbench, [*OWN, "step:shout"]) == "with_other"


def test_a_python_source_needs_the_connector_of_python_sources(workbench: Workbench) -> None:
    requested(workbench, "made", type="PYTHON", python_task="title_case", source_query=None)
    assert claimed(workbench, [need for need in OWN if need != "source:python"]) is None
    assert claimed(workbench, OWN) == "made"


def test_steps_after_a_python_source_are_needed_with_it(workbench: Workbench) -> None:
    pipeline = requested(workbench, "made", type="PYTHON", python_task="shop", source_query=None)
    workbench.sql(
        f"""INSERT INTO etl.etl_pipeline_tasks (pipeline_id, order_index, task_type, body)
            VALUES ('{pipeline}', 0, 'PYTHON', 'title_case')"""
    )
    assert claimed(workbench, OWN) is None
    assert claimed(workbench, [*OWN, "step:shop"]) == "made"


def test_the_last_steps_target_counts(workbench: Workbench) -> None:
    pipeline = requested(workbench, "films")
    workbench.sql(
        f"""INSERT INTO etl.etl_pipeline_tasks (pipeline_id, order_index, task_type, body, target_table)
            VALUES ('{pipeline}', 0, 'SQL', 'SELECT 1 AS id', NULL),
                   ('{pipeline}', 1, 'PYTHON', 'title_case', 'lake:films')"""
    )
    assert claimed(workbench, OWN) is None
    assert claimed(workbench, [*OWN, "target:lake"]) == "films"


@pytest.mark.parametrize("target", ["No Such:films", "lake films", ":films"])
def test_what_can_be_no_connectors_name_is_taken_up_to_fail(workbench: Workbench, target: str) -> None:
    """Nobody could ever cover it: its run says what is wrong."""
    requested(workbench, "broken", target_table=target)
    assert claimed(workbench, OWN) == "broken"


def test_who_has_two_halves_does_not_have_the_whole(workbench: Workbench) -> None:
    waiting = requested(workbench, "films", source_type="lake", target_table="delta:films")
    alive(workbench.metastore, [*OWN, "source:lake"])
    alive(workbench.metastore, [*OWN, "target:delta"])
    found = coverage.list_waiting(workbench.metastore, stale_after_seconds=30)
    assert found == {waiting: ["source:lake", "target:delta"]}


def test_a_request_about_a_pipeline_waits_for_its_connectors_only(workbench: Workbench) -> None:
    pipeline = requested(workbench, "films", target_table="lake:films", type="PYTHON", python_task="shout")
    request = requests.insert(workbench.metastore, "preview", pipeline, {}, "ada")
    assert requests.claim_next(workbench.metastore, uuid4(), 30, covers=OWN) is None
    found = requests.claim_next(workbench.metastore, uuid4(), 30, covers=[*OWN, "target:lake"])
    assert found is not None
    assert found["id"] == request


def test_a_runner_says_what_it_has(workbench: Workbench) -> None:
    manager = PipelineManager(workbench.settings)
    with manager._wakeup_recv, manager._wakeup_send:
        manager._check_start()
    (row,) = runners.list_all(workbench.metastore, stale_after_seconds=30)
    assert {"source:postgres", "source:python", "target:", "target:es", "step:rename_columns"} <= set(row["covers"])
    assert {found["name"] for found in row["connectors"]} >= {"postgres", "python", "search"}


# --- as people see it ---------------------------------------------------------------------------------------------


def test_status_list_and_overview_say_what_is_waited_for(api: httpx.Client, api_metastore: Connection) -> None:
    created = create(api)
    create(api, name="plain")
    api_metastore.execute("UPDATE etl.etl_pipelines SET target_table = 'lake:films' WHERE id = %s", [created["id"]])
    for name in ("films", "plain"):
        assert api.post(f"/api/v1/pipelines/{name}/run").status_code == 202

    def said() -> str | None:
        listed = {row["name"]: row["waiting"] for row in api.get("/api/v1/pipelines").json()["items"]}
        shown = {row["name"]: row["waiting"] for row in api.get("/api/v1/overview").json()["items"]}
        assert listed == shown
        assert listed["plain"] is None
        assert api.get("/api/v1/pipelines/plain/status").json()["waiting"] is None
        assert api.get("/api/v1/pipelines/films/status").json()["waiting"] == listed["films"]
        waiting: str | None = listed["films"]
        return waiting

    assert said() is None  # no runner at all is another matter
    alive(api_metastore, OWN)
    assert said() == "waits for a runner with connector lake"
    runner = alive(api_metastore, [*OWN, "target:lake"])
    assert said() is None
    api_metastore.execute("UPDATE etl.etl_runners SET heartbeat_at = 'epoch' WHERE id = %s", [runner])
    assert said() == "waits for a runner with connector lake"


def test_the_api_lists_connectors_with_the_runners_that_have_them(api: httpx.Client, api_metastore: Connection) -> None:
    def listed() -> dict[str, Any]:
        return {found["name"]: found for found in api.get("/api/v1/connectors").json()["items"]}

    found = listed()
    assert found["search"]["prefix"] == "es"
    assert (found["postgres"]["source"], found["postgres"]["target"], found["postgres"]["runners"]) == (True, True, 0)
    about: dict[str, Any] = {"host": "here", "pid": 1, "version": "1", "capacity": 1, "running": 0, "transforms": []}
    lake = {"name": "lake", "schemes": ["lake"], "prefix": "lake", "target": True, "options": {"type": "object"}}
    runners.heartbeat(api_metastore, uuid4(), **about, connectors=[lake])
    # One that only a runner has is shown as well.
    assert listed()["lake"] | {"runners": 1, "options": {"type": "object"}} == listed()["lake"]
