"""Unfinished generations that no run comes back to: housekeeping removes them, and nothing that anybody sees."""

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from pydantic import SecretStr

from tests.search.test_generations import FIRST, MAPPING, PIPELINE, StoppedBeforeActing, fill, publish
from tests.search.test_interrupted_loads import interrupt
from tests.search.test_run_faults import bench, make, violations
from tests.support.workbench import Workbench
from vitrina.connectors.search import abandoned
from vitrina.connectors.search.client import SearchClient
from vitrina.connectors.search.generations import Generations
from vitrina.runner import housekeeping
from vitrina.store import pipelines, state

__all__ = ["bench"]

pytestmark = pytest.mark.two_servers


def noted(bench: Workbench) -> list[dict[str, Any]]:
    return bench.sql("SELECT generation FROM etl.etl_left_generations")


def pause(bench: Workbench) -> None:
    """The load that was interrupted is at rest, and its checkpoint names the generation."""
    bench.recover()
    bench.sql("UPDATE etl.etl_pipelines SET status = 'PAUSED'")


def pipeline_id(bench: Workbench) -> UUID:
    row = pipelines.find(bench.metastore, "films")
    assert row
    found: UUID = row["id"]
    return found


def becomes_a_mart(bench: Workbench) -> None:
    bench.change("films", target_table="analytics.films")
    assert bench.run("films")["status"] == "SUCCESS"


def is_deleted(bench: Workbench) -> None:
    assert pipelines.delete(bench.metastore, pipeline_id(bench))


@pytest.mark.parametrize("leave", [becomes_a_mart, is_deleted])
def test_what_a_pipeline_leaves_that_fills_the_index_no_longer_is_removed(
    bench: Workbench, client: SearchClient, index: str, leave: Callable[[Workbench], None]
) -> None:
    bench.settings = bench.settings.model_copy(update={"allowed_targets": "analytics.*,es:vitrina-test-*"})
    make(bench, index, "full")
    bench.run("films")
    shown = Generations(client, index).standing()
    interrupt(bench)
    pause(bench)
    assert len(client.list_indexes(f"{index}-*")) == 2

    leave(bench)
    housekeeping.tidy_up(bench.settings)

    assert set(client.list_indexes(f"{index}-*")) == {shown.concrete}
    assert Generations(client, index).standing() == shown
    assert noted(bench) == []


@pytest.mark.one_server
def test_a_load_that_is_paused_or_at_work_keeps_its_generation(
    bench: Workbench, client: SearchClient, index: str
) -> None:
    make(bench, index, "full")
    interrupt(bench)
    # It lost its place in the checkpoint while a runner still holds the pipeline.
    bench.sql("UPDATE etl.etl_state SET stage = stage || '-other'")
    bench.sql("UPDATE etl.etl_state SET stage = regexp_replace(stage, '-other$', '')")
    housekeeping.tidy_up(bench.settings)
    pause(bench)
    housekeeping.tidy_up(bench.settings)

    bench.sql("UPDATE etl.etl_pipelines SET status = 'RUN_REQUESTED'")
    bench.perform(bench.claim())

    run = bench.last_run("films")
    assert (run["status"], run["metrics"].get("started_over")) == ("SUCCESS", None)
    assert run["rows_read"] < 300, "it went on"
    assert violations(bench, client, index) == []
    housekeeping.tidy_up(bench.settings)
    assert violations(bench, client, index) == [], "what was published is not touched"
    assert noted(bench) == []


@pytest.mark.one_server
def test_a_generation_is_removed_whose_checkpoint_was_reset(bench: Workbench, client: SearchClient, index: str) -> None:
    make(bench, index, "full")
    interrupt(bench)
    pause(bench)
    state.reset(bench.metastore, pipeline_id(bench))

    housekeeping.tidy_up(bench.settings)

    assert client.list_indexes(f"{index}-*") == {}


@pytest.mark.one_server
def test_a_server_that_does_not_answer_is_asked_again(bench: Workbench, client: SearchClient, index: str) -> None:
    make(bench, index, "full")
    interrupt(bench)
    pause(bench)
    is_deleted(bench)
    nowhere = SecretStr("http://127.0.0.1:1")
    housekeeping.tidy_up(bench.settings.model_copy(update={"elasticsearch_url": nowhere}))
    assert len(noted(bench)) == 1

    housekeeping.tidy_up(bench.settings)

    assert client.list_indexes(f"{index}-*") == {}
    assert noted(bench) == []


# --- what must never go ----------------------------------------------------------------------------------------------


def test_what_a_late_runner_publishes_in_this_moment_stays(client: SearchClient, generations: Generations) -> None:
    seen = generations.standing()
    name = generations.create(PIPELINE, MAPPING, epoch=1, now=FIRST)
    claimed = fill(client, generations, name, 3, epoch=1)
    stopped = StoppedBeforeActing(client, lambda: generations.swap(name, seen, claimed))

    assert not abandoned.remove(stopped, name, PIPELINE)

    assert generations.standing().concrete == name


def test_a_late_runner_publishes_nothing_that_is_being_removed(client: SearchClient, generations: Generations) -> None:
    shown = publish(client, generations, 3, epoch=1, now=FIRST)
    seen = generations.standing()
    name = generations.create(PIPELINE, MAPPING, epoch=2)
    fill(client, generations, name, 3, epoch=2)

    assert abandoned.remove(client, name, PIPELINE)

    assert set(client.list_indexes(f"{generations.index}-*")) == {shown}
    assert generations.standing() == seen


@pytest.mark.one_server
def test_what_somebody_shows_or_what_is_not_ours_stays(client: SearchClient, generations: Generations) -> None:
    complete = publish(client, generations, 1, epoch=1, now=FIRST)
    looked_at = generations.create(PIPELINE, MAPPING, epoch=2)
    client.update_aliases([{"add": {"index": looked_at, "alias": f"{generations.index}.mine"}}])

    assert abandoned.remove(client, complete, PIPELINE), "nothing to be done"
    assert not abandoned.remove(client, looked_at, PIPELINE)
    assert abandoned.remove(client, looked_at, str(uuid4())), "of another pipeline"
    assert abandoned.remove(client, f"{generations.index}-gone", PIPELINE)

    assert set(client.list_indexes(f"{generations.index}-*")) == {complete, looked_at}
