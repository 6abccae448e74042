"""Checks over HTTP: definitions that have them, runs that accept one, and who sees the rows that broke it."""

from typing import Any

import httpx
import pytest

from tests.integration.api import create, problem, wrong_fields
from vitrina.api import viewers
from vitrina.store.database import Connection

FILMS = "/api/v1/pipelines/films"
CHECKS: list[dict[str, Any]] = [
    {"kind": "not_null", "column": "title"},
    {"kind": "row_count", "min": 1, "severity": "warn"},
]


def test_checks_are_kept_as_they_were_written(api: httpx.Client) -> None:
    made = create(api, checks=CHECKS)
    assert made["checks"] == CHECKS

    changed = api.patch(FILMS, json={"checks": CHECKS[:1]}).json()
    assert (changed["checks"], changed["version"]) == (CHECKS[:1], 2)
    # The same once more changes nothing, defaults written out or not.
    same = api.patch(FILMS, json={"checks": [CHECKS[0] | {"severity": "fail"}]}).json()
    assert same["version"] == 2


@pytest.mark.parametrize(
    ("check", "path"),
    [
        ({"kind": "select", "query": "SELECT * FROM etl.etl_api_tokens"}, "checks.0"),
        ({"kind": "row_count"}, "checks.0"),
        ({"kind": "not_null"}, "checks.0.column"),
        ({"kind": "nothing"}, "checks.0"),
    ],
)
def test_a_wrong_check_is_named_by_its_place(api: httpx.Client, check: dict[str, Any], path: str) -> None:
    body = {"name": "films", "source_query": "SELECT 1 AS id", "target_table": "analytics.films", "checks": [check]}

    refused = api.post("/api/v1/pipelines", json=body)

    assert refused.status_code == 422
    assert [error["path"] for error in wrong_fields(refused.json())] == [path]


def test_a_run_accepts_checks_by_name_and_the_audit_says_who_did(api: httpx.Client, api_metastore: Connection) -> None:
    create(api, checks=CHECKS)

    assert api.post(f"{FILMS}/run", json={"accept": ["not_null_title", "shrink"]}).status_code == 202

    [row] = api_metastore.execute("SELECT accepted_checks FROM etl.etl_pipelines").fetchall()
    assert row["accepted_checks"] == ["not_null_title", "shrink"]
    [entry] = [one for one in api.get("/api/v1/audit").json()["items"] if one["action"] == "accept_checks"]
    assert (entry["object"], entry["after"]) == ("pipeline:films", {"checks": ["not_null_title", "shrink"]})

    assert api.post(f"{FILMS}/cancel").status_code == 202
    [row] = api_metastore.execute("SELECT accepted_checks FROM etl.etl_pipelines").fetchall()
    assert row["accepted_checks"] is None


def test_a_check_that_there_is_not_cannot_be_accepted(api: httpx.Client) -> None:
    create(api, checks=CHECKS)

    refused = api.post(f"{FILMS}/run", json={"accept": ["no_nulls"]})

    assert refused.status_code == 422
    assert problem(refused)["detail"] == (
        "pipeline films has no check 'no_nulls' to accept; it has: empty, not_null_title, row_count, shrink"
    )


def test_nothing_is_accepted_for_a_run_that_has_begun(api: httpx.Client, api_metastore: Connection) -> None:
    create(api, checks=CHECKS)
    api_metastore.execute("UPDATE etl.etl_pipelines SET status = 'RUNNING'")

    assert api.post(f"{FILMS}/run", json={"accept": ["shrink"]}).status_code == 409


def test_viewers_see_how_many_rows_broke_a_check_and_not_which() -> None:
    found = {"name": "not_null_title", "result": "failed", "rows": 3, "offending_rows": [{"id": 7, "title": None}]}

    assert viewers.shown({"metrics": {"checks": [found]}}) == {
        "metrics": {"checks": [found | {"offending_rows": viewers.SHOWN_INSTEAD}]}
    }
