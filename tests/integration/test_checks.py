"""Nothing wrong is published: every kind of check, what becomes of rows that break one, on every way to a mart."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest

from tests.support.workbench import Workbench
from vitrina.connectors.postgres import bulk_load, first_load
from vitrina.connectors.postgres.check_reading import Question
from vitrina.connectors.postgres.checks import MartChecks
from vitrina.services import policy
from vitrina.store import dead_letters, pipelines

LONG = os.environ.get("VITRINA_CHAOS") == "long"
PUBLISHES = 50 if LONG else 10
STEADY_RUNS = 200 if LONG else 20

FILMS = """
CREATE TABLE content.genre (id int PRIMARY KEY, name text);
INSERT INTO content.genre VALUES (1, 'Drama'), (2, 'Comedy');
CREATE TABLE content.films (id int, title text, kind text, rating numeric(4, 2), genre_id int, at timestamptz);
INSERT INTO content.films
    SELECT i, 'Film ' || i, 'movie', 5.50, 1 + i % 2, now() - interval '1 hour' FROM generate_series(1, 100) AS i;
"""
QUERY = "SELECT id, title, kind, rating, genre_id, at FROM content.films"
OTHER_STEP = {"order_index": 1, "task_type": "PYTHON", "body": "normalise_text", "params": {"columns": ["title"]}}
# Postgres fills its own stage, lines of COPY pass through the runner, or Arrow batches pass a step.
WAYS = pytest.mark.parametrize("way", ["auto", "copy", "steps"])

NOT_NULL = {"kind": "not_null", "column": "title"}
ACCEPTED = {"kind": "accepted_values", "column": "kind", "values": ["movie", "tv_show"]}
RELATED = {"kind": "relationship", "column": "genre_id", "to": "content.genre", "to_column": "id"}
EXPRESSION = {"kind": "expression", "expression": "rating BETWEEN 0 AND 10"}
UNIQUE = {"kind": "unique", "columns": ["title"]}
COUNT = {"kind": "row_count", "min": 50, "max": 150}
CHANGED = {"kind": "changed_share", "max": 0.2}
FRESH = {"kind": "freshness", "column": "at", "max_age": "6h"}
SELECT = {"kind": "select", "query": "SELECT s.id FROM staged s JOIN target t USING (id) WHERE s.rating < t.rating - 1"}
ROW_KINDS: list[dict[str, Any]] = [NOT_NULL, ACCEPTED, RELATED, EXPRESSION]
SET_KINDS: list[dict[str, Any]] = [UNIQUE, COUNT, CHANGED, FRESH, SELECT]

# What breaks each of them, and how many rows do.
BROKEN = {
    "not_null": ("UPDATE content.films SET title = NULL WHERE id <= 3", 3),
    "accepted_values": ("UPDATE content.films SET kind = 'series' WHERE id = 7", 1),
    "relationship": ("UPDATE content.films SET genre_id = 9 WHERE id IN (1, 2)", 2),
    "expression": ("UPDATE content.films SET rating = 11 WHERE id = 5", 1),
    "unique": ("UPDATE content.films SET title = 'Film 1' WHERE id = 2", 1),
    "row_count": ("INSERT INTO content.films (id, title) SELECT i, 'New ' || i FROM generate_series(101, 200) i", None),
    "changed_share": ("UPDATE content.films SET title = title || '!' WHERE id <= 30", None),
    "freshness": ("UPDATE content.films SET at = now() - interval '2 days'", None),
    "select": ("UPDATE content.films SET rating = 1 WHERE id <= 4", 4),
}  # fmt: skip


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    workbench.settings = workbench.settings.model_copy(update={"backoff_seconds": (0.01,), "max_attempts": 2})
    workbench.source(FILMS)
    return workbench


def make(bench: Workbench, *checks: dict[str, Any], way: str = "auto", **fields: Any) -> None:
    options = fields.pop("options", {}) | ({} if way == "steps" else {"route": way})
    if way == "steps":
        fields |= {"tasks": [{"order_index": 0, "task_type": "SQL", "body": QUERY}, OTHER_STEP]}
    fields = {"target_key": ["id"], "batch_size": 20, "options": options, "checks": list(checks)} | fields
    bench.pipeline("films", QUERY, **fields)


def told(run: dict[str, Any]) -> dict[str, Any]:
    return {check["name"]: check for check in run["metrics"]["checks"]}


def results(run: dict[str, Any]) -> dict[str, str]:
    return {name: check["result"] for name, check in told(run).items()}


def mart(bench: Workbench) -> list[dict[str, Any]]:
    return bench.sql("SELECT id, title, kind, rating, genre_id FROM analytics.films ORDER BY id")


def letters(bench: Workbench) -> list[dict[str, Any]]:
    row = pipelines.find(bench.metastore, "films")
    assert row is not None
    return dead_letters.list_open(bench.metastore, row["id"])


# --- a load that is published at once --------------------------------------------------------------------------------


@WAYS
def test_a_load_that_all_checks_pass_is_published(bench: Workbench, way: str) -> None:
    make(bench, *ROW_KINDS, *SET_KINDS, way=way)

    run = bench.run("films")

    assert run["status"] == "SUCCESS", run["error_message"]
    assert set(results(run).values()) == {"passed"}
    assert len(results(run)) == len(ROW_KINDS) + len(SET_KINDS)
    assert bench.differences(QUERY, "analytics.films") == 0


@WAYS
@pytest.mark.parametrize("check", [*ROW_KINDS, *SET_KINDS], ids=lambda check: check["kind"])
def test_a_check_that_fails_keeps_the_old_rows_and_is_accepted_by_name(
    bench: Workbench, way: str, check: dict[str, Any]
) -> None:
    breaking, rows = BROKEN[check["kind"]]
    make(bench, check, way=way)
    assert bench.run("films")["status"] == "SUCCESS"
    before = mart(bench)
    bench.sql(breaking)

    run = bench.run("films")

    [found] = run["metrics"]["checks"]
    assert (run["status"], run["error_code"], found["result"]) == ("FAILED", "check_failed", "failed")
    assert f"check {found['name']} failed: {found['found']}" in run["error_message"]
    assert f"vitrina run films --accept {found['name']}" in run["error_message"]
    assert run["error_message"].endswith("the next run reads the source again")
    assert found.get("rows") == rows
    assert mart(bench) == before
    assert bench.checkpoint("films").stage is None

    accepted = bench.run("films", accepts=[found["name"]])
    assert (accepted["status"], results(accepted)) == ("SUCCESS", {found["name"]: "accepted"})
    assert bench.differences(QUERY, "analytics.films") == 0
    # Accepted once, not for good.
    assert bench.sql("SELECT accepted_checks FROM etl.etl_pipelines") == [{"accepted_checks": None}]


def test_the_first_rows_that_break_a_check_are_kept_to_be_shown(bench: Workbench) -> None:
    make(bench, EXPRESSION)
    bench.sql("UPDATE content.films SET rating = 11 + id / 10.0 WHERE id <= 20")

    [found] = bench.run("films")["metrics"]["checks"]

    assert (found["rows"], len(found["offending_rows"])) == (20, 5)
    assert found["offending_rows"][0].keys() == {"id", "title", "kind", "rating", "genre_id", "at"}
    assert all(row["rating"] > 10 for row in found["offending_rows"])


@WAYS
@pytest.mark.parametrize("check", [*ROW_KINDS, *SET_KINDS], ids=lambda check: check["kind"])
def test_a_check_that_warns_lets_the_load_pass_and_says_so(bench: Workbench, way: str, check: dict[str, Any]) -> None:
    make(bench, check | {"severity": "warn"}, way=way)
    bench.run("films")
    bench.sql(BROKEN[check["kind"]][0])

    run = bench.run("films")

    [found] = run["metrics"]["checks"]
    assert (run["status"], found["result"]) == ("SUCCESS", "warned")
    assert f"check {found['name']}: {found['found']}" in run["metrics"]["plan"]["warnings"]
    assert bench.differences(QUERY, "analytics.films") == 0


@WAYS
@pytest.mark.parametrize("check", ROW_KINDS, ids=lambda check: check["kind"])
def test_a_rejected_row_becomes_a_letter_and_can_be_sent_again(
    bench: Workbench, way: str, check: dict[str, Any]
) -> None:
    breaking, rows = BROKEN[check["kind"]]
    make(bench, check | {"severity": "reject"}, COUNT, way=way)
    bench.sql(breaking)

    run = bench.run("films")

    assert (run["status"], run["rows_rejected"]) == ("SUCCESS", rows), run["error_message"]
    assert results(run) == {told(run).keys().__iter__().__next__(): "rejected", "row_count": "passed"}
    assert told(run)["row_count"]["value"] == 100 - (rows or 0)
    assert len(mart(bench)) == 100 - (rows or 0)
    found = letters(bench)
    assert len(found) == rows
    assert {letter["document"]["id"] for letter in found} == {int(letter["document_id"]) for letter in found}

    assert bench.replay("films")["refused"] == rows
    bench.sql("UPDATE content.films SET title = 'Film ' || id, kind = 'movie', rating = 5.50, genre_id = 1 + id % 2")
    assert bench.replay("films")["sent"] == rows
    assert bench.differences(QUERY, "analytics.films") == 0
    assert letters(bench) == []


def test_a_letter_names_its_row_by_every_digit_of_a_numeric_key(bench: Workbench) -> None:
    """A key that passes through a float names a row that the source does not have: `gone`, and never sent."""
    bench.sql("ALTER TABLE content.films ALTER COLUMN id TYPE numeric(30, 9)")
    bench.sql("UPDATE content.films SET id = 12345678901234567890.123456789, title = NULL WHERE id = 3")
    make(bench, NOT_NULL | {"severity": "reject"})
    assert bench.run("films")["rows_rejected"] == 1
    bench.sql("UPDATE content.films SET title = 'Film 3' WHERE title IS NULL")

    report = bench.replay("films")

    assert (report["sent"], report["gone"], report["unclear"]) == (1, 0, 0)
    assert letters(bench) == []
    assert bench.differences(QUERY, "analytics.films") == 0


def test_more_rejected_rows_than_agreed_fail_the_run(bench: Workbench) -> None:
    make(bench, NOT_NULL | {"severity": "reject", "max_rejected": 2})
    bench.sql(BROKEN["not_null"][0])

    run = bench.run("films")

    assert (run["status"], run["error_code"]) == ("FAILED", "check_failed")
    assert letters(bench) == []


def test_a_row_that_one_check_rejects_is_not_held_against_another(bench: Workbench) -> None:
    make(bench, NOT_NULL, {"kind": "expression", "expression": "title IS NOT NULL", "severity": "reject"}, UNIQUE)
    bench.sql("UPDATE content.films SET title = NULL WHERE id IN (4, 5)")

    run = bench.run("films")

    assert results(run) == {"expression": "rejected", "not_null_title": "passed", "unique_title": "passed"}
    assert len(mart(bench)) == 98


def test_a_row_that_is_rejected_cannot_keep_another_check_from_being_judged(bench: Workbench) -> None:
    bench.sql("UPDATE content.films SET rating = 0 WHERE id <= 2")
    positive = {"kind": "expression", "name": "positive", "expression": "rating > 0", "severity": "reject"}
    divided = {"kind": "expression", "name": "divided", "expression": "10 / rating < 100"}
    make(bench, NOT_NULL | {"severity": "reject"}, positive, divided, FRESH, COUNT)

    run = bench.run("films")

    assert run["status"] == "SUCCESS", run["error_message"]
    assert results(run) | {"divided": "passed", "positive": "rejected"} == results(run)
    assert [len(letters(bench)), len(mart(bench))] == [2, 98]


@WAYS
def test_a_column_named_like_an_alias_of_ours_is_a_column(bench: Workbench, way: str) -> None:
    query = QUERY.replace(" at ", " at, 1 AS q, 2 AS r, 3 AS s, 4 AS x ")
    checks = [EXPRESSION | {"severity": "reject"}, *({**check, "severity": "warn"} for check in (NOT_NULL, UNIQUE))]
    tasks = [{"order_index": 0, "task_type": "SQL", "body": query}, OTHER_STEP] if way == "steps" else []
    route = {} if way == "steps" else {"route": way}
    bench.pipeline("films", query, target_key=["id"], checks=checks, tasks=tasks, options=route)
    for breaking in (
        BROKEN["not_null"][0],
        BROKEN["expression"][0],
        "UPDATE content.films SET title = 'Film 8' WHERE id = 9",
    ):
        bench.sql(breaking)

    run = bench.run("films")

    assert run["status"] == "SUCCESS", run["error_message"]
    assert set(results(run).values()) == {"warned", "rejected"}
    assert told(run)["not_null_title"]["rows"] == 3


def test_infinity_is_no_time_that_a_row_was_fresh_at(bench: Workbench) -> None:
    make(bench, FRESH)
    bench.sql(
        "UPDATE content.films SET at = CASE id WHEN 1 THEN 'infinity' ELSE '-infinity' END::timestamptz WHERE id <= 2"
    )
    assert results(bench.run("films")) == {"freshness_at": "passed"}
    bench.sql("UPDATE content.films SET at = at - interval '2 days' WHERE id > 2")
    assert bench.run("films")["error_code"] == "check_failed"
    bench.sql("UPDATE content.films SET at = 'infinity'")
    assert bench.run("films")["error_code"] == "check_failed"


def test_values_with_a_null_inside_are_compared_too(bench: Workbench) -> None:
    bench.sql("CREATE TYPE content.pair AS (a int, b int); ALTER TABLE content.films ADD COLUMN pair content.pair")
    bench.sql(
        "GRANT USAGE ON SCHEMA content TO vitrina_app; UPDATE content.films SET pair = ROW(id, NULL) WHERE id > 10"
    )
    checks = [{"kind": "unique", "columns": ["pair"]}]
    bench.pipeline("films", "SELECT id, pair FROM content.films", target_key=["id"], checks=checks)
    assert bench.run("films")["status"] == "SUCCESS"
    bench.sql("UPDATE content.films SET pair = ROW(1, NULL) WHERE id > 98")
    assert bench.run("films")["error_code"] == "check_failed"


def test_a_query_sees_the_target_with_its_own_columns_alone(bench: Workbench) -> None:
    columns = "title, kind, rating, genre_id, at"
    query = f"SELECT * FROM target EXCEPT SELECT id, {columns}, NULL::timestamptz FROM content.films"
    make(bench, {"kind": "select", "query": query}, options={"deletes": {"soft": "deleted_at"}})
    runs = [bench.run("films")["error_message"] for _ in range(2)]
    assert runs == [None, None]


@pytest.mark.parametrize(
    ("wrong", "said"), [("id NOT IN (SELECT t.id FROM target AS t)", "target"), ("at > :since", ":since")]
)
def test_what_an_expression_may_not_name_is_refused_when_it_is_saved(bench: Workbench, wrong: str, said: str) -> None:
    make(bench, {"kind": "expression", "expression": wrong})
    row = pipelines.find(bench.metastore, "films")
    assert row is not None
    [problem] = policy.problems(pipelines.definition_of(row), bench.settings)
    assert problem.path == "checks.0"
    assert said in problem.message


def test_a_type_that_is_compared_with_nothing_names_the_check(bench: Workbench) -> None:
    bench.sql("CREATE TYPE content.pair AS (a int, b int); ALTER TABLE content.films ADD COLUMN pair content.pair")
    bench.sql("GRANT USAGE ON SCHEMA content TO vitrina_app")
    checks = [{"kind": "accepted_values", "column": "pair", "values": ["(1,2)"]}]
    bench.pipeline("films", "SELECT id, pair FROM content.films", target_key=["id"], checks=checks)

    run = bench.run("films")

    assert (run["error_code"], "accepted_values_pair" in run["error_message"]) == ("bad_check", True)


def test_a_letter_names_its_row_exactly(bench: Workbench) -> None:
    bench.sql("CREATE TABLE content.prices (sku numeric, region text, price int)")
    bench.sql("INSERT INTO content.prices VALUES (12345678901234567890.50, 'eu', NULL), (2, 'eu', 5)")
    check = {"kind": "not_null", "column": "price", "severity": "reject"}
    bench.pipeline("films", "SELECT * FROM content.prices", target_key=["sku", "region"], checks=[check])

    assert bench.run("films")["rows_rejected"] == 1

    assert [letter["document_id"] for letter in letters(bench)] == ["12345678901234567890.50|eu"]
    bench.sql("UPDATE content.prices SET price = 7 WHERE price IS NULL")
    assert bench.replay("films")["sent"] == 1
    assert bench.differences("SELECT * FROM content.prices", "analytics.films") == 0


def test_a_repair_writes_no_row_that_a_check_rejects(bench: Workbench) -> None:
    make(bench, NOT_NULL | {"severity": "reject"})
    bench.sql(BROKEN["not_null"][0])
    bench.run("films")
    bench.sql("UPDATE analytics.films SET title = 'changed by hand' WHERE id = 50")

    report = bench.reconcile("films", repair=True)

    assert (report["differences"], report["repair"]["rejected"]) == (4, 3)
    assert bench.differences(f"{QUERY} WHERE title IS NOT NULL", "analytics.films") == 0


def test_a_load_without_rows_and_columns_breaks_no_check_of_rows(bench: Workbench) -> None:
    make(bench, *ROW_KINDS, UNIQUE, options={"allow_empty": True, "allow_shrink": True})
    bench.run("films")
    bench.sql("TRUNCATE content.films")

    assert set(results(bench.run("films")).values()) == {"passed"}
    assert mart(bench) == []


def test_numbers_and_truths_are_compared_as_what_they_are(bench: Workbench) -> None:
    query = "SELECT id, rating, id > 0 AS there FROM content.films"
    checks = [
        {"kind": "accepted_values", "column": "rating", "values": [5.5]},
        {"kind": "accepted_values", "column": "there", "values": [True]},
    ]
    bench.pipeline("films", query, target_key=["id"], checks=checks)

    assert set(results(bench.run("films")).values()) == {"passed"}


def test_the_number_of_rows_is_compared_with_the_runs_before(bench: Workbench) -> None:
    make(bench, {"kind": "row_count", "last_runs": 5, "within": 0.2}, options={"allow_shrink": True})
    for _ in range(3):
        assert bench.run("films")["status"] == "SUCCESS"
    bench.sql("DELETE FROM content.films WHERE id > 60")

    assert bench.run("films")["error_code"] == "check_failed"
    assert bench.run("films", accepts=["row_count"])["status"] == "SUCCESS"
    # From here on the new number is the usual one.
    assert results(bench.run("films")) == {"row_count": "passed"}


def test_steady_runs_raise_no_false_alarm(bench: Workbench) -> None:
    make(bench, {"kind": "row_count", "last_runs": 10, "within": 0.2}, CHANGED, FRESH)
    for number in range(STEADY_RUNS):
        bench.sql("DELETE FROM content.films WHERE id IN (SELECT id FROM content.films ORDER BY id LIMIT 5)")
        bench.sql(
            "INSERT INTO content.films SELECT i, 'Film ' || i, 'movie', 5.50, 1 + i % 2, now()"
            f" FROM generate_series({200 + number * 5}, {204 + number * 5}) AS i"
        )
        run = bench.run("films")
        assert set(results(run).values()) == {"passed"}, run["error_message"]


def test_a_limit_of_the_shrink_guard_can_be_named_and_accepted(bench: Workbench) -> None:
    make(bench, {"kind": "shrink", "max": 0.1})
    bench.run("films")
    bench.sql("DELETE FROM content.films WHERE id > 80")

    run = bench.run("films")

    assert (run["error_code"], results(run)) == ("shrink_refused", {"shrink": "failed"})
    assert "vitrina run films --accept shrink" in run["error_message"]
    assert bench.run("films", accepts=["shrink"])["rows_deleted"] == 20


@pytest.mark.parametrize(("condition", "guard"), [("id > 40", "shrink"), ("true", "empty")])
def test_the_guards_of_every_pipeline_are_accepted_by_name(bench: Workbench, condition: str, guard: str) -> None:
    make(bench)
    bench.run("films")
    bench.sql(f"DELETE FROM content.films WHERE {condition}")

    run = bench.run("films")
    assert (run["error_code"], results(run)) == ("shrink_refused", {guard: "failed"})
    assert len(mart(bench)) == 100

    accepts = ["shrink", "empty"] if guard == "empty" else [guard]
    assert bench.run("films", accepts=accepts)["status"] == "SUCCESS"
    assert bench.differences(QUERY, "analytics.films") == 0


def test_without_checks_a_run_tells_nothing_of_them(bench: Workbench) -> None:
    make(bench)

    assert "checks" not in bench.run("films")["metrics"]


# --- passes ----------------------------------------------------------------------------------------------------------

INCREMENTAL = {"mode": "incremental", "incremental_key": "at"}


@WAYS
@pytest.mark.parametrize("check", ROW_KINDS, ids=lambda check: check["kind"])
def test_a_pass_writes_no_batch_that_breaks_a_check(bench: Workbench, way: str, check: dict[str, Any]) -> None:
    make(bench, check, way=way, **INCREMENTAL)
    assert bench.run("films")["status"] == "SUCCESS"
    before = mart(bench)
    bench.sql(f"{BROKEN[check['kind']][0]}; UPDATE content.films SET at = now() WHERE id <= 10")

    run = bench.run("films")

    assert (run["status"], run["error_code"]) == ("FAILED", "check_failed")
    assert "the batch was not written" in run["error_message"]
    assert mart(bench) == before
    [name] = results(run)
    accepted = bench.run("films", accepts=[name])
    assert accepted["status"] == "SUCCESS", accepted["error_message"]
    assert bench.differences(QUERY, "analytics.films") == 0


@WAYS
@pytest.mark.parametrize("check", ROW_KINDS, ids=lambda check: check["kind"])
def test_a_pass_leaves_rejected_rows_behind_and_takes_them_when_they_are_mended(
    bench: Workbench, way: str, check: dict[str, Any]
) -> None:
    make(bench, check | {"severity": "reject"}, way=way, **INCREMENTAL)
    bench.run("films")
    before = {row["id"]: row for row in mart(bench)}
    bench.sql(f"{BROKEN[check['kind']][0]}; UPDATE content.films SET at = now() WHERE id <= 10")

    run = bench.run("films")

    rows = BROKEN[check["kind"]][1]
    assert (run["status"], run["rows_rejected"]) == ("SUCCESS", rows)
    left = {letter["document"]["id"] for letter in letters(bench)}
    assert len(left) == rows
    assert {row["id"]: row for row in mart(bench) if row["id"] in left} == {number: before[number] for number in left}

    bench.sql("UPDATE content.films SET title = 'Film ' || id, kind = 'movie', rating = 5.50, genre_id = 1 + id % 2")
    bench.sql("UPDATE content.films SET at = now() WHERE id <= 10")
    assert bench.run("films")["status"] == "SUCCESS"
    assert bench.differences(QUERY, "analytics.films", "id, title, kind, rating, genre_id") == 0
    assert letters(bench) == []


def test_checks_of_all_rows_look_at_the_target_after_a_pass(bench: Workbench) -> None:
    orphans = {"kind": "select", "name": "low", "query": "SELECT id FROM staged WHERE rating < 1", "severity": "warn"}
    make(bench, UNIQUE, orphans, **INCREMENTAL)
    bench.run("films")
    bench.sql("UPDATE content.films SET title = 'Film 1', rating = 0.5, at = now() WHERE id = 2")

    run = bench.run("films")

    assert (run["status"], bench.status("films")) == ("FAILED", "FAILED")
    assert results(run) == {"unique_title": "failed", "low": "warned"}
    assert "the rows of this pass are already in analytics.films" in run["error_message"]
    assert bench.sql("SELECT title FROM analytics.films WHERE id = 2") == [{"title": "Film 1"}]
    assert results(bench.run("films", accepts=["unique_title"]))["unique_title"] == "accepted"
    assert any("unique_title" in warning for warning in run["metrics"]["plan"]["warnings"])


# --- the author's SQL ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "check",
    [
        {"kind": "select", "query": "SELECT id FROM content.secret"},
        {"kind": "expression", "expression": "NOT EXISTS (SELECT FROM content.secret)"},
        {"kind": "relationship", "column": "id", "to": "content.secret"},
    ],
    ids=lambda check: check["kind"],
)
def test_sql_of_checks_runs_under_the_readers_login(bench: Workbench, check: dict[str, Any]) -> None:
    bench.sql("CREATE TABLE content.secret (id int); GRANT SELECT ON content.secret TO vitrina_app")
    bench.sql("REVOKE ALL ON content.secret FROM vitrina_reader")
    make(bench, check)

    run = bench.run("films")

    assert (run["status"], run["error_code"]) == ("FAILED", "bad_check")
    assert "permission denied for table secret" in run["error_message"]


@pytest.mark.parametrize(
    "options", [{"checkpoint_rows": 20}, {"route": "copy", "checkpoint_rows": 20}, {"route": "arrow"}]
)
def test_a_load_that_was_interrupted_is_judged_as_a_whole(bench: Workbench, options: dict[str, Any]) -> None:
    make(bench, EXPRESSION | {"severity": "reject"}, COUNT, UNIQUE, options=options | {"max_attempts": 20})
    bench.sql("UPDATE content.films SET rating = 11 WHERE id IN (1, 50, 99)")

    run = bench.run_interrupted("films", batches=6)

    assert (run["status"], run["rows_rejected"]) == ("SUCCESS", 3), run["error_message"]
    assert told(run)["row_count"]["value"] == 97
    assert len(mart(bench)) == 97


def test_a_check_that_was_written_with_psql_passes_the_guard_before_it_runs(bench: Workbench) -> None:
    make(bench, SELECT)
    bench.sql(
        """
        UPDATE etl.etl_pipelines
        SET checks = '[{"kind": "select", "query": "SELECT * FROM etl.etl_api_tokens"}]' WHERE name = 'films'
        """
    )

    run = bench.run("films")

    assert (run["status"], run["error_code"]) == ("FAILED", "bad_check")
    assert "etl.etl_api_tokens" in run["error_message"]


def test_a_check_may_not_lead_out_of_the_allowed_schemas_by_a_view(bench: Workbench) -> None:
    bench.source("CREATE VIEW content.leak AS SELECT name FROM etl.etl_pipelines")
    make(bench, {"kind": "select", "query": "SELECT name FROM content.leak"})

    run = bench.run("films")

    assert (run["error_code"], "etl.etl_pipelines" in run["error_message"]) == ("bad_check", True)


def test_the_reader_keeps_no_right_on_stages_or_the_mart(bench: Workbench) -> None:
    make(bench, *ROW_KINDS, *SET_KINDS, **INCREMENTAL)
    bench.run("films")
    bench.sql("UPDATE content.films SET at = now() WHERE id <= 10")
    bench.run("films")

    assert (
        bench.sql("SELECT relname FROM pg_class WHERE relnamespace = 'etl_stage'::regnamespace AND relname ~ '^p_'")
        == []
    )
    [may] = bench.sql("SELECT has_table_privilege('vitrina_reader', 'analytics.films', 'SELECT') AS read")
    assert may == {"read": False}


def test_a_view_that_a_lost_runner_left_behind_is_dropped(bench: Workbench) -> None:
    make(bench, SELECT)
    bench.run("films")
    row = pipelines.find(bench.metastore, "films")
    assert row is not None
    name = f"etl_stage.p_{row['id'].hex}_left"
    bench.metastore.execute(f"CREATE VIEW {name} AS SELECT * FROM analytics.films")

    bench.run("films")

    assert bench.sql(f"SELECT to_regclass('{name}') AS there") == [{"there": None}]


@pytest.mark.parametrize(
    ("check", "said"),
    [
        ({"kind": "not_null", "column": "titel"}, "uses the column 'titel', which the rows do not have"),
        ({"kind": "accepted_values", "column": "id", "values": ["many"]}, "invalid input syntax"),
        ({"kind": "expression", "expression": "no_such > 1"}, "no_such"),
        ({"kind": "expression", "expression": "1 / (id - 1) > 0"}, "division by zero"),
        ({"kind": "freshness", "column": "genre_id", "max_age": "1h"}, "cannot cast"),
    ],
)
def test_what_cannot_be_judged_names_the_check_and_publishes_nothing(
    bench: Workbench, check: dict[str, Any], said: str
) -> None:
    make(bench, check)

    run = bench.run("films")

    assert (run["status"], run["error_code"]) == ("FAILED", "bad_check")
    assert said in run["error_message"]
    assert bench.sql("SELECT to_regclass('analytics.films') IS NULL AS absent")[0]["absent"] or mart(bench) == []


# --- readers ---------------------------------------------------------------------------------------------------------


@contextmanager
def polling(bench: Workbench) -> Iterator[list[tuple[int, int, int]]]:
    """Read the mart all the time: how many rows, how many of them wrong, and which round they are of."""
    assert bench.settings.admin_url
    seen: list[tuple[int, int, int]] = []
    stop = threading.Event()

    def read() -> None:
        with closing(psycopg.connect(bench.settings.admin_url.get_secret_value(), autocommit=True)) as reader:  # type: ignore[union-attr]
            while not stop.is_set():
                found = reader.execute(
                    "SELECT count(*), count(*) FILTER (WHERE rating > 10), count(DISTINCT title) FROM analytics.films"
                ).fetchone()
                assert found is not None
                seen.append(found)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("way", ["auto", "arrow"])
def test_readers_never_see_a_row_that_a_check_refused(bench: Workbench, way: str) -> None:
    """Of the publishes every other one fails a check; a reader sees whole loads only, and no wrong row."""
    make(bench, EXPRESSION, COUNT, way=way)
    bench.sql("UPDATE content.films SET title = 'round 0'")
    bench.run("films")

    outcomes = []
    with polling(bench) as seen:
        for number in range(1, PUBLISHES + 1):
            wrong = number % 2
            rating = f"CASE WHEN id = {number} AND {wrong} = 1 THEN 11 ELSE 5 END"
            bench.sql(f"UPDATE content.films SET title = 'round {number}', rating = {rating}")
            outcomes.append(bench.run("films")["status"])

    assert outcomes == ["FAILED", "SUCCESS"] * (PUBLISHES // 2)
    assert len(seen) > PUBLISHES
    assert {(rows, wrong, titles) for rows, wrong, titles in seen} == {(100, 0, 1)}


def test_a_run_without_checks_loads_no_module_of_theirs(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    make(bench)
    modules = (
        "vitrina.connectors.postgres.checks",
        "vitrina.connectors.postgres.check_reading",
        "vitrina.loads.checks",
        "vitrina.loads.arrow_checks",
    )
    for name in modules:
        monkeypatch.delitem(sys.modules, name, raising=False)

    assert bench.run("films")["status"] == "SUCCESS"

    assert not [name for name in modules if name in sys.modules]


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The names of the checks that each reading told of."""
    found: list[list[str]] = []
    answer = MartChecks._answer

    def noting(self: MartChecks, question: Question, rows: Any) -> Any:
        found.append([check.called for check in (*question.counted, *question.measured)])
        return answer(self, question, rows)

    monkeypatch.setattr(MartChecks, "_answer", noting)
    return found


@WAYS
def test_one_reading_tells_of_rows_and_of_all_of_them(bench: Workbench, readings: list[list[str]], way: str) -> None:
    rejecting = [check | {"severity": "reject"} for check in ROW_KINDS[:2]]
    make(bench, *rejecting, *ROW_KINDS[2:], COUNT, FRESH, {"kind": "unique", "columns": ["id"]}, way=way)

    assert set(results(bench.run("films")).values()) == {"passed"}
    assert len(readings) == 1
    assert len(readings[0]) == 6

    # What is rejected leaves first, and the rest is read again.
    bench.sql(BROKEN["not_null"][0])
    run = bench.run("films")
    assert (results(run)["not_null_title"], told(run)["row_count"]["value"]) == ("rejected", 97)
    assert len(readings) == 3


def test_a_relationship_to_rows_that_share_a_value_counts_each_row_once(
    bench: Workbench, readings: list[list[str]]
) -> None:
    bench.sql("ALTER TABLE content.genre DROP CONSTRAINT genre_pkey; INSERT INTO content.genre VALUES (1, 'Tragedy')")
    make(bench, RELATED, COUNT)

    run = bench.run("films")

    assert set(results(run).values()) == {"passed"}
    assert told(run)["row_count"]["value"] == 100
    assert readings == [["row_count"]]
    bench.sql(BROKEN["relationship"][0])
    assert told(bench.run("films"))["relationship_genre_id"]["rows"] == 2


@pytest.mark.parametrize("kind", ["numeric", "double precision", "bigint"])
def test_a_relationship_between_two_types_counts_each_row_once(bench: Workbench, kind: str) -> None:
    """Two numerics that differ are equal to one number of fewer digits: a join would give its row twice."""
    bench.sql("CREATE TABLE content.exact (id numeric PRIMARY KEY)")
    bench.sql("INSERT INTO content.exact VALUES (1), (1.00000000000000000001), (2)")
    query = f"SELECT id, genre_id::{kind} AS genre_id FROM content.films"
    related = RELATED | {"to": "content.exact"}
    bench.pipeline("films", query, target_key=["id"], checks=[related, COUNT])

    run = bench.run("films")

    assert set(results(run).values()) == {"passed"}
    assert told(run)["row_count"]["value"] == 100


def test_an_expression_may_name_its_columns_whatever_else_is_joined(bench: Workbench) -> None:
    bench.sql("ALTER TABLE content.genre ADD COLUMN rating int, ADD COLUMN only_there int")
    make(bench, RELATED, EXPRESSION, {"kind": "expression", "name": "own", "expression": "r.id > 0 AND id > 0"})
    assert set(results(bench.run("films")).values()) == {"passed"}

    make_other = {"kind": "expression", "name": "strange", "expression": "only_there IS NULL"}
    bench.pipeline("other", QUERY, target_key=["id"], checks=[RELATED, make_other])
    run = bench.run("other")
    assert run["error_code"] == "bad_check"
    assert "check strange" in run["error_message"]
    assert "only_there" in run["error_message"]


@pytest.mark.parametrize("wrong", ["rating <= max(rating) OVER ()", "count(*) > 0", "generate_series(1, 2) > 0"])
def test_an_expression_takes_what_a_condition_takes(bench: Workbench, wrong: str) -> None:
    make(bench, NOT_NULL, {"kind": "expression", "name": "odd", "expression": wrong})

    run = bench.run("films")

    assert run["error_code"] == "bad_check"
    assert "check odd" in run["error_message"]


def test_of_several_checks_the_one_is_named_that_cannot_be_judged(bench: Workbench) -> None:
    wrong = {"kind": "accepted_values", "column": "genre_id", "values": ["drama"]}
    make(bench, NOT_NULL, wrong, COUNT)

    run = bench.run("films")

    assert run["error_code"] == "bad_check"
    assert "check accepted_values_genre_id" in run["error_message"]


@WAYS
@pytest.mark.parametrize("first", [True, False], ids=["first load", "reload"])
def test_a_key_that_comes_twice_fails_the_check_that_is_about_it(bench: Workbench, way: str, first: bool) -> None:
    """Nothing is read for it: publishing finds out, and only then the rows are looked for."""
    make(bench, NOT_NULL, {"kind": "unique", "columns": ["id", "kind"]}, way=way)
    if not first:
        assert bench.run("films")["status"] == "SUCCESS"
    bench.sql("INSERT INTO content.films SELECT * FROM content.films WHERE id IN (3, 5)")

    run = bench.run("films")

    assert (run["error_code"], results(run)["unique_id_kind"]) == ("check_failed", "failed")
    assert told(run)["unique_id_kind"]["rows"] == 2
    assert sorted(row["id"] for row in told(run)["unique_id_kind"]["offending_rows"]) == [3, 5]
    assert len(mart(bench)) == (0 if first else 100)


# --- the stage of a first load becomes the mart ----------------------------------------------------------------------


@pytest.fixture
def small_first_loads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Let the stage of a small load become the mart; tell whether it did."""
    became: list[bool] = []
    take_place = first_load.take_place

    def noting(*arguments: Any) -> bool:
        became.append(take_place(*arguments))
        return became[-1]

    monkeypatch.setattr(bulk_load, "WORTHWHILE_ROWS", 1)
    monkeypatch.setattr(first_load, "take_place", noting)
    return became


@pytest.mark.parametrize("way", ["auto", "copy"])
def test_a_first_load_with_checks_writes_its_rows_once(
    bench: Workbench, small_first_loads: list[bool], way: str
) -> None:
    make(bench, *ROW_KINDS, *SET_KINDS, way=way, batch_size=1_000)

    run = bench.run("films")

    assert set(results(run).values()) == {"passed"}
    assert small_first_loads == [True]
    assert bench.differences(QUERY, "analytics.films") == 0
    # What the reader was shown of the stage, it is not shown of the mart.
    rights = "SELECT has_table_privilege('vitrina_reader', 'analytics.films', 'SELECT, INSERT') AS may"
    assert bench.sql(rights) == [{"may": False}]


@pytest.mark.parametrize("check", ROW_KINDS, ids=lambda check: check["kind"])
def test_a_first_load_leaves_rejected_rows_out(
    bench: Workbench, small_first_loads: list[bool], check: dict[str, Any]
) -> None:
    breaking, rows = BROKEN[check["kind"]]
    make(bench, check | {"severity": "reject"})
    bench.sql(breaking)

    run = bench.run("films")

    assert (run["status"], run["rows_rejected"], run["rows_written"]) == ("SUCCESS", rows, 100 - (rows or 0))
    assert small_first_loads == [True]
    assert len(mart(bench)) == 100 - (rows or 0)


def test_a_first_load_that_fails_a_check_shows_nothing(bench: Workbench, small_first_loads: list[bool]) -> None:
    make(bench, EXPRESSION, {"kind": "unique", "columns": ["id"]})
    bench.sql(BROKEN["expression"][0])

    assert bench.run("films")["error_code"] == "check_failed"

    assert small_first_loads == []
    assert mart(bench) == []
    assert bench.checkpoint("films").stage is None


def test_expressions_that_all_hold_are_asked_in_one_reading(bench: Workbench, readings: list[list[str]]) -> None:
    make(
        bench,
        {"kind": "expression", "name": "one", "expression": "rating >= 0"},
        {"kind": "expression", "name": "two", "expression": "rating <= 10 -- of ten"},
        {"kind": "expression", "name": "three", "expression": "1 / nullif(genre_id, 7) >= 0", "severity": "warn"},
    )
    assert results(bench.run("films")) == dict.fromkeys(("one", "two", "three"), "passed")
    assert readings == [["one", "two", "three"]]

    # One that is broken, and one that fails on a row, are found by name.
    bench.sql("UPDATE content.films SET rating = 11 WHERE id IN (3, 4)")
    run = bench.run("films")
    assert results(run) == {"one": "passed", "two": "failed", "three": "passed"}
    assert told(run)["two"]["rows"] == 2
    bench.sql("UPDATE content.films SET rating = 5; UPDATE content.films SET genre_id = 0 WHERE id = 1")
    run = bench.run("films")
    assert run["error_code"] == "bad_check"
    assert "three" in run["error_message"]
