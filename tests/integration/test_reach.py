"""Where a query may lead is decided by the catalog, whatever the planner leaves out and whatever the bounds are."""

import resource

import pytest
from psycopg.sql import SQL

from tests.support.workbench import Workbench
from vitrina import explain, sqlguard
from vitrina.connectors.postgres import plan_check
from vitrina.connectors.postgres.query_source import QuerySource
from vitrina.connectors.postgres.reach import Reach
from vitrina.connectors.postgres.source import Query, SqlReader
from vitrina.errors import InvalidQuery, SourceQueryFailed
from vitrina.runner import requests as runner_requests
from vitrina.settings import Settings
from vitrina.sqlguard import SqlPolicy
from vitrina.store import database

SOURCE = """
CREATE SCHEMA private;
CREATE TABLE private.salaries (id int PRIMARY KEY, name text, changed_at timestamptz NOT NULL);
INSERT INTO private.salaries VALUES (1, 'private row', '2026-01-01'), (2, 'private row', '2026-02-01');
CREATE TABLE content.films (id int PRIMARY KEY, title text, changed_at timestamptz NOT NULL);
INSERT INTO content.films VALUES (1, 'Film 1', '2026-01-01'), (2, 'Film 2', '2026-02-01');
CREATE VIEW content.staff AS SELECT id, name AS title, changed_at FROM private.salaries;
CREATE VIEW content.outer_staff AS SELECT id, title, changed_at FROM content.staff;
CREATE VIEW content.staff_by_sublink AS
    SELECT f.id, (SELECT max(name) FROM private.salaries) AS title, f.changed_at FROM content.films AS f;
CREATE TABLE content.logs (id int, title text, changed_at timestamptz NOT NULL) PARTITION BY RANGE (id);
CREATE TABLE content.logs_new PARTITION OF content.logs FOR VALUES FROM (100) TO (200);
CREATE TABLE private.logs_old PARTITION OF content.logs FOR VALUES FROM (0) TO (100);
INSERT INTO content.logs VALUES (1, 'private row', '2026-01-01'), (100, 'open row', '2026-02-01');
CREATE FUNCTION private.names() RETURNS SETOF text LANGUAGE sql STABLE SECURITY DEFINER
    AS $$ SELECT name FROM private.salaries $$;
CREATE FUNCTION private.names_with_a_path() RETURNS SETOF text LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = private AS $$ SELECT name FROM salaries $$;
CREATE FUNCTION private.names_parsed() RETURNS SETOF text LANGUAGE sql STABLE SECURITY DEFINER
    BEGIN ATOMIC SELECT name FROM private.salaries; END;
CREATE FUNCTION private.names_indirectly() RETURNS SETOF text LANGUAGE sql STABLE SECURITY DEFINER
    AS $$ SELECT * FROM private.names() $$;
CREATE VIEW content.by_function AS SELECT 1 AS id, private.names() AS title, now() AS changed_at;
CREATE VIEW content.by_function_with_a_path AS
    SELECT 1 AS id, private.names_with_a_path() AS title, now() AS changed_at;
CREATE VIEW content.by_parsed_function AS SELECT 1 AS id, private.names_parsed() AS title, now() AS changed_at;
CREATE VIEW content.by_two_functions AS SELECT 1 AS id, private.names_indirectly() AS title, now() AS changed_at;
"""

LEADING_AWAY = [
    ("content.staff", "private.salaries by way of content.staff"),
    ("content.outer_staff", "private.salaries by way of content.outer_staff, content.staff"),
    ("content.staff_by_sublink", "private.salaries by way of content.staff_by_sublink"),
    ("content.logs", "private.logs_old by way of content.logs"),
    ("content.by_function", "private.salaries by way of content.by_function, private.names"),
    ("content.by_function_with_a_path", "by way of content.by_function_with_a_path, private.names_with_a_path"),
    ("content.by_parsed_function", "private.salaries by way of content.by_parsed_function, private.names_parsed"),
    ("content.by_two_functions", "by way of content.by_two_functions, private.names_indirectly, private.names"),
]
# Each is planned without the relation behind it; the first ones come to life with the bounds of a run.
HIDDEN = [
    "SELECT id, title, changed_at FROM {} WHERE :since::timestamptz > '-infinity' AND changed_at >= :since",
    "SELECT id, title, changed_at FROM {} WHERE :until::timestamptz < 'infinity'",
    "SELECT id, title, changed_at FROM {} WHERE id > 100 AND id < 50",
    "SELECT f.id, f.title, f.changed_at FROM content.films f LEFT JOIN {} s ON false",
    "SELECT f.id, f.title, f.changed_at FROM content.films f WHERE f.id IN (SELECT id FROM {} LIMIT 0)",
    "WITH unused AS (SELECT id FROM {}) SELECT id, title, changed_at FROM content.films",
]


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    workbench.source(SOURCE)
    return workbench


@pytest.mark.parametrize(("view", "words"), LEADING_AWAY)
def test_a_run_never_reads_what_the_planner_left_out_when_it_was_asked(bench: Workbench, view: str, words: str) -> None:
    bench.pipeline("films", HIDDEN[0].format(view), mode="incremental", incremental_key="changed_at", target_key=["id"])
    assert words in str(bench.run("films")["error_message"])
    run = bench.run("films", since="2025-01-01", until="2027-01-01")
    assert run["status"] == "FAILED"
    assert words in run["error_message"]
    assert f"VITRINA_ALLOWED_RELATIONS=private.{'logs_old' if 'logs' in view else 'salaries'}" in run["error_message"]
    assert bench.sql("SELECT to_regclass('analytics.films')::text AS mart")[0]["mart"] is None


def test_without_these_checks_the_same_run_would_deliver_private_rows(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the test above means something."""
    monkeypatch.setattr(plan_check, "reach", lambda *args, **wanted: Reach())
    monkeypatch.setattr(QuerySource, "admit_window", lambda source, bounds: None)
    # Before 18 the planner keeps the relation, and the plan shows it.
    monkeypatch.setattr(explain, "explain_relations", lambda plan: set())
    query = HIDDEN[0].format("content.staff")
    bench.pipeline("films", query, mode="incremental", incremental_key="changed_at", target_key=["id"])
    assert bench.run("films", since="2025-01-01", until="2027-01-01")["rows_written"] == 2


def test_the_newest_value_of_a_cursor_is_not_read_before_the_check(bench: Workbench) -> None:
    """The message about a cursor in the future names that value."""
    bench.source("CREATE VIEW content.planned AS SELECT id, timestamp '2999-01-01' AS at FROM private.salaries")
    query = "SELECT id, at FROM content.planned"
    bench.pipeline("films", query, mode="incremental", incremental_key="at", target_key=["id"])
    message = str(bench.run("films")["error_message"])
    assert "private.salaries by way of content.planned" in message
    assert "2999" not in message


NAMED_ANEW = """
ALTER TABLE content.films RENAME TO old_films;
CREATE VIEW content.films AS SELECT id, name AS title, changed_at FROM private.salaries
"""
INHERITED = """
CREATE TABLE private.films (id int NOT NULL, title text, changed_at timestamptz NOT NULL);
ALTER TABLE private.films INHERIT content.films
"""
# EXPLAIN shows no VALUES, and the function reads what the server does not open before it is called.
REPLACED = """
CREATE FUNCTION private.name() RETURNS text LANGUAGE sql STABLE SECURITY DEFINER
    AS $$ SELECT max(name) FROM private.salaries $$;
CREATE OR REPLACE VIEW content.seen AS
    SELECT f.id, v.title, f.changed_at FROM content.films f, (VALUES (private.name()), ('')) AS v(title)
"""


@pytest.mark.parametrize(
    ("relation", "change", "words"),
    [
        ("films", NAMED_ANEW, r"reads private\.salaries"),
        ("films", INHERITED, r"reads private\.films"),
        ("seen", REPLACED, r"reads private\.salaries by way of content\.seen, private\.name"),
    ],
)
def test_what_changed_since_the_query_was_admitted_is_found_with_its_window(
    bench: Workbench, relation: str, change: str, words: str
) -> None:
    bench.source("CREATE VIEW content.seen AS SELECT id, title, changed_at FROM content.films")
    judged = sqlguard.check(f"SELECT id, title FROM content.{relation}", _policy(bench.settings))
    known = admit(bench, judged, bench.settings)
    assert admit(bench, judged, bench.settings, known).reach == known.reach
    bench.source(change)
    with pytest.raises(SourceQueryFailed, match=words):
        admit(bench, judged, bench.settings, known)


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("guarded", [True, False])
def test_the_server_says_what_it_opened_however_it_is_planned(bench: Workbench, hidden: str, guarded: bool) -> None:
    """Also with the guard switched off, which would have said what the text names."""
    judged = sqlguard.check(hidden.format("content.outer_staff"), SqlPolicy(bench.settings.source_schemas))
    if not guarded:
        judged = sqlguard.CheckedQuery(**{**judged.__dict__, "tables": ()})
    with pytest.raises(SourceQueryFailed, match=r"reads private\.salaries"):
        admit(bench, judged, bench.settings)


def test_the_operator_may_open_what_stands_behind_curated_views(bench: Workbench) -> None:
    """And partitions elsewhere. Whoever writes queries may still not name them."""
    settings = bench.settings = bench.settings.model_copy(
        update={"allowed_relations": "private.sal*, private.logs_old", "source_schemas": frozenset({"content", "ugc"})}
    )
    for view, _ in LEADING_AWAY:
        judged = sqlguard.check(f"SELECT id, title FROM {view}", SqlPolicy(settings.source_schemas))
        admit(bench, judged, settings)
    with pytest.raises(InvalidQuery, match=r"private\.salaries"):
        sqlguard.check("SELECT id FROM private.salaries", SqlPolicy(settings.source_schemas))
    bench.pipeline("staff", "SELECT id, title FROM content.staff", target_key=["id"])
    assert bench.run("staff")["rows_written"] == 2


def test_plain_tables_are_not_taken_for_strangers(bench: Workbench) -> None:
    bench.sql("CREATE INDEX ON content.films (title)")
    bench.sql("CREATE MATERIALIZED VIEW content.kept AS SELECT name FROM private.salaries")
    bench.source("SELECT 1")
    for query in ("SELECT title FROM content.films WHERE title = 'a'", "SELECT name FROM content.kept"):
        admit(bench, sqlguard.check(query, SqlPolicy(bench.settings.source_schemas)), bench.settings)


def test_what_a_pass_costs_is_asked_with_its_own_bounds(bench: Workbench) -> None:
    crossed = "content.films a, content.films b, content.films c, content.films d"
    bench.pipeline(
        "films",
        f"SELECT a.id, a.changed_at FROM {crossed} WHERE :since::timestamptz > '-infinity'",
        mode="incremental",
        incremental_key="changed_at",
        target_key=["id"],
        options={"max_cost": 20_000.0},
    )
    run = bench.run("films", since="2025-01-01")
    assert run["status"] == "FAILED"
    assert "more than options.max_cost" in run["error_message"]


def test_a_function_that_the_plan_hides_still_runs_read_only(bench: Workbench) -> None:
    bench.source(
        """
        CREATE TABLE content.calls (at timestamptz);
        CREATE FUNCTION content.write() RETURNS int LANGUAGE plpgsql SECURITY DEFINER
            AS $$ BEGIN INSERT INTO content.calls VALUES (now()); RETURN 1; END $$;
        CREATE VIEW content.writing AS SELECT id, title, changed_at, content.write() AS one FROM content.films;
        """
    )
    bench.pipeline(
        "films",
        "SELECT id, one, changed_at FROM content.writing WHERE :since::timestamptz > '-infinity'",
        mode="incremental",
        incremental_key="changed_at",
        target_key=["id"],
    )
    bench.run("films", since="2025-01-01")
    assert bench.sql("SELECT count(*) AS n FROM content.calls") == [{"n": 0}]


def test_a_function_of_the_server_behind_a_view_is_refused_although_the_plan_hides_it(bench: Workbench) -> None:
    bench.source("CREATE VIEW content.sleeping AS SELECT id, pg_sleep(1)::text AS slept FROM content.films")
    judged = sqlguard.check("SELECT id, slept FROM content.sleeping WHERE false", _policy(bench.settings))
    with pytest.raises(SourceQueryFailed, match=r"calls pg_sleep by way of content\.sleeping"):
        admit(bench, judged, bench.settings)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1 AS id, repeat('x', 20000000) AS x",
        "SELECT id FROM content.films WHERE title = repeat('x', 20000000)",
    ],
)
def test_a_plan_is_read_no_further_than_its_limit(bench: Workbench, query: str) -> None:
    """Constants that the planner computes stand in the plan, and in the message of a cast that fails."""
    bench.pipeline("films", query, target_key=["id"])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run = bench.run("films")
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert run["status"] == "FAILED"
    assert "longer than 4 MB" in run["error_message"]
    assert len(run["error_message"]) < 10_000
    assert grown_mb < 20


def test_the_message_of_an_error_is_no_longer_than_its_limit(bench: Workbench) -> None:
    bench.pipeline("films", "SELECT 1 AS id, repeat('x', 20000000)::int AS x", target_key=["id"])
    run = bench.run("films")
    assert "invalid input syntax for type integer" in run["error_message"]
    assert len(run["error_message"]) < 12_000


def test_a_preview_is_not_larger_than_its_limit(bench: Workbench) -> None:
    bench.pipeline("films", "SELECT id, repeat(title, 3000000) AS x FROM content.films", target_key=["id"])
    row = bench.sql("SELECT id FROM etl.etl_pipelines")[0]
    request = {"id": 1, "kind": "preview", "payload": {}, "pipeline_id": row["id"]}
    with pytest.raises(SourceQueryFailed, match="larger than 8 MB"):
        runner_requests.preview(request, bench.metastore, bench.settings)


def _policy(settings: Settings) -> SqlPolicy:
    return SqlPolicy(settings.source_schemas)


def admit(
    bench: Workbench, judged: sqlguard.CheckedQuery, settings: Settings, known: plan_check.Admitted | None = None
) -> plan_check.Admitted:
    url = database.reader_url(settings, None)
    with database.connect(url, "vitrina:test", settings=database.READ_ONLY) as connection:
        reader = SqlReader(connection, url, "vitrina:test")
        bounds = {"since": "'-infinity'::timestamptz", "until": "'infinity'::timestamptz"}
        text = sqlguard.render(judged, bounds)
        statement = SQL("SELECT q.* FROM ({}) AS q").format(SQL(text))
        return plan_check.admit(reader, Query(judged), settings, statement=statement, known=known)
