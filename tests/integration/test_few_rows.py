"""Loads and batches of few rows are compared and written in one statement; what it cannot do is done as for many."""

import threading
from typing import Any

import psycopg
import pytest

from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina.connectors.postgres import merge, target
from vitrina.connectors.postgres.merge import Merge

FILMS = """
CREATE TABLE content.films (id int, title text, rating numeric, at timestamptz DEFAULT clock_timestamp());
INSERT INTO content.films SELECT i, 'Film ' || i, i FROM generate_series(1, 100) AS i;
"""
QUERY = "SELECT id, title, rating, at FROM content.films"
CHANGES = """
DELETE FROM content.films WHERE id <= 3;
UPDATE content.films SET title = 'New', at = clock_timestamp() WHERE id BETWEEN 50 AND 54;
INSERT INTO content.films SELECT i, 'Film ' || i, i FROM generate_series(101, 107) AS i;
"""
WAITING = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND locktype = 'transactionid') AS waits"
MODES: dict[str, dict[str, Any]] = {"full": {}, "incremental": {"mode": "incremental", "incremental_key": "at"}}


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    workbench.settings = workbench.settings.model_copy(update={"backoff_seconds": (0.01,), "max_attempts": 2})
    workbench.source(FILMS)
    return workbench


@pytest.fixture
def differences(monkeypatch: pytest.MonkeyPatch) -> list[Merge]:
    """What is compared by way of a temporary table."""
    made: list[Merge] = []
    create = merge.create_diff

    def noting(merging: Merge, *, deletes: bool) -> Any:
        made.append(merging)
        return create(merging, deletes=deletes)

    monkeypatch.setattr(merge, "create_diff", noting)
    return made


def load(bench: Workbench, **fields: Any) -> None:
    bench.pipeline("films", QUERY, target_key=["id"], **fields)
    assert bench.run("films")["status"] == "SUCCESS"


@pytest.mark.parametrize("mode", MODES)
def test_what_changed_is_written_and_counted(bench: Workbench, mode: str, differences: list[Merge]) -> None:
    load(bench, **MODES[mode])
    bench.sql(CHANGES)

    run = bench.run("films")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert (run["rows_written"], run["rows_deleted"]) == (12, 3 if mode == "full" else 0)
    kept = "" if mode == "full" else " WHERE id > 3"
    [row] = bench.sql(
        f"SELECT count(*) AS rows FROM (({QUERY}) EXCEPT (SELECT id, title, rating, at FROM analytics.films)) AS d"
    )
    assert row["rows"] == 0
    assert bench.sql(f"SELECT count(*) AS rows FROM analytics.films{kept}") == [{"rows": 104}]
    assert differences == []
    again = bench.run("films")
    assert (again["rows_written"], again["rows_deleted"]) == (0, 0)


@pytest.mark.parametrize("rows", [target.FEW_ROWS, target.FEW_ROWS + 1])
def test_so_many_rows_are_few(bench: Workbench, rows: int, differences: list[Merge]) -> None:
    load(bench)
    bench.sql(f"INSERT INTO content.films SELECT i, 'Film', i FROM generate_series(101, {rows}) AS i")

    run = bench.run("films")

    assert (run["status"], run["rows_written"]) == ("SUCCESS", rows - 100)
    assert bench.differences(QUERY, "analytics.films") == 0
    assert len(differences) == rows - target.FEW_ROWS


@pytest.mark.parametrize(
    ("change", "error_code", "said"),
    [
        ("INSERT INTO content.films VALUES (7, 'again')", "bad_key", "id = 7"),
        ("DELETE FROM content.films", "shrink_refused", "no rows"),
        ("DELETE FROM content.films WHERE id > 40", "shrink_refused", "60 of 100"),
    ],
)
def test_a_load_that_has_to_be_refused_writes_nothing(
    bench: Workbench, change: str, error_code: str, said: str
) -> None:
    load(bench)
    before = bench.sql("SELECT xmin::text, * FROM analytics.films ORDER BY id")
    bench.sql("UPDATE content.films SET title = 'New'")
    bench.sql(change)

    run = bench.run("films")

    assert (run["status"], run["error_code"]) == ("FAILED", error_code), run["error_message"]
    assert bench.sql("SELECT xmin::text, * FROM analytics.films ORDER BY id") == before


def test_a_delete_that_would_cascade_is_refused(bench: Workbench) -> None:
    load(bench)
    bench.sql("CREATE TABLE analytics.notes (film int REFERENCES analytics.films ON DELETE CASCADE)")
    bench.sql("INSERT INTO analytics.notes VALUES (1); DELETE FROM content.films WHERE id = 1")

    run = bench.run("films")

    assert run["status"] == "FAILED"
    assert "analytics.notes" in run["error_message"]
    assert bench.sql("SELECT count(*) AS rows FROM analytics.notes") == [{"rows": 1}]


@pytest.mark.parametrize("mode", MODES)
def test_values_of_a_second_key_move_from_row_to_row(bench: Workbench, mode: str, differences: list[Merge]) -> None:
    load(bench, **MODES[mode])
    bench.sql("ALTER TABLE analytics.films ADD UNIQUE (title) DEFERRABLE")
    bench.sql("UPDATE content.films SET title = 'Film ' || (101 - id), at = clock_timestamp()")

    run = bench.run("films")

    assert (run["status"], run["rows_written"]) == ("SUCCESS", 100)
    assert bench.differences(QUERY, "analytics.films") == 0
    assert differences


def test_the_latest_version_of_a_row_in_a_batch_wins(bench: Workbench, differences: list[Merge]) -> None:
    load(bench, **MODES["incremental"])
    bench.sql(
        "INSERT INTO content.films SELECT 7, 'v' || i, i, now() + make_interval(secs => i) FROM generate_series(1, 9) i"
    )

    assert bench.run("films")["status"] == "SUCCESS"

    assert bench.sql("SELECT title FROM analytics.films WHERE id = 7") == [{"title": "v9"}]


def test_a_table_that_consists_of_its_key(bench: Workbench, differences: list[Merge]) -> None:
    bench.pipeline("ids", "SELECT id FROM content.films", target_key=["id"])
    bench.run("ids")
    bench.sql("DELETE FROM content.films WHERE id = 1; INSERT INTO content.films VALUES (101)")

    run = bench.run("ids")

    assert (run["status"], run["rows_written"], run["rows_deleted"]) == ("SUCCESS", 1, 1)
    assert differences == []


def test_a_row_that_another_session_moves_meanwhile_is_tried_again(bench: Workbench) -> None:
    """The other session commits while the statement waits for the row: the load is repeated, and nothing is lost."""
    load(bench)
    bench.sql("UPDATE content.films SET title = 'New' WHERE id = 5")
    assert bench.settings.admin_url
    with psycopg.connect(bench.settings.admin_url.get_secret_value()) as other:
        other.execute("UPDATE analytics.films SET title = 'By hand' WHERE id = 5")
        running = threading.Thread(target=bench.run, args=("films",))
        running.start()
        until(lambda: bench.sql(WAITING) == [{"waits": True}])
        other.commit()
        running.join(60)

    run = bench.last_run("films")
    assert (run["status"], run["attempts"]) == ("SUCCESS", 2)
    assert bench.differences(QUERY, "analytics.films") == 0
