"""A pipeline that runs after others is requested once for every wave of their successes."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina.errors import Conflict, Invalid, InvalidField
from vitrina.services import manifests, reports
from vitrina.services import pipelines as services
from vitrina.services.callers import Caller, Role
from vitrina.store import database, leases, pipelines, run_after
from vitrina.store.database import Connection

CALLER = Caller("test", Role.ADMIN)
QUERY = "SELECT id, title FROM content.films"


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    """`mart` runs after `films` and `ratings`."""
    workbench.source(
        "CREATE TABLE content.films AS SELECT n AS id, 'film ' || n AS title FROM generate_series(1, 10) n"
    )
    for name in ("films", "ratings"):
        workbench.pipeline(name, QUERY, target_key=["id"])
    workbench.pipeline("mart", QUERY, target_key=["id"], run_after=["films", "ratings"])
    return workbench


@pytest.fixture
def second(bench: Workbench) -> Iterator[Connection]:
    with database.connect(bench.settings.require_database_url(), "test") as connection:
        yield connection


# --- waves ---------------------------------------------------------------------------------------------------------


def test_it_is_requested_when_every_upstream_has_succeeded(bench: Workbench) -> None:
    bench.run("films")
    assert bench.status("mart") == "IDLE"
    bench.run("ratings")
    assert bench.status("mart") == "RUN_REQUESTED"

    bench.perform(bench.claim())

    run = bench.last_run("mart")
    assert (run["status"], run["trigger"], run["reason"]) == ("SUCCESS", "run-after", "after films, ratings")
    bench.run("films")
    assert bench.status("mart") == "IDLE", "what was used is used up"


def test_several_successes_of_one_upstream_are_one_wave(bench: Workbench) -> None:
    bench.run("films")
    bench.run("films")
    bench.run("ratings")
    bench.perform(bench.claim())

    assert (bench.status("mart"), successes(bench, "mart")) == ("IDLE", 1)


def test_successes_from_before_it_was_said_do_not_count(bench: Workbench) -> None:
    bench.change("mart", run_after=[])
    bench.run("films")
    bench.change("mart", run_after=["films", "ratings"])
    bench.run("ratings")

    assert bench.status("mart") == "IDLE"


def test_what_has_arrived_stays_when_another_upstream_is_named(bench: Workbench) -> None:
    bench.run("films")
    bench.pipeline("genres", QUERY, target_key=["id"])
    bench.change("mart", run_after=["genres", "films"])
    bench.run("genres")

    assert bench.status("mart") == "RUN_REQUESTED"


def test_only_if_changed_counts_runs_that_wrote_or_deleted_rows(bench: Workbench) -> None:
    bench.change("mart", run_after=[{"pipeline": "films", "only_if_changed": True}])
    bench.run("films")
    bench.perform(bench.claim())
    assert bench.run("films")["rows_written"] == 0
    assert bench.status("mart") == "IDLE"

    bench.sql("DELETE FROM content.films WHERE id = 1")
    assert bench.run("films")["rows_deleted"] == 1
    assert bench.status("mart") == "RUN_REQUESTED"


def test_only_if_changed_counts_what_a_lost_run_may_have_changed(bench: Workbench) -> None:
    """Its runner was killed when everything was committed but the end: the run that concludes writes nothing."""
    bench.change("mart", run_after=[{"pipeline": "films", "only_if_changed": True}])
    bench.request("films")
    bench.lose_a_runner("run.concluding:crash:1")
    bench.recover()
    bench.perform(bench.claim())

    assert bench.last_run("films")["rows_written"] == 0
    assert bench.status("mart") == "RUN_REQUESTED"


def test_a_failed_upstream_is_no_success_and_is_named(bench: Workbench) -> None:
    bench.run("films")
    bench.change("ratings", source_query="SELECT id, title FROM content.gone")
    assert bench.run("ratings")["status"] == "FAILED"

    films, ratings = status_of(bench, "mart").waits_for
    assert (bench.status("mart"), films.arrived, ratings.arrived) == ("IDLE", True, False)
    assert ratings.message.startswith("waits for a success of ratings, which is FAILED")


def test_backfills_and_repairs_of_an_upstream_count(bench: Workbench) -> None:
    """They changed what the downstream reads."""
    bench.change("mart", run_after=["films"])
    bench.change("films", mode="incremental", incremental_key="id")
    bench.run("films")
    bench.perform(bench.claim())

    bench.run("films", since="1")
    bench.perform(bench.claim())
    bench.sql("UPDATE analytics.films SET title = 'wrong' WHERE id = 3")
    bench.reconcile("films", level="full", repair=True)

    assert bench.status("mart") == "RUN_REQUESTED"
    assert successes(bench, "mart") == 2


def test_a_run_that_stopped_for_a_pause_does_not_count(bench: Workbench) -> None:
    bench.change("mart", run_after=["films"])
    bench.request("films")
    leases.conclude_run(bench.metastore, bench.claim(), boundary=True)

    assert bench.status("mart") == "IDLE"


# --- what the downstream does meanwhile ----------------------------------------------------------------------------


def test_a_wave_that_comes_while_it_runs_is_run_behind_it_once(bench: Workbench) -> None:
    bench.request("mart")
    at_work = bench.claim()
    for _ in range(2):
        bench.run("films")
        bench.run("ratings")
    bench.perform(at_work)
    assert bench.status("mart") == "RUN_REQUESTED"
    bench.perform(bench.claim())

    assert (bench.status("mart"), successes(bench, "mart")) == ("IDLE", 2)
    assert bench.last_run("mart")["trigger"] == "run-after"


def test_a_wave_behind_a_request_that_waits_is_answered_by_that_run(bench: Workbench) -> None:
    bench.run("films")
    bench.change("mart", enabled=False)
    bench.run("ratings")
    bench.change("mart", enabled=True)
    bench.request("mart")
    run_after.request_ready(bench.metastore)
    bench.perform(bench.claim())

    assert (bench.status("mart"), successes(bench, "mart")) == ("IDLE", 1)


def test_a_disabled_one_keeps_the_newest_until_it_is_enabled(bench: Workbench) -> None:
    services.disable(bench.metastore, CALLER, "mart")
    bench.run("films")
    bench.run("ratings")
    newest = bench.run("films")
    run_after.request_ready(bench.metastore)
    assert bench.status("mart") == "IDLE"
    assert status_of(bench, "mart").waits_for[0].arrived_run_id == newest["id"]

    services.enable(bench.metastore, CALLER, "mart")
    run_after.request_ready(bench.metastore)
    run_after.request_ready(bench.metastore)
    bench.perform(bench.claim())

    assert (bench.status("mart"), successes(bench, "mart")) == ("IDLE", 1)


def test_a_paused_one_stays_paused_and_runs_when_it_is_resumed(bench: Workbench) -> None:
    bench.sql("UPDATE etl.etl_pipelines SET status = 'PAUSED' WHERE name = 'mart'")
    bench.run("films")
    bench.run("ratings")
    assert bench.status("mart") == "PAUSED"

    services.resume(bench.metastore, CALLER, "mart")
    bench.perform(bench.claim())

    assert (bench.status("mart"), successes(bench, "mart")) == ("IDLE", 1)


def test_a_failed_one_waits_for_a_person_whose_run_uses_the_wave(bench: Workbench) -> None:
    bench.sql("UPDATE etl.etl_pipelines SET status = 'FAILED' WHERE name = 'mart'")
    bench.run("films")
    bench.run("ratings")
    run_after.request_ready(bench.metastore)
    assert bench.status("mart") == "FAILED"

    services.request_run(bench.metastore, CALLER, "mart")
    bench.perform(bench.claim())
    bench.run("films")
    run_after.request_ready(bench.metastore)

    assert (bench.status("mart"), successes(bench, "mart")) == ("IDLE", 1)


def test_a_failed_one_is_started_where_its_schedule_would_start_it(bench: Workbench) -> None:
    bench.change("mart", options={"schedule_after_failure": True})
    bench.sql("UPDATE etl.etl_pipelines SET status = 'FAILED' WHERE name = 'mart'")
    bench.run("films")
    bench.run("ratings")

    assert bench.status("mart") == "RUN_REQUESTED"


def test_an_upstream_does_not_wait_for_a_merge_of_its_downstream(bench: Workbench, second: Connection) -> None:
    """The merge holds the row of its pipeline; the wave is requested by the next look of any runner."""
    bench.run("films")
    with second.transaction():
        second.execute("SELECT FROM etl.etl_pipelines WHERE name = 'mart' FOR UPDATE")
        bench.metastore.execute("SET lock_timeout = '5s'")
        assert bench.run("ratings")["status"] == "SUCCESS"
        run_after.request_ready(bench.metastore)
    assert bench.status("mart") == "IDLE"
    run_after.request_ready(bench.metastore)
    run_after.request_ready(bench.metastore)
    bench.perform(bench.claim())

    assert (bench.status("mart"), successes(bench, "mart")) == ("IDLE", 1)


def test_two_upstreams_that_end_at_the_same_moment_are_both_seen(bench: Workbench, second: Connection) -> None:
    for name in ("films", "ratings"):
        bench.request(name)
    first, other = bench.claim(), bench.claim()
    with ThreadPoolExecutor(1) as threads:
        with second.transaction():
            leases.conclude_run(second, first)
            ending = threads.submit(leases.conclude_run, bench.metastore, other)
            until(lambda: waits_for_a_lock(bench))
        ending.result(timeout=60)

    assert bench.status("mart") == "RUN_REQUESTED"


def test_a_thousand_downstreams_are_requested_with_their_upstream(bench: Workbench) -> None:
    bench.sql(
        """
        INSERT INTO etl.etl_pipelines (name, source_query, target_table)
        SELECT 'mart_' || n, 'SELECT 1', 'analytics.mart_' || n FROM generate_series(1, 1000) n;
        INSERT INTO etl.etl_run_after (downstream_id, upstream_id)
        SELECT d.id, u.id FROM etl.etl_pipelines d, etl.etl_pipelines u WHERE d.name ~ '^mart_' AND u.name = 'films'
        """
    )
    bench.run("films")

    counted = (
        "SELECT count(*) FROM etl.etl_pipelines WHERE status = 'RUN_REQUESTED' AND requested_trigger = 'run-after'"
    )
    assert bench.sql(counted)[0]["count"] == 1000


def test_a_mart_is_as_fresh_as_the_oldest_that_it_is_built_on(bench: Workbench) -> None:
    bench.pipeline("report", QUERY, target_key=["id"], run_after=["mart"])
    oldest = bench.run("films")
    bench.run("ratings")
    bench.perform(bench.claim())
    bench.perform(bench.claim())

    assert bench.last_run("report")["status"] == "SUCCESS"
    for name in ("mart", "report"):
        assert status_of(bench, name).lag.data_as_of == oldest["started_at"]
    again = bench.run("films")
    assert status_of(bench, "films").lag.data_as_of == again["started_at"]
    assert status_of(bench, "report").lag.data_as_of == oldest["started_at"], "nothing of it has run since"


# --- definitions ---------------------------------------------------------------------------------------------------


def test_an_unknown_upstream_is_named(bench: Workbench) -> None:
    with pytest.raises(InvalidField, match="mart cannot run after 'flims': there is no such pipeline"):
        change(bench, "mart", run_after=["flims"])


@pytest.mark.parametrize("edges", [["mart"], ["films", {"pipeline": "films", "only_if_changed": True}]])
def test_itself_and_the_same_one_twice_are_refused(bench: Workbench, edges: list[Any]) -> None:
    with pytest.raises(Invalid, match="run_after"):
        change(bench, "mart", run_after=edges)


def test_a_circle_is_refused_with_its_way(bench: Workbench) -> None:
    bench.pipeline("report", QUERY, target_key=["id"], run_after=["mart"])

    with pytest.raises(InvalidField, match="films after report after mart after films"):
        change(bench, "films", run_after=["report"])

    assert bench.sql("SELECT count(*) FROM etl.etl_run_after")[0]["count"] == 3


def test_two_saves_that_make_a_circle_together(bench: Workbench, second: Connection) -> None:
    """Each alone is none: the second sees what the first has saved."""
    change(bench, "mart", run_after=[])
    with ThreadPoolExecutor(1) as threads:
        with second.transaction():
            services.change(second, bench.settings, CALLER, "films", {"run_after": ["ratings"]})
            other = threads.submit(change, bench, "ratings", run_after=["films"])
            until(lambda: waits_for_a_lock(bench))
        with pytest.raises(InvalidField, match="forms a cycle"):
            other.result(timeout=60)


def test_rolling_back_restores_what_it_ran_after_and_refuses_a_circle(bench: Workbench) -> None:
    change(bench, "mart", run_after=["ratings"])
    services.roll_back(bench.metastore, bench.settings, CALLER, "mart", 1)
    assert upstreams(bench, "mart") == ["films", "ratings"]

    change(bench, "mart", run_after=[])
    change(bench, "films", run_after=["mart"])
    with pytest.raises(InvalidField, match="forms a cycle"):
        services.roll_back(bench.metastore, bench.settings, CALLER, "mart", 1)


def test_a_version_from_before_there_was_such_a_field_is_no_change(bench: Workbench) -> None:
    row = services.get(bench.metastore, "films")
    services.reload_config(bench.metastore, bench.settings, CALLER, "films")
    bench.sql("UPDATE etl.etl_pipeline_versions SET definition = definition - 'run_after'")

    assert services.reload_config(bench.metastore, bench.settings, CALLER, "films")["version"] == row["version"]


def test_an_upstream_may_have_another_name(bench: Workbench) -> None:
    change(bench, "films", name="movies")
    assert upstreams(bench, "mart") == ["movies", "ratings"]
    change(bench, "mart", batch_size=10)
    bench.run("movies")
    bench.run("ratings")

    assert bench.status("mart") == "RUN_REQUESTED"


def test_one_that_others_wait_for_is_not_deleted(bench: Workbench) -> None:
    with pytest.raises(Conflict, match="films cannot be deleted, because mart would wait for it forever"):
        services.remove(bench.metastore, CALLER, "films")

    services.remove(bench.metastore, CALLER, "mart")
    services.remove(bench.metastore, CALLER, "films")


def test_an_upstream_deleted_by_hand_in_mid_wave_is_waited_for_no_longer(bench: Workbench) -> None:
    bench.run("films")
    bench.sql("DELETE FROM etl.etl_pipelines WHERE name = 'ratings'")
    run_after.request_ready(bench.metastore)
    bench.perform(bench.claim())

    assert successes(bench, "mart") == 1


# --- files ---------------------------------------------------------------------------------------------------------


def document(name: str, *edges: str) -> str:
    return (
        f"apiVersion: vitrina/v1\nkind: Pipeline\nmetadata: {{name: {name}}}\nspec:\n"
        f"  source_query: {QUERY}\n  target_table: analytics.{name}\n  target_key: [id]\n"
        f"  run_after: [{', '.join(edges)}]\n"
    )


def apply(bench: Workbench, *documents: str, prune: bool = False) -> list[tuple[str, str]]:
    files = [(f"{n}.yaml", text) for n, text in enumerate(documents)]
    done = manifests.apply(bench.metastore, bench.settings, CALLER, files, managed_by="test", prune=prune)
    return [(change.name, change.action) for change in done.items]


def test_files_may_name_what_comes_later(bench: Workbench) -> None:
    done = apply(bench, document("top", "{pipeline: middle, only_if_changed: true}"), document("middle", "films"))

    assert done == [("middle", "create"), ("top", "create")]
    again = manifests.export(bench.metastore, ["top", "middle"])
    assert "run_after:\n  - films" in again
    assert "- pipeline: middle\n    only_if_changed: true" in again
    assert {action for _, action in apply(bench, again)} == {"unchanged"}


def test_a_circle_across_files_is_refused_and_nothing_is_written(bench: Workbench) -> None:
    for documents in (
        [document("one", "two"), document("two", "one")],
        [document("one", "mart"), document("films", "one")],
    ):
        with pytest.raises(InvalidField, match="forms a cycle"):
            apply(bench, *documents)
    assert not bench.sql("SELECT 1 FROM etl.etl_pipelines WHERE name IN ('one', 'two')")


def test_an_edge_may_be_turned_round_in_one_apply(bench: Workbench) -> None:
    apply(bench, document("one"), document("two", "one"))
    apply(bench, document("one", "two"), document("two"))

    assert (upstreams(bench, "one"), upstreams(bench, "two")) == (["two"], [])


def test_an_apply_and_the_end_of_an_upstream_do_not_block_each_other(bench: Workbench, second: Connection) -> None:
    """Both want the edges of two pipelines. The files name first the one that whoever ends an upstream takes last."""
    apply(bench, document("one", "films"), document("two", "films"))
    low, high = (
        row["name"] for row in bench.sql("SELECT name FROM etl.etl_pipelines WHERE name IN ('one', 'two') ORDER BY id")
    )
    bench.request("films")
    claim = bench.claim()
    with (
        ThreadPoolExecutor(2) as threads,
        database.connect(bench.settings.require_database_url(), "test") as third,
    ):
        with third.transaction():
            third.execute(
                """
                SELECT FROM etl.etl_run_after e JOIN etl.etl_pipelines p ON p.id = e.downstream_id
                WHERE p.name = %s FOR UPDATE OF e
                """,
                [low],
            )
            ending = threads.submit(leases.conclude_run, second, claim)
            until(lambda: waits_for_a_lock(bench))
            applying = threads.submit(apply, bench, document(high, "films, ratings"), document(low, f"films, {high}"))
            until(lambda: waits_for_a_lock(bench, 2))
        ending.result(timeout=60)
        assert applying.result(timeout=60) == [("one", "update"), ("two", "update")]


def test_pruning_takes_both_ends_or_refuses(bench: Workbench) -> None:
    apply(bench, document("one"), document("two", "one"))
    with pytest.raises(Conflict, match="two would wait for it"):
        apply(bench, document("two", "one"), prune=True)

    assert apply(bench, document("two"), prune=True) == [("one", "delete"), ("two", "update")]
    apply(bench, document("one"), document("two", "one"))
    assert apply(bench, document("other"), prune=True)[0:2] == [("one", "delete"), ("other", "create")]


# --- looking -------------------------------------------------------------------------------------------------------


def change(bench: Workbench, pipeline: str, /, **fields: Any) -> None:
    services.change(bench.metastore, bench.settings, CALLER, pipeline, fields)


def status_of(bench: Workbench, name: str) -> Any:
    return reports.pipeline_status(bench.metastore, bench.settings, services.get(bench.metastore, name))


def upstreams(bench: Workbench, name: str) -> list[str]:
    row = pipelines.find(bench.metastore, name)
    assert row is not None
    return [edge["pipeline"] for edge in row["run_after"]]


def successes(bench: Workbench, name: str) -> int:
    counted = bench.sql(
        f"""
        SELECT count(*) FROM etl.etl_runs r JOIN etl.etl_pipelines p ON p.id = r.pipeline_id
        WHERE p.name = '{name}' AND r.status = 'SUCCESS'
        """
    )
    return int(counted[0]["count"])


def waits_for_a_lock(bench: Workbench, sessions: int = 1) -> bool:
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    return len(bench.sql(waiting)) == sessions
