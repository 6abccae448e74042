"""Checks of rows on their way to a target that does not judge them itself: on Arrow batches, before they are shown."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pydantic import SecretStr

from tests.support.workbench import Workbench
from vitrina.store import dead_letters, pipelines

FILMS = """
CREATE TABLE content.genre (id int PRIMARY KEY);
INSERT INTO content.genre VALUES (1), (2);
CREATE TABLE content.film (id int PRIMARY KEY, title text, price numeric(6, 2), genre_id int, changed timestamptz);
INSERT INTO content.film
    SELECT i, 'Film ' || i, 1.50, 1 + i % 2, now() - (1000 - i) * interval '1 second' FROM generate_series(1, 30) i;
"""
QUERY = "SELECT id, title, price, genre_id, changed FROM content.film"
STEP = {"order_index": 1, "task_type": "PYTHON", "body": "normalise_text", "params": {"columns": ["title"]}}
WAYS = pytest.mark.parametrize("way", ["plain", "steps"])

NOT_NULL = {"kind": "not_null", "column": "title"}
ACCEPTED = {"kind": "accepted_values", "column": "price", "values": [1.5, 2]}
RELATED = {"kind": "relationship", "column": "genre_id", "to": "content.genre", "to_column": "id"}
COUNT = {"kind": "row_count", "min": 20, "max": 40}
FRESH = {"kind": "freshness", "column": "changed", "max_age": "6h"}
KINDS: list[dict[str, Any]] = [NOT_NULL, ACCEPTED, RELATED, COUNT, FRESH]
BROKEN = {
    "not_null": ("UPDATE content.film SET title = NULL WHERE id IN (2, 20)", {2, 20}),
    "accepted_values": ("UPDATE content.film SET price = 2.01 WHERE id = 9", {9}),
    "relationship": ("UPDATE content.film SET genre_id = 3 WHERE id = 30", {30}),
    "row_count": ("DELETE FROM content.film WHERE id > 16", set()),
    "freshness": ("UPDATE content.film SET changed = now() - interval '2 days'", set()),
}


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def bench(workbench: Workbench, lake: Path) -> Workbench:
    lake.mkdir()
    files = {"connections": {"lake": SecretStr(f"file://{lake}")}, "allowed_targets": "files:*"}
    workbench.settings = workbench.settings.model_copy(update=files)
    workbench.source(FILMS)
    return workbench


def make(bench: Workbench, *checks: dict[str, Any], way: str = "plain", **fields: Any) -> None:
    if way == "steps":
        fields |= {"tasks": [{"order_index": 0, "task_type": "SQL", "body": QUERY}, STEP]}
    fields = {"target_table": "files:films", "target_key": ["id"], "batch_size": 7, "checks": list(checks)} | fields
    bench.pipeline("films", QUERY, options={"target_connection": "lake"}, **fields)


def shown(lake: Path) -> set[int]:
    """Read the ids in the files that the manifest names."""
    manifest = json.loads((lake / "films" / "manifest.json").read_text())
    return {i for file in manifest["files"] for i in pq.read_table(lake / "films" / file["path"])["id"].to_pylist()}


@WAYS
@pytest.mark.parametrize("check", KINDS, ids=lambda check: check["kind"])
def test_a_load_is_shown_when_its_checks_pass_or_are_accepted(
    bench: Workbench, lake: Path, way: str, check: dict[str, Any]
) -> None:
    make(bench, check, way=way)
    first = bench.run("films")
    assert first["status"] == "SUCCESS", first["error_message"]
    assert [found["result"] for found in first["metrics"]["checks"]] == ["passed"]
    bench.sql(BROKEN[check["kind"]][0])

    run = bench.run("films")

    assert (run["status"], run["error_code"]) == ("FAILED", "check_failed"), run["error_message"]
    assert shown(lake) == set(range(1, 31))
    [found] = run["metrics"]["checks"]
    assert bench.run("films", accepts=[found["name"]])["status"] == "SUCCESS"
    assert shown(lake) == {row["id"] for row in bench.sql(QUERY)}


@WAYS
@pytest.mark.parametrize("check", [NOT_NULL, ACCEPTED, RELATED], ids=lambda check: check["kind"])
def test_rejected_rows_are_left_out_and_can_be_sent_again(
    bench: Workbench, lake: Path, way: str, check: dict[str, Any]
) -> None:
    breaking, numbers = BROKEN[check["kind"]]
    make(bench, check | {"severity": "reject"}, way=way, mode="incremental", incremental_key="changed")
    bench.sql(breaking)

    run = bench.run("films")

    assert (run["status"], run["rows_rejected"]) == ("SUCCESS", len(numbers)), run["error_message"]
    assert shown(lake) == set(range(1, 31)) - numbers
    row = pipelines.find(bench.metastore, "films")
    assert row is not None
    assert {letter["document"]["id"] for letter in dead_letters.list_open(bench.metastore, row["id"])} == numbers

    assert bench.replay("films")["refused"] == len(numbers)
    bench.sql("UPDATE content.film SET title = 'Film ' || id, price = 2, genre_id = 1")
    assert bench.replay("films")["sent"] == len(numbers)
    assert shown(lake) == set(range(1, 31))


@pytest.mark.parametrize("severity", ["fail", "warn", "reject"])
def test_rows_that_break_a_check_are_kept_to_be_shown_whatever_their_numbers(bench: Workbench, severity: str) -> None:
    make(bench, NOT_NULL | {"severity": severity})
    bench.sql("ALTER TABLE content.film ALTER price TYPE float8")
    bench.sql("UPDATE content.film SET title = NULL, price = 'NaN' WHERE id = 1")
    bench.sql("UPDATE content.film SET title = NULL, price = '-Infinity' WHERE id = 2")

    run = bench.run("films")

    [found] = run["metrics"]["checks"]
    assert (found["result"], found["rows"]) == ({"fail": "failed", "warn": "warned", "reject": "rejected"}[severity], 2)
    assert run["error_code"] == ("check_failed" if severity == "fail" else None)


def test_a_time_after_the_year_9999_names_the_check(bench: Workbench) -> None:
    make(bench, FRESH)
    bench.sql("UPDATE content.film SET changed = '20000-01-01' WHERE id = 1")

    run = bench.run("films")

    assert (run["status"], "freshness_changed" in run["error_message"]) == ("FAILED", True), run["error_message"]


def test_the_latest_value_of_an_interrupted_load_is_that_of_all_its_rows(bench: Workbench, lake: Path) -> None:
    make(bench, FRESH, COUNT)
    bench.sql("UPDATE content.film SET changed = now() - interval '2 days' WHERE id > 1")
    bench.change("films", options={"target_connection": "lake", "max_attempts": 20})

    run = bench.run_interrupted("films", batches=5)

    assert run["status"] == "SUCCESS", run["error_message"]
    assert {found["name"]: found["result"] for found in run["metrics"]["checks"]} == {
        "freshness_changed": "passed",
        "row_count": "passed",
    }


def test_checks_of_all_rows_are_refused_where_they_cannot_be_judged_after_a_pass(bench: Workbench) -> None:
    make(bench, COUNT, mode="incremental", incremental_key="changed")

    run = bench.run("films")

    assert run["error_code"] == "bad_check"
    assert "check row_count of kind row_count needs all rows, which files:films cannot provide" in run["error_message"]
