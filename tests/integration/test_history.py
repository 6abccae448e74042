"""Marts that keep a history: every state of a row, valid from one snapshot of the source to another."""

from typing import Any

import httpx
import psycopg
import pytest
from pydantic import ValidationError

from tests.support.workbench import Workbench
from vitrina import failpoints
from vitrina.client import Client
from vitrina.definition import Definition
from vitrina.errors import Conflict
from vitrina.services import pipelines as service
from vitrina.status import Trigger
from vitrina.store import pipelines, recovery, state

FILMS = """
CREATE TABLE content.films (id bigint PRIMARY KEY, title text, modified timestamptz NOT NULL DEFAULT clock_timestamp());
INSERT INTO content.films (id, title) SELECT n, 'film ' || n FROM generate_series(1, 10) n;
"""
QUERY = "SELECT id, title, modified FROM content.films"


# What the table of a history is unique by, besides the key.
LAYOUTS = pytest.mark.parametrize("unique_by", ["valid_from", "valid_to"])


def make(bench: Workbench, mode: str, name: str = "films", *, unique_by: str = "valid_from", **fields: Any) -> None:
    options = {"history": {}, "allow_shrink": True, "cursor_clock": "database"} | fields.pop("options", {})
    if options["history"] is not None:
        options["history"] = {"unique_by": unique_by} | options["history"]
    cursor = {"incremental_key": "modified", "incremental_id_key": "id"} if mode == "incremental" else {}
    bench.pipeline(name, QUERY, target_key=["id"], mode=mode, options=options, **cursor, **fields)


def run(bench: Workbench, name: str = "films") -> dict[str, Any]:
    done = bench.run(name)
    assert done["status"] == "SUCCESS", done["error_message"]
    return done


def touch(bench: Workbench, number: int, title: str) -> None:
    bench.sql(f"UPDATE content.films SET title = '{title}', modified = clock_timestamp() WHERE id = {number}")


def as_of(bench: Workbench, moment: str, mart: str = "analytics.films") -> dict[int, str]:
    rows = bench.sql(
        f"SELECT id, title FROM {mart} WHERE valid_from <= '{moment}' AND (valid_to > '{moment}' OR valid_to IS NULL)"
    )
    assert len(rows) == len({row["id"] for row in rows})
    return {row["id"]: row["title"] for row in rows}


def source(bench: Workbench) -> dict[int, str]:
    return {row["id"]: row["title"] for row in bench.sql("SELECT id, title FROM content.films")}


@pytest.mark.parametrize("route", ["auto", "copy", "arrow"])
@pytest.mark.parametrize("mode", ["full", "incremental"])
@LAYOUTS
def test_each_run_leaves_the_states_of_its_snapshot(
    workbench: Workbench, mode: str, route: str, unique_by: str
) -> None:
    workbench.source(FILMS)
    make(workbench, mode, unique_by=unique_by, options={"route": route}, batch_size=3)
    seen: list[tuple[str, dict[int, str]]] = []
    for title in ("", "second", "third"):
        if title:
            touch(workbench, 3, title)
            workbench.source(f"INSERT INTO content.films (id, title) VALUES ({10 + len(seen)}, 'new')")
        done = run(workbench)
        seen.append((done["metrics"]["snapshot_at"], source(workbench)))
    for moment, then in seen:
        assert as_of(workbench, moment) == then
    again = run(workbench)
    assert (again["rows_written"], again["rows_deleted"]) == (0, 0)
    assert again["metrics"]["snapshot_at"] > seen[-1][0]
    [states] = workbench.sql("SELECT count(*) AS all, count(*) FILTER (WHERE is_current) AS now FROM analytics.films")
    assert (states["all"], states["now"]) == (14, 12)


@LAYOUTS
def test_rows_that_left_are_closed_and_those_that_come_back_begin_again(workbench: Workbench, unique_by: str) -> None:
    workbench.source(FILMS)
    make(workbench, "full", unique_by=unique_by)
    run(workbench)
    workbench.sql("DELETE FROM content.films WHERE id IN (1, 2)")
    gone = run(workbench)
    assert (gone["rows_written"], gone["rows_deleted"]) == (0, 2)
    workbench.source("INSERT INTO content.films (id, title) VALUES (1, 'back')")
    back = run(workbench)
    states = workbench.sql(
        "SELECT title, valid_from, valid_to, is_current FROM analytics.films WHERE id = 1 ORDER BY 2"
    )
    assert [(row["title"], row["is_current"]) for row in states] == [("film 1", False), ("back", True)]
    assert states[0]["valid_to"].isoformat() == gone["metrics"]["snapshot_at"]
    assert states[1]["valid_from"].isoformat() == back["metrics"]["snapshot_at"]


@LAYOUTS
def test_a_table_is_made_so_that_states_cannot_overlap(workbench: Workbench, unique_by: str) -> None:
    workbench.source(FILMS)
    make(workbench, "full", unique_by=unique_by, options={"history": {"exclusion": True}})
    run(workbench)
    # Two current states: refused by the constraint that was created first.
    first = {"valid_from": psycopg.errors.ExclusionViolation, "valid_to": psycopg.errors.UniqueViolation}
    with pytest.raises(first[unique_by]):
        workbench.sql("INSERT INTO analytics.films (id, valid_from) VALUES (1, now())")
    with pytest.raises(psycopg.errors.ExclusionViolation):
        workbench.sql("INSERT INTO analytics.films (id, valid_from, valid_to) VALUES (1, now(), now() + interval '1d')")
    with pytest.raises(psycopg.errors.CheckViolation):
        workbench.sql("INSERT INTO analytics.films (id, valid_from, valid_to) VALUES (1, now(), now() - interval '1d')")


def test_keys_that_need_an_extension_for_the_constraint_say_so(workbench: Workbench) -> None:
    workbench.source(FILMS)
    options = {"history": {"exclusion": True}}
    workbench.pipeline("titles", "SELECT title, id FROM content.films", target_key=["title"], options=options)
    done = workbench.run("titles")
    assert done["status"] == "FAILED"
    assert "btree_gist" in done["error_message"]


@LAYOUTS
def test_names_of_columns_and_the_view_of_current_rows(workbench: Workbench, unique_by: str) -> None:
    workbench.source(FILMS)
    names = {
        "valid_from": "since",
        "valid_to": 'un"til',
        "current": "Now",
        "current_view": True,
        "unique_by": unique_by,
    }
    make(workbench, "full", unique_by=unique_by, options={"history": names})
    run(workbench)
    touch(workbench, 3, "changed")
    run(workbench)
    assert workbench.differences(QUERY, "analytics.films_current", "id, title") == 0
    assert workbench.sql('SELECT "Now" FROM analytics.films WHERE id = 3 ORDER BY since') == [
        {"Now": False},
        {"Now": True},
    ]
    # A new column is in the view as well, behind the others.
    workbench.source("ALTER TABLE content.films ADD year int DEFAULT 1999")
    workbench.change("films", source_query="SELECT id, title, year, modified FROM content.films")
    workbench.change("films", options={"history": names, "on_schema_change": "add_columns"})
    run(workbench)
    assert workbench.differences("SELECT id, year FROM content.films", "analytics.films_current", "id, year") == 0


VIEW, SOURCE = "analytics.films_current", "content.films"
MARK = "Current rows of analytics.films, kept by Vitrina"


@pytest.mark.parametrize(
    "made",
    [
        f"CREATE VIEW {VIEW} AS SELECT id, title, modified, now() AS valid_from FROM content.films",
        f"CREATE VIEW {VIEW} AS SELECT *, now() AS valid_from, now() AS valid_to, true AS is_current FROM {SOURCE}",
        f"CREATE TABLE {VIEW} (id int)",
    ],
)
def test_a_view_of_others_is_neither_replaced_nor_trusted(workbench: Workbench, made: str) -> None:
    workbench.source(FILMS)
    workbench.sql(made)
    before = workbench.sql("SELECT pg_get_viewdef(to_regclass('analytics.films_current')) AS text")
    make(workbench, "full", options={"history": {"current_view": True}})
    done = workbench.run("films")
    assert done["status"] == "FAILED"
    for said in (VIEW, "Vitrina did not make it", "drop or rename it", "COMMENT ON VIEW", MARK):
        assert said in done["error_message"]
    assert workbench.sql("SELECT pg_get_viewdef(to_regclass('analytics.films_current')) AS text") == before


def test_a_view_that_was_handed_over_is_kept(workbench: Workbench) -> None:
    workbench.source(FILMS)
    make(workbench, "full")
    run(workbench)
    workbench.sql(f"CREATE VIEW {VIEW} AS SELECT id, title FROM analytics.films WHERE valid_to IS NULL")
    workbench.sql(f"ALTER VIEW {VIEW} OWNER TO vitrina_app")
    workbench.change("films", options={"history": {"current_view": True}})
    said = workbench.run("films")["error_message"]
    workbench.sql(said.rpartition("Vitrina: ")[2])
    run(workbench)
    assert workbench.differences(QUERY, VIEW, "id, title, modified") == 0


READER = "SELECT has_table_privilege('vitrina_reader', 'analytics.films_current', '{}') AS may"


def test_who_may_read_the_mart_may_read_the_view_of_its_current_rows(workbench: Workbench) -> None:
    workbench.source(FILMS)
    grants = [{"role": "vitrina_reader", "privileges": ["SELECT", "REFERENCES"]}]
    options = {"history": {"current_view": True}, "table": {"grants": grants}}
    make(workbench, "full", options=options)
    assert run(workbench)["metrics"]["plan"]["warnings"] == []
    assert workbench.sql(READER.format("SELECT")) == [{"may": True}]
    assert workbench.sql(READER.format("REFERENCES")) == [{"may": False}]
    # A view that is there is left as it is, and what it lacks is said.
    workbench.sql(f"REVOKE ALL ON {VIEW} FROM vitrina_reader")
    [warning] = run(workbench)["metrics"]["plan"]["warnings"]
    assert 'GRANT SELECT ON "analytics"."films_current" TO "vitrina_reader"' in warning
    assert workbench.sql(READER.format("SELECT")) == [{"may": False}]
    workbench.sql(warning.partition("to add it: ")[2])
    assert run(workbench)["metrics"]["plan"]["warnings"] == []


@pytest.mark.parametrize("route", ["copy", "arrow"])
@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_equal_values_are_one_state_whatever_way_they_came(workbench: Workbench, mode: str, route: str) -> None:
    """A NaN has a sign, and an array may keep a map of NULLs: no text shows either."""
    workbench.source(
        """
        CREATE TABLE content.films (id bigint PRIMARY KEY, title double precision, seen int[],
            modified timestamptz NOT NULL DEFAULT clock_timestamp());
        INSERT INTO content.films (id, title, seen) VALUES
            (1, 'inf'::float8 - 'inf'::float8, (ARRAY[1, 2, NULL])[1:2]), (2, 1.5, '{1,2}'), (3, '-0', NULL);
        """
    )
    cursor = {"incremental_key": "modified", "incremental_id_key": "id"} if mode == "incremental" else {}
    options: dict[str, Any] = {"history": {}, "cursor_clock": "database"}
    query = "SELECT id, title, seen, modified FROM content.films"
    workbench.pipeline("films", query, target_key=["id"], mode=mode, options=options, **cursor)
    assert run(workbench)["rows_written"] == 3
    workbench.change("films", options=options | {"route": route})
    again = {"since": "2000-01-01", "until": "2100-01-01"} if mode == "incremental" else {}
    done = workbench.run("films", **again)
    assert (done["status"], done["rows_written"]) == ("SUCCESS", 0), done["error_message"]
    # What differs in a text does differ.
    workbench.sql(
        "UPDATE content.films SET title = CASE id WHEN 1 THEN 7 WHEN 3 THEN 0 ELSE title END,"
        " seen = CASE id WHEN 2 THEN '{1,NULL}' ELSE seen END"
    )
    assert workbench.run("films", **again)["rows_written"] == 3


LONG = "д" * 32


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"history": {"valid_from": LONG}}, "takes 64 bytes, and Postgres keeps 63 at most"),
        ({"history": {"current": "ctid"}}, "'ctid' is a system column"),
        ({"history": {"valid_to": "xmin"}}, "'xmin' is a system column"),
        ({"deletes": {"soft": LONG}}, "takes 64 bytes, and Postgres keeps 63 at most"),
        ({"deletes": {"soft": "tableoid"}}, "'tableoid' is a system column"),
    ],
)
def test_names_that_no_column_can_have_are_refused_when_they_are_saved(options: dict[str, Any], said: str) -> None:
    whole = {"name": "films", "source_query": QUERY, "target_table": "analytics.films", "target_key": ["id"]}
    with pytest.raises(ValidationError, match=said):
        Definition.model_validate(whole | {"options": options})


@LAYOUTS
def test_a_snapshot_is_later_than_the_one_before_though_clocks_go_back(workbench: Workbench, unique_by: str) -> None:
    workbench.source(FILMS)
    make(workbench, "incremental", unique_by=unique_by)
    run(workbench)
    workbench.sql("UPDATE analytics.films SET valid_from = '2999-01-01 12:00:00Z'")
    workbench.sql(
        "UPDATE etl.etl_state SET identity = jsonb_set(identity, '{history,at}', '\"2999-01-01T12:00:00+00:00\"')"
    )
    touch(workbench, 3, "second")
    assert run(workbench)["metrics"]["snapshot_at"] == "2999-01-01T12:00:00.000001+00:00"
    assert as_of(workbench, "2999-01-01 12:00:00.000001Z") == source(workbench)


@LAYOUTS
def test_a_mart_whose_states_are_of_the_future_is_named(workbench: Workbench, unique_by: str) -> None:
    workbench.source(FILMS)
    make(workbench, "incremental", unique_by=unique_by)
    run(workbench)
    workbench.sql("UPDATE analytics.films SET valid_from = '2999-01-01 12:00:00Z' WHERE id = 3")
    touch(workbench, 3, "second")
    done = workbench.run("films")
    assert done["status"] == "FAILED"
    assert "2999-01-01" in done["error_message"]
    # Without a checkpoint, the mart itself says where its snapshots are.
    workbench.sql("UPDATE etl.etl_state SET identity = '{}', safe_upto = NULL")
    assert run(workbench)["metrics"]["snapshot_at"] > "2999"


@pytest.mark.parametrize("mode", ["full", "incremental"])
@LAYOUTS
def test_a_query_gives_one_row_per_key(workbench: Workbench, mode: str, unique_by: str) -> None:
    workbench.source(
        FILMS + "CREATE TABLE content.twice AS SELECT id, title, modified FROM content.films UNION ALL"
        " SELECT id, 'again', clock_timestamp() FROM content.films"
    )
    cursor = {"incremental_key": "modified"} if mode == "incremental" else {}
    query = "SELECT id, title, modified FROM content.twice"
    workbench.pipeline(
        "twice",
        query,
        target_key=["id"],
        mode=mode,
        options={"history": {"unique_by": unique_by}},
        batch_size=3,
        **cursor,
    )
    done = workbench.run("twice")
    assert done["status"] == "FAILED"
    assert "occur more than once" in done["error_message"]


REPEATED = {
    "of a new key": "INSERT INTO content.logged VALUES (11, 'one', now()), (11, 'two', now())",
    "both changed": "INSERT INTO content.logged VALUES (3, 'one', now()), (3, 'two', now())",
    "one as before": "INSERT INTO content.logged VALUES (3, 'film 3', now()), (3, 'two', now())",
    "both as before": "INSERT INTO content.logged VALUES (3, 'film 3', now()), (3, 'film 3', now())",
}


@pytest.mark.parametrize("repeat", REPEATED.values(), ids=[name.replace(" ", "-") for name in REPEATED])
@LAYOUTS
def test_two_rows_of_a_key_in_one_batch_are_refused(workbench: Workbench, repeat: str, unique_by: str) -> None:
    workbench.source(
        "CREATE TABLE content.logged AS SELECT n::bigint AS id, 'film ' || n AS title, now() AS modified"
        " FROM generate_series(1, 10) n"
    )
    query = "SELECT id, title, modified FROM content.logged"
    fields = {
        "mode": "incremental",
        "incremental_key": "modified",
        "options": {"history": {"unique_by": unique_by}, "stamps": ["modified"]},
    }
    workbench.pipeline("logged", query, target_key=["id"], **fields)
    run(workbench, "logged")
    before = workbench.sql("SELECT * FROM analytics.logged ORDER BY id, valid_from")
    workbench.sql(repeat + "; UPDATE content.logged SET title = 'changed', modified = now() WHERE id = 7")
    done = workbench.run("logged")
    assert done["status"] == "FAILED"
    key = "11" if "11" in repeat else "3"
    assert f"1 key(s) occur more than once in the source, for example (id) = ({key})" in done["error_message"]
    assert workbench.sql("SELECT * FROM analytics.logged ORDER BY id, valid_from") == before


@LAYOUTS
def test_reconcile_and_repair_look_at_current_rows(workbench: Workbench, unique_by: str) -> None:
    workbench.source(FILMS)
    workbench.sql("UPDATE content.films SET modified = '2020-01-01'")
    make(workbench, "incremental", unique_by=unique_by)
    run(workbench)
    touch(workbench, 3, "second")
    run(workbench)
    assert workbench.reconcile("films", level="full")["differences"] == 0
    # Changed and deleted behind the cursor's back.
    workbench.sql("UPDATE content.films SET title = 'quiet' WHERE id = 4; DELETE FROM content.films WHERE id = 5")
    workbench.source("INSERT INTO content.films VALUES (50, 'old stamp', '2001-01-01')")
    before = workbench.now()
    found = workbench.reconcile("films", level="full", repair=True)
    assert (found["missing"], found["extra"], found["differing"]) == (1, 1, 1)
    assert (
        workbench.differences(QUERY, "(SELECT * FROM analytics.films WHERE is_current) AS t", "id, title, modified")
        == 0
    )
    assert as_of(workbench, str(before))[4] == "film 4"
    assert workbench.reconcile("films", level="quick")["differences"] == 0
    assert workbench.reconcile("films", level="sample")["differences"] == 0
    assert run(workbench)["rows_written"] == 0


def test_guards_count_current_rows(workbench: Workbench) -> None:
    workbench.source(FILMS)
    make(workbench, "full", options={"allow_shrink": False})
    run(workbench)
    for title in ("a", "b", "c"):
        workbench.sql(f"UPDATE content.films SET title = '{title}'")
        run(workbench)
    workbench.sql("DELETE FROM content.films WHERE id > 4")  # six of ten rows, of forty states
    done = workbench.run("films")
    assert (done["status"], done["error_code"]) == ("FAILED", "shrink_refused")
    assert len(workbench.sql("SELECT id FROM analytics.films WHERE is_current")) == 10


ONE_WRITER = (
    "target analytics.one is already written by pipeline first, and a mart with options.history can have only one"
    " writer; choose another target"
)
INCREMENTAL = {"mode": "incremental", "incremental_key": "id"}
SECOND = """
apiVersion: vitrina/v1
kind: Pipeline
metadata: {name: second}
spec:
  source_query: SELECT 1 AS id
  target_table: analytics.one
  target_key: [id]
  mode: incremental
  incremental_key: id
"""


def writer_of(target: str, name: str, **options: Any) -> dict[str, Any]:
    query = {"source_query": "SELECT 1 AS id", "target_key": ["id"]}
    return query | INCREMENTAL | {"name": name, "target_table": target, "options": options}


@pytest.fixture
def first(api: httpx.Client) -> None:
    """The history `analytics.one` and the pipeline that writes it."""
    api.post("/api/v1/pipelines", json=writer_of("analytics.one", "first", history={})).raise_for_status()


def is_refused(response: httpx.Response) -> bool:
    return (response.status_code, response.json().get("detail")) == (409, ONE_WRITER)


@pytest.mark.usefixtures("first")
@pytest.mark.parametrize("options", [{}, {"history": {}}, {"shared_target": True}])
def test_two_pipelines_do_not_write_one_history(api: httpx.Client, options: dict[str, Any]) -> None:
    assert is_refused(api.post("/api/v1/pipelines", json=writer_of("analytics.one", "second", **options)))
    api.post("/api/v1/pipelines", json=writer_of("analytics.two", "second", **options)).raise_for_status()
    assert is_refused(api.patch("/api/v1/pipelines/second", json={"target_table": "analytics.one"}))
    assert api.get("/api/v1/pipelines/second").json()["target_table"] == "analytics.two"


def test_a_mart_of_two_pipelines_does_not_become_a_history(api: httpx.Client) -> None:
    for name in ("first", "second"):
        api.post("/api/v1/pipelines", json=writer_of("analytics.one", name)).raise_for_status()
    assert is_refused(api.patch("/api/v1/pipelines/second", json={"options": {"history": {}}}))
    assert api.get("/api/v1/pipelines/second").json()["options"] == {}


@pytest.mark.usefixtures("first")
@pytest.mark.parametrize("options", ["{}", "{history: {}}", "{shared_target: true}"])
def test_files_do_not_name_two_writers_of_one_history(api: httpx.Client, options: str) -> None:
    with Client(str(api.base_url)) as client:
        with pytest.raises(Conflict, match=ONE_WRITER):
            client.apply(f"{SECOND}  options: {options}\n")
        assert [each.name for each in client.list_pipelines()] == ["first"]


@pytest.mark.parametrize("histories", [(True, True), (True, False), (False, True)])
def test_a_second_name_of_its_database_gives_a_history_no_second_writer(
    workbench: Workbench, histories: tuple[bool, bool]
) -> None:
    url = workbench.settings.database_url
    workbench.settings = workbench.settings.model_copy(update={"connections": {"here": url}})
    workbench.source(FILMS)
    for name, place, history in zip(("first", "second"), (None, "here"), histories, strict=True):
        options: dict[str, Any] = {"target_connection": place, "history": {} if history else None}
        make(workbench, "incremental", name, target_table="analytics.one", options=options)
    run(workbench, "first")
    before = workbench.sql("SELECT * FROM analytics.one ORDER BY id")

    refused = workbench.run("second")

    assert refused["status"] == "FAILED"
    assert refused["error_message"] == (
        "target analytics.one is already written by pipeline first: the connections 'here' and 'default' are one"
        " database, and a mart with options.history can have only one writer; choose another target"
    )
    assert workbench.sql("SELECT * FROM analytics.one ORDER BY id") == before
    # Now that both names are known to lead there, whoever saves the pipeline is told.
    row = pipelines.find(workbench.metastore, "second")
    assert row is not None
    with pytest.raises(Conflict, match=ONE_WRITER):
        service.refuse_second_writer(workbench.metastore, row)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"target_table": "es:films"}, "cannot keep a history"),
        ({"options": {"history": {}, "shared_target": True}}, "shared_target"),
        ({"options": {"history": {}, "on_missing_columns": "null"}}, "on_missing_columns"),
        ({"options": {"history": {}, "null_cursor": "read"}}, "null_cursor"),
        ({"options": {"history": {"valid_from": "t", "valid_to": "t"}}}, "three different names"),
        ({"target_key": ["id", "valid_from"]}, "a column of options.history"),
    ],
)
def test_what_does_not_go_with_a_history_is_refused(fields: dict[str, Any], said: str) -> None:
    whole = {"name": "films", "source_query": QUERY, "target_table": "analytics.films", "options": {"history": {}}}
    with pytest.raises(ValidationError, match=said):
        Definition.model_validate(whole | {"target_key": ["id"]} | fields)


@LAYOUTS
def test_tables_of_another_form_are_refused(workbench: Workbench, unique_by: str) -> None:
    workbench.source(FILMS)
    workbench.sql("CREATE TABLE analytics.films (id bigint PRIMARY KEY, title text, modified timestamptz)")
    workbench.sql("ALTER TABLE analytics.films OWNER TO vitrina_app")
    make(workbench, "full", unique_by=unique_by)
    assert "'valid_from' of type timestamp with time zone" in workbench.run("films")["error_message"]
    workbench.sql(
        "ALTER TABLE analytics.films ADD valid_from timestamptz NOT NULL, ADD valid_to timestamptz,"
        " ADD is_current boolean"
    )
    assert "not a history table" in workbench.run("films")["error_message"]
    # What the how-to says to do with a mart that is there.
    workbench.sql("ALTER TABLE analytics.films DROP CONSTRAINT films_pkey")
    if unique_by == "valid_from":
        workbench.sql(
            "ALTER TABLE analytics.films ADD PRIMARY KEY (id, valid_from);"
            "CREATE UNIQUE INDEX ON analytics.films (id) WHERE valid_to IS NULL"
        )
    else:
        # NULLs that are distinct would permit two current states.
        workbench.sql("ALTER TABLE analytics.films ADD CONSTRAINT loose UNIQUE (id, valid_to)")
        said = workbench.run("films")["error_message"]
        assert "not a history table" in said
        assert "UNIQUE NULLS NOT DISTINCT on the key and valid_to" in said
        workbench.sql("ALTER TABLE analytics.films DROP CONSTRAINT loose, ADD UNIQUE NULLS NOT DISTINCT (id, valid_to)")
    assert not [told for told in run(workbench)["metrics"]["plan"]["warnings"] if "unique_by" in told]
    touch(workbench, 3, "second")
    run(workbench)
    states = workbench.sql("SELECT is_current FROM analytics.films WHERE id = 3 ORDER BY valid_from")
    assert states == [{"is_current": False}, {"is_current": True}]
    workbench.change("films", source_query="SELECT id, title, modified AS valid_to FROM content.films")
    assert "rename it with AS" in workbench.run("films")["error_message"]


def test_rows_of_steps_have_a_history(workbench: Workbench) -> None:
    workbench.source(FILMS)
    make(
        workbench,
        "incremental",
        type="PYTHON",
        python_task="normalise_text",
        options={"params": {"columns": ["title"]}},
    )
    run(workbench)
    touch(workbench, 3, "second")
    second = run(workbench)
    assert second["rows_written"] == 1
    assert as_of(workbench, second["metrics"]["snapshot_at"]) == source(workbench)


@LAYOUTS
def test_a_backfill_adds_the_states_of_now(workbench: Workbench, unique_by: str) -> None:
    workbench.source(FILMS)
    make(workbench, "incremental", unique_by=unique_by)
    run(workbench)
    workbench.sql("UPDATE content.films SET title = 'quiet' WHERE id = 4")
    done = workbench.run("films", since="2000-01-01", until="2100-01-01")
    assert (done["status"], done["rows_written"]) == ("SUCCESS", 1)
    assert as_of(workbench, done["metrics"]["snapshot_at"])[4] == "quiet"
    assert run(workbench)["rows_written"] == 0


@LAYOUTS
def test_a_partitioned_mart_keeps_a_history(workbench: Workbench, unique_by: str) -> None:
    workbench.source(FILMS)
    keys = {
        "valid_from": "ALTER TABLE analytics.films ADD PRIMARY KEY (id, valid_from);"
        "CREATE UNIQUE INDEX ON analytics.films (id) WHERE valid_to IS NULL",
        "valid_to": "ALTER TABLE analytics.films ADD UNIQUE NULLS NOT DISTINCT (id, valid_to)",
    }
    workbench.sql(
        f"""
        CREATE TABLE analytics.films (id bigint, title text, modified timestamptz, valid_from timestamptz,
            valid_to timestamptz, is_current boolean) PARTITION BY HASH (id);
        {keys[unique_by]};
        CREATE TABLE analytics.films_0 PARTITION OF analytics.films FOR VALUES WITH (MODULUS 2, REMAINDER 0);
        CREATE TABLE analytics.films_1 PARTITION OF analytics.films FOR VALUES WITH (MODULUS 2, REMAINDER 1);
        ALTER TABLE analytics.films OWNER TO vitrina_app;
        ALTER TABLE analytics.films_0 OWNER TO vitrina_app;
        ALTER TABLE analytics.films_1 OWNER TO vitrina_app;
        """
    )
    make(workbench, "full", unique_by=unique_by)
    run(workbench)
    workbench.sql("UPDATE content.films SET title = 'all'; DELETE FROM content.films WHERE id = 7")
    done = run(workbench)
    assert (done["rows_written"], done["rows_deleted"]) == (9, 1)
    assert as_of(workbench, done["metrics"]["snapshot_at"]) == source(workbench)


@LAYOUTS
def test_a_pass_that_was_interrupted_reads_one_snapshot_again(workbench: Workbench, unique_by: str) -> None:
    workbench.source(FILMS)
    make(workbench, "incremental", unique_by=unique_by, batch_size=2)
    run(workbench)
    assert workbench.settings.admin_url is not None
    with psycopg.connect(workbench.settings.admin_url.get_secret_value()) as late:
        late.execute("UPDATE content.films SET title = 'late', modified = now() WHERE id = 2")
        for number in range(3, 10):
            touch(workbench, number, "second")
        workbench.request("films")
        workbench.lose_a_runner("batch.committed:crash:2")
        late.commit()
    workbench.recover()
    workbench.perform(workbench.claim())
    done = workbench.last_run("films")
    assert done["status"] == "SUCCESS"
    assert as_of(workbench, done["metrics"]["snapshot_at"]) == source(workbench)


@LAYOUTS
def test_values_of_another_unique_key_pass_from_row_to_row(workbench: Workbench, unique_by: str) -> None:
    """All states that are over are closed before one is added: a key may take over what another one gives up."""
    workbench.source(FILMS)
    make(workbench, "incremental", unique_by=unique_by)
    run(workbench)
    workbench.sql("CREATE UNIQUE INDEX ON analytics.films (title) WHERE valid_to IS NULL")
    workbench.sql(
        "UPDATE content.films SET title = CASE id WHEN 1 THEN 'film 2' ELSE 'film 1' END, modified = clock_timestamp()"
        " WHERE id IN (1, 2)"
    )
    done = run(workbench)
    assert done["rows_written"] == 2
    assert as_of(workbench, done["metrics"]["snapshot_at"]) == source(workbench)


@LAYOUTS
def test_indexes_keep_their_room_through_a_bulk_load(workbench: Workbench, unique_by: str) -> None:
    workbench.source(FILMS)
    workbench.sql("INSERT INTO content.films SELECT n, 'Film', now() FROM generate_series(1000, 26000) n")
    make(workbench, "full", unique_by=unique_by)
    run(workbench)
    found = workbench.sql(
        """
        SELECT i.indisprimary AS is_primary, c.reloptions AS options
        FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
        WHERE i.indrelid = 'analytics.films'::regclass ORDER BY 1
        """
    )
    kinds = (False, True) if unique_by == "valid_from" else (False,)
    assert found == [{"is_primary": key, "options": ["fillfactor=50"]} for key in kinds]


def test_a_load_that_waited_while_the_mart_was_repaired_is_read_again(workbench: Workbench) -> None:
    workbench.settings = workbench.settings.model_copy(update={"backoff_seconds": (0.01,), "max_attempts": 2})
    workbench.source(FILMS)
    make(workbench, "full")
    run(workbench)
    touch(workbench, 1, "read")
    failpoints.configure("publish.applied:error:1,publish.applied:error:2")
    try:
        assert workbench.run("films")["status"] == "FAILED"
    finally:
        failpoints.configure("")
    workbench.request("films")
    row = pipelines.find(workbench.metastore, "films")
    assert row is not None
    pipelines.request_pause(workbench.metastore, row["id"])
    recovery.pause_unclaimed(workbench.metastore)
    touch(workbench, 1, "repaired")
    workbench.reconcile("films", level="full", repair=True)

    pipelines.resume(workbench.metastore, row["id"], trigger=Trigger.API, traceparent=None)
    workbench.perform(workbench.claim())
    done = workbench.last_run("films")

    assert done["status"] == "SUCCESS", done["error_message"]

    assert as_of(workbench, done["metrics"]["snapshot_at"]) == source(workbench)
    titles = [
        row["title"] for row in workbench.sql("SELECT title FROM analytics.films WHERE id = 1 ORDER BY valid_from")
    ]
    assert titles == ["film 1", "repaired"]


@pytest.mark.parametrize("kept", [{"history": {}}, {"deletes": {"soft": "is_gone"}}])
def test_a_unique_index_over_rows_of_the_past_is_refused(kept: dict[str, Any]) -> None:
    options = {"table": {"indexes": [{"columns": ["title"]}, {"columns": ["title"], "unique": True}]}} | kept
    with pytest.raises(ValidationError, match="a unique index would still reserve their values"):
        Definition.model_validate(
            {
                "name": "films",
                "source_query": QUERY,
                "target_table": "analytics.films",
                "target_key": ["id"],
                "options": options,
            }
        )


def test_a_reset_state_still_knows_the_latest_snapshot(workbench: Workbench) -> None:
    workbench.source(FILMS)
    make(workbench, "full")
    run(workbench)
    row = pipelines.find(workbench.metastore, "films")
    assert row is not None
    # The clock of the source was a day ahead in a run that found nothing new.
    workbench.sql(
        "UPDATE etl.etl_state SET identity = jsonb_set(identity, '{history,at}', to_jsonb(now() + interval '1 day'))"
    )
    state.reset(workbench.metastore, row["id"])
    [ahead] = workbench.sql("SELECT now() + interval '23 hours' AS at")
    touch(workbench, 1, "later")
    assert run(workbench)["metrics"]["snapshot_at"] > ahead["at"].isoformat()


def test_a_stored_definition_with_such_an_index_fails_with_the_reason(workbench: Workbench) -> None:
    workbench.source(FILMS)
    make(workbench, "full")
    table = '{"table": {"indexes": [{"columns": ["title"], "unique": true}]}}'
    workbench.sql(f"UPDATE etl.etl_pipelines SET options = options || '{table}'::jsonb")

    done = workbench.run("films")

    assert done["status"] == "FAILED"
    assert "options.table.indexes.0.unique" in done["error_message"]
