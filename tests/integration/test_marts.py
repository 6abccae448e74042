"""Marts that people have built things on: what hangs on the table survives every load, or is refused by name."""

import threading

import psycopg
import pytest

from tests.support.waiting import until
from tests.support.workbench import Workbench

FILMS = """
CREATE TABLE content.film_work (id int PRIMARY KEY, title text, rating numeric);
INSERT INTO content.film_work SELECT i, 'Film ' || i, i FROM generate_series(1, 100) AS i;
"""
QUERY = "SELECT id, title, rating FROM content.film_work"


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    workbench.source(FILMS)
    return workbench


def make_mart(bench: Workbench, definition: str) -> None:
    bench.sql(definition)
    bench.sql("ALTER TABLE analytics.films OWNER TO vitrina_app")


def test_views_grants_and_indexes_survive(bench: Workbench) -> None:
    make_mart(
        bench,
        """
        CREATE TABLE analytics.films (id int PRIMARY KEY, title text, rating numeric);
        CREATE INDEX films_by_title ON analytics.films (lower(title)) WHERE rating > 5;
        CREATE VIEW analytics.good_films AS SELECT * FROM analytics.films WHERE rating > 50;
        CREATE ROLE analyst; GRANT SELECT ON analytics.films TO analyst;
        """,
    )
    bench.sql("INSERT INTO content.film_work SELECT i, 'Film ' || i, i FROM generate_series(101, 30000) AS i")
    bench.pipeline("films", QUERY)
    definitions = "SELECT indexdef FROM pg_indexes WHERE tablename = 'films' ORDER BY 1"
    before = bench.sql(definitions)

    assert bench.run("films")["status"] == "SUCCESS"
    assert bench.run("films")["metrics"]["unchanged"] == 30000

    assert bench.sql(definitions) == before
    assert bench.sql("SELECT count(*) AS n FROM analytics.good_films") == [{"n": 29950}]
    assert bench.sql("SELECT has_table_privilege('analyst', 'analytics.films', 'SELECT') AS may") == [{"may": True}]
    bench.sql("DROP OWNED BY analyst; DROP ROLE analyst")


def test_identity_generated_and_own_columns(bench: Workbench) -> None:
    make_mart(
        bench,
        """
        CREATE TABLE analytics.films (
            id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, title text, rating numeric,
            shout text GENERATED ALWAYS AS (upper(title)) STORED, note text DEFAULT 'ours')
        """,
    )
    bench.pipeline("films", QUERY)
    bench.run("films")
    bench.sql(
        "UPDATE analytics.films SET note = 'kept' WHERE id = 1; UPDATE content.film_work SET title = 'x' WHERE id = 1"
    )

    assert bench.run("films")["metrics"]["updated"] == 1

    assert bench.sql("SELECT title, shout, note FROM analytics.films WHERE id = 1") == [
        {"title": "x", "shout": "X", "note": "kept"}
    ]


def test_a_second_unique_key_may_change_hands(bench: Workbench) -> None:
    make_mart(
        bench,
        "CREATE TABLE analytics.films (id int PRIMARY KEY, title text UNIQUE DEFERRABLE, rating numeric)",
    )
    bench.pipeline("films", QUERY)
    bench.run("films")
    bench.sql(
        "UPDATE content.film_work SET title = CASE id WHEN 1 THEN 'Film 2' ELSE 'Film 1' END WHERE id IN (1, 2);"
        "DELETE FROM content.film_work WHERE id = 3; INSERT INTO content.film_work VALUES (300, 'Film 3', 1)"
    )

    run = bench.run("films")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert bench.differences(QUERY, "analytics.films") == 0


def test_a_new_row_may_take_what_a_changed_one_gives_up_in_one_batch(bench: Workbench) -> None:
    make_mart(bench, "CREATE TABLE analytics.films (id int PRIMARY KEY, title text UNIQUE, rating numeric)")
    fields = {"mode": "incremental", "incremental_key": "rating", "incremental_id_key": "id"}
    bench.pipeline("films", QUERY, **fields)
    bench.run("films")
    # The new row comes first in the order of the cursor.
    bench.sql("UPDATE content.film_work SET title = 'x', rating = 2000 WHERE id = 1")
    bench.sql("INSERT INTO content.film_work VALUES (300, 'Film 1', 1999)")

    run = bench.run("films")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert bench.differences(QUERY, "analytics.films") == 0


def test_partitioned_marts(bench: Workbench) -> None:
    make_mart(
        bench,
        """
        CREATE TABLE analytics.films (id int PRIMARY KEY, title text, rating numeric) PARTITION BY RANGE (id);
        CREATE TABLE analytics.films_1 PARTITION OF analytics.films FOR VALUES FROM (0) TO (50);
        CREATE TABLE analytics.films_2 PARTITION OF analytics.films FOR VALUES FROM (50) TO (1000);
        ALTER TABLE analytics.films_1 OWNER TO vitrina_app; ALTER TABLE analytics.films_2 OWNER TO vitrina_app;
        """,
    )
    bench.pipeline("films", QUERY)
    bench.run("films")
    bench.sql(
        "UPDATE content.film_work SET title = 'x' WHERE id IN (1, 99); DELETE FROM content.film_work WHERE id = 50"
    )

    run = bench.run("films")

    assert (run["metrics"]["updated"], run["metrics"]["deleted"]) == (2, 1)
    assert bench.differences(QUERY, "analytics.films") == 0


def test_deletes_that_would_cascade_need_permission(bench: Workbench) -> None:
    make_mart(bench, "CREATE TABLE analytics.films (id int PRIMARY KEY, title text, rating numeric)")
    bench.pipeline("films", QUERY)
    bench.run("films")
    bench.sql(
        "CREATE TABLE analytics.notes (film int REFERENCES analytics.films ON DELETE CASCADE);"
        "INSERT INTO analytics.notes VALUES (1); DELETE FROM content.film_work WHERE id = 1"
    )

    run = bench.run("films")

    assert run["status"] == "FAILED"
    assert "analytics.notes" in run["error_message"]
    assert "allow_cascade" in run["error_message"]
    assert bench.sql("SELECT count(*) AS n FROM analytics.notes") == [{"n": 1}]


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        ("CREATE VIEW analytics.films AS SELECT 1 AS id, ''::text AS title, 1::numeric AS rating", "a view"),
        (
            """
            CREATE TABLE analytics.films (id int PRIMARY KEY, title text, rating numeric);
            ALTER TABLE analytics.films ENABLE ROW LEVEL SECURITY;
            ALTER TABLE analytics.films FORCE ROW LEVEL SECURITY;
            """,
            "row-level security",
        ),
        ("CREATE TABLE analytics.films (id int, title text, rating numeric)", "primary key"),
        (
            "CREATE TABLE analytics.films (id int PRIMARY KEY, title text, rating numeric, needed int NOT NULL)",
            "needed is NOT NULL without a default",
        ),
        (
            "CREATE TABLE analytics.films (id int PRIMARY KEY, title text[], rating numeric)",
            "title is text[] in the table, text in the query",
        ),
        (
            "CREATE TABLE analytics.films (id int PRIMARY KEY, title text GENERATED ALWAYS AS ('x') STORED)",
            "title is generated",
        ),
    ],
)
def test_what_cannot_be_merged_into_is_refused_by_name(bench: Workbench, definition: str, words: str) -> None:
    make_mart(bench, definition)
    bench.pipeline("films", QUERY)

    run = bench.run("films")

    assert run["error_code"] == "target_mismatch"
    assert words in run["error_message"]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("SELECT json_build_object('a', id) AS id, title FROM content.film_work", "json has no default operator class"),
        ("SELECT id, ROW(title, rating) AS title FROM content.film_work", "pseudo-type record"),
        ('SELECT id, title AS "_batch" FROM content.film_work', "a column named _batch"),
        ('SELECT id, title AS "_position_0" FROM content.film_work', "a column named _position_0"),
        (f"SELECT id, {', '.join(f'{n} AS c{n}' for n in range(1_599))} FROM content.film_work", "1,600 columns"),
    ],
)
def test_what_no_mart_can_be_made_of_is_named(bench: Workbench, query: str, words: str) -> None:
    bench.pipeline("films", query, target_key=["id"])

    run = bench.run("films")

    assert run["error_code"] == "target_mismatch"
    assert words in run["error_message"]


def test_policies_that_would_hide_rows_are_named(bench: Workbench) -> None:
    bench.sql("CREATE TABLE analytics.films (id int PRIMARY KEY, title text, rating numeric)")
    bench.sql("GRANT ALL ON analytics.films TO vitrina_app; ALTER TABLE analytics.films ENABLE ROW LEVEL SECURITY")
    bench.pipeline("films", QUERY)
    run = bench.run("films")
    assert run["error_code"] == "target_mismatch"
    assert "analytics.films has row-level security" in run["error_message"]

    make_mart(bench, "ALTER TABLE content.film_work ENABLE ROW LEVEL SECURITY")
    assert "BYPASSRLS" in bench.run("films")["error_message"]


def test_an_identity_beside_the_key_that_no_update_could_set_is_refused(bench: Workbench) -> None:
    make_mart(
        bench,
        "CREATE TABLE analytics.films (title text PRIMARY KEY, id int GENERATED ALWAYS AS IDENTITY, rating numeric)",
    )
    bench.pipeline("films", QUERY)
    assert "id is GENERATED ALWAYS AS IDENTITY" in bench.run("films")["error_message"]

    bench.sql("ALTER TABLE analytics.films ALTER id SET GENERATED BY DEFAULT")
    bench.run("films")
    bench.sql("UPDATE content.film_work SET id = id + 1000")

    assert bench.run("films")["metrics"]["updated"] == 100


def test_changes_are_told_by_their_binary_image(bench: Workbench) -> None:
    bench.pipeline("films", QUERY, target_key=["id"])
    bench.run("films")
    bench.sql("UPDATE content.film_work SET rating = 7.00 WHERE id = 7")

    assert bench.run("films")["metrics"]["updated"] == 1
    assert bench.sql("SELECT rating::text AS r FROM analytics.films WHERE id = 7") == [{"r": "7.00"}]


def test_a_clock_column_does_not_make_a_row_changed(bench: Workbench) -> None:
    bench.pipeline("films", "SELECT id, title, now() AS seen_at FROM content.film_work", target_key=["id"])
    bench.run("films")

    assert bench.run("films")["metrics"]["unchanged"] == 100


def test_readers_see_the_old_mart_or_the_new_one(bench: Workbench) -> None:
    bench.pipeline("films", QUERY, target_key=["id"], batch_size=10, options={"route": "arrow", "allow_shrink": True})
    bench.run("films")
    assert bench.settings.admin_url is not None
    seen: set[tuple[int, int]] = set()
    stop = threading.Event()

    def poll(url: str) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            while not stop.is_set():
                row = connection.execute("SELECT count(*), count(DISTINCT rating) FROM analytics.films").fetchone()
                assert row is not None
                seen.add((row[0], row[1]))

    reader = threading.Thread(target=poll, args=(bench.settings.admin_url.get_secret_value(),))
    reader.start()
    try:
        until(lambda: (100, 100) in seen)
        bench.sql("UPDATE content.film_work SET rating = 0; INSERT INTO content.film_work VALUES (200, 'x', 0)")
        bench.run("films")
        until(lambda: (101, 1) in seen)
    finally:
        stop.set()
        reader.join()

    assert seen == {(100, 100), (101, 1)}


def test_two_pipelines_on_one_mart_take_turns(bench: Workbench) -> None:
    bench.pipeline("films", QUERY, target_key=["id"], options={"shared_target": True})
    bench.pipeline("more", QUERY, target_key=["id"], target_table="analytics.films", options={"shared_target": True})
    bench.request("films")
    bench.request("more")

    first = bench.claim()
    assert bench.claim_or_none() is None, "the target is held"
    bench.perform(first)
    second = bench.claim()
    bench.perform(second)

    assert {first.name, second.name} == {"films", "more"}
    assert (bench.status("films"), bench.status("more")) == ("IDLE", "IDLE")
