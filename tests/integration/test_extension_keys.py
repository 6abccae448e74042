"""Keys whose type brings an operator `=` of its own from a schema that no session looks into."""

from typing import Any

import pytest

from tests.support import extension_types
from tests.support.workbench import Workbench

QUERY = "SELECT name, note, modified FROM content.things"
KINDS = ["citext", "ltree"]


@pytest.fixture(params=KINDS)
def bench(workbench: Workbench, request: pytest.FixtureRequest) -> Workbench:
    extension_types.create(workbench, request.param)
    workbench.source(
        f"""
        CREATE TABLE content.things (name public.{request.param} PRIMARY KEY, note text,
            modified timestamptz NOT NULL DEFAULT clock_timestamp());
        INSERT INTO content.things SELECT ('Thing.n' || n)::public.{request.param}, 'note ' || n
        FROM generate_series(1, 30) n;
        """
    )
    return workbench


def make(bench: Workbench, mode: str, **fields: Any) -> None:
    options = {"cursor_clock": "database", "allow_shrink": True} | fields.pop("options", {})
    cursor = {"incremental_key": "modified"} if mode == "incremental" else {}
    bench.pipeline("things", QUERY, target_key=["name"], mode=mode, options=options, **cursor, **fields)


def run(bench: Workbench) -> dict[str, Any]:
    done = bench.run("things")
    assert done["status"] == "SUCCESS", done["error_message"]
    return done


@pytest.mark.parametrize("route", ["auto", "copy", "arrow"])
@pytest.mark.parametrize("mode", ["full", "incremental"])
@pytest.mark.parametrize("history", [False, True])
def test_rows_are_matched_by_the_operator_of_their_type(bench: Workbench, mode: str, route: str, history: bool) -> None:
    options: dict[str, Any] = {"route": route, **({"history": {}} if history else {})}
    make(bench, mode, options=options, batch_size=7)
    assert run(bench)["rows_written"] == 30
    assert run(bench)["rows_written"] == 0
    bench.sql("UPDATE content.things SET note = 'changed', modified = clock_timestamp() WHERE note LIKE 'note 1_'")
    assert run(bench)["rows_written"] == 10
    bench.sql("DELETE FROM content.things WHERE note = 'note 2'")
    assert run(bench)["rows_deleted"] == (1 if mode == "full" else 0)
    assert run(bench)["rows_written"] == 0
    current = "(SELECT * FROM analytics.things WHERE is_current) AS t" if history else "analytics.things"
    assert bench.differences(f"{QUERY} WHERE note = 'changed'", f"{current} WHERE note = 'changed'", "note") == 0


@pytest.mark.parametrize("mode", ["full", "incremental"])
@pytest.mark.parametrize("unique_by", [None, "valid_from", "valid_to"])
def test_a_key_that_is_written_in_another_way_is_the_same_row(
    workbench: Workbench, mode: str, unique_by: str | None
) -> None:
    extension_types.create(workbench, "citext")
    workbench.source(
        """
        CREATE TABLE content.things (name public.citext PRIMARY KEY, note text,
            modified timestamptz NOT NULL DEFAULT clock_timestamp());
        INSERT INTO content.things VALUES ('one', 'first'), ('two', 'second')
        """
    )
    make(workbench, mode, options={"history": {"unique_by": unique_by}} if unique_by else {})
    run(workbench)
    workbench.sql("UPDATE content.things SET name = 'ONE', modified = clock_timestamp() WHERE note = 'first'")
    done = run(workbench)
    assert (done["rows_written"], done["rows_deleted"]) == (1, 0)
    condition = " WHERE is_current" if unique_by else ""
    found = workbench.sql(f"SELECT name::text FROM analytics.things{condition} ORDER BY note")
    assert found == [{"name": "ONE"}, {"name": "two"}]
    if unique_by:
        assert workbench.sql("SELECT name::text FROM analytics.things WHERE NOT is_current") == [{"name": "one"}]


def test_a_load_in_pages_of_such_a_key_loses_no_row(bench: Workbench) -> None:
    [row] = bench.sql("SELECT pg_typeof(name)::text AS kind FROM content.things LIMIT 1")
    kind = row["kind"].removeprefix("public.")
    bench.sql(
        f"INSERT INTO content.things SELECT ('thing.N' || n)::public.{kind}, 'more' FROM generate_series(100, 120) n"
    )
    make(bench, "full", options={"checkpoint_rows": 4}, batch_size=4)
    assert bench.run_interrupted("things", batches=5)["status"] == "SUCCESS"
    assert bench.sql("SELECT count(*) AS rows FROM analytics.things") == [{"rows": 51}]


def test_a_plan_of_such_a_key_counts_what_changes(bench: Workbench) -> None:
    make(bench, "full")
    rows = bench.plan("things")["rows"]
    assert (rows["added"], rows["changed"], rows["removed"]) == (30, 0, 0)
    run(bench)
    bench.sql("UPDATE content.things SET note = 'changed' WHERE note = 'note 3'")
    rows = bench.plan("things")["rows"]
    assert (rows["added"], rows["changed"], rows["removed"]) == (0, 1, 0)
