"""Incremental loads: only what is new travels, ties and late commits are not lost, the checkpoint is held back."""

from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL, Composed

from tests.support.workbench import Workbench
from vitrina.connectors.postgres import load
from vitrina.connectors.postgres.stage import Stage
from vitrina.connectors.postgres.target import PostgresWriter
from vitrina.ports.batch import Counts
from vitrina.services.advice import next_step

FILMS = """
CREATE TABLE content.film_work (
    id int PRIMARY KEY, title text, modified timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE INDEX ON content.film_work (modified, id);
INSERT INTO content.film_work
SELECT i, 'Film ' || i, timestamptz '2024-01-01' + make_interval(mins => i / 3) FROM generate_series(1, 1000) AS i;
"""
QUERY = "SELECT id, title, modified FROM content.film_work"
INCREMENTAL = {
    "target_key": ["id"],
    "mode": "incremental",
    "incremental_key": "modified",
    "incremental_id_key": "id",
    "batch_size": 100,
}
# The cursor is stamped by the source's own clock: what is older than an open transaction is not looked at again.
STAMPED = {"cursor_clock": "database"}
ROUTES = pytest.mark.parametrize("route", ["auto", "copy", "arrow"])


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    workbench.source(FILMS)
    return workbench


@ROUTES
def test_the_second_pass_reads_only_what_changed(bench: Workbench, route: str) -> None:
    bench.pipeline("films", QUERY, **INCREMENTAL, options=STAMPED | {"route": route})
    assert bench.run("films")["rows_written"] == 1000
    bench.sql("UPDATE content.film_work SET title = 'New', modified = clock_timestamp() WHERE id <= 250")

    run = bench.run("films")

    assert (run["status"], run["rows_read"], run["metrics"]["updated"]) == ("SUCCESS", 250, 250)
    assert run["batches"] == 3
    assert bench.differences(QUERY, "analytics.films") == 0


@ROUTES
@pytest.mark.parametrize("identity", ["id", None])
def test_ties_larger_than_a_batch_arrive_whole(bench: Workbench, route: str, identity: str | None) -> None:
    bench.pipeline("films", QUERY, **INCREMENTAL | {"incremental_id_key": identity}, options=STAMPED | {"route": route})
    bench.run("films")
    bench.sql("UPDATE content.film_work SET title = 'Tied', modified = now() WHERE id <= 350")

    run = bench.run("films")

    assert run["rows_read"] == 350
    assert bench.differences(QUERY, "analytics.films") == 0


@ROUTES
def test_an_open_transaction_holds_the_checkpoint_back(bench: Workbench, route: str) -> None:
    bench.pipeline("films", QUERY, **INCREMENTAL, options=STAMPED | {"route": route})
    bench.run("films")
    assert bench.settings.admin_url is not None
    with psycopg.connect(bench.settings.admin_url.get_secret_value()) as late:
        late.execute("UPDATE content.film_work SET title = 'Late', modified = now() WHERE id = 1")
        bench.sql("UPDATE content.film_work SET title = 'Early', modified = clock_timestamp() WHERE id = 2")
        assert bench.run("films")["rows_read"] == 1, "newer rows are delivered while the checkpoint waits"
        late.commit()

    run = bench.run("films")

    assert run["rows_read"] == 2
    assert bench.differences(QUERY, "analytics.films") == 0


@ROUTES
def test_sequence_cursors_wait_for_ids_that_were_drawn_but_not_committed(bench: Workbench, route: str) -> None:
    query = "SELECT id, title FROM content.film_work"
    fields = INCREMENTAL | {"incremental_key": "id", "incremental_id_key": None}
    bench.pipeline("films", query, **fields, options={"route": route})
    bench.run("films")
    assert bench.settings.admin_url is not None
    with psycopg.connect(bench.settings.admin_url.get_secret_value()) as late:
        late.execute("INSERT INTO content.film_work VALUES (2000, 'Late')")
        bench.sql("INSERT INTO content.film_work VALUES (2001, 'Early')")
        bench.run("films")
        late.commit()

    bench.run("films")

    assert bench.differences(query, "analytics.films") == 0


def test_rows_without_a_cursor_are_counted(bench: Workbench) -> None:
    bench.sql(
        "ALTER TABLE content.film_work ALTER modified DROP NOT NULL;"
        "UPDATE content.film_work SET modified = NULL WHERE id <= 3"
    )
    bench.pipeline("films", QUERY, **INCREMENTAL)

    run = bench.run("films")

    assert (run["status"], run["rows_rejected"]) == ("SUCCESS", 3)
    assert bench.sql("SELECT count(*) AS n FROM analytics.films") == [{"n": 997}]


def test_the_range_may_be_pushed_inside(bench: Workbench) -> None:
    query = f"{QUERY} WHERE modified >= :since AND modified < :until AND title LIKE '%'"
    bench.pipeline("films", query, **INCREMENTAL, options=STAMPED)
    assert bench.run("films")["rows_written"] == 1000
    bench.sql("UPDATE content.film_work SET title = 'New', modified = clock_timestamp() WHERE id = 1")

    assert bench.run("films")["rows_read"] == 1


def test_aggregates_run_once_per_pass(bench: Workbench) -> None:
    query = """
        SELECT date_trunc('day', modified) AS day, count(*) AS films, max(modified) AS seen
        FROM content.film_work GROUP BY 1
    """
    fields = INCREMENTAL | {"target_key": ["day"], "incremental_key": "seen", "incremental_id_key": None}
    bench.pipeline("films", query, **fields)
    bench.run("films")
    bench.sql("UPDATE content.film_work SET modified = clock_timestamp() WHERE id <= 10")

    run = bench.run("films")

    assert (run["status"], run["metrics"]["paging"], run["batches"]) == ("SUCCESS", "one statement", 1)


def test_a_backfill_leaves_the_checkpoint_alone(bench: Workbench) -> None:
    bench.pipeline("films", QUERY, **INCREMENTAL)
    bench.run("films")
    before = bench.checkpoint("films").safe_upto
    bench.sql("UPDATE analytics.films SET title = 'Broken' WHERE id <= 60")

    run = bench.run("films", since="2024-01-01 00:00:00+00", until="2024-01-01 00:10:00+00")

    assert (run["status"], run["rows_read"]) == ("SUCCESS", 29)
    assert run["metrics"]["updated"] == 29
    assert bench.checkpoint("films").safe_upto == before


@pytest.mark.parametrize(
    ("expression", "words"),
    [("id::float8", "floating-point"), ("point(id, id)", "no order")],
)
def test_cursors_that_cannot_be_resumed_from_are_refused(bench: Workbench, expression: str, words: str) -> None:
    bench.pipeline("films", f"SELECT id, {expression} AS modified FROM content.film_work", **INCREMENTAL)

    run = bench.run("films")

    assert run["status"] == "FAILED"
    assert words in run["error_message"]


@ROUTES
@pytest.mark.parametrize("how", ["TRUNCATE analytics.films", "DROP TABLE analytics.films"])
def test_a_mart_emptied_by_hand_is_loaded_again(bench: Workbench, route: str, how: str) -> None:
    bench.pipeline("films", QUERY, **INCREMENTAL, options={"route": route})
    bench.run("films")
    bench.sql(how)

    run = bench.run("films")

    assert (run["status"], run["rows_written"]) == ("SUCCESS", 1000)
    assert any("by hand" in reason for reason in run["metrics"]["plan"]["reasons"])
    assert bench.differences(QUERY, "analytics.films") == 0


@ROUTES
def test_the_latest_version_of_a_row_wins_within_a_batch(bench: Workbench, route: str) -> None:
    bench.source("CREATE TABLE content.changes (film int, title text, at timestamptz)")
    bench.pipeline(
        "changes",
        "SELECT film, title, at FROM content.changes",
        **INCREMENTAL | {"target_key": ["film"], "incremental_key": "at", "incremental_id_key": None},
        options={"route": route},
    )
    bench.sql("INSERT INTO content.changes VALUES (0, 'first', '2023-01-01')")
    bench.run("changes")
    bench.sql(
        "INSERT INTO content.changes SELECT 1, 'v' || i, now() + make_interval(secs => i) FROM generate_series(1, 9) i"
    )

    run = bench.run("changes")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert bench.sql("SELECT film, title FROM analytics.changes ORDER BY film") == [
        {"film": 0, "title": "first"},
        {"film": 1, "title": "v9"},
    ]


@ROUTES
@pytest.mark.parametrize("identity", [None, "film"])
def test_versions_with_an_equal_cursor_are_explained(bench: Workbench, route: str, identity: str | None) -> None:
    bench.source("CREATE TABLE content.changes (film int, title text, at date, number int)")
    fields = INCREMENTAL | {"target_key": ["film"], "incremental_key": "at", "incremental_id_key": identity}
    bench.pipeline("changes", "SELECT film, title, at, number FROM content.changes", **fields, options={"route": route})
    bench.sql("INSERT INTO content.changes VALUES (0, 'first', '2023-01-01', 0)")
    bench.run("changes")
    bench.sql(
        "INSERT INTO content.changes VALUES (7, 'one', '2024-05-06', 1), (7, 'two', '2024-05-06', 2),"
        " (8, 'one', '2024-05-06', 1), (8, 'two', '2024-05-07', 2)"
    )

    failed = bench.run("changes")

    cursor = "at, film" if identity else "at"
    assert (
        f"1 key(s) occur more than once in the source with an equal cursor ({cursor}), for example (film, at) ="
        " (7, 2024-05-06), so nothing tells which row of analytics.changes is the latest: set incremental_id_key to"
    ) in failed["error_message"]
    step = next_step(failed["error_code"], failed["error_message"])
    assert step.startswith(f"Set incremental_id_key to a column that differs between rows with an equal {cursor},")

    bench.change("changes", incremental_id_key="number")
    assert bench.run("changes")["status"] == "SUCCESS"
    assert {row["title"] for row in bench.sql("SELECT title FROM analytics.changes WHERE film > 0")} == {"two"}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of stages, as they are made."""
    names: list[str] = []
    creation = Stage.creation

    def noting(self: Stage, **roles: Any) -> Composed:
        names.append(self.name[-1])
        return creation(self, **roles)

    monkeypatch.setattr(Stage, "creation", noting)
    return names


@ROUTES
@pytest.mark.parametrize("left_rows", [0, 60, 10_000])
def test_more_rows_than_the_one_expected_batch_arrive_whole(
    bench: Workbench, route: str, left_rows: int, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second stage is made then, so that the first can be emptied; no row that is left is merged again."""
    monkeypatch.setattr(load, "MAX_LEFT_ROWS", left_rows)
    bench.sql(
        "ALTER TABLE content.film_work SET (autovacuum_enabled = off); TRUNCATE content.film_work;"
        " INSERT INTO content.film_work VALUES (0, 'First'); ANALYZE content.film_work"
    )
    bench.pipeline("films", QUERY, **INCREMENTAL, options=STAMPED | {"route": route})
    bench.run("films")
    made.clear()
    held: list[int] = []
    merge = PostgresWriter.merge_batch

    def counting(self: PostgresWriter, stage: Stage, number: int, rows: int) -> Counts:
        row = self.connection.execute(SQL("SELECT count(*) AS rows FROM {}").format(stage.identifier)).fetchone()
        assert row is not None
        held.append(row["rows"])
        return merge(self, stage, number, rows)

    monkeypatch.setattr(PostgresWriter, "merge_batch", counting)
    bench.sql(
        "INSERT INTO content.film_work SELECT i, 'x', now() + make_interval(secs => i)"
        " FROM generate_series(1, 100) AS i"
    )
    bench.sql("UPDATE etl.etl_pipelines SET batch_size = 10 WHERE name = 'films'")

    run = bench.run("films")

    assert (run["status"], run["metrics"]["inserted"]) == ("SUCCESS", 100)
    assert run["batches"] >= 10
    assert made == ["a", "b"]
    assert max(held) <= left_rows + 40, "what was merged does not gather in a stage"
    assert bench.differences(QUERY, "analytics.films") == 0


@ROUTES
def test_a_pass_of_one_batch_makes_one_stage(bench: Workbench, route: str, made: list[str]) -> None:
    bench.sql("DELETE FROM content.film_work WHERE id > 50")
    bench.sql("VACUUM ANALYZE content.film_work")
    bench.pipeline("films", QUERY, **INCREMENTAL, options=STAMPED | {"route": route})
    bench.run("films")
    made.clear()
    bench.sql("UPDATE content.film_work SET modified = now() WHERE id < 20")
    assert bench.run("films")["status"] == "SUCCESS"
    assert made == ["a"]
