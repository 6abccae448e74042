"""A load or pass that was interrupted goes on only where what it has delivered still counts; else it begins anew."""

from typing import Any

import pytest

from tests.search.test_run_faults import QUERY, ROWS, bench, change_source, make, violations
from tests.support.workbench import Workbench
from vitrina.connectors.search.client import SearchClient
from vitrina.connectors.search.generations import Generations

__all__ = ["bench"]

SHARED = {"options": {"shared_target": True}}


def interrupt(bench: Workbench, at: str = "batch.committed:crash:2") -> None:
    bench.request("films")
    bench.lose_a_runner(at)


def go_on(bench: Workbench) -> dict[str, Any]:
    bench.recover()
    bench.perform(bench.claim())
    return bench.last_run("films")


def outcome(run: dict[str, Any]) -> tuple[str, str | None]:
    return run["status"], run["metrics"].get("started_over")


# --- what a load was begun with has changed --------------------------------------------------------------------------


@pytest.mark.one_server
@pytest.mark.parametrize(
    ("begun", "changed"),
    [
        pytest.param({"mode": "full"}, SHARED, id="an index of its own becomes a shared one"),
        pytest.param({"mode": "full", **SHARED}, {"options": {}}, id="a shared index becomes its own"),
        pytest.param({"mode": "full"}, {"options": {"delete_when": "gone"}}, id="rows may say that they are gone"),
        pytest.param(
            {"mode": "full"},
            {"options": {"index": {"mappings": {"properties": {"title": {"type": "keyword"}}}}}},
            id="another mapping",
        ),
        pytest.param({"mode": "incremental", **SHARED}, {"mode": "full", "incremental_key": None}, id="a shared pass"),
        pytest.param({"mode": "incremental"}, {"mode": "full", "incremental_key": None}, id="a pass"),
        pytest.param(
            {"mode": "full"}, {"mode": "incremental", "incremental_key": "modified"}, id="a load becomes a pass"
        ),
        pytest.param(
            {"mode": "full", **SHARED},
            {"mode": "incremental", "incremental_key": "modified"},
            id="a shared load becomes a pass",
        ),
    ],
)
def test_what_was_changed_under_an_interrupted_load_makes_it_begin_anew(
    bench: Workbench, client: SearchClient, index: str, begun: dict[str, Any], changed: dict[str, Any]
) -> None:
    make(bench, index, **begun)
    bench.change("films", source_query=QUERY.replace("modified", "modified, id = 7 AS gone"))
    interrupt(bench)
    fields = {"incremental_id_key": None} if changed.get("mode") == "full" else {}
    bench.change("films", **changed, **fields)

    run = go_on(bench)

    assert run["status"] == "SUCCESS"
    assert run["rows_read"] == ROWS, "from the first row on"
    gone = ["lost 7"] if "delete_when" in changed.get("options", {}) else []
    assert violations(bench, client, index) == gone


@pytest.mark.one_server
def test_a_load_into_a_shared_index_begins_anew_with_another_query(
    bench: Workbench, client: SearchClient, index: str
) -> None:
    make(bench, index, "full", **SHARED)
    interrupt(bench)
    bench.change("films", source_query=QUERY.replace("version,", "version + 1 AS version,"))

    assert outcome(go_on(bench)) == ("SUCCESS", "the definition changed")

    bench.sql("UPDATE content.film_work SET version = 2")
    assert violations(bench, client, index) == []


@pytest.mark.one_server
@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_a_shared_index_that_was_deleted_under_an_interrupted_load_is_filled_anew(
    bench: Workbench, client: SearchClient, index: str, mode: str
) -> None:
    make(bench, index, mode, **SHARED)
    interrupt(bench)
    concrete = Generations(client, index).standing().concrete
    assert concrete
    client.delete_index(concrete)

    assert outcome(go_on(bench)) == ("SUCCESS", f"es:{index} was deleted or replaced by hand")

    assert violations(bench, client, index) == []


@pytest.mark.one_server
def test_a_load_into_a_shared_index_that_nobody_changed_goes_on(
    bench: Workbench, client: SearchClient, index: str
) -> None:
    make(bench, index, "full", **SHARED)
    interrupt(bench)

    run = go_on(bench)

    assert outcome(run) == ("SUCCESS", None)
    assert run["rows_read"] < ROWS
    assert violations(bench, client, index) == []


@pytest.mark.one_server
@pytest.mark.parametrize("options", [{}, {"shared_target": True}], ids=["its own", "shared"])
def test_a_load_in_one_snapshot_begins_anew(
    bench: Workbench, client: SearchClient, index: str, options: dict[str, Any]
) -> None:
    make(bench, index, "full", options={"consistency": "snapshot", **options})
    interrupt(bench)
    if not options:  # what left the source stays in a shared index
        bench.sql("DELETE FROM content.film_work WHERE id <= 100")

    assert outcome(go_on(bench)) == ("SUCCESS", "options.consistency requires one snapshot")

    assert violations(bench, client, index) == []


# --- what was sent and not counted -----------------------------------------------------------------------------------


@pytest.mark.parametrize("counted", [0, 1])
def test_a_row_that_was_sent_and_not_counted_and_left_the_source_is_not_shown(
    bench: Workbench, client: SearchClient, index: str, counted: int
) -> None:
    """The runner is lost between a batch's documents and its count."""
    make(bench, index, "full")
    interrupt(bench, f"batch.fenced:crash:{counted + 1}")
    bench.sql(f"DELETE FROM content.film_work WHERE id = {counted * 60 + 40}")

    run = go_on(bench)

    assert outcome(run) == ("SUCCESS", None)
    assert run["rows_read"] == ROWS - counted * 60 - 1, "it went on"
    assert violations(bench, client, index) == []


def test_an_unfinished_generation_that_lost_documents_is_not_gone_on_with(
    bench: Workbench, client: SearchClient, index: str
) -> None:
    make(bench, index, "full")
    interrupt(bench)
    [generation] = client.list_indexes(f"{index}-*")
    client.request("DELETE", f"/{generation}/_doc/5?refresh=true")

    run = go_on(bench)

    assert run["status"] == "SUCCESS"
    assert run["attempts"] > 1
    assert violations(bench, client, index) == []


@pytest.mark.one_server
def test_what_is_shown_does_not_change_when_a_load_was_lost_behind_its_swap(
    bench: Workbench, client: SearchClient, index: str
) -> None:
    make(bench, index, "full")
    interrupt(bench, "publish.applied:crash:1")
    bench.sql("INSERT INTO content.film_work VALUES (1000, 'New', 1, clock_timestamp())")

    run = go_on(bench)

    assert (run["status"], run["rows_read"]) == ("SUCCESS", 0)
    assert violations(bench, client, index) == ["lost 1000"], "it comes with the next load"
    assert client.list_aliases(f"{index}.w.*") == {}, "nobody may write to what is published"


@pytest.mark.one_server
def test_a_generation_that_a_person_shows_before_it_is_complete_is_filled(
    bench: Workbench, client: SearchClient, index: str
) -> None:
    make(bench, index, "full")
    interrupt(bench)
    [generation] = client.list_indexes(f"{index}-*")
    client.update_aliases([{"add": {"index": generation, "alias": index}}])

    assert outcome(go_on(bench)) == ("SUCCESS", None)

    assert violations(bench, client, index) == []


# --- the index that is shown -----------------------------------------------------------------------------------------


def test_a_name_that_was_moved_back_to_an_older_generation_is_noticed(
    bench: Workbench, client: SearchClient, index: str
) -> None:
    make(bench, index, "full")
    bench.run("films")
    older = Generations(client, index).standing()
    change_source(bench, 2)
    bench.run("films")
    bench.change("films", mode="incremental", incremental_key="modified", incremental_id_key="id")
    bench.run("films")
    change_source(bench, 3)
    bench.run("films")
    assert violations(bench, client, index) == []
    newer = Generations(client, index).standing()
    assert older.concrete
    client.update_aliases(
        [{"remove": {"index": newer.concrete, "alias": index}}, {"add": {"index": older.concrete, "alias": index}}]
    )

    run = bench.run("films")

    assert outcome(run) == ("SUCCESS", f"es:{index} was deleted or replaced by hand")
    assert violations(bench, client, index) == []
    assert bench.run("films")["metrics"].get("started_over") is None, "only once"


@pytest.mark.one_server
def test_a_checkpoint_of_an_earlier_version_does_not_say_of_which_index_it_is(
    bench: Workbench, client: SearchClient, index: str
) -> None:
    make(bench, index, "incremental")
    bench.run("films")
    bench.sql("UPDATE etl.etl_state SET identity = '{}'")
    change_source(bench, 2)

    assert outcome(bench.run("films")) == ("SUCCESS", None)

    assert violations(bench, client, index) == []
    assert bench.checkpoint("films").identity["index"] == Generations(client, index).identity()
