"""Rows that left the source, in ClickHouse: a scan writes tombstones for exactly these; a full load may keep them."""

from typing import Any

import pytest
from pydantic import SecretStr

from tests.clickhouse.places import Place
from tests.support.workbench import Workbench

FILM = """
CREATE TABLE content.film (
    studio text, id uuid DEFAULT gen_random_uuid(), number int NOT NULL, title text, gone boolean DEFAULT false,
    changed timestamptz NOT NULL DEFAULT clock_timestamp() - interval '1 hour', PRIMARY KEY (studio, id));
INSERT INTO content.film (studio, number, title)
SELECT 'it''s ' || i % 3, i, 'Film ' || i FROM generate_series(1, 60) i;
"""
QUERY = "SELECT studio, id, number, title, gone, changed FROM content.film"
CURSOR = {"mode": "incremental", "incremental_key": "changed", "incremental_id_key": "id"}


@pytest.fixture
def bench(workbench: Workbench, place: Place) -> Workbench:
    """The bench, with the connection `olap`."""
    workbench.settings = workbench.settings.model_copy(
        update={"connections": {"olap": SecretStr(place.url)}, "allowed_targets": "analytics.*,clickhouse:*"}
    )
    workbench.source(FILM)
    return workbench


def make(bench: Workbench, place: Place, **fields: Any) -> None:
    options = {"target_connection": "olap"} | fields.pop("options", {})
    target = f"clickhouse:{place.database}.films"
    bench.pipeline(
        "films", fields.pop("query", QUERY), target_table=target, target_key=["studio", "id"], options=options, **fields
    )
    succeed(bench)


def succeed(bench: Workbench) -> dict[str, Any]:
    done = bench.run("films")
    assert done["status"] == "SUCCESS", done["error_message"]
    return done


def source(bench: Workbench, where: str = "NOT gone") -> list[tuple[Any, ...]]:
    return [
        tuple(row.values()) for row in bench.sql(f"SELECT number, title FROM content.film WHERE {where} ORDER BY 1")
    ]


def test_a_scan_writes_tombstones_for_exactly_what_left(bench: Workbench, place: Place) -> None:
    make(bench, place, options={"deletes": {"scan": "1h"}, "delete_when": "gone", "cursor_clock": "database"}, **CURSOR)
    assert bench.scan_deletes("films") == {"found": 0}
    before = source(bench)
    bench.sql("DELETE FROM content.film WHERE number % 10 = 0")
    bench.sql("UPDATE content.film SET title = 'quiet' WHERE number = 1")
    found = bench.scan_deletes("films")
    assert (found["found"], found["deleted"], found["inserted"], found["updated"]) == (6, 6, 0, 0)
    assert place.rows("number, title") == [row for row in before if row[0] % 10]
    assert bench.scan_deletes("films") == {"found": 0}

    bench.sql("UPDATE content.film SET gone = true, changed = clock_timestamp() WHERE number = 2")
    bench.sql("UPDATE content.film SET title = 'loud', changed = clock_timestamp() WHERE number = 1")
    succeed(bench)
    assert place.rows("number, title") == source(bench)
    assert bench.reconcile("films", level="full")["equal"]


def test_a_row_that_comes_back_is_written_again(bench: Workbench, place: Place) -> None:
    make(bench, place, options={"deletes": {"scan": "1h"}, "delete_when": "gone"}, **CURSOR)
    bench.sql("CREATE TABLE content.left_film AS SELECT * FROM content.film WHERE number = 5")
    bench.sql("DELETE FROM content.film WHERE number = 5")
    assert bench.scan_deletes("films")["deleted"] == 1
    bench.sql("INSERT INTO content.film SELECT studio, id, number, title, gone FROM content.left_film")
    bench.sql("UPDATE content.film SET changed = clock_timestamp() WHERE number = 5")
    succeed(bench)
    assert place.rows("number, title") == source(bench)


def test_a_full_load_keeps_what_left_when_asked(bench: Workbench, place: Place) -> None:
    query = "SELECT studio, id, number, title FROM content.film"
    make(bench, place, query=query, options={"deletes": "none"})
    before = source(bench)
    bench.sql("DELETE FROM content.film WHERE number <= 50")
    bench.sql("UPDATE content.film SET title = 'new' WHERE number = 60")
    done = succeed(bench)
    assert done["metrics"]["plan"]["deletes"] is False
    assert place.rows("number, title") == [row if row[0] < 60 else (60, "new") for row in before]
    # What stays is no difference, and nothing to repair.
    assert bench.reconcile("films", level="full")["equal"]
    assert bench.reconcile("films", level="quick")["equal"]
    bench.sql("TRUNCATE content.film")
    succeed(bench)
    assert len(place.rows("number")) == 60

    bench.change(
        "films", options={"target_connection": "olap", "deletes": "none", "clickhouse": {"engine": "MergeTree"}}
    )
    assert "holds no versions" in bench.run("films")["error_message"]
