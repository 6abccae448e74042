"""A load that could not be published: refused because of its rows, it is read again; failed otherwise, it is kept."""

from typing import Any

import pytest

from tests.support.workbench import Workbench
from vitrina import failpoints
from vitrina.ports.checkpoint import Accepted

pytestmark = pytest.mark.usefixtures("either_way")

FILMS = """
CREATE TABLE content.films (id int, title text, code text, at timestamptz DEFAULT '2024-01-01');
INSERT INTO content.films SELECT i, 'Film ' || i, 'c' || i FROM generate_series(1, 100) AS i;
"""
QUERY = "SELECT id, title, code, at FROM content.films"
INCREMENTAL = {"mode": "incremental", "incremental_key": "at"}
ROUTES = pytest.mark.parametrize("route", ["auto", "copy", "arrow"])


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    workbench.settings = workbench.settings.model_copy(update={"backoff_seconds": (0.01,), "max_attempts": 2})
    workbench.source(FILMS)
    return workbench


def make_mart(bench: Workbench, *constraints: str) -> None:
    columns = ", ".join(("id int PRIMARY KEY, title text, code text, at timestamptz", *constraints))
    bench.sql(f"CREATE TABLE analytics.films ({columns}); ALTER TABLE analytics.films OWNER TO vitrina_app")


def refused(bench: Workbench) -> dict[str, Any]:
    run = bench.run("films")
    assert run["status"] == "FAILED"
    assert run["error_message"].endswith("the next run reads the source again"), run["error_message"]
    found = bench.checkpoint("films")
    assert (found.stage, found.rows, found.accepted) == (None, 0, Accepted())
    return run


def delivered(bench: Workbench) -> None:
    run = bench.run("films")
    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert bench.differences(QUERY, "analytics.films", "id, title, code") == 0


# --- because of the rows: the corrected source is read ---------------------------------------------------------------


@ROUTES
def test_a_source_whose_duplicate_was_removed_is_read_again(bench: Workbench, route: str) -> None:
    bench.pipeline("films", QUERY, target_key=["id"], options={"route": route})
    bench.sql("INSERT INTO content.films VALUES (7, 'again')")
    assert refused(bench)["error_code"] == "bad_key"

    bench.sql("DELETE FROM content.films WHERE title = 'again'")

    delivered(bench)


@pytest.mark.parametrize("fields", [{}, INCREMENTAL], ids=["full", "first pass"])
@pytest.mark.parametrize(
    ("constraint", "spoil", "mend"),
    [
        ("CHECK (length(title) < 50)", "title = repeat('x', 60)", "title = 'short'"),
        ("UNIQUE (code)", "code = 'c8'", "code = 'c7'"),
        ("EXCLUDE (code WITH =)", "code = 'c8'", "code = 'c7'"),
        ("CHECK (title IS NOT NULL)", "title = NULL", "title = 'x'"),
    ],
    ids=["check", "second key", "exclusion", "null"],
)
def test_a_source_that_now_fits_the_marts_constraints_is_read_again(
    bench: Workbench, constraint: str, spoil: str, mend: str, fields: dict[str, Any]
) -> None:
    make_mart(bench, constraint)
    bench.pipeline("films", QUERY, target_key=["id"], **fields)
    bench.sql(f"UPDATE content.films SET {spoil} WHERE id = 7")
    refused(bench)

    bench.sql(f"UPDATE content.films SET {mend} WHERE id = 7")

    delivered(bench)


def test_a_value_that_the_mart_cannot_take_is_read_again(bench: Workbench) -> None:
    bench.sql(
        "CREATE FUNCTION analytics.judge() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN IF NEW.title = 'bad' THEN RAISE 'no such film'; END IF; RETURN NEW; END $$"
    )
    make_mart(bench)
    bench.sql("CREATE TRIGGER judge BEFORE INSERT ON analytics.films FOR EACH ROW EXECUTE FUNCTION analytics.judge()")
    bench.pipeline("films", QUERY, target_key=["id"])
    bench.sql("UPDATE content.films SET title = 'bad' WHERE id = 7")
    assert "no such film" in refused(bench)["error_message"]

    bench.sql("UPDATE content.films SET title = 'good' WHERE id = 7")

    delivered(bench)
    bench.sql("DROP TABLE analytics.films; DROP FUNCTION analytics.judge()")


def test_a_source_that_was_cut_by_mistake_and_is_whole_again_is_published_whole(bench: Workbench) -> None:
    bench.pipeline("films", QUERY, target_key=["id"])
    delivered(bench)
    bench.sql("CREATE TABLE content.kept AS TABLE content.films; DELETE FROM content.films WHERE id > 10")
    assert refused(bench)["error_code"] == "shrink_refused"

    bench.sql("INSERT INTO content.films SELECT * FROM content.kept WHERE id > 10")
    bench.change("films", options={"allow_shrink": True})

    delivered(bench)


def test_the_guard_of_cascading_deletes_reads_again_too(bench: Workbench) -> None:
    bench.pipeline("films", QUERY, target_key=["id"])
    delivered(bench)
    bench.sql("CREATE TABLE analytics.roles (film int REFERENCES analytics.films ON DELETE CASCADE)")
    bench.sql("UPDATE content.films SET id = 200 WHERE id = 7")
    assert "allow_cascade" in refused(bench)["error_message"]

    bench.sql("UPDATE content.films SET id = 7 WHERE id = 200")

    delivered(bench)
    bench.sql("DROP TABLE analytics.roles")


def test_the_refusal_and_the_end_of_the_load_are_one_transaction(bench: Workbench) -> None:
    """Whoever sees the pipeline FAILED sees no load: a runner that is lost right there leaves nothing stale behind."""
    bench.pipeline("films", QUERY, target_key=["id"])
    bench.sql("INSERT INTO content.films VALUES (7, 'again')")
    bench.sql(
        """
        CREATE FUNCTION etl.watch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF EXISTS (SELECT FROM etl.etl_state s WHERE s.pipeline_id = NEW.id AND s.stage IS NOT NULL) THEN
                RAISE 'FAILED, and the load is still there';
            END IF;
            RETURN NULL;
        END $$;
        CREATE CONSTRAINT TRIGGER watch AFTER UPDATE ON etl.etl_pipelines DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
            WHEN (NEW.status = 'FAILED') EXECUTE FUNCTION etl.watch();
        """
    )
    try:
        refused(bench)
    finally:
        bench.sql("DROP TRIGGER watch ON etl.etl_pipelines; DROP FUNCTION etl.watch()")


# --- for other reasons: what was read is published ------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, INCREMENTAL], ids=["full", "first pass"])
def test_what_was_read_is_kept_when_the_publish_failed_for_another_reason(
    bench: Workbench, fields: dict[str, Any]
) -> None:
    bench.pipeline("films", QUERY, target_key=["id"], **fields)
    failpoints.configure("publish.applied:error:1,publish.applied:error:2")
    try:
        run = bench.run("films")
    finally:
        failpoints.configure("")
    begun = bench.checkpoint("films").load_started_at

    assert begun is not None
    assert run["status"] == "FAILED"
    assert f"the next run publishes what was read at {begun:%H:%M} UTC" in run["error_message"]
    bench.request("films")
    bench.perform(bench.claim())
    assert bench.last_run("films")["metrics"]["inserted"] == 100


def test_a_lock_that_was_not_granted_keeps_what_was_read(bench: Workbench) -> None:
    bench.pipeline("films", QUERY, target_key=["id"], options={"statement_timeout_seconds": 1})
    delivered(bench)
    bench.sql("UPDATE content.films SET title = 'new'")
    with bench.admin.transaction():
        bench.sql("LOCK TABLE analytics.films IN SHARE MODE")
        run = bench.run("films")

    assert run["status"] == "FAILED"
    assert "the next run publishes what was read at" in run["error_message"]
    assert bench.checkpoint("films").stage is not None
