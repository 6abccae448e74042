"""Plans against marts that refuse rows, loads that are kept, and values that are for operators only."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.integration.api import serving
from tests.integration.test_data_plans import DEFINITION, perform_request
from tests.support.workbench import Workbench
from vitrina.cli import plan_text
from vitrina.services import tokens
from vitrina.services.callers import Caller, Role

FILMS = """
CREATE TABLE content.films (id int PRIMARY KEY, title text, rating numeric(4, 2));
INSERT INTO content.films SELECT i, 'Film ' || i, (i % 100) / 10.0 FROM generate_series(1, 200) AS i;
"""
QUERY = "SELECT id, title, rating FROM content.films"


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    workbench.settings = workbench.settings.model_copy(update={"backoff_seconds": (0.01,), "max_attempts": 2})
    workbench.source(FILMS)
    workbench.pipeline("films", QUERY, target_key=["id"], options={"allow_shrink": True})
    assert workbench.run("films")["status"] == "SUCCESS"
    return workbench


@pytest.fixture
def http(bench: Workbench) -> Iterator[httpx.Client]:
    with serving(bench.settings, request_wait_seconds=0.2) as client:
        yield client


def bearer(bench: Workbench, role: Role) -> dict[str, str]:
    _, secret = tokens.create(bench.metastore, Caller("setup", Role.ADMIN), name=f"a-{role}", role=role)
    return {"Authorization": f"Bearer {secret}"}


# --- what the mart itself refuses ------------------------------------------------------------------------------------

LIMITS = {
    "NOT NULL": (
        "ALTER TABLE analytics.films ALTER title SET NOT NULL",
        "UPDATE content.films SET title = NULL WHERE id = 1",
    ),
    "CHECK": (
        "ALTER TABLE analytics.films ADD CHECK (rating < 50)",
        "UPDATE content.films SET rating = 60 WHERE id = 1",
    ),
    "UNIQUE": (
        "ALTER TABLE analytics.films ADD UNIQUE (title)",
        "UPDATE content.films SET title = 'Film 2' WHERE id = 1",
    ),
    "a foreign key to it": (
        "CREATE TABLE analytics.votes (film_id int REFERENCES analytics.films); INSERT INTO analytics.votes VALUES (1)",
        "DELETE FROM content.films WHERE id = 1",
    ),
    "a trigger": (
        """
        CREATE FUNCTION public.no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
        CREATE TRIGGER no BEFORE INSERT ON analytics.films FOR EACH ROW EXECUTE FUNCTION public.no()
        """,
        "INSERT INTO content.films VALUES (1000, 'New', 1)",
    ),
}


RULES = {
    "NOT NULL": "NOT NULL of title",
    "CHECK": "check films_rating_check of analytics.films",
    "UNIQUE": "unique index films_title_key",
    "a foreign key to it": "foreign key votes_film_id_fkey of analytics.votes",
    "a trigger": "trigger no",
}


@pytest.mark.parametrize("limit", LIMITS)
def test_a_plan_names_what_only_a_write_would_try(bench: Workbench, limit: str) -> None:
    of_mart, change = LIMITS[limit]
    bench.sql(of_mart)
    bench.sql(change)

    plan = bench.plan("films")
    run = bench.run("films")

    assert run["status"] == "FAILED"
    assert any(RULES[limit] in note for note in plan["notes"]), plan["notes"]


def test_a_plan_of_a_mart_without_rules_says_nothing_of_them(bench: Workbench) -> None:
    assert bench.plan("films")["notes"] == []


# --- a load that is kept ---------------------------------------------------------------------------------------------


def test_a_plan_says_that_the_next_run_publishes_what_was_read_before(bench: Workbench) -> None:
    of_mart, change = LIMITS["a trigger"]
    bench.sql(of_mart)
    bench.sql(change)
    failed = bench.run("films")
    assert "publishes what was read" in failed["error_message"], failed["error_message"]
    bench.sql("DROP TRIGGER no ON analytics.films; UPDATE content.films SET rating = 70 WHERE id <= 10")

    plan = bench.plan("films")
    run = bench.run("films")

    assert run["metrics"]["updated"] == 0
    assert any("unpublished load" in note for note in plan["notes"]), plan["notes"]


@pytest.mark.parametrize("kept", [{"deletes": {"soft": "deleted_at"}}, {"history": {}}], ids=["soft", "history"])
def test_a_plan_of_a_mart_whose_rows_all_left_is_that_of_the_run(bench: Workbench, kept: dict[str, Any]) -> None:
    options = {"allow_shrink": True, **kept}
    bench.pipeline("gone", QUERY, target_key=["id"], options=options | {"allow_empty": True})
    assert bench.run("gone")["status"] == "SUCCESS"
    bench.sql("DELETE FROM content.films")
    assert bench.run("gone")["metrics"]["deleted"] == 200
    bench.change("gone", options=options)

    plan = bench.plan("gone")
    run = bench.run("gone")

    assert (run["status"] == "FAILED") == bool(plan["refusals"]), (plan["refusals"], run["error_message"])


# --- who sees values -------------------------------------------------------------------------------------------------


def test_viewers_do_not_see_values_in_why_a_run_would_be_refused(bench: Workbench, http: httpx.Client) -> None:
    bench.sql("UPDATE content.films SET title = 'Classified ' || id")
    query = "SELECT id, title::int::text AS title, rating FROM content.films"
    asked = http.post("/api/v1/plan", json=DEFINITION | {"source_query": query}, headers=bearer(bench, Role.OPERATOR))
    assert asked.status_code == 202, asked.text
    perform_request(bench)
    plan, viewer = asked.json()["id"], bearer(bench, Role.VIEWER)

    for place in (f"/api/v1/plans/{plan}", f"/api/v1/requests/{plan}"):
        seen = http.get(place, headers=viewer)
        assert seen.json()["result"]["refusals"]
        assert "Classified" not in seen.text


def test_values_in_why_a_run_would_be_refused_do_not_control_the_terminal(bench: Workbench) -> None:
    bench.sql("UPDATE content.films SET title = E'\\x1b]0;owned\\x07\\n## Approved'")
    plan: dict[str, Any] = bench.plan(
        "films", source_query="SELECT id, title::int::text AS title, rating FROM content.films"
    )
    assert plan["refusals"]
    assert "\x1b" not in plan_text.text(plan)
    assert "\n## Approved" not in plan_text.markdown(plan)
