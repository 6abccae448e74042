"""A mart that somebody emptied, replaced or restored is noticed and filled again, by each pipeline that fills it.

And the columns that a pipeline wrote before and no longer gives.
"""

from typing import Any

import pytest

from tests.chaos import mutants
from tests.support.workbench import Workbench
from vitrina.errors import TargetMismatch
from vitrina.loads.run import Run
from vitrina.runner import requests
from vitrina.services import pipelines as service
from vitrina.services.callers import Caller, Role
from vitrina.store import pipelines

FILMS = """
CREATE TABLE content.films (id int PRIMARY KEY, title text, note text, at timestamptz NOT NULL DEFAULT now());
INSERT INTO content.films SELECT i, 'Film ' || i, 'note ' || i FROM generate_series(1, 100) AS i;
"""
QUERY = "SELECT id, title, note, at FROM content.films"
INCREMENTAL = {"mode": "incremental", "incremental_key": "at", "target_key": ["id"], "batch_size": 30}
STEPS = [
    {"order_index": 0, "task_type": "SQL", "body": QUERY},
    {"order_index": 1, "task_type": "PYTHON", "body": "normalise_text", "params": {"columns": ["note"]}},
]


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    workbench.settings = workbench.settings.model_copy(update={"backoff_seconds": (0.01,)})
    workbench.source(FILMS)
    return workbench


def run(bench: Workbench, name: str = "films") -> dict[str, Any]:
    found = bench.run(name)
    assert (found["status"], found["error_message"]) == ("SUCCESS", None)
    return found


def touch(bench: Workbench, title: str, ids: str = "id <= 5") -> None:
    bench.sql(f"UPDATE content.films SET title = '{title}', at = clock_timestamp() WHERE {ids}")


# --- emptied, replaced, restored -------------------------------------------------------------------------------------

REPLACED = {
    "truncated": "TRUNCATE {mart}",
    "truncated, then a row by hand": "TRUNCATE {mart}; INSERT INTO {mart} (id, title) VALUES (7, 'x')",
    "filled again from an old copy": "TRUNCATE {mart}; INSERT INTO {mart} SELECT * FROM analytics.old",
    "replaced by an old copy": "DROP TABLE {mart}; ALTER TABLE analytics.old RENAME TO films",
}


@pytest.mark.parametrize("change", REPLACED.values(), ids=REPLACED.keys())
def test_a_replaced_mart_is_noticed_and_filled_again(bench: Workbench, change: str) -> None:
    bench.pipeline("films", QUERY, **INCREMENTAL)
    refill(bench, change)


def test_a_mart_replaced_behind_steps_is_filled_again(bench: Workbench) -> None:
    bench.pipeline("films", QUERY, tasks=STEPS, **INCREMENTAL)
    refill(bench, REPLACED["truncated, then a row by hand"])


def refill(bench: Workbench, change: str) -> None:
    run(bench)
    bench.sql("CREATE TABLE analytics.old (LIKE analytics.films INCLUDING ALL)")
    bench.sql("INSERT INTO analytics.old TABLE analytics.films; ALTER TABLE analytics.old OWNER TO vitrina_app")
    touch(bench, "newer than the copy")
    run(bench)

    bench.sql(change.format(mart="analytics.films"))

    assert any("by hand" in reason for reason in plan(bench)["reasons"])
    assert "by hand" in run(bench)["metrics"]["started_over"]
    assert bench.differences(QUERY, "analytics.films") == 0
    assert "started_over" not in run(bench)["metrics"]


def test_a_mart_that_nobody_looks_at_stays_as_it_was_left(bench: Workbench) -> None:
    bench.pipeline("films", QUERY, **INCREMENTAL)
    with mutants.applied("mart_unlooked"), pytest.raises(AssertionError):
        refill(bench, REPLACED["truncated, then a row by hand"])
    assert bench.differences(QUERY, "analytics.films") > 0


def plan(bench: Workbench) -> dict[str, Any]:
    row = pipelines.find(bench.metastore, "films")
    assert row is not None
    found: dict[str, Any] = requests.validate(
        {"pipeline_id": row["id"], "payload": {}}, bench.metastore, bench.settings
    )["plan"]
    return found


@pytest.mark.parametrize("emptying", ["TRUNCATE analytics.films", "DELETE FROM analytics.films"])
def test_each_of_two_pipelines_that_fill_a_mart_fills_it_again(bench: Workbench, emptying: str) -> None:
    for name, half in (("first", "id <= 50"), ("second", "id > 50")):
        bench.pipeline(name, f"{QUERY} WHERE {half}", target_table="analytics.films", **INCREMENTAL)
        run(bench, name)
    bench.sql(emptying)

    for name in ("first", "second"):
        assert "by hand" in run(bench, name)["metrics"]["started_over"]

    assert bench.differences(QUERY, "analytics.films") == 0
    assert all("started_over" not in run(bench, name)["metrics"] for name in ("first", "second"))


@pytest.mark.parametrize(
    "change",
    [
        "VACUUM FULL analytics.films",
        "CLUSTER analytics.films USING films_pkey",
        "ALTER TABLE analytics.films ADD COLUMN mark float DEFAULT random()",
        "ALTER TABLE analytics.films SET UNLOGGED",
    ],
)
def test_a_mart_that_was_only_rewritten_keeps_its_checkpoint(bench: Workbench, change: str) -> None:
    bench.pipeline("films", QUERY, **INCREMENTAL)
    run(bench)
    touch(bench, "one more batch")
    run(bench)
    [before] = bench.sql("SELECT pg_relation_filenode('analytics.films') AS node")

    bench.sql(change)

    assert bench.sql("SELECT pg_relation_filenode('analytics.films') AS node") != [before]
    assert "started_over" not in run(bench)["metrics"]


# The types are created for the test. Of each: the key's type, its value for row i, and what happens to it.
CHANGED_KEYS = {
    "int to text": ("int", "i", "ALTER TABLE {} ALTER id TYPE text USING id::text"),
    "text to int": ("text", "i::text", "ALTER TABLE {} ALTER id TYPE int USING id::int"),
    "uuid to text": ("uuid", "md5(i::text)::uuid", "ALTER TABLE {} ALTER id TYPE text USING id::text"),
    "a type renamed": ("content.size", "('s' || i)::content.size", "ALTER TYPE content.size RENAME TO width"),
    "a type moved": ("content.size", "('s' || i)::content.size", "ALTER TYPE content.size SET SCHEMA public"),
    "labels renamed": ("content.size", "('s' || i)::content.size", "{labels}"),
    "a domain narrowed": (
        "content.small",
        "i::content.small",
        "DELETE FROM {} WHERE id > 2; ALTER DOMAIN content.small ADD CHECK (VALUE < 3)",
    ),
}
LABELS = "; ".join(f"ALTER TYPE content.size RENAME VALUE 's{i}' TO 'S{i}'" for i in range(1, 10))


@pytest.mark.parametrize("rewrite", ["VACUUM FULL analytics.items", ""], ids=["rewritten", "as it was"])
@pytest.mark.parametrize("kind", CHANGED_KEYS)
def test_a_mart_whose_key_has_changed_is_loaded_all_the_same(bench: Workbench, kind: str, rewrite: str) -> None:
    of_type, value, change = CHANGED_KEYS[kind]
    labels = ", ".join(f"'s{i}'" for i in range(1, 10))
    bench.sql(f"CREATE TYPE content.size AS ENUM ({labels}); CREATE DOMAIN content.small AS int")
    bench.sql("GRANT USAGE ON SCHEMA content TO vitrina_app")
    bench.source(
        f"CREATE TABLE content.items (id {of_type}, title text, at timestamptz);"
        f"INSERT INTO content.items SELECT {value}, 'Item', now() - interval '1 hour' FROM generate_series(1, 9) AS i"
    )
    query = "SELECT id, title, at FROM content.items"
    bench.pipeline("items", query, mode="incremental", incremental_key="at", target_key=["id"])
    run(bench, "items")

    tables = ("content.items", "analytics.items") if "{}" in change else ("",)
    for table in tables:
        for statement in change.format(table, labels=LABELS).split("; "):
            if table != "content.items" or "DOMAIN" not in statement:
                bench.sql(statement)
    if rewrite:
        bench.sql(rewrite)
    bench.sql("UPDATE content.items SET title = 'New', at = clock_timestamp()")

    run(bench, "items")

    assert bench.differences(query, "analytics.items") == 0


def test_a_mart_replaced_between_two_batches_is_filled_again(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row by hand, and it is not empty: nobody would notice once the next batch is merged."""
    bench.pipeline("films", QUERY, **INCREMENTAL)
    run(bench)
    touch(bench, "second pass", "true")
    behind = Run.after_part
    done: list[Any] = []

    def after_batch(self: Run, part: Any) -> None:
        behind(self, part)
        if not done:
            done.append(bench.sql("TRUNCATE analytics.films; INSERT INTO analytics.films (id) VALUES (7)"))

    monkeypatch.setattr(Run, "after_part", after_batch)

    assert "by hand" in run(bench)["metrics"]["started_over"]
    assert bench.differences(QUERY, "analytics.films") == 0


def test_a_checkpoint_that_says_nothing_of_its_mart_learns_it(bench: Workbench) -> None:
    """The previous version wrote none."""
    bench.pipeline("films", QUERY, **INCREMENTAL)
    run(bench)
    bench.sql("UPDATE etl.etl_state SET identity = '{}'")
    touch(bench, "second pass")
    assert "started_over" not in run(bench)["metrics"]

    bench.sql("TRUNCATE analytics.films; INSERT INTO analytics.films (id) VALUES (7)")

    assert "by hand" in run(bench)["metrics"]["started_over"]
    assert bench.differences(QUERY, "analytics.films") == 0


# --- columns that left the query -------------------------------------------------------------------------------------

WITHOUT_NOTE = "SELECT id, title, at FROM content.films"


@pytest.fixture(params=["full", "incremental"])
def narrowed(bench: Workbench, request: pytest.FixtureRequest) -> Workbench:
    """The query gave `note` before, and does so no longer."""
    bench.pipeline("films", QUERY, **(INCREMENTAL if request.param == "incremental" else {"target_key": ["id"]}))
    run(bench)
    touch(bench, "changed")
    bench.change("films", source_query=WITHOUT_NOTE)
    return bench


def test_a_column_that_left_the_query_is_refused_by_name(narrowed: Workbench) -> None:
    found = narrowed.run("films")

    assert (found["status"], found["error_code"]) == ("FAILED", "target_mismatch")
    assert "analytics.films has note, which this pipeline wrote before" in found["error_message"]
    with pytest.raises(TargetMismatch, match="on_missing_columns"):
        plan(narrowed)


def test_a_column_that_nobody_remembers_keeps_old_values_unsaid(narrowed: Workbench) -> None:
    with mutants.applied("columns_forgotten"):
        found = run(narrowed)
    assert found["metrics"].get("warnings", []) == []


def test_a_column_that_left_may_keep_its_values(narrowed: Workbench) -> None:
    narrowed.change("films", options={"on_missing_columns": "keep"})

    assert any("note" in warning for warning in plan(narrowed)["warnings"])
    run(narrowed)

    assert narrowed.sql("SELECT count(*) AS rows FROM analytics.films WHERE note IS NULL") == [{"rows": 0}]
    narrowed.change("films", options={})
    assert narrowed.run("films")["status"] == "FAILED", "the choice was taken back"


def test_a_column_that_left_may_be_cleared(narrowed: Workbench) -> None:
    narrowed.change("films", options={"on_missing_columns": "null"})

    run(narrowed)

    assert narrowed.sql("SELECT count(*) AS rows FROM analytics.films WHERE note IS NOT NULL") == [{"rows": 0}]
    narrowed.sql("UPDATE analytics.films SET note = 'by hand'")
    run(narrowed)
    assert narrowed.sql("SELECT DISTINCT note FROM analytics.films") == [{"note": "by hand"}], "it is nobody's now"


def test_a_dropped_column_needs_no_decision(narrowed: Workbench) -> None:
    narrowed.sql("ALTER TABLE analytics.films DROP COLUMN note")

    run(narrowed)


@pytest.mark.parametrize("narrowed", ["incremental"], indirect=True)
def test_resetting_the_checkpoint_forgets_no_column(narrowed: Workbench) -> None:
    service.reset_state(narrowed.metastore, Caller("somebody", Role.OPERATOR), "films", cursor=None)

    assert "note" in narrowed.run("films")["error_message"]


@pytest.mark.parametrize("narrowed", ["full"], indirect=True)
def test_a_column_that_cannot_be_cleared_is_named(narrowed: Workbench) -> None:
    narrowed.change("films", options={"on_missing_columns": "null"})
    narrowed.sql("ALTER TABLE analytics.films ALTER note SET DEFAULT '', ALTER note SET NOT NULL")

    assert "note of analytics.films cannot be set to NULL" in narrowed.run("films")["error_message"]


@pytest.mark.parametrize("narrowed", ["incremental"], indirect=True)
def test_a_column_that_another_pipeline_may_write_is_not_cleared(narrowed: Workbench) -> None:
    narrowed.pipeline("other", QUERY, target_table="analytics.films", **INCREMENTAL)
    narrowed.change("films", options={"on_missing_columns": "null"})

    assert "other writes there as well" in narrowed.run("films")["error_message"]


def test_columns_that_the_pipeline_never_wrote_are_left_alone(bench: Workbench) -> None:
    bench.pipeline("films", QUERY, **INCREMENTAL)
    run(bench)
    bench.sql("ALTER TABLE analytics.films ADD COLUMN remark text DEFAULT 'mine'")
    touch(bench, "changed")

    run(bench)

    assert bench.sql("SELECT DISTINCT remark FROM analytics.films") == [{"remark": "mine"}]
