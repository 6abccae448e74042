"""How states of a history are closed and added: in which order, at which times, and what is refused."""

from typing import Any

import pytest

from tests.integration.test_history import FILMS, LAYOUTS, as_of, make, run, source, touch
from tests.support.workbench import Workbench
from vitrina.services.advice import next_step

MODES = ["full", "incremental"]


def states(bench: Workbench, number: int) -> list[tuple[str, bool]]:
    rows = bench.sql(f"SELECT title, valid_to FROM analytics.films WHERE id = {number} ORDER BY valid_from, valid_to")
    return [(row["title"], row["valid_to"] is None) for row in rows]


def exchange(bench: Workbench) -> None:
    """Let two rows exchange their titles with a new one, whose key comes first."""
    bench.sql(
        "UPDATE content.films SET title = CASE id WHEN 1 THEN 'film 2' ELSE 'new' END, modified = clock_timestamp()"
        " WHERE id IN (1, 2)"
    )
    bench.source("INSERT INTO content.films (id, title) VALUES (0, 'film 1')")


@pytest.mark.parametrize("mode", MODES)
@LAYOUTS
def test_values_of_a_unique_index_pass_from_row_to_row(workbench: Workbench, mode: str, unique_by: str) -> None:
    workbench.source(FILMS)
    make(workbench, mode, unique_by=unique_by)
    run(workbench)
    workbench.sql("CREATE UNIQUE INDEX ON analytics.films (title) WHERE valid_to IS NULL")
    workbench.sql(
        "UPDATE content.films SET title = CASE id WHEN 1 THEN 'film 2' WHEN 2 THEN 'film 1' ELSE title || '!' END,"
        " modified = clock_timestamp()"
    )
    workbench.source("INSERT INTO content.films (id, title) VALUES (0, 'film 10')")
    done = run(workbench)
    assert done["rows_written"] == 11
    assert as_of(workbench, done["metrics"]["snapshot_at"]) == source(workbench)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("exclusion", [False, True])
@LAYOUTS
def test_values_of_an_exclusion_constraint_pass_from_row_to_row(
    workbench: Workbench, mode: str, exclusion: bool, unique_by: str
) -> None:
    """Of two constraints, the server only says that there are two, not which rows they keep apart."""
    workbench.source(FILMS)
    make(workbench, mode, unique_by=unique_by, options={"history": {"exclusion": exclusion}})
    run(workbench)
    for drop in workbench.sql(
        "SELECT conname AS name FROM pg_constraint WHERE conrelid = 'analytics.films'::regclass AND contype = 'x'"
    ):
        workbench.sql(f"ALTER TABLE analytics.films DROP CONSTRAINT {drop['name']}")
    workbench.sql("ALTER TABLE analytics.films ADD EXCLUDE USING btree (title WITH =) WHERE (valid_to IS NULL)")
    exchange(workbench)
    done = run(workbench)
    assert done["rows_written"] == 3
    assert as_of(workbench, done["metrics"]["snapshot_at"]) == source(workbench)


CONSTRAINTS = {
    "unique": "CREATE UNIQUE INDEX ON analytics.films (title) WHERE valid_to IS NULL",
    "exclusion": "ALTER TABLE analytics.films ADD EXCLUDE USING btree (title WITH =) WHERE (valid_to IS NULL)",
}


@pytest.mark.parametrize("constraint", CONSTRAINTS.values(), ids=list(CONSTRAINTS))
def test_a_value_of_a_row_that_left_the_source_is_explained(workbench: Workbench, constraint: str) -> None:
    workbench.source(FILMS)
    make(workbench, "incremental")
    run(workbench)
    workbench.sql(constraint)
    workbench.sql("DELETE FROM content.films WHERE id = 1")
    touch(workbench, 2, "film 1")
    failed = workbench.run("films")
    assert failed["status"] != "SUCCESS"
    assert "(title)=(film 1)" in failed["error_message"]
    assert "If its row has left the source, which an incremental run does not see" in failed["error_message"]
    assert "run once in mode 'full', which closes it" in failed["error_message"]
    assert "DEFERRABLE" not in failed["error_message"]
    step = next_step(failed["error_code"], failed["error_message"])
    assert step.startswith("Run once in mode full, which closes rows that left the source, then set mode back")

    # A FAILED pipeline can be neither scanned nor repaired.
    workbench.change("films", mode="full")
    run(workbench)
    workbench.change("films", mode="incremental")
    assert as_of(workbench, run(workbench)["metrics"]["snapshot_at"]) == source(workbench)
    assert states(workbench, 1) == [("film 1", False)]


@pytest.mark.parametrize(
    ("mode", "said"),
    [("incremental", "If the state is closed, limit the constraint"), ("full", "limit the constraint")],
)
@pytest.mark.parametrize("constraint", CONSTRAINTS.values(), ids=list(CONSTRAINTS))
def test_a_constraint_over_closed_states_is_explained(
    workbench: Workbench, constraint: str, mode: str, said: str
) -> None:
    workbench.source(FILMS)
    make(workbench, mode)
    run(workbench)
    workbench.sql(constraint.partition(" WHERE ")[0])
    touch(workbench, 2, "film 2")
    failed = workbench.run("films")
    assert failed["status"] != "SUCCESS"
    assert f"{said} to current rows (WHERE valid_to IS NULL)" in failed["error_message"]
    assert "DEFERRABLE" not in failed["error_message"]


@pytest.mark.parametrize("mode", MODES)
def test_a_mart_without_a_history_is_told_of_deferrable_constraints(workbench: Workbench, mode: str) -> None:
    workbench.source(FILMS)
    make(workbench, mode, options={"history": None})
    run(workbench)
    workbench.sql("ALTER TABLE analytics.films ADD EXCLUDE USING btree (title WITH =)")
    exchange(workbench)
    failed = workbench.run("films")
    assert failed["error_code"] == "fatal"
    assert "(SQLSTATE 23P01)" in failed["error_message"]
    assert "Rows may exchange values of an exclusion constraint that is DEFERRABLE." in failed["error_message"]


def test_a_unique_index_instead_of_the_exclusion_constraint_is_not_taken_for_it(workbench: Workbench) -> None:
    workbench.source(FILMS)
    make(workbench, "incremental")
    run(workbench)
    workbench.change("films", options={"history": {"exclusion": True}, "cursor_clock": "database"})
    workbench.sql("CREATE UNIQUE INDEX ON analytics.films (title) WHERE valid_to IS NULL")
    exchange(workbench)
    assert run(workbench)["rows_written"] == 3


@LAYOUTS
def test_a_key_that_is_in_a_child_table_too_is_closed_there_and_added_once(
    workbench: Workbench, unique_by: str
) -> None:
    workbench.source(FILMS)
    make(workbench, "incremental", unique_by=unique_by)
    run(workbench)
    workbench.sql("CREATE TABLE analytics.older_films () INHERITS (analytics.films)")
    workbench.sql("ALTER TABLE analytics.older_films OWNER TO vitrina_app")
    workbench.sql("INSERT INTO analytics.older_films (id, title, valid_from) VALUES (3, 'older', '2000-01-01')")
    touch(workbench, 3, "second")
    run(workbench)
    assert states(workbench, 3) == [("older", False), ("film 3", False), ("second", True)]


SKIP_CHANGED = """
CREATE FUNCTION public.skip_changed() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN IF NEW.title = 'second' THEN RETURN NULL; END IF; RETURN NEW; END $$;
CREATE TRIGGER no_second BEFORE INSERT ON analytics.films FOR EACH ROW EXECUTE FUNCTION public.skip_changed()
"""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("others", "said"), [(0, "took 0 of 1 rows"), (3, "took 3 of 4 rows")])
@LAYOUTS
def test_a_trigger_that_leaves_a_state_out_is_named_with_the_states_that_were_added(
    workbench: Workbench, mode: str, others: int, said: str, unique_by: str
) -> None:
    """A changed row closes a state and adds one; `others`: a new row and two changed ones."""
    workbench.source(FILMS)
    make(workbench, mode, unique_by=unique_by)
    run(workbench)
    workbench.sql(SKIP_CHANGED)
    touch(workbench, 3, "second")
    if others:
        touch(workbench, 4, "third")
        touch(workbench, 5, "third")
        workbench.source("INSERT INTO content.films (id, title) VALUES (11, 'new')")
    done = workbench.run("films")
    assert done["status"] == "FAILED"
    assert f"analytics.films {said} of an INSERT: trigger no_second" in done["error_message"]
    assert states(workbench, 3) == [("film 3", True)]


LOGGED = """
CREATE TABLE content.logged AS SELECT n::bigint AS id, 'film ' || n AS title, now() AS modified, false AS gone
FROM generate_series(1, 10) n;
"""


@pytest.mark.parametrize("checked", [True, False])
@LAYOUTS
def test_a_state_that_would_be_valid_at_no_time_is_refused(workbench: Workbench, checked: bool, unique_by: str) -> None:
    """A row and its removal in one snapshot are two rows of a key."""
    workbench.source(LOGGED)
    fields: dict[str, Any] = {"mode": "incremental", "incremental_key": "modified", "target_key": ["id"]}
    options = {"history": {"unique_by": unique_by}, "delete_when": "gone", "cursor_clock": "database"}
    query = "SELECT id, title, modified, gone FROM content.logged"
    workbench.pipeline("films", query, options=options, batch_size=1, **fields)
    run(workbench)
    if not checked:  # as in a mart that was converted
        [check] = workbench.sql(
            "SELECT conname AS name FROM pg_constraint WHERE conrelid = 'analytics.films'::regclass AND contype = 'c'"
        )
        workbench.sql(f"ALTER TABLE analytics.films DROP CONSTRAINT {check['name']}")
    workbench.source(
        "INSERT INTO content.logged VALUES (11, 'new', clock_timestamp(), false);"
        "INSERT INTO content.logged VALUES (11, 'new', clock_timestamp(), true)"
    )
    done = workbench.run("films")
    assert done["status"] == "FAILED"
    assert "1 key(s) occur more than once in the source, for example (id) = (11)" in done["error_message"]
    assert workbench.sql("SELECT id FROM analytics.films WHERE valid_to <= valid_from") == []


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("bigint", "9223372036854775807"),
        ("integer", "2147483647"),
        ("smallint", "-32768"),
        ("numeric(20,2)", "1.50"),
        ("timestamp(3)", "'2026-01-01 00:00:00.123'"),
        ("timestamptz(3)", "'infinity'"),
        ("date", "'infinity'"),
    ],
)
def test_an_exclusion_constraint_takes_every_key(workbench: Workbench, kind: str, key: str) -> None:
    workbench.source(
        f"""
        CREATE TABLE content.edges (id {kind} PRIMARY KEY, title text);
        INSERT INTO content.edges VALUES ({key}, 'first');
        """
    )
    query, options = "SELECT id, title FROM content.edges", {"history": {"exclusion": True}}
    workbench.pipeline("edges", query, target_key=["id"], options=options)
    run(workbench, "edges")
    workbench.sql("UPDATE content.edges SET title = 'second'")
    assert run(workbench, "edges")["rows_written"] == 1
    assert len(workbench.sql("SELECT title FROM analytics.edges")) == 2


@pytest.mark.parametrize(
    ("unique_by", "rewrite"),
    [
        ("valid_from", "VACUUM FULL analytics.films"),
        ("valid_from", "CLUSTER analytics.films USING films_pkey"),
        ("valid_to", "CLUSTER analytics.films USING films_id_valid_to_key"),
    ],
)
def test_a_state_like_an_earlier_one_is_not_mistaken_for_it(workbench: Workbench, unique_by: str, rewrite: str) -> None:
    """A mart that was only rewritten is recognised by its latest states, which earlier ones may equal."""
    workbench.source(
        "CREATE TABLE content.films AS SELECT n::bigint AS id, 'film ' || n AS title, n AS stand"
        " FROM generate_series(1, 10) n"
    )
    query = "SELECT id, title, stand FROM content.films"
    options: dict[str, Any] = {"history": {"unique_by": unique_by}}
    fields: dict[str, Any] = {"mode": "incremental", "incremental_key": "stand", "target_key": ["id"]}
    workbench.pipeline("films", query, options=options, **fields)
    for title in ("film 10", "second", "film 10"):
        workbench.sql(f"UPDATE content.films SET title = '{title}' WHERE id = 10")
        run(workbench)
    assert states(workbench, 10) == [("film 10", False), ("second", False), ("film 10", True)]
    workbench.sql(rewrite)
    assert "started_over" not in run(workbench)["metrics"]
    # An older copy lacks the latest state.
    workbench.sql("DELETE FROM analytics.films WHERE id = 10 AND valid_to IS NULL")
    assert "by hand" in run(workbench)["metrics"]["started_over"]
