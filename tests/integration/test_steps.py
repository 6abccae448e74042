"""Task plans on real databases: steps between query and mart, what they may change, what they may not."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.support.workbench import Workbench
from vitrina.transforms import transform

FILMS = """
CREATE TABLE content.film_work (
    id int PRIMARY KEY, title varchar(50), rating numeric(3,1), genres text[], modified timestamptz NOT NULL);
INSERT INTO content.film_work
SELECT i, ' Film  ' || i, (i % 100) / 10.0, ARRAY['drama', 'g' || i % 7],
       timestamptz '2024-01-01' + make_interval(mins => i) FROM generate_series(1, 1000) AS i;
"""
Steps = list[tuple[str, dict[str, Any]]]
QUERY = "SELECT id, title, rating, genres, modified FROM content.film_work"


@transform("it_double_rating")
def double_rating(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Adds a column."""
    doubled = pc.multiply(batch.column("rating").cast(pa.string()).cast(pa.float64()), 2)
    return batch.append_column("doubled", doubled)


@transform("it_fail_on_500", rows=True)
def fail_on_500(row: dict[str, Any]) -> dict[str, Any]:
    """Fails on one row."""
    if row["id"] == 500:
        raise ValueError(f"cannot stand {row['title']}")
    return row


@transform("it_null_key", rows=True)
def null_key(row: dict[str, Any]) -> dict[str, Any]:
    """Loses a key."""
    return row | {"id": None if row["id"] == 7 else row["id"]}


def plan(query: str, *steps: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    tasks: list[dict[str, Any]] = [{"order_index": 0, "task_type": "SQL", "body": query}]
    tasks += [
        {"order_index": number, "task_type": "PYTHON", "body": name, "params": params}
        for number, (name, params) in enumerate(steps, 1)
    ]
    return tasks


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    workbench.source(FILMS)
    return workbench


def columns_of(bench: Workbench, table: str) -> dict[str, str]:
    rows = bench.sql(
        f"SELECT attname AS name, format_type(atttypid, atttypmod) AS type FROM pg_attribute"
        f" WHERE attrelid = '{table}'::regclass AND attnum > 0 ORDER BY attnum"
    )
    return {row["name"]: row["type"] for row in rows}


def test_steps_stand_between_query_and_mart(bench: Workbench) -> None:
    tasks = plan(
        QUERY,
        ("normalise_text", {"columns": ["title"]}),
        ("it_double_rating", {}),
        ("drop_columns", {"columns": ["modified"]}),
        ("rename_columns", {"names": {"id": "film_id"}}),
    )
    bench.pipeline("films", "SELECT 1 AS ignored", tasks=tasks, target_key=["film_id"], batch_size=300)

    run = bench.run("films")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert (run["rows_read"], run["rows_written"], run["batches"]) == (1000, 1000, 1)
    assert columns_of(bench, "analytics.films") == {
        "film_id": "integer",
        "title": "character varying(50)",
        "rating": "numeric(3,1)",
        "genres": "text[]",
        "doubled": "double precision",
    }
    expected = (
        "SELECT id AS film_id, 'Film ' || id AS title, rating, genres, (rating * 2)::float8 AS doubled"
        " FROM content.film_work"
    )
    assert bench.differences(expected, "analytics.films") == 0
    assert run["metrics"]["plan"]["reasons"][0] == "arrow: Python steps process the rows"

    assert bench.run("films")["metrics"]["unchanged"] == 1000


def test_a_load_reads_in_the_order_of_the_key_and_checkpoints(bench: Workbench) -> None:
    bench.pipeline("films", "SELECT 1", tasks=plan(QUERY, ("it_double_rating", {})), target_key=["id"], batch_size=300)
    run = bench.run("films")
    assert (run["batches"], run["metrics"]["paging"]) == (4, "ordered stream")


def test_steps_may_change_the_number_of_rows(bench: Workbench) -> None:
    steps: Steps = [
        ("keep_rows", {"where": {"column": "id", "op": "le", "value": 10}}),
        ("explode", {"column": "genres", "into": "genre"}),
        ("select_columns", {"columns": ["id", "genre"]}),
    ]
    bench.pipeline("films", "SELECT 1", tasks=plan(QUERY, *steps), target_key=["id", "genre"], batch_size=100)

    run = bench.run("films")

    assert (run["status"], run["rows_read"], run["rows_written"], run["batches"]) == ("SUCCESS", 1000, 20, 10)
    expected = "SELECT id, unnest(genres) AS genre FROM content.film_work WHERE id <= 10"
    assert bench.differences(expected, "analytics.films") == 0
    bench.sql("DELETE FROM content.film_work WHERE id = 3")
    assert bench.run("films")["rows_deleted"] == 2


def test_python_task_is_a_plan_of_one_step(bench: Workbench) -> None:
    bench.pipeline(
        "films",
        QUERY,
        type="PYTHON",
        python_task="select_columns",
        target_key=["id"],
        options={"params": {"columns": ["id", "title"]}},
    )
    assert bench.run("films")["status"] == "SUCCESS"
    assert bench.differences("SELECT id, title FROM content.film_work", "analytics.films") == 0


def test_the_last_step_may_name_the_target(bench: Workbench) -> None:
    tasks = plan(QUERY, ("select_columns", {"columns": ["id"]}))
    tasks[-1]["target_table"] = "analytics.elsewhere"
    bench.pipeline("films", "SELECT 1", tasks=tasks, target_key=["id"])
    assert bench.run("films")["status"] == "SUCCESS"
    assert bench.sql("SELECT count(*) AS n FROM analytics.elsewhere") == [{"n": 1000}]


def test_incremental_takes_its_checkpoint_from_the_query(bench: Workbench) -> None:
    steps: Steps = [
        ("drop_rows", {"where": {"column": "id", "op": "gt", "value": 990}}),
        ("select_columns", {"columns": ["id", "title"]}),
    ]
    bench.pipeline(
        "films",
        "SELECT 1",
        tasks=plan(QUERY, *steps),
        target_key=["id"],
        mode="incremental",
        incremental_key="modified",
        incremental_id_key="id",
        batch_size=100,
    )
    run = bench.run("films")
    assert (run["status"], run["rows_read"], run["rows_written"]) == ("SUCCESS", 1000, 990)
    safe = bench.checkpoint("films").safe_upto
    bench.sql("UPDATE content.film_work SET title = 'New', modified = clock_timestamp() WHERE id <= 5 OR id > 995")

    run = bench.run("films")

    assert (run["rows_read"], run["metrics"]["updated"], run["metrics"]["inserted"]) == (10, 5, 0)
    assert str(bench.checkpoint("films").safe_upto) > str(safe)
    assert columns_of(bench, "analytics.films") == {"id": "integer", "title": "character varying(50)"}


def test_batches_of_which_nothing_is_left_move_the_checkpoint(bench: Workbench) -> None:
    bench.pipeline(
        "films",
        "SELECT 1",
        tasks=plan(QUERY, ("keep_rows", {"where": {"column": "id", "op": "gt", "value": 900}})),
        target_key=["id"],
        mode="incremental",
        incremental_key="modified",
        batch_size=100,
    )
    bench.request("films")
    claim = bench.claim()
    bench.sql("UPDATE etl.etl_pipelines SET status = 'PAUSE_REQUESTED'")
    bench.perform(claim)
    assert bench.status("films") == "PAUSED"
    assert bench.checkpoint("films").last_key == "2024-01-01 01:40:00+00"
    assert bench.sql("SELECT count(*) AS n FROM analytics.films") == [{"n": 0}]
    assert bench.run("films")["rows_read"] == 900


def test_a_key_made_by_steps_is_loaded_as_one_batch(bench: Workbench) -> None:
    steps: Steps = [("rename_columns", {"names": {"id": "film_id"}})]
    bench.pipeline("films", "SELECT 1", tasks=plan(QUERY, *steps), target_key=["film_id"], batch_size=100)
    run = bench.run("films")
    assert (run["status"], run["batches"], run["metrics"]["paging"]) == ("SUCCESS", 1, "one statement")
    assert bench.sql("SELECT count(*) AS n FROM analytics.films") == [{"n": 1000}]


def test_an_existing_mart_decides_the_types(bench: Workbench) -> None:
    bench.sql(
        "CREATE TABLE analytics.films (id bigint PRIMARY KEY, doubled double precision, rating numeric, note inet,"
        " updated_at timestamptz DEFAULT now());"
        "ALTER TABLE analytics.films OWNER TO vitrina_app"
    )
    steps: Steps = [
        ("it_double_rating", {}),
        ("add_columns", {"constants": {"note": "10.0.0.1"}}),
        ("select_columns", {"columns": ["id", "doubled", "rating", "note"]}),
    ]
    bench.pipeline("films", "SELECT 1", tasks=plan(QUERY, *steps))
    run = bench.run("films")
    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert bench.sql("SELECT DISTINCT note::text FROM analytics.films") == [{"note": "10.0.0.1/32"}]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("id int PRIMARY KEY, doubled numeric", "doubled is numeric in the table, double precision in the query"),
        ("id int PRIMARY KEY, doubled boolean", "doubled is boolean in the table"),
        ("id int PRIMARY KEY, doubled double precision, must text NOT NULL", "must is NOT NULL"),
    ],
)
def test_a_mart_that_would_lose_something_is_refused(bench: Workbench, table: str, words: str) -> None:
    bench.sql(f"CREATE TABLE analytics.films ({table}); ALTER TABLE analytics.films OWNER TO vitrina_app")
    steps: Steps = [("it_double_rating", {}), ("select_columns", {"columns": ["id", "doubled"]})]
    bench.pipeline("films", "SELECT 1", tasks=plan(QUERY, *steps))
    run = bench.run("films")
    assert (run["status"], run["error_code"]) == ("FAILED", "target_mismatch")
    assert words in run["error_message"]


def test_values_that_the_mart_would_round_are_refused(bench: Workbench) -> None:
    bench.sql(
        "CREATE TABLE analytics.films (id int PRIMARY KEY, rating numeric(3,0));"
        "ALTER TABLE analytics.films OWNER TO vitrina_app"
    )
    bench.pipeline("films", "SELECT 1", tasks=plan(QUERY, ("select_columns", {"columns": ["id", "rating"]})))
    run = bench.run("films")
    assert (run["status"], run["error_code"]) == ("FAILED", "target_mismatch")
    assert "more digits than numeric(3,0)" in run["error_message"]


def test_a_failing_step_says_where_and_nothing_is_written(bench: Workbench) -> None:
    bench.pipeline("films", "SELECT 1", tasks=plan(QUERY, ("it_fail_on_500", {})), target_key=["id"], batch_size=100)
    run = bench.run("films")
    assert (run["status"], run["error_code"], run["attempts"]) == ("FAILED", "step_failed", 1)
    assert "step 1 (it_fail_on_500) failed in batch 5: ValueError: cannot stand ***" in run["error_message"]
    assert "Film" not in run["error_message"]
    assert bench.sql("SELECT count(*) AS n FROM analytics.films") == [{"n": 0}]


@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_rows_that_fail_become_dead_letters(bench: Workbench, mode: str) -> None:
    bench.pipeline(
        "films",
        "SELECT 1",
        tasks=plan(QUERY, ("it_fail_on_500", {"on_error": "dead_letter"})),
        target_key=["id"],
        mode=mode,
        incremental_key="modified" if mode == "incremental" else None,
        batch_size=100,
    )
    assert bench.run("films")["status"] == "SUCCESS"
    bench.sql("UPDATE content.film_work SET modified = clock_timestamp() WHERE id = 500")
    run = bench.run("films")
    assert run["status"] == "SUCCESS"
    assert bench.sql("SELECT count(*) AS n FROM analytics.films") == [{"n": 999}]
    [letter] = bench.sql("SELECT document_id, error, document, run_id FROM etl.etl_dead_letters")
    assert letter["document_id"] == "500"
    assert letter["error"] == "step 1 (it_fail_on_500): ValueError: cannot stand ***"
    assert (letter["document"]["title"], letter["document"]["rating"]) == (" Film  500", 0.0)
    assert (letter["run_id"], run["rows_rejected"]) == (run["id"], 1)


@pytest.mark.parametrize(("mode", "how"), [("full", "rebuilt"), ("incremental", "delivered")])
def test_a_row_that_comes_through_later_resolves_its_letter(bench: Workbench, mode: str, how: str) -> None:
    tasks = plan(QUERY, ("it_fail_on_500", {"on_error": "dead_letter"}))
    cursor = {"incremental_key": "modified", "incremental_id_key": "id"} if mode == "incremental" else {}
    bench.pipeline("films", "SELECT 1", tasks=tasks, target_key=["id"], mode=mode, batch_size=100, **cursor)
    bench.run("films")
    bench.run("films")
    assert bench.sql("SELECT resolution FROM etl.etl_dead_letters") == [{"resolution": None}], "it did not come again"
    bench.change("films", tasks=plan(QUERY, ("normalise_text", {"columns": ["title"]})))
    bench.sql("UPDATE content.film_work SET modified = clock_timestamp() WHERE id = 500")

    assert bench.run("films")["status"] == "SUCCESS"

    [letter] = bench.sql("SELECT resolution, resolved_at FROM etl.etl_dead_letters")
    assert (letter["resolution"], letter["resolved_at"] is not None) == (how, True)
    assert bench.sql("SELECT count(*) AS n FROM analytics.films") == [{"n": 1000}]


def test_a_step_that_loses_the_key_is_named(bench: Workbench) -> None:
    bench.pipeline("films", "SELECT 1", tasks=plan(QUERY, ("it_null_key", {})), target_key=["id"])
    run = bench.run("films")
    assert run["error_code"] == "bad_key"
    assert "'id' is NULL in 1 row(s) of batch 1 after the steps" in run["error_message"]
    bench.change("films", tasks=plan(QUERY, ("drop_columns", {"columns": ["id"]})))
    run = bench.run("films")
    assert run["error_code"] == "target_mismatch"
    assert "'id' is not there after the steps" in run["error_message"]


@pytest.mark.parametrize(
    ("step", "code", "words"),
    [
        (("nowhere", {}), "invalid", "there is no Python step 'nowhere' here; there are: add_columns"),
        (("select_columns", {}), "invalid", "step 1 (select_columns): params.columns: Field required"),
        (("normalise_text", {"columns": ["id"]}), "fatal", "column 'id' is int32, not text"),
    ],
)
def test_a_wrong_plan_fails_once(bench: Workbench, step: tuple[str, dict[str, Any]], code: str, words: str) -> None:
    bench.pipeline("films", "SELECT 1", tasks=plan(QUERY, step), target_key=["id"])
    run = bench.run("films")
    assert (run["status"], run["error_code"], run["attempts"]) == ("FAILED", code, 1)
    assert words in run["error_message"]


@pytest.mark.parametrize("name", ["os.system", "__import__", "../etc/passwd", "cposix\nsystem\n."])
def test_a_hostile_name_written_past_the_api_leads_nowhere(bench: Workbench, name: str) -> None:
    bench.pipeline("films", "SELECT 1", tasks=plan(QUERY, ("keep_rows", {})), target_key=["id"])
    bench.admin.execute("UPDATE etl.etl_pipeline_tasks SET body = %s WHERE task_type = 'PYTHON'", [name])
    run = bench.run("films")
    assert (run["status"], run["error_code"], run["attempts"]) == ("FAILED", "invalid", 1)
    assert "is not the name of a Python step" in run["error_message"]


def test_lookup_runs_with_the_rights_of_a_source_query(bench: Workbench) -> None:
    bench.source(
        "CREATE TABLE content.genre (name text PRIMARY KEY, label text); INSERT INTO content.genre VALUES ('g1', 'One')"
    )
    steps: Steps = [
        ("explode", {"column": "genres", "into": "genre"}),
        ("lookup", {"query": "SELECT name, label FROM content.genre", "on": {"genre": "name"}, "missing": "drop"}),
        ("select_columns", {"columns": ["id", "genre", "label"]}),
    ]
    bench.pipeline("films", "SELECT 1", tasks=plan(QUERY, *steps), target_key=["id", "genre"])
    run = bench.run("films")
    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert bench.sql("SELECT DISTINCT genre, label FROM analytics.films") == [{"genre": "g1", "label": "One"}]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("SELECT name, token_hash AS label FROM etl.etl_api_tokens", "etl"),
        ("DELETE FROM content.genre RETURNING name, label", "reference query"),
        ("SELECT pg_sleep(5)::text AS name, 1 AS label", "pg_sleep"),
    ],
)
def test_a_hostile_lookup_is_refused(bench: Workbench, query: str, words: str) -> None:
    bench.source("CREATE TABLE content.genre (name text PRIMARY KEY, label text)")
    bench.pipeline(
        "films", "SELECT 1", tasks=plan(QUERY, ("lookup", {"query": query, "on": {"title": "name"}})), target_key=["id"]
    )
    run = bench.run("films")
    assert (run["status"], run["error_code"]) == ("FAILED", "source_query_failed")
    assert words in run["error_message"]


def test_stamps_do_not_make_rows_differ(bench: Workbench) -> None:
    steps: Steps = [("add_columns", {"now": "loaded_at", "run_id": "run_id"})]
    bench.pipeline("films", "SELECT 1", tasks=plan(QUERY, *steps), target_key=["id"])
    first = bench.run("films")
    assert bench.run("films")["rows_written"] == 0
    assert bench.sql("SELECT DISTINCT run_id FROM analytics.films") == [{"run_id": first["id"]}]


def test_an_empty_source_with_an_arrow_step_makes_the_mart(bench: Workbench) -> None:
    bench.sql("TRUNCATE content.film_work")
    bench.pipeline("films", "SELECT 1", tasks=plan(QUERY, ("it_double_rating", {})), target_key=["id"])
    run = bench.run("films")
    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert columns_of(bench, "analytics.films")["doubled"] == "double precision"


def test_an_empty_source_with_a_row_step_needs_a_mart_to_tell_its_columns(bench: Workbench) -> None:
    bench.pipeline(
        "films", "SELECT 1", tasks=plan(QUERY, ("it_fail_on_500", {"on_error": "dead_letter"})), target_key=["id"]
    )
    bench.sql("CREATE TABLE content.kept AS TABLE content.film_work; TRUNCATE content.film_work")
    run = bench.run("films")
    assert (run["status"], run["error_code"]) == ("FAILED", "step_failed")
    assert "create the target table" in run["error_message"]
    bench.sql("INSERT INTO content.film_work TABLE content.kept")
    assert bench.run("films")["status"] == "SUCCESS"
    bench.sql("TRUNCATE content.film_work")
    assert bench.run("films")["error_code"] == "shrink_refused"
    bench.change("films", options={"allow_empty": True, "allow_shrink": True})
    assert bench.run("films")["rows_deleted"] == 999
