"""What the option `unique_by` of a history changes: its table, how states are written, and how a table is converted."""

import re
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.integration.test_history import FILMS, LAYOUTS, as_of, make, run, source, touch
from tests.support.workbench import Workbench
from vitrina.connectors.postgres import history, merge

INDEXES = """
SELECT pg_get_indexdef(indexrelid) AS made, indisprimary AS is_primary FROM pg_index
WHERE indrelid = 'analytics.films'::regclass ORDER BY indexrelid
"""
# The statements of the guide, for the mart of these tests.
OTHER = {"valid_from": ("valid_to", 2), "valid_to": ("valid_from", 3)}
GUIDE = Path(__file__).parents[2] / "docs/how-to/history.md"


def converting(place: int) -> list[str]:
    page = GUIDE.read_text().partition("## Convert an existing mart")[2]
    [block] = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)[place : place + 1]
    return [
        part
        for part in re.sub(r"film_history|films", "films", block).replace("film_id", "id").split(";")
        if part.strip()
    ]


def states(bench: Workbench, number: int, column: str = "title") -> list[tuple[Any, bool]]:
    rows = bench.sql(
        f"SELECT {column}, valid_to FROM analytics.films WHERE id = {number} ORDER BY valid_from, valid_to"
    )
    return [(row[column], row["valid_to"] is None) for row in rows]


def updates_in_place(bench: Workbench) -> bool:
    return bench.admin.info.server_version >= history.RETURNS_OLD_ROWS


def updated(bench: Workbench) -> tuple[int, int]:
    """Count the updated rows, and those that needed no index entry; sessions that end report what they did."""
    bench.pool.close()
    end = time.monotonic() + 20
    while True:
        [row] = bench.sql(
            "SELECT n_tup_upd AS updated, n_tup_hot_upd AS hot FROM pg_stat_user_tables"
            " WHERE relid = 'analytics.films'::regclass"
        )
        if row["updated"] or time.monotonic() > end:
            return row["updated"], row["hot"]
        time.sleep(0.05)


def warnings(done: dict[str, Any]) -> list[str]:
    return [warning for warning in done["metrics"]["plan"]["warnings"] if "unique_by" in warning]


def test_a_table_that_is_unique_by_valid_to_has_one_index(workbench: Workbench) -> None:
    workbench.source(FILMS)
    make(workbench, "incremental", unique_by="valid_to")
    run(workbench)
    [index] = workbench.sql(INDEXES)
    assert not index["is_primary"]
    assert "UNIQUE" in index["made"]
    assert "(id, valid_to) NULLS NOT DISTINCT WITH (fillfactor='50')" in index["made"]
    columns = workbench.sql(
        "SELECT attname AS name FROM pg_attribute WHERE attrelid = 'analytics.films'::regclass AND attnum > 0"
        " AND attnotnull ORDER BY 1"
    )
    assert [row["name"] for row in columns] == ["id", "valid_from"]
    for refused in ("(1, now(), NULL)", "(1, now(), '2999-01-01'), (1, now(), '2999-01-01')"):
        with pytest.raises(psycopg.errors.UniqueViolation):
            workbench.sql(f"INSERT INTO analytics.films (id, valid_from, valid_to) VALUES {refused}")


@pytest.mark.parametrize("rows", [1_000, 25_000])
def test_a_change_makes_no_entry_for_the_current_row(workbench: Workbench, rows: int) -> None:
    """A tenth of the rows of each page changes: they stay in their pages, which have room for them."""
    if not updates_in_place(workbench):
        pytest.skip("MERGE .. RETURNING old.* came with PostgreSQL 18")
    workbench.source(FILMS)
    workbench.sql(f"INSERT INTO content.films SELECT n, 'film ' || n, now() FROM generate_series(11, {rows}) n")
    make(workbench, "incremental", unique_by="valid_to")
    run(workbench)
    places = "SELECT id, ctid::text FROM analytics.films WHERE id % 10 = 3 AND is_current ORDER BY id"
    workbench.sql("UPDATE content.films SET title = 'second', modified = clock_timestamp() WHERE id % 10 = 3")
    before = workbench.sql(places)
    done = run(workbench)
    assert done["rows_written"] == rows // 10
    count, hot = updated(workbench)
    assert count == rows // 10
    assert hot > 0.95 * count
    pages = [[row["ctid"].partition(",")[0] for row in found] for found in (before, workbench.sql(places))]
    assert sum(old == new for old, new in zip(*pages, strict=True)) == hot
    assert as_of(workbench, done["metrics"]["snapshot_at"]) == source(workbench)


@LAYOUTS
@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_a_column_of_the_marts_own_stays_with_its_state(workbench: Workbench, mode: str, unique_by: str) -> None:
    workbench.source(FILMS)
    make(workbench, mode, unique_by=unique_by)
    run(workbench)
    workbench.sql("ALTER TABLE analytics.films ADD seen text DEFAULT 'no'")
    workbench.sql("UPDATE analytics.films SET seen = 'yes' WHERE id = 3")
    touch(workbench, 3, "second")
    run(workbench)
    assert states(workbench, 3, "seen") == [("yes", False), ("no", True)]


@LAYOUTS
def test_a_column_that_is_added_belongs_to_later_states(workbench: Workbench, unique_by: str) -> None:
    workbench.source(FILMS)
    make(workbench, "incremental", unique_by=unique_by, options={"on_schema_change": "add_columns"})
    run(workbench)
    workbench.source("ALTER TABLE content.films ADD year int")
    workbench.sql("UPDATE content.films SET year = 1999, modified = clock_timestamp() WHERE id = 3")
    workbench.change("films", source_query="SELECT id, title, year, modified FROM content.films")
    run(workbench)
    assert states(workbench, 3, "year") == [(None, False), (1999, True)]


@LAYOUTS
def test_a_table_is_converted_and_the_option_says_what_it_differs_from(workbench: Workbench, unique_by: str) -> None:
    """A run writes as the indexes of the table allow, whichever layout the option names."""
    workbench.source(FILMS)
    make(workbench, "incremental", unique_by=unique_by)
    run(workbench)
    other, place = OTHER[unique_by]
    workbench.change("films", options={"history": {"unique_by": other}, "cursor_clock": "database"})
    touch(workbench, 3, "second")
    [warning] = warnings(run(workbench))
    assert f"analytics.films is not unique by {other}" in warning
    assert f"set the option to {unique_by}" in warning
    for statement in converting(place):
        workbench.sql(statement)
    touch(workbench, 3, "third")
    done = run(workbench)
    assert (done["rows_written"], warnings(done)) == (1, [])
    assert states(workbench, 3) == [("film 3", False), ("second", False), ("third", True)]
    assert as_of(workbench, done["metrics"]["snapshot_at"]) == source(workbench)
    assert run(workbench)["rows_written"] == 0


@LAYOUTS
@pytest.mark.parametrize("statement", ["newest", "17", "15"])
def test_each_form_of_writing_leaves_the_same_states(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch, unique_by: str, statement: str
) -> None:
    """Servers before 18 return no old rows of a MERGE, and servers before 17 return none."""
    if statement != "newest":
        monkeypatch.setattr(history, "RETURNS_OLD_ROWS", 99_00_00)
    if statement == "15":
        monkeypatch.setattr(merge, "COUNTS_MERGED_ROWS", 99_00_00)
    workbench.source(FILMS)
    make(workbench, "incremental", unique_by=unique_by, batch_size=4)
    run(workbench)
    seen: list[tuple[str, dict[int, str]]] = []
    for title in ("second", "third", "second"):
        workbench.source(f"INSERT INTO content.films (id, title) VALUES ({20 + len(seen)}, 'new')")
        workbench.sql(f"UPDATE content.films SET title = '{title}', modified = clock_timestamp() WHERE id IN (3, 5, 7)")
        done = run(workbench)
        assert done["rows_written"] == 4
        seen.append((done["metrics"]["snapshot_at"], source(workbench)))
    assert states(workbench, 5) == [("film 5", False), ("second", False), ("third", False), ("second", True)]
    for moment, then in seen:
        assert as_of(workbench, moment) == then
    assert run(workbench)["rows_written"] == 0


def test_a_table_with_both_kinds_of_keys_is_written_too(workbench: Workbench) -> None:
    workbench.source(FILMS)
    make(workbench, "incremental")
    run(workbench)
    workbench.sql("ALTER TABLE analytics.films ADD UNIQUE NULLS NOT DISTINCT (id, valid_to)")
    for unique_by, title in (("valid_from", "second"), ("valid_to", "third")):
        workbench.change("films", options={"history": {"unique_by": unique_by}, "cursor_clock": "database"})
        touch(workbench, 3, title)
        assert warnings(run(workbench)) == []
    assert states(workbench, 3) == [("film 3", False), ("second", False), ("third", True)]


@LAYOUTS
def test_the_key_of_an_existing_history_need_not_be_named(workbench: Workbench, unique_by: str) -> None:
    workbench.source(FILMS)
    make(workbench, "full", unique_by=unique_by)
    run(workbench)
    options: dict[str, Any] = {"history": {"unique_by": unique_by}, "allow_empty": True, "allow_shrink": True}
    workbench.change("films", target_key=None, options=options)
    touch(workbench, 3, "second")
    run(workbench)
    assert states(workbench, 3) == [("film 3", False), ("second", True)]
    workbench.sql("TRUNCATE content.films")
    assert run(workbench)["rows_deleted"] == 10
    assert workbench.sql("SELECT id FROM analytics.films WHERE is_current") == []


@LAYOUTS
def test_a_key_of_several_columns(workbench: Workbench, unique_by: str) -> None:
    workbench.source(
        "CREATE TABLE content.seats AS SELECT a::numeric AS a, b::text AS b, 'free' AS state, now() AS modified"
        " FROM generate_series(1, 3) a, generate_series(1, 3) b"
    )
    query = "SELECT b, state, a, modified FROM content.seats"
    fields = {"mode": "incremental", "incremental_key": "modified", "target_key": ["b", "a"]}
    options = {"history": {"unique_by": unique_by}, "cursor_clock": "database"}
    workbench.pipeline("films", query, options=options, **fields)
    run(workbench)
    # Equal as a number, and another text.
    workbench.sql("UPDATE content.seats SET state = 'sold', a = 1.0, modified = clock_timestamp() WHERE a = 1")
    assert run(workbench)["rows_written"] == 3
    found = workbench.sql("SELECT a::text, state, valid_to IS NULL AS now FROM analytics.films WHERE a = 1 AND b = '2'")
    shown = sorted((row["a"], row["state"], row["now"]) for row in found)
    assert shown == [("1", "free", False), ("1.0", "sold", True)]
    assert run(workbench)["rows_written"] == 0


@LAYOUTS
def test_a_publication_of_updates_needs_a_replica_identity(workbench: Workbench, unique_by: str) -> None:
    """What the guide says about a table without a primary key."""
    workbench.source(FILMS)
    make(workbench, "incremental", unique_by=unique_by)
    run(workbench)
    workbench.sql("SET client_min_messages = error; CREATE PUBLICATION films FOR TABLE analytics.films")
    touch(workbench, 3, "second")
    if unique_by == "valid_to":
        assert "does not have a replica identity" in workbench.run("films")["error_message"]
        workbench.sql("ALTER TABLE analytics.films REPLICA IDENTITY FULL")
        if workbench.admin.info.server_version >= 18_00_00:
            assert "unpublished generated columns" in workbench.run("films")["error_message"]
            workbench.sql("ALTER PUBLICATION films SET (publish_generated_columns = stored)")
    assert run(workbench)["rows_written"] == 1


@LAYOUTS
def test_a_key_that_two_batches_repeat_is_named(workbench: Workbench, unique_by: str) -> None:
    """In one snapshot, a batch meets a state that an earlier batch has begun, and writes other rows too."""
    workbench.source(
        "CREATE TABLE content.logged AS SELECT n::bigint AS id, 'film ' || n AS title, n AS stand"
        " FROM generate_series(1, 10) n"
    )
    query = "SELECT id, title, stand FROM content.logged"
    fields = {"mode": "incremental", "incremental_key": "stand", "target_key": ["id"], "batch_size": 3}
    workbench.pipeline("films", query, options={"history": {"unique_by": unique_by}}, **fields)
    run(workbench)
    workbench.sql(
        "UPDATE content.logged SET title = 'second', stand = stand + 20;"
        "INSERT INTO content.logged VALUES (2, 'again', 30)"
    )
    done = workbench.run("films")
    assert done["status"] == "FAILED"
    assert "for example (id) = (2)" in done["error_message"]


@pytest.mark.parametrize(("unique_by", "place"), [("valid_from", 0), ("valid_to", 1)])
def test_a_plain_mart_becomes_a_history_as_the_guide_says(workbench: Workbench, unique_by: str, place: int) -> None:
    workbench.source(FILMS)
    make(workbench, "incremental", options={"history": None})
    run(workbench)
    for statement in converting(place):
        workbench.sql(statement)
    workbench.change("films", options={"history": {"unique_by": unique_by}, "cursor_clock": "database"})
    touch(workbench, 3, "second")
    done = run(workbench)
    assert warnings(done) == []
    assert states(workbench, 3) == [("film 3", False), ("second", True)]
    assert as_of(workbench, done["metrics"]["snapshot_at"]) == source(workbench)


def test_a_history_is_converted_there_and_back_as_the_guide_says(workbench: Workbench) -> None:
    workbench.source(FILMS)
    make(workbench, "incremental")
    run(workbench)
    made = dict.fromkeys(("valid_from", "valid_to"), "")
    for unique_by, place, title in (("valid_to", 2, "second"), ("valid_from", 3, "third"), ("valid_to", 2, "fourth")):
        for statement in converting(place):
            workbench.sql(statement)
        workbench.change("films", options={"history": {"unique_by": unique_by}, "cursor_clock": "database"})
        touch(workbench, 3, title)
        done = run(workbench)
        assert (done["rows_written"], warnings(done)) == (1, [])
        made[unique_by] = " ".join(row["made"] for row in workbench.sql(INDEXES))
    assert [title for title, _ in states(workbench, 3)] == ["film 3", "second", "third", "fourth"]
    # As in tables that a run creates.
    for unique_by, converted in made.items():
        workbench.sql("DROP TABLE analytics.films")
        workbench.change("films", options={"history": {"unique_by": unique_by}, "cursor_clock": "database"})
        run(workbench)
        assert " ".join(row["made"] for row in workbench.sql(INDEXES)) == converted
