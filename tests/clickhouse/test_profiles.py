"""What a table in ClickHouse holds, as readers of the view see it."""

import pytest

from tests.clickhouse.places import Place
from tests.clickhouse.test_deletes import CURSOR, bench, make, succeed
from tests.support.workbench import Workbench
from vitrina.connectors.clickhouse import table_profile

__all__ = ["bench"]


def test_rows_size_and_columns_are_told(bench: Workbench, place: Place) -> None:
    bench.sql("UPDATE content.film SET title = NULL WHERE number > 50")
    make(bench, place, query="SELECT studio, id, number, title, ARRAY[number % 2] AS tags FROM content.film")

    found = bench.profile("films")

    assert (found["rows"], found["profiled_rows"]) == (60, 60)
    assert found["size_bytes"] > 0
    columns = {column["name"]: column for column in found["columns"]}
    assert columns["studio"]["top_values"] == [{"value": f"it's {i}", "rows": 20} for i in range(3)]
    number = columns["number"]
    assert (number["min_value"], number["max_value"], number["distinct"], number["nulls"]) == ("1", "60", 60, 0)
    assert number["top_values"] == []
    assert (columns["title"]["nulls"], columns["title"]["distinct"]) == (10, 50)
    assert (columns["tags"]["min_value"], columns["tags"]["distinct"]) == (None, 2)


def test_versions_that_no_longer_count_are_not_looked_at(bench: Workbench, place: Place) -> None:
    make(bench, place, options={"delete_when": "gone", "cursor_clock": "database"}, **CURSOR)
    bench.sql("UPDATE content.film SET title = 'new', changed = clock_timestamp() WHERE number <= 5")
    bench.sql("UPDATE content.film SET gone = true, changed = clock_timestamp() WHERE number > 50")
    succeed(bench)
    found = bench.profile("films")
    assert (found["rows"], found["profiled_rows"]) == (50, 50)
    [title] = [column for column in found["columns"] if column["name"] == "title"]
    assert title["top_values"] == [{"value": "new", "rows": 5}]


def test_a_large_table_is_looked_at_in_a_sample(
    bench: Workbench, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(bench, place)
    monkeypatch.setattr(table_profile, "MOST_ROWS", 20)
    found = bench.profile("films")
    assert found["rows"] == 60
    assert 0 < found["profiled_rows"] < 60


def test_long_texts_are_cut_between_characters(bench: Workbench, place: Place) -> None:
    bench.sql("UPDATE content.film SET title = repeat('ы', 150)")
    make(bench, place)
    [title] = [column for column in bench.profile("films")["columns"] if column["name"] == "title"]
    assert (title["min_value"], title["max_value"]) == ("ы" * 100, "ы" * 100)
    assert title["top_values"] == [{"value": "ы" * 100, "rows": 60}]


def test_an_empty_table_has_columns_and_no_ends(bench: Workbench, place: Place) -> None:
    bench.sql("TRUNCATE content.film")
    make(bench, place)
    found = bench.profile("films")
    assert found["rows"] == 0
    assert {(column["min_value"], column["distinct"]) for column in found["columns"]} == {(None, 0)}
