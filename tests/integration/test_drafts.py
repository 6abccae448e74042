"""Drafts: what a runner says about a query while it is being written, and about a definition before it is saved."""

from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.support.workbench import Workbench
from vitrina import schemas
from vitrina.loads.control import RunControl
from vitrina.runner import requests as runner_requests
from vitrina.services import requests as draft_rules
from vitrina.store import requests
from vitrina.store.database import Connection
from vitrina.store.leases import Claim

FILMS = "CREATE TABLE content.films (id int PRIMARY KEY, title text)"


def performed(bench: Workbench, kind: str, payload: dict[str, Any]) -> tuple[Any, Any]:
    request = {"id": uuid4(), "kind": kind, "pipeline_id": None, "payload": payload}
    return runner_requests.perform(request, bench.metastore, bench.settings, _no_lease_is_needed)


def _no_lease_is_needed(claim: Claim, claimed_at: float) -> AbstractContextManager[RunControl]:
    raise AssertionError("looking needs no lease")


def explained(bench: Workbench, query: str) -> tuple[Any, Any]:
    return performed(bench, "explain", {"source_query": query, "source_connection": "default"})


def test_a_query_alone_is_explained(workbench: Workbench) -> None:
    workbench.source(FILMS)
    result, error = explained(workbench, "SELECT title, id FROM content.films ORDER BY title")
    assert error is None
    assert result["columns"] == [{"name": "title", "type": "text"}, {"name": "id", "type": "integer"}]
    outline = result["explain"]
    assert outline["cost"] > 0
    assert outline["complete"] is True
    assert [(step["depth"], step["node"], step["relation"]) for step in outline["steps"]] == [
        (0, "Sort", None),
        (1, "Seq Scan", "content.films"),
    ]


def test_a_missing_column_is_told_with_its_place(workbench: Workbench) -> None:
    workbench.source(FILMS)
    result, error = explained(workbench, "SELECT id,\n  no_such_column\nFROM content.films")
    assert result is None
    assert (error["code"], error["line"], error["column"]) == ("source_query_failed", 2, 3)
    assert "no_such_column" in error["message"]


def test_what_the_guard_refuses_is_told_with_its_place(workbench: Workbench) -> None:
    _, error = explained(workbench, "SELECT 1,\n pg_sleep(1)")
    assert (error["code"], error["line"], error["column"]) == ("invalid_query", 2, 2)


def test_a_whole_draft_is_held_against_its_target(workbench: Workbench) -> None:
    workbench.source(FILMS)
    workbench.sql("CREATE TABLE analytics.films (id int PRIMARY KEY, title int)")
    draft = {"name": "films", "target_table": "analytics.films", "source_query": "SELECT id, title FROM content.films"}
    result, error = performed(workbench, "validate", {"definition": draft})
    assert result is None
    assert error["code"] == "target_mismatch"
    good = draft | {"target_table": "analytics.other", "target_key": ["id"]}
    result, error = performed(workbench, "validate", {"definition": good})
    assert error is None
    assert result["explain"]["steps"][-1]["relation"] == "content.films"
    assert result["target_exists"] is False
    assert workbench.metastore.execute("SELECT to_regclass('analytics.other') AS made").fetchone() == {"made": None}


def test_the_draft_of_a_saved_pipeline_is_judged_as_it_would_be(workbench: Workbench) -> None:
    workbench.source(FILMS)
    workbench.pipeline("films", "SELECT id, title FROM content.films", target_key=["id"])
    draft = {
        "name": "films",
        "target_table": "analytics.films",
        "target_key": ["id"],
        "source_query": "SELECT id, gone FROM content.films",
    }
    _, error = performed(workbench, "validate", {"definition": draft})
    assert (error["code"], error["line"], error["column"]) == ("source_query_failed", 1, 12)


# --- the API's side ----------------------------------------------------------------------------------------------

EXPLAIN = "/api/v1/explain"
WHOLE = {"name": "films", "target_table": "analytics.films", "source_query": "SELECT 1 AS id", "target_key": ["id"]}


def kinds(metastore: Connection) -> list[str]:
    rows = metastore.execute("SELECT kind FROM etl.etl_requests WHERE status = 'QUEUED' ORDER BY created_at").fetchall()
    return [row["kind"] for row in rows]


def alive(metastore: Connection) -> None:
    metastore.execute(
        """
        INSERT INTO etl.etl_runners (id, host, pid, version, started_at, heartbeat_at, capacity, running)
        VALUES (gen_random_uuid(), 'here', 1, '1', now(), now() + interval '1 hour', 1, 0)
        """
    )


def test_without_a_runner_only_the_form_is_looked_at(api: httpx.Client, api_metastore: Connection) -> None:
    report = api.post(EXPLAIN, json=WHOLE).json()
    assert report["valid"] is True
    assert report["deep"] is None
    assert report["warnings_said"] == [{"code": "warning.nobody_works", "params": {}}]


def test_a_whole_draft_is_validated_and_an_unfinished_one_explained(
    api: httpx.Client, api_metastore: Connection
) -> None:
    alive(api_metastore)
    assert api.post(EXPLAIN, json=WHOLE).json()["deep"]["kind"] == "validate"
    assert kinds(api_metastore) == ["validate"]
    unfinished = api.post(EXPLAIN, json={"source_query": "SELECT 1 AS id"}).json()
    assert unfinished["deep"]["kind"] == "explain"
    # The draft has moved on: what nobody has begun is not looked at any more.
    assert kinds(api_metastore) == ["explain"]


def test_a_query_that_the_guard_refuses_is_not_sent_to_a_runner(api: httpx.Client, api_metastore: Connection) -> None:
    alive(api_metastore)
    report = api.post(EXPLAIN, json=WHOLE | {"source_query": "SELECT 1,\n pg_sleep(1)"}).json()
    assert report["deep"] is None
    (error,) = report["errors"]
    assert (error["path"], error["line"], error["column"]) == ("source_query", 2, 2)
    assert error["message_said"]["code"] == "query.refused"


def test_typing_is_not_put_on_record(api: httpx.Client, api_metastore: Connection) -> None:
    alive(api_metastore)
    api.post(EXPLAIN, json=WHOLE)
    assert api_metastore.execute("SELECT count(*) AS n FROM etl.etl_audit").fetchone() == {"n": 0}


def test_what_a_runner_finds_stands_at_the_query_of_a_plan(api: httpx.Client, api_metastore: Connection) -> None:
    alive(api_metastore)
    tasks = [
        {"order_index": 2, "task_type": "PYTHON", "body": "title_case", "params": {}},
        {"order_index": 1, "task_type": "SQL", "body": "SELECT gone FROM content.films"},
    ]
    asked = api.post(EXPLAIN, json={"tasks": tasks}).json()["deep"]
    found = {"code": "source_query_failed", "message": "no such column", "line": 1, "column": 8}
    runner = api_metastore.execute("SELECT id FROM etl.etl_runners").fetchone()
    assert runner is not None
    taken = requests.claim_next(api_metastore, runner["id"], 60)
    assert taken is not None
    assert str(taken["id"]) == asked["id"]
    requests.finish(api_metastore, taken["id"], runner["id"], result=None, error=found)
    answer = api.get(f"/api/v1/requests/{asked['id']}").json()
    assert (answer["error"]["line"], answer["error"]["column"]) == (1, 8)


@pytest.mark.parametrize("code", ["superseded", "not_found"])
def test_where_nothing_was_found_out_nothing_is_held_against_a_draft(code: str) -> None:
    """`not_found`: the answer of a runner that is older than the question."""
    deep = schemas.Request(
        id=uuid4(),
        kind="explain",
        pipeline_id=None,
        status="FAILED",
        error={"code": code, "message": "..."},
        created_at=datetime.now(UTC),
    )
    report = schemas.ValidationReport(valid=True, errors=[], warnings=[], deep=deep)
    assert draft_rules.with_findings(report, {}).valid is True
