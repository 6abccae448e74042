"""Plans: what the next full load would change is told exactly, and nothing is written to the target."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest
from pydantic import SecretStr

from tests.integration.api import problem, serving
from tests.support import waiting
from tests.support.workbench import Workbench
from vitrina.definition import Definition
from vitrina.errors import FatalError
from vitrina.runner import requests as runner_requests
from vitrina.services import data_plans, tokens
from vitrina.services.callers import Caller, Role
from vitrina.store import pipelines, requests, stages
from vitrina.transforms import SourceContext, source

FILMS = """
CREATE TABLE content.films (
    id int PRIMARY KEY, title text, rating numeric(4, 2), votes int, kind text, at timestamptz DEFAULT now());
INSERT INTO content.films (id, title, rating, votes, kind)
    SELECT i, 'Film ' || i, (i % 100) / 10.0, i * 7 % 1000, CASE i % 3 WHEN 0 THEN 'movie' ELSE 'show' END
    FROM generate_series(1, 200) AS i;
"""
QUERY = "SELECT id, title, rating FROM content.films"
STEP = {"order_index": 1, "task_type": "PYTHON", "body": "normalise_text", "params": {"columns": ["title"]}}
ADDS: dict[str, Any] = {"on_schema_change": "add_columns", "on_missing_columns": "keep", "allow_shrink": True}

# How rows come to the mart, and what it does with those that left: each is planned and loaded as it is.
FLAVOURS: dict[str, tuple[int, dict[str, Any]]] = {
    "pushdown": (50, {"options": ADDS}),
    "pages": (10, {"options": ADDS | {"checkpoint_rows": 60}}),
    "copy": (10, {"options": ADDS | {"route": "copy"}}),
    "arrow": (10, {"options": ADDS | {"route": "arrow"}}),
    "soft": (10, {"options": ADDS | {"deletes": {"soft": "deleted_at"}}}),
    "history": (10, {"options": ADDS | {"history": {}}}),
    "stamped": (10, {"options": ADDS | {"stamps": ["at"]}}),
    "partitioned": (10, {"options": ADDS | {"table": {"partition_by": {"hash": "id", "partitions": 3}}}}),
}
EXPRESSIONS = {
    "title": ["title", "upper(title) AS title", "nullif(title, 'Film 7') AS title", "title || '' AS title"],
    "rating": ["rating", "round(rating)::numeric(4, 2) AS rating", "NULL::numeric(4, 2) AS rating"],
    "votes": ["votes", "votes % 10 AS votes", "nullif(votes, 0) AS votes"],
    "kind": ["kind", "lower(kind) AS kind"],
}
CONDITIONS = ["true", "id % 5 <> 0", "rating > 2", "kind = 'show'", "id < 150", "id > 300"]
CHANGES = [
    "UPDATE content.films SET rating = rating + 1 WHERE id % {n} = 0 AND rating < 90",
    "UPDATE content.films SET title = title || '!', at = now() WHERE id % {n} = 1",
    "UPDATE content.films SET title = NULL WHERE id % {n} = 2",
    "DELETE FROM content.films WHERE id % {n} = 3",
    "INSERT INTO content.films (id) SELECT 1000 + i * {n} FROM generate_series(1, 9) i ON CONFLICT DO NOTHING",
    "UPDATE content.films SET id = id + 5000 WHERE id % {n} = 4 AND id < 5000",
    "SELECT 1",
]


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    workbench.settings = workbench.settings.model_copy(update={"backoff_seconds": (0.01,), "max_attempts": 2})
    workbench.source(FILMS)
    return workbench


def make(bench: Workbench, **fields: Any) -> dict[str, Any]:
    """A pipeline `films` that has run once."""
    bench.pipeline("films", fields.pop("query", QUERY), **{"target_key": ["id"], **fields})
    run = bench.run("films")
    assert run["status"] == "SUCCESS", run
    return run


def counted(plan: dict[str, Any]) -> tuple[int, ...]:
    return plan["rows"]["added"], plan["rows"]["changed"], plan["rows"]["removed"]


def reported(run: dict[str, Any]) -> tuple[int, ...]:
    assert run["status"] == "SUCCESS", run
    return tuple(run["metrics"].get(name, 0) for name in ("inserted", "updated", "deleted"))


# --- the counts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_plan_counts_what_the_following_run_reports(bench: Workbench, flavour: str) -> None:
    """Of random changes of query and data, many of which change nothing."""
    rounds, fields = FLAVOURS[flavour]
    chance = random.Random(f"plans {flavour}")
    make(bench, **fields, query=_query(chance, flavour))
    seen = set()
    for _ in range(rounds):
        query = _query(chance, flavour) if chance.random() < 0.7 else bench_query(bench)
        bench.sql(chance.choice(CHANGES).format(n=chance.randint(5, 40)))
        if chance.random() < 0.2:
            bench.sql("DELETE FROM analytics.films WHERE id % 7 = 0")

        plan = bench.plan("films", source_query=query)
        bench.change("films", source_query=query)
        run = bench.run("films", accepts=("empty",)) if plan["refusals"] else bench.run("films")

        assert counted(plan) == reported(run), (query, plan)
        assert plan["rows"]["unchanged"] == run["metrics"]["unchanged"]
        # A row that comes back into the source changes nothing but that it is there again.
        if flavour != "soft":
            assert sum(plan["rows"]["changed_columns"].values()) >= plan["rows"]["changed"]
        seen.add(tuple(number > 0 for number in counted(plan)))
    assert len(seen) >= 4, "the changes were all of one kind"


def bench_query(bench: Workbench) -> str:
    row = pipelines.find(bench.metastore, "films")
    assert row
    return str(row["source_query"])


def _query(chance: random.Random, flavour: str) -> str:
    names = [name for name in EXPRESSIONS if chance.random() < 0.7]
    columns = ["id", *(chance.choice(EXPRESSIONS[name]) for name in names), *(["at"] if flavour == "stamped" else [])]
    return f"SELECT {', '.join(columns)} FROM content.films WHERE {chance.choice(CONDITIONS)}"


def test_rows_that_pass_steps_are_planned(bench: Workbench) -> None:
    make(bench, tasks=[{"order_index": 0, "task_type": "SQL", "body": QUERY}, STEP], batch_size=30)
    # The step writes one of them as it was before.
    bench.sql(
        "UPDATE content.films SET title = ' Film   8 ' WHERE id = 8; UPDATE content.films SET rating = 0 WHERE id = 9"
    )

    plan = bench.plan("films")

    assert counted(plan) == (0, 1, 0) == reported(bench.run("films"))


NUMBERS = {"end": 10}


@source("it_planned_numbers")
def numbers(context: SourceContext) -> Iterator[Any]:
    """Give numbers, in two batches."""
    for half in range(2):
        yield [{"n": n, "twice": 2 * n} for n in range(NUMBERS["end"]) if n % 2 == half]


def test_rows_of_a_python_source_are_planned(bench: Workbench) -> None:
    fields = {"type": "PYTHON", "python_task": "it_planned_numbers", "target_key": ["n"]}
    bench.pipeline("numbers", "", **fields)
    assert counted(bench.plan("numbers")) == (10, 0, 0) == reported(bench.run("numbers"))
    NUMBERS["end"] = 12
    bench.sql("UPDATE analytics.numbers SET twice = 5 WHERE n = 3; INSERT INTO analytics.numbers VALUES (99, 1)")

    plan = bench.plan("numbers")

    assert counted(plan) == (2, 1, 1) == reported(bench.run("numbers"))

    bench.pipeline("newer", "", **fields, mode="incremental")
    plan = bench.plan("newer")
    assert plan["rows"] is None
    assert "incremental" in plan["notes"][0]


def test_rows_that_changed_are_counted_by_column_and_shown_before_and_after(bench: Workbench) -> None:
    make(bench)
    bench.sql("UPDATE content.films SET rating = 9.99 WHERE id IN (3, 4); DELETE FROM content.films WHERE id = 5")
    bench.sql("UPDATE content.films SET title = 'Other' WHERE id = 4; INSERT INTO content.films VALUES (900, 'New', 1)")

    rows = bench.plan("films")["rows"]

    assert rows["changed_columns"] == {"title": 1, "rating": 2}
    assert (rows["before"], rows["after"], rows["unchanged"]) == (200, 200, 197)
    assert rows["sample_rows"] == [
        {"kind": "added", "before": None, "after": {"id": "900", "title": "New", "rating": "1.00"}},
        {
            "kind": "changed",
            "before": {"id": "3", "title": "Film 3", "rating": "0.30"},
            "after": {"id": "3", "title": "Film 3", "rating": "9.99"},
        },
        {
            "kind": "changed",
            "before": {"id": "4", "title": "Film 4", "rating": "0.40"},
            "after": {"id": "4", "title": "Other", "rating": "9.99"},
        },
        {"kind": "removed", "before": {"id": "5", "title": "Film 5", "rating": "0.50"}, "after": None},
    ]


def test_few_rows_are_shown_and_long_values_are_cut(bench: Workbench) -> None:
    make(bench)
    bench.sql("UPDATE content.films SET title = repeat('x', 1000)")

    samples = bench.plan("films")["rows"]["sample_rows"]

    assert len(samples) == 3
    assert samples[0]["after"]["title"] == "x" * 200 + "..."


def test_rows_that_the_source_calls_deleted_are_removed(bench: Workbench) -> None:
    query = "SELECT id, title, kind = 'movie' AS gone FROM content.films"
    make(bench, query=query, options={"delete_when": "gone", "allow_shrink": True})
    bench.sql("UPDATE content.films SET kind = 'movie' WHERE id % 2 = 0")

    plan = bench.plan("films")

    assert counted(plan) == reported(bench.run("films"))
    assert plan["columns"]["added"] == []


def test_a_shared_target_keeps_the_rows_of_others(bench: Workbench) -> None:
    options = {"shared_target": True}
    bench.pipeline(
        "others", f"{QUERY} WHERE id > 100", target_table="analytics.films", target_key=["id"], options=options
    )
    assert bench.run("others")["metrics"]["inserted"] == 100
    make(bench, query=f"{QUERY} WHERE id <= 100", options=options)
    bench.sql("DELETE FROM content.films WHERE id IN (1, 2)")

    plan = bench.plan("films")

    assert counted(plan) == (0, 0, 0) == reported(bench.run("films"))
    assert plan["rows"]["stay"] is None


# --- nothing is written -----------------------------------------------------------------------------------------------

STATE = """
SELECT pg_relation_filenode(c.oid) AS file, pg_total_relation_size(c.oid) AS size, c.relpages, c.reltuples,
       s.n_tup_ins, s.n_tup_upd, s.n_tup_del, s.n_tup_hot_upd, s.n_dead_tup, s.n_mod_since_analyze,
       (SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0) AS columns
FROM pg_class c JOIN pg_stat_all_tables s ON s.relid = c.oid WHERE c.oid = 'analytics.films'::regclass
"""


def state_of_target(bench: Workbench) -> dict[str, Any]:
    """What the server counts of the table, once every session that may have written there is over."""

    def is_alone() -> bool:
        [row] = bench.sql(
            "SELECT count(*) AS others FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name LIKE 'vitrina:%' AND application_name NOT LIKE 'vitrina:test%'"
            f" AND pid <> {bench.metastore.info.backend_pid}"
        )
        return bool(row["others"] == 0)

    bench.pool.close()
    waiting.until(is_alone)
    bench.metastore.execute("SELECT pg_stat_force_next_flush()")
    [row] = bench.sql(STATE)
    return row


def left_stages(bench: Workbench) -> list[dict[str, Any]]:
    return bench.sql("SELECT relname FROM pg_class WHERE relnamespace = 'etl_stage'::regnamespace AND relname ~ '^d_'")


@pytest.mark.parametrize("flavour", ["pushdown", "soft", "history", "copy"])
def test_the_target_is_left_as_it_was(bench: Workbench, flavour: str) -> None:
    make(bench, **FLAVOURS[flavour][1])
    bench.sql("UPDATE content.films SET rating = 1 WHERE id % 2 = 0; DELETE FROM content.films WHERE id < 50")
    before = state_of_target(bench)
    rows = bench.sql("SELECT md5(string_agg(f::text, '|' ORDER BY id)) FROM analytics.films AS f")

    plan = bench.plan("films", source_query="SELECT id, title, rating, votes FROM content.films")

    assert plan["rows"]["changed"] > 0
    assert plan["columns"]["added"] == [{"name": "votes", "type": "integer"}]
    assert state_of_target(bench) == before
    assert bench.sql("SELECT md5(string_agg(f::text, '|' ORDER BY id)) FROM analytics.films AS f") == rows
    assert (
        bench.sql("SELECT relname FROM pg_class WHERE relnamespace = 'etl_stage'::regnamespace AND relname ~ '^d_'")
        == []
    )


def test_what_the_server_counts_would_show_a_write(bench: Workbench) -> None:
    """Or the test above could not fail."""
    make(bench)
    before = state_of_target(bench)
    url = bench.settings.require_database_url()
    with psycopg.connect(url, application_name="vitrina:writer") as connection:
        connection.execute("UPDATE analytics.films SET rating = 1 WHERE id = 1")
        connection.rollback()
    assert state_of_target(bench) != before


def test_a_target_that_is_not_there_is_not_created(bench: Workbench) -> None:
    plan = bench.plan("films", source_query=QUERY, target_table="analytics.films", target_key=["id"])

    assert plan["target_exists"] is False
    assert counted(plan) == (200, 0, 0)
    assert [column["name"] for column in plan["columns"]["added"]] == ["id", "title", "rating"]
    assert bench.sql("SELECT to_regclass('analytics.films') AS made") == [{"made": None}]
    assert plan["base_version"] is None
    make(bench)


def test_an_interrupted_load_goes_on_after_a_plan(bench: Workbench) -> None:
    """A plan and a run have stages of their own."""
    bench.pipeline("films", QUERY, target_key=["id"], options={"checkpoint_rows": 50})
    bench.request("films")
    bench.lose_a_runner("batch.committed:crash:2")
    stage = bench.checkpoint("films").stage

    assert counted(bench.plan("films")) == (200, 0, 0)

    assert bench.checkpoint("films").stage == stage
    bench.recover()
    bench.perform(bench.claim())
    run = bench.last_run("films")
    assert reported(run) == (200, 0, 0)
    assert run["rows_read"] < 200 or run["metrics"].get("started_over") is None


def test_what_a_lost_runner_left_is_dropped_and_a_plan_at_work_is_not(bench: Workbench) -> None:
    pipeline = uuid4()
    name = f"d_{pipeline.hex}_0123"
    bench.metastore.execute(f"CREATE UNLOGGED TABLE etl_stage.{name} ()")
    with psycopg.connect(bench.settings.require_database_url(), autocommit=True) as planner:
        stages.hold_plans(planner, pipeline)  # type: ignore[arg-type]
        assert stages.drop_orphans(bench.metastore, bench.metastore) == []
    waiting.until(lambda: stages.drop_orphans(bench.metastore, bench.metastore) == [name])


def test_a_plan_that_fails_leaves_nothing(bench: Workbench) -> None:
    make(bench)

    plan = bench.plan(
        "films", source_query="SELECT id, title, (1.0 / (id - 150))::numeric(4, 2) AS rating FROM content.films"
    )

    assert plan["rows"] is None
    assert "division by zero" in plan["refusals"][0]
    assert (
        bench.sql("SELECT relname FROM pg_class WHERE relnamespace = 'etl_stage'::regnamespace AND relname ~ '^d_'")
        == []
    )


# --- columns, and what would be refused -------------------------------------------------------------------------------


def test_an_added_column_changes_the_rows_that_have_a_value_in_it(bench: Workbench) -> None:
    bench.sql("UPDATE content.films SET votes = NULL WHERE id > 40")
    make(bench, options=ADDS)
    query = "SELECT id, title, rating, votes FROM content.films"

    plan = bench.plan("films", source_query=query)

    assert plan["rows"]["changed_columns"] == {"votes": 40}
    bench.change("films", source_query=query)
    assert reported(bench.run("films")) == counted(plan) == (0, 40, 0)


def test_a_column_that_the_target_lacks_is_refused_unless_it_may_be_added(bench: Workbench) -> None:
    make(bench)

    plan = bench.plan("films", source_query="SELECT id, title, rating, votes FROM content.films")

    assert plan["columns"]["added"] == [{"name": "votes", "type": "integer"}]
    assert plan["rows"] is None
    assert "votes" in plan["refusals"][0]


def test_a_column_that_is_no_longer_given_is_told(bench: Workbench) -> None:
    make(bench)
    query = "SELECT id, title FROM content.films"

    plan = bench.plan("films", source_query=query)
    assert plan["columns"]["removed"] == [{"name": "rating", "type": "numeric(4,2)"}]
    assert "rating" in plan["refusals"][0]

    kept = bench.plan("films", source_query=query, options={"on_missing_columns": "keep"})
    assert kept["refusals"] == []
    assert counted(kept) == (0, 0, 0)
    assert "rating" in kept["warnings"][0]


def test_another_type_is_told_and_refused(bench: Workbench) -> None:
    make(bench)

    plan = bench.plan("films", source_query="SELECT id, title, rating::text AS rating FROM content.films")

    assert plan["columns"]["retyped"] == [{"name": "rating", "before": "numeric(4,2)", "after": "text"}]
    assert plan["refusals"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("DELETE FROM content.films WHERE id > 50", "150"),
        ("DELETE FROM content.films", "analytics.films"),
    ],
)
def test_the_guards_of_a_run_are_told_with_the_counts(bench: Workbench, change: str, said: str) -> None:
    make(bench)
    bench.sql(change)

    plan = bench.plan("films")
    run = bench.run("films")

    assert run["status"] == "FAILED"
    assert plan["rows"]["removed"] >= 150
    assert said in plan["refusals"][0]
    assert run["error_message"].startswith(plan["refusals"][0])


def test_a_key_that_comes_twice_is_told(bench: Workbench) -> None:
    make(bench)

    plan = bench.plan("films", source_query="SELECT id % 100 AS id, title, rating FROM content.films")

    assert plan["rows"] is None
    assert "100" in plan["refusals"][0]


def test_checks_are_judged_in_the_plan(bench: Workbench) -> None:
    checks: list[dict[str, Any]] = [
        {"kind": "expression", "name": "of_ten", "expression": "rating <= 10"},
        {"kind": "not_null", "column": "title", "severity": "reject"},
        {"kind": "changed_share", "max": 0.5, "severity": "warn"},
        {
            "kind": "select",
            "name": "known",
            "query": "SELECT s.id FROM staged s JOIN target t USING (id) WHERE t.rating > 99",
        },
    ]
    make(bench, checks=checks)
    bench.sql("UPDATE content.films SET title = NULL WHERE id <= 3; UPDATE content.films SET rating = 2")

    plan = bench.plan("films")

    assert {one["name"]: one["result"] for one in plan["checks"]} == {
        "of_ten": "passed", "not_null_title": "rejected", "changed_share": "warned", "known": "passed",
    }  # fmt: skip
    assert plan["rows"]["rejected"] == 3
    assert plan["refusals"] == []
    assert counted(plan) == reported(bench.run("films"))

    bench.sql("UPDATE content.films SET rating = 11 WHERE id = 9")
    plan = bench.plan("films")
    assert [one["result"] for one in plan["checks"] if one["name"] == "of_ten"] == ["failed"]
    assert "of_ten" in plan["refusals"][0]


def test_checks_that_ask_for_the_target_are_judged_before_there_is_one(bench: Workbench) -> None:
    checks = [{"kind": "select", "name": "none_lost", "query": "SELECT t.id FROM target t WHERE t.votes < 0"}]
    query = "SELECT id, votes FROM content.films"

    plan = bench.plan("films", source_query=query, target_table="analytics.films", target_key=["id"], checks=checks)

    assert [one["result"] for one in plan["checks"]] == ["passed"]
    assert counted(plan) == (200, 0, 0)


def test_checks_that_ask_for_the_target_see_its_new_columns(bench: Workbench) -> None:
    checks = [{"kind": "select", "name": "none_lost", "query": "SELECT t.id FROM target t WHERE t.votes < 0"}]
    options = {"deletes": {"soft": "deleted_at"}, "on_schema_change": "add_columns"}
    make(bench, query="SELECT id FROM content.films", options=options)

    plan = bench.plan("films", source_query="SELECT id, votes FROM content.films", checks=checks)

    assert (plan["refusals"], [one["result"] for one in plan["checks"]]) == ([], ["passed"])


# --- incremental ------------------------------------------------------------------------------------------------------

VERSIONS = """
CREATE TABLE content.versions (id int, title text, at timestamptz);
INSERT INTO content.versions SELECT i, 'Film ' || i, '2026-01-01'::timestamptz + i * interval '1 minute'
    FROM generate_series(1, 50) AS i;
"""


def test_an_incremental_pipeline_is_planned_as_if_everything_were_read(bench: Workbench) -> None:
    bench.source(VERSIONS)
    make(bench, query="SELECT id, title, at FROM content.versions", mode="incremental", incremental_key="at")
    bench.sql("DELETE FROM content.versions WHERE id <= 5")
    # The later of two versions counts.
    bench.sql("INSERT INTO content.versions SELECT id, 'Later', now() FROM content.versions WHERE id > 45")
    query = "SELECT id, title || '.' AS title, at FROM content.versions"

    plan = bench.plan("films", source_query=query)

    assert counted(plan) == (0, 45, 0)
    assert plan["rows"]["stay"] == 5
    assert "--reset" in plan["notes"][0]
    samples = [one for one in plan["rows"]["sample_rows"] if one["after"]["id"] == "46"]
    assert all(one["after"]["title"] == "Later." for one in samples)
    bench.change("films", source_query=query)
    bench.sql("DELETE FROM etl.etl_state")
    assert reported(bench.run("films")) == (0, 45, 0)


def test_a_live_pipeline_is_planned_as_it_is_loaded(bench: Workbench) -> None:
    make(bench)
    bench.sql("UPDATE content.films SET rating = 0 WHERE id <= 10; DELETE FROM content.films WHERE id = 200")

    assert counted(bench.plan("films", mode="live")) == (0, 10, 1)


# --- targets that do not stage ----------------------------------------------------------------------------------------


def test_files_are_compared_with_their_source(bench: Workbench, tmp_path: Path) -> None:
    bench.settings = bench.settings.model_copy(
        update={"connections": {"lake": SecretStr(f"file://{tmp_path}")}, "allowed_targets": "analytics.*,files:*"}
    )
    fields = {"target_table": "files:films", "target_key": ["id"], "options": {"target_connection": "lake"}}
    first = bench.plan("films", source_query=QUERY, **fields)
    assert first["rows"] is None or counted(first) == (200, 0, 0)
    make(bench, **fields)
    written = sorted(path.name for path in tmp_path.rglob("*"))
    bench.sql("UPDATE content.films SET rating = 9 WHERE id IN (1, 2); DELETE FROM content.films WHERE id = 3")

    plan = bench.plan("films", source_query="SELECT id, title, rating, votes FROM content.films")

    assert plan["columns"]["added"] == [{"name": "votes", "type": "integer"}]
    assert plan["columns"]["removed"] == []
    plan = bench.plan("films")
    assert counted(plan) == (0, 2, 1)
    assert "reconcile" in plan["notes"][0]
    assert sorted(path.name for path in tmp_path.rglob("*")) == written
    removed = [one["before"]["title"] for one in plan["rows"]["sample_rows"] if one["kind"] == "removed"]
    assert removed == ['"Film 3"']  # as reconcile writes documents


# --- what depends on it -----------------------------------------------------------------------------------------------


def test_what_depends_on_the_pipeline_is_named(bench: Workbench) -> None:
    bench.settings = bench.settings.model_copy(update={"allowed_source_schemas": "content,analytics"})
    make(bench)
    bench.pipeline("film_cards", "SELECT id FROM analytics.films", target_key=["id"])
    bench.pipeline("beside", "SELECT id FROM content.films", target_key=["id"])
    bench.pipeline("later", "SELECT 1 AS id", target_key=["id"], run_after=["film_cards"])

    plan = bench.plan("films")

    assert plan["downstream"]["pipelines"] == ["film_cards", "later"]
    assert plan["downstream"]["targets"] == ["analytics.film_cards", "analytics.later"]


# --- over HTTP --------------------------------------------------------------------------------------------------------

SETUP = Caller("setup", Role.ADMIN)
DEFINITION = {"name": "films", "source_query": QUERY, "target_table": "analytics.films", "target_key": ["id"]}


@pytest.fixture
def http(bench: Workbench) -> Iterator[httpx.Client]:
    with serving(bench.settings, request_wait_seconds=0.0) as client:
        yield client


@pytest.fixture
def tokens_of(bench: Workbench) -> dict[str, dict[str, str]]:
    made = {role: tokens.create(bench.metastore, SETUP, name=f"a-{role}", role=role)[1] for role in Role}
    return {str(role): {"Authorization": f"Bearer {secret}"} for role, secret in made.items()}


def planned(bench: Workbench, http: httpx.Client, caller: dict[str, str], **changes: Any) -> str:
    """Ask for a plan of a definition, let a runner make it, and return its id."""
    asked = http.post("/api/v1/plan", json=DEFINITION | changes, headers=caller)
    assert asked.status_code == 202, asked.text
    perform_request(bench)
    return str(asked.json()["id"])


def perform_request(bench: Workbench) -> None:
    runner = uuid4()
    request = requests.claim_next(bench.metastore, runner, 60)
    assert request
    result, error = runner_requests.perform(request, bench.metastore, bench.settings, _no_lease)
    assert error is None, error
    assert requests.finish(bench.metastore, request["id"], runner, result=result, error=error)


def _no_lease(*args: Any) -> Any:
    raise AssertionError("a plan needs no lease")


def document(**changes: Any) -> str:
    spec = {name: value for name, value in (DEFINITION | changes).items() if name != "name"}
    return json.dumps({"apiVersion": "vitrina/v1", "kind": "Pipeline", "metadata": {"name": "films"}, "spec": spec})


def test_operators_make_plans_and_viewers_see_them_without_rows(
    bench: Workbench, http: httpx.Client, tokens_of: dict[str, dict[str, str]]
) -> None:
    make(bench)
    bench.sql("UPDATE content.films SET title = 'Secret' WHERE id = 1")
    url = "/api/v1/pipelines/films/plan"
    assert http.post(url, headers=tokens_of["viewer"]).status_code == 403
    assert http.post("/api/v1/plan", json=DEFINITION, headers=tokens_of["viewer"]).status_code == 403
    asked = http.post(url, headers=tokens_of["operator"])
    perform_request(bench)
    plan = asked.json()["id"]

    whole = http.get(f"/api/v1/plans/{plan}", headers=tokens_of["operator"]).json()
    assert whole["result"]["rows"]["sample_rows"][0]["after"]["title"] == "Secret"
    assert (whole["created_by"], whole["base_version"], whole["pipeline"]) == ("a-operator", 1, "films")
    for place in (f"/api/v1/plans/{plan}", f"/api/v1/requests/{plan}"):
        seen = http.get(place, headers=tokens_of["viewer"])
        assert seen.status_code == 200
        assert "Secret" not in seen.text
        assert seen.json()["result"]["rows"]["changed"] == 1
    [listed] = http.get("/api/v1/pipelines/films/plans", headers=tokens_of["viewer"]).json()["items"]
    assert (listed["id"], listed["changed"], listed["refused"]) == (plan, 1, False)
    entries = http.get("/api/v1/audit", headers=tokens_of["admin"]).json()["items"]
    assert [(one["who"], one["object"]) for one in entries if one["action"] == "plan"] == [
        ("a-operator", "pipeline:films")
    ]


def test_a_plan_of_a_definition_that_cannot_be_is_refused_at_once(
    http: httpx.Client, tokens_of: dict[str, dict[str, str]]
) -> None:
    refused = http.post("/api/v1/plan", json=DEFINITION | {"target_table": "etl.x"}, headers=tokens_of["operator"])
    assert refused.status_code == 422
    assert http.get(f"/api/v1/plans/{uuid4()}", headers=tokens_of["viewer"]).status_code == 404


def test_only_what_was_looked_at_is_applied(
    bench: Workbench, http: httpx.Client, tokens_of: dict[str, dict[str, str]]
) -> None:
    caller = tokens_of["operator"]

    def apply(*plans: str, **changes: Any) -> httpx.Response:
        prune = changes.pop("prune", False)
        body = {"documents": document(**changes), "require_plans": plans, "prune": prune}
        return http.post("/api/v1/apply", json=body, headers=caller)

    created = planned(bench, http, caller)
    other = apply(created, description="another")
    assert other.status_code == 409, other.text
    assert "another definition" in problem(other)["detail"]
    done = apply(created)
    assert [item["action"] for item in done.json()["items"]] == ["create"]

    changed = planned(bench, http, caller, description="changed")
    assert apply(str(uuid4()), description="changed").status_code == 404
    assert apply(created, description="changed").status_code == 409
    assert http.patch("/api/v1/pipelines/films", json={"batch_size": 77}, headers=caller).status_code == 200
    late = apply(changed, description="changed")
    assert late.status_code == 409
    assert "for version 1" in problem(late)["detail"]
    row = pipelines.find(bench.metastore, "films")
    assert row
    assert (row["version"], row["description"]) == (2, "")

    fresh = planned(bench, http, caller, description="changed")
    assert apply(fresh, description="changed").status_code == 200
    # Once more: nothing is left to apply.
    assert apply(fresh, description="changed").json()["items"][0]["action"] == "unchanged"
    listed = http.get("/api/v1/pipelines/films/plans", headers=caller).json()["items"]
    assert [(one["id"], one["applied_by"], one["applied_version"]) for one in listed] == [
        (fresh, "a-operator", 3), (changed, None, None), (created, "a-operator", 1),
    ]  # fmt: skip
    entries = http.get("/api/v1/audit", headers=tokens_of["admin"]).json()["items"]
    assert [one["after"]["plan"] for one in entries if one["action"] == "apply_plan"] == [fresh, created]


def test_nothing_beside_the_plan_is_applied(
    bench: Workbench, http: httpx.Client, tokens_of: dict[str, dict[str, str]]
) -> None:
    caller = tokens_of["operator"]
    plan = planned(bench, http, caller)
    second = document(target_table="analytics.second").replace('"films"', '"second"', 1)
    body = {"documents": f"{document()}\n---\n{second}", "require_plans": [plan]}

    refused = http.post("/api/v1/apply", json=body, headers=caller)
    assert refused.status_code == 409
    assert "second" in problem(refused)["detail"]
    strange = http.post("/api/v1/apply", json={"documents": second, "require_plans": [plan]}, headers=caller)
    assert "is about pipeline films" in problem(strange)["detail"]

    owned = {"managed_by": "team", "require_plans": [plan]}
    assert (
        http.post("/api/v1/apply", json={"documents": second, "managed_by": "team"}, headers=caller).status_code == 200
    )
    pruning = http.post("/api/v1/apply", json={"documents": document(), "prune": True, **owned}, headers=caller)
    assert "second would be deleted" in problem(pruning)["detail"]
    assert pipelines.find(bench.metastore, "second")
    dry = http.post("/api/v1/apply", json={"documents": document(), "dry_run": True, **owned}, headers=caller)
    assert [item["action"] for item in dry.json()["items"]] == ["create"]
    assert data_plans.get(bench.metastore, UUID(plan))["applied_at"] is None


def test_a_definition_has_one_fingerprint_however_it_is_written() -> None:
    plain = Definition.model_validate(DEFINITION)
    written_out = Definition.model_validate(DEFINITION | {"mode": "full", "options": {"allow_shrink": False}})
    assert data_plans.fingerprint(plain) == data_plans.fingerprint(written_out)
    other = Definition.model_validate(DEFINITION | {"options": {"allow_shrink": True}})
    assert data_plans.fingerprint(plain) != data_plans.fingerprint(other)


def test_a_query_that_cannot_be_described_is_an_error_and_no_plan(bench: Workbench) -> None:
    make(bench)
    with pytest.raises(FatalError, match="no_such_column"):
        bench.plan("films", source_query="SELECT id, no_such_column FROM content.films")
