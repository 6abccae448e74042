"""Full loads: the mart equals the source afterwards, only what differs is written, and refusals name the reason."""

from typing import Any

import pytest

from tests.support.workbench import Workbench
from vitrina.connectors.postgres import source

pytestmark = pytest.mark.usefixtures("either_way")

FILMS = """
CREATE TABLE content.film_work (id int PRIMARY KEY, title text, rating numeric(3,1), genres text[]);
INSERT INTO content.film_work
SELECT i, 'Film ' || i, (i % 100) / 10.0, ARRAY['drama', 'g' || i % 7] FROM generate_series(1, 1000) AS i;
"""
QUERY = "SELECT id, title, rating, genres FROM content.film_work"

ROUTES = pytest.mark.parametrize("route", ["auto", "copy", "arrow"])


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    workbench.source(FILMS)
    return workbench


@ROUTES
def test_creates_and_fills_a_missing_mart(bench: Workbench, route: str) -> None:
    bench.pipeline("films", QUERY, target_key=["id"], options={"route": route})

    run = bench.run("films")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert (run["rows_read"], run["rows_written"], run["metrics"]["inserted"]) == (1000, 1000, 1000)
    assert run["metrics"]["route"] == ("pushdown" if route == "auto" else route)
    assert bench.differences(QUERY, "analytics.films") == 0
    assert bench.sql(
        "SELECT format_type(atttypid, atttypmod) AS t FROM pg_attribute WHERE attname = 'rating'"
        " AND attrelid = 'analytics.films'::regclass"
    ) == [{"t": "numeric(3,1)"}]
    assert bench.status("films") == "IDLE"


@ROUTES
def test_a_rerun_without_changes_writes_nothing(bench: Workbench, route: str) -> None:
    bench.pipeline("films", QUERY, target_key=["id"], options={"route": route})
    bench.run("films")
    before = bench.sql("SELECT sum(xmin::text::bigint) AS x FROM analytics.films")

    run = bench.run("films")

    assert (run["rows_written"], run["metrics"]["unchanged"]) == (0, 1000)
    assert bench.sql("SELECT sum(xmin::text::bigint) AS x FROM analytics.films") == before


@ROUTES
def test_writes_only_what_differs_and_deletes_what_left(bench: Workbench, route: str) -> None:
    bench.pipeline("films", QUERY, target_key=["id"], options={"route": route})
    bench.run("films")
    bench.sql(
        "UPDATE content.film_work SET title = 'New' WHERE id <= 5; DELETE FROM content.film_work WHERE id = 6;"
        "INSERT INTO content.film_work VALUES (2000, 'Late', NULL, NULL)"
    )

    run = bench.run("films")

    counts = {name: run["metrics"][name] for name in ("inserted", "updated", "deleted", "unchanged")}
    assert counts == {"inserted": 1, "updated": 5, "deleted": 1, "unchanged": 994}
    assert bench.differences(QUERY, "analytics.films") == 0


def test_the_demo_style_mart_keeps_its_own_columns(bench: Workbench) -> None:
    bench.sql(
        "CREATE TABLE analytics.films (id int PRIMARY KEY, title text, updated_at timestamptz DEFAULT now());"
        "ALTER TABLE analytics.films OWNER TO vitrina_app"
    )
    bench.pipeline("films", "SELECT id, title FROM content.film_work")
    bench.run("films")
    bench.sql("UPDATE content.film_work SET title = 'New' WHERE id = 1")
    [before] = bench.sql("SELECT max(updated_at) AS at FROM analytics.films")

    run = bench.run("films")

    assert run["rows_written"] == 1
    [row] = bench.sql("SELECT updated_at FROM analytics.films WHERE id = 1")
    assert row["updated_at"] > before["at"]


@ROUTES
def test_duplicate_keys_are_counted_and_one_is_shown(bench: Workbench, route: str) -> None:
    bench.pipeline(
        "films", "SELECT id / 2 AS id, title FROM content.film_work", target_key=["id"], options={"route": route}
    )

    run = bench.run("films")

    assert (run["status"], run["error_code"]) == ("FAILED", "bad_key")
    assert "499 key(s) occur more than once" in run["error_message"]
    assert bench.status("films") == "FAILED"
    assert bench.sql("SELECT count(*) AS n FROM analytics.films") == [{"n": 0}]


@ROUTES
def test_a_null_key_is_named(bench: Workbench, route: str) -> None:
    bench.pipeline(
        "films", "SELECT nullif(id, 7) AS id, title FROM content.film_work", target_key=["id"], options={"route": route}
    )

    run = bench.run("films")

    assert run["error_code"] == "bad_key"
    assert "id" in run["error_message"]


@pytest.mark.parametrize(
    "options", [{"checkpoint_rows": 100}, {"route": "copy", "checkpoint_rows": 100}, {"route": "arrow"}]
)
@pytest.mark.parametrize("key", [["id"], ["title", "id"]])
def test_a_null_key_is_named_behind_an_interruption(bench: Workbench, options: dict[str, Any], key: list[str]) -> None:
    """NULL is neither before nor behind the place where the load goes on."""
    query = "SELECT nullif(id, 7) AS id, title FROM content.film_work"
    bench.pipeline("films", query, target_key=key, batch_size=100, options=options | {"max_attempts": 20})

    run = bench.run_interrupted("films")

    assert (run["status"], run["error_code"]) == ("FAILED", "bad_key")
    assert "'id' is NULL" in run["error_message"]


def test_shrinking_by_more_than_half_needs_permission(bench: Workbench) -> None:
    bench.pipeline("films", QUERY, target_key=["id"])
    bench.run("films")
    bench.sql("DELETE FROM content.film_work WHERE id > 400")

    run = bench.run("films")

    assert run["error_code"] == "shrink_refused"
    assert "600 of 1000" in run["error_message"]
    bench.change("films", options={"allow_shrink": True})
    assert bench.run("films")["rows_deleted"] == 600


def test_an_empty_source_needs_permission(bench: Workbench) -> None:
    bench.pipeline("films", QUERY, target_key=["id"])
    bench.run("films")
    bench.sql("TRUNCATE content.film_work")

    assert bench.run("films")["error_code"] == "shrink_refused"


@pytest.mark.parametrize(
    ("query", "fields", "code", "words"),
    [
        ("SELECT id FROM content.film_work WHERE", {}, "source_query_failed", "ends too early"),
        ("SELECT nope FROM content.film_work", {}, "source_query_failed", "nope"),
        ("SELECT id FROM content.missing", {}, "source_query_failed", "missing"),
        ("SELECT title FROM content.film_work", {"target_key": ["id"]}, "target_mismatch", "id"),
        ("SELECT id, id FROM content.film_work", {"target_key": ["id"]}, "source_query_failed", "more than once"),
        (QUERY, {}, "target_mismatch", "target_key"),
        ("SELECT id FROM etl.etl_pipelines", {"target_key": ["id"]}, "source_query_failed", "etl"),
    ],
)
def test_a_bad_query_fails_once_with_its_reason(
    bench: Workbench, query: str, fields: dict[str, object], code: str, words: str
) -> None:
    bench.pipeline("films", query, **fields)

    run = bench.run("films")

    assert (run["status"], run["error_code"], run["attempts"]) == ("FAILED", code, 1)
    assert words in run["error_message"]


def test_a_mart_of_other_types_is_refused_by_column(bench: Workbench) -> None:
    bench.sql(
        "CREATE TABLE analytics.films (id int PRIMARY KEY, title int, rating numeric(4,2));"
        "ALTER TABLE analytics.films OWNER TO vitrina_app"
    )
    bench.pipeline("films", QUERY)

    run = bench.run("films")

    assert run["error_code"] == "target_mismatch"
    assert "title is integer in the table, text in the query" in run["error_message"]
    assert "rating is numeric(4,2) in the table, numeric(3,1) in the query" in run["error_message"]


def test_new_columns_are_added_on_request(bench: Workbench) -> None:
    bench.pipeline("films", "SELECT id, title FROM content.film_work", target_key=["id"])
    bench.run("films")
    bench.change("films", source_query=QUERY)
    assert bench.run("films")["error_code"] == "target_mismatch"

    bench.change("films", options={"on_schema_change": "add_columns"})

    assert bench.run("films")["metrics"]["updated"] == 1000
    assert bench.differences(QUERY, "analytics.films") == 0


def test_large_loads_are_chunked_under_one_snapshot(bench: Workbench) -> None:
    bench.pipeline("films", QUERY, target_key=["id"], options={"checkpoint_rows": 300})

    run = bench.run("films")

    assert (run["status"], run["batches"], run["metrics"]["paging"]) == ("SUCCESS", 4, "keyset pages")
    assert run["metrics"]["consistency"] == "snapshot"
    assert bench.differences(QUERY, "analytics.films") == 0


@pytest.mark.parametrize(
    "options", [{"route": "copy", "checkpoint_rows": 200}, {"route": "arrow"}, {"checkpoint_rows": 200}]
)
def test_a_long_read_goes_on_in_a_new_snapshot(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """Unless it promised one snapshot: then it keeps it."""
    monkeypatch.setattr(source.Age, "is_over", property(lambda age: age.limit_seconds is not None))
    bench.pipeline("films", QUERY, target_key=["id"], batch_size=200, options=options)
    run = bench.run("films")
    assert (run["status"], run["error_message"], run["metrics"]["consistency"]) == ("SUCCESS", None, "mixed")
    assert run["batches"] == 5
    assert bench.differences(QUERY, "analytics.films") == 0

    bench.change("films", options=options | {"consistency": "snapshot"})
    assert bench.run("films")["metrics"]["consistency"] == "snapshot"


@ROUTES
def test_an_error_behind_the_first_rows_is_the_querys_own(bench: Workbench, route: str) -> None:
    """Postgres says what kind it is, wherever it comes: trying again would change nothing."""
    query = "SELECT id, 1 / (id - 90000) AS share FROM generate_series(1, 100000) AS id"
    bench.pipeline("films", query, target_key=["id"], options={"route": route})
    run = bench.run("films")
    assert (run["status"], run["error_code"], run["attempts"]) == ("FAILED", "source_query_failed", 1)
    assert "division by zero" in run["error_message"]
