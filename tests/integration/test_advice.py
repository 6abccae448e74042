"""What `validate` says about a cursor before it disappoints: slow passes, rows that are never read or never again."""

from contextlib import ExitStack

import pytest

from tests.support.workbench import Workbench
from vitrina.loads import inspection, opening
from vitrina.store import pipelines

FIELDS = {"target_key": ["id"], "mode": "incremental", "incremental_key": "modified", "incremental_id_key": "id"}
ROWS = "INSERT INTO content.film_work SELECT i, repeat('x', 100), now() FROM generate_series(1, {}) AS i"
TRIGGER = """
CREATE FUNCTION content.touch() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.modified := now(); RETURN NEW; END';
CREATE TRIGGER touch BEFORE UPDATE ON content.film_work FOR EACH ROW EXECUTE FUNCTION content.touch();
"""
UPDATES = "UPDATE content.film_work SET title = 'y' WHERE id <= 3; SELECT pg_stat_force_next_flush()"


def make_source(bench: Workbench, column: str = "modified timestamptz NOT NULL DEFAULT now()", rows: int = 10) -> None:
    bench.source(f"CREATE TABLE content.film_work (id int PRIMARY KEY, title text, {column}); {ROWS.format(rows)}")


def warnings(
    bench: Workbench, query: str = "SELECT id, title, modified FROM content.film_work", **fields: object
) -> list[str]:
    """Those that a look into the source's catalog gives, without the advice about clocks."""
    wanted = FIELDS | {"options": {"cursor_clock": "database", "cursor_timezone": "UTC"}} | fields
    identity = bench.pipeline("films", query, **wanted)
    row = pipelines.find(bench.metastore, identity)
    assert row is not None
    with ExitStack() as sessions:
        job = opening.open_for_inspection(row, bench.settings, bench.metastore, sessions)
        found = list(inspection.inspect(job, create_target=False).plan.warnings)
    return [text for text in found if "was not set by this database's clock" not in text]


def test_a_sound_cursor_is_not_warned_about(workbench: Workbench) -> None:
    make_source(workbench, rows=20_000)
    workbench.sql("CREATE INDEX ON content.film_work (modified, id)")
    workbench.sql(TRIGGER)
    workbench.sql(UPDATES)
    assert warnings(workbench) == []


def test_a_large_table_without_an_index_on_the_cursor(workbench: Workbench) -> None:
    make_source(workbench, rows=20_000)
    workbench.sql("CREATE INDEX ON content.film_work (id, modified)")
    workbench.sql("CREATE INDEX ON content.film_work (modified) WHERE title IS NULL")
    [said] = warnings(workbench)
    assert "CREATE INDEX CONCURRENTLY ON content.film_work (modified, id)" in said


def test_a_small_table_needs_no_index(workbench: Workbench) -> None:
    make_source(workbench, rows=100)
    assert warnings(workbench) == []


def test_text_cursors_need_an_index_in_the_order_of_bytes(workbench: Workbench) -> None:
    make_source(workbench, rows=20_000)
    workbench.sql("CREATE INDEX ON content.film_work (title)")
    [said] = warnings(workbench, incremental_key="title")[:1]
    assert 'title COLLATE "C", id' in said
    workbench.sql("DELETE FROM etl.etl_pipelines; ALTER TABLE content.film_work ALTER title SET NOT NULL")
    workbench.sql('CREATE INDEX ON content.film_work (title COLLATE "C")')
    assert warnings(workbench, incremental_key="title") == []


def test_a_cursor_that_may_be_null(workbench: Workbench) -> None:
    make_source(workbench, "modified timestamptz")
    [said] = warnings(workbench)
    assert "ALTER TABLE content.film_work ALTER modified SET NOT NULL" in said


def test_an_updated_at_that_nothing_moves(workbench: Workbench) -> None:
    """A default sets it once. Without a trigger each UPDATE has to, and there have been some."""
    make_source(workbench)
    assert warnings(workbench) == [], "rows were only ever inserted"
    workbench.sql(UPDATES)
    workbench.sql("DELETE FROM etl.etl_pipelines")
    [said] = warnings(workbench)
    assert "3 row(s) were updated" in said
    workbench.sql(TRIGGER)
    workbench.sql("DELETE FROM etl.etl_pipelines")
    assert warnings(workbench) == []


def test_a_timestamp_without_time_zone(workbench: Workbench) -> None:
    make_source(workbench, "modified timestamp NOT NULL")
    [said] = [text for text in warnings(workbench, options={}) if "time zone" in text]
    assert "options.cursor_timezone" in said


@pytest.mark.parametrize("expression", ["modified + interval '1 hour'", "greatest(modified, now())"])
def test_nothing_is_guessed_about_a_computed_cursor(workbench: Workbench, expression: str) -> None:
    make_source(workbench, "modified timestamptz", rows=20_000)
    assert warnings(workbench, f"SELECT id, title, {expression} AS modified FROM content.film_work") == []


def test_a_clock_that_is_not_the_databases_is_noticed(workbench: Workbench) -> None:
    """Business dates under `cursor_clock: database`: rows change, and the cursor stays where it was."""
    make_source(workbench, column="modified timestamptz NOT NULL")
    workbench.sql("UPDATE content.film_work SET modified = '2024-01-01'")
    fields = FIELDS | {"options": {"cursor_clock": "database"}}
    workbench.pipeline("films", "SELECT id, title, modified FROM content.film_work", **fields)
    assert workbench.run("films")["status"] == "SUCCESS"
    workbench.sql("SELECT pg_stat_force_next_flush()")
    assert workbench.run("films")["status"] == "SUCCESS"
    workbench.sql(
        "INSERT INTO content.film_work VALUES (99, 'imported', '2024-01-02'); SELECT pg_stat_force_next_flush()"
    )

    said = workbench.run("films")["metrics"]["plan"]["warnings"]

    assert any("1 row(s) were inserted or updated there since the last pass" in text for text in said), said


def test_stamps_from_the_future_are_not_of_the_databases_clock(workbench: Workbench) -> None:
    make_source(workbench)
    workbench.sql("UPDATE content.film_work SET modified = now() + interval '1 hour' WHERE id = 1")
    assert any("which is in the future" in text for text in warnings(workbench))
