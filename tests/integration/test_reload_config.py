"""A run is pinned to the version it started with, until `reload-config` moves it on."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.workbench import Workbench
from vitrina import failpoints
from vitrina.errors import Conflict
from vitrina.services import pipelines as service
from vitrina.services.callers import Caller, Role

OPERATOR = Caller("somebody", Role.OPERATOR)
QUERY = "SELECT id, modified FROM content.films"
INCREMENTAL = {"mode": "incremental", "incremental_key": "modified", "incremental_id_key": "id", "target_key": ["id"]}


@pytest.fixture(params=["auto", "arrow"])
def bench(workbench: Workbench, request: pytest.FixtureRequest) -> Workbench:
    workbench.source(
        "CREATE TABLE content.films AS SELECT i AS id, now() - make_interval(secs => 1000 - i) AS modified"
        " FROM generate_series(1, 100) AS i"
    )

    workbench.pipeline("films", QUERY, batch_size=10, options={"route": request.param}, **INCREMENTAL)
    workbench.run("films")  # the first load is one piece; what follows comes in batches
    workbench.sql("UPDATE content.films SET modified = clock_timestamp()")
    return workbench


@contextmanager
def run_that_waits_after_two_batches(bench: Workbench) -> Iterator[None]:
    """The run stands still behind its second batch until the block is left."""
    commits = itertools.count(1)
    reached, go_on = threading.Event(), threading.Event()

    def hit(name: str) -> None:
        if name == "batch.committed" and next(commits) == 2:
            reached.set()
            go_on.wait(60)

    bench.request("films")
    run = threading.Thread(target=bench.perform, args=[bench.claim()])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failpoints, "hit", hit)
        run.start()
        try:
            assert reached.wait(60)
            yield
        finally:
            go_on.set()
            run.join()


def test_a_change_waits_for_the_next_run(bench: Workbench) -> None:
    with run_that_waits_after_two_batches(bench):
        service.change(bench.metastore, bench.settings, OPERATOR, "films", {"batch_size": 40})

    run = bench.last_run("films")
    assert (run["status"], run["batches"], run["pipeline_version"]) == ("SUCCESS", 10, 1)


def test_reload_config_applies_from_the_next_batch(bench: Workbench) -> None:
    with run_that_waits_after_two_batches(bench):
        service.change(bench.metastore, bench.settings, OPERATOR, "films", {"batch_size": 40})
        service.reload_config(bench.metastore, bench.settings, OPERATOR, "films")

    run = bench.last_run("films")
    assert (run["status"], run["pipeline_version"]) == ("SUCCESS", 2)
    # Two of ten, one or two more until the change is seen, then forties.
    assert run["batches"] <= 6
    assert bench.differences(QUERY, "analytics.films", "id, modified") == 0


def test_a_query_edited_by_hand_is_not_taken_up_under_a_run(bench: Workbench) -> None:
    service.reload_config(bench.metastore, bench.settings, OPERATOR, "films")  # version 1 is on record from here on
    with run_that_waits_after_two_batches(bench):
        bench.sql("UPDATE etl.etl_pipelines SET source_query = 'SELECT id, modified FROM content.films WHERE id > 5'")
        with pytest.raises(Conflict, match="source_query cannot change during a run"):
            service.reload_config(bench.metastore, bench.settings, OPERATOR, "films")

    assert bench.last_run("films")["status"] == "SUCCESS"
