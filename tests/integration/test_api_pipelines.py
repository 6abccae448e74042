"""Pipelines over HTTP: defining, changing and removing them, and every wrong input answered well."""

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest
from pydantic import SecretStr

from tests.integration.api import DEFINITION, create, problem, serving, without_auth, wrong_fields
from vitrina.api import paging
from vitrina.settings import Settings
from vitrina.store.database import Connection

PIPELINES = "/api/v1/pipelines"


# --- definitions --------------------------------------------------------------------------------------------------


def test_a_pipeline_is_created_with_defaults_and_found_by_id_and_by_name(api: httpx.Client) -> None:
    response = api.post(PIPELINES, json=DEFINITION)
    assert response.status_code == 201
    created = response.json()
    assert response.headers["location"] == f"{PIPELINES}/{created['id']}"
    assert response.headers["etag"] == '"1"'
    expected = {
        "type": "SQL",
        "mode": "full",
        "batch_size": 5000,
        "enabled": True,
        "status": "IDLE",
        "version": 1,
        "options": {},
        "tasks": [],
        "source_connection": "default",
    }
    assert {name: created[name] for name in expected} == expected
    for path in (PIPELINES, "/pipelines"):
        assert api.get(f"{path}/{created['id']}").json() == created
        assert api.get(f"{path}/films").json() == created


def test_a_change_makes_a_version_and_an_audit_row(api: httpx.Client) -> None:
    create(api)
    changed = api.patch(f"{PIPELINES}/films", json={"batch_size": 10, "options": {"allow_shrink": True}})
    assert changed.status_code == 200
    assert (changed.json()["batch_size"], changed.json()["options"]) == (10, {"allow_shrink": True})
    assert changed.headers["etag"] == '"2"'

    versions = api.get(f"{PIPELINES}/films/versions").json()["items"]
    assert [(v["version"], v["changed_by"], v["change_summary"]) for v in versions] == [
        (2, "local", "changed batch_size, options"),
        (1, "local", "created"),
    ]
    entry = api.get("/api/v1/audit", params={"object": "pipeline:films"}).json()["items"][0]
    assert (entry["who"], entry["action"]) == ("local", "change")
    assert entry["before"] == {"batch_size": 5000, "options": {}}
    assert entry["after"] == {"batch_size": 10, "options": {"allow_shrink": True}, "version": 2}
    assert entry["request_id"] == changed.headers["x-request-id"]


def test_a_change_that_changes_nothing_leaves_no_trace(api: httpx.Client) -> None:
    before = create(api, options={"allow_shrink": True})
    after = api.patch(
        f"{PIPELINES}/films", json={"batch_size": 5000, "options": {"allow_shrink": True, "route": "auto"}}
    )
    assert after.json() == before
    assert len(api.get(f"{PIPELINES}/films/versions").json()["items"]) == 1


def test_an_option_is_taken_back_with_null(api: httpx.Client) -> None:
    create(api, options={"allow_shrink": True, "max_attempts": 5})
    changed = api.patch(f"{PIPELINES}/films", json={"options": {"allow_shrink": None}}).json()
    assert changed["options"] == {"max_attempts": 5}


def test_update_config_is_the_same_as_patch(api: httpx.Client) -> None:
    create(api)
    assert api.post("/pipelines/films/update-config", json={"batch_size": 7}).json()["batch_size"] == 7


def test_every_field_that_the_next_run_uses_can_be_changed(api: httpx.Client) -> None:
    create(api)
    fields = {
        "source_query": "SELECT id FROM content.film_work",
        "target_table": "analytics.other",
        "mode": "incremental",
        "incremental_key": "updated_at",
        "batch_size": 3,
        "schedule_interval": "15m",
        "target_key": ["id"],
        "enabled": False,
    }
    changed = api.patch(f"{PIPELINES}/films", json=fields).json()
    assert {name: changed[name] for name in fields} == fields


def test_a_stale_etag_is_refused_and_a_fresh_one_accepted(api: httpx.Client) -> None:
    create(api)
    stale = api.patch(f"{PIPELINES}/films", json={"batch_size": 1}, headers={"If-Match": '"7"'})
    assert stale.status_code == 412
    assert problem(stale)["detail"] == (
        "pipeline films was changed and is now at version 1, not 7; read it again, then repeat your change"
    )
    assert api.patch(f"{PIPELINES}/films", json={"batch_size": 1}, headers={"If-Match": '"1"'}).status_code == 200
    assert api.delete(f"{PIPELINES}/films", headers={"If-Match": '"1"'}).status_code == 412
    assert api.delete(f"{PIPELINES}/films", headers={"If-Match": "*"}).status_code == 204


def test_a_deleted_pipeline_is_gone_but_not_forgotten(api: httpx.Client) -> None:
    create(api)
    assert api.delete(f"{PIPELINES}/films").status_code == 204
    assert api.get(f"{PIPELINES}/films").status_code == 404
    entry = api.get("/api/v1/audit").json()["items"][0]
    assert (entry["action"], entry["before"]["source_query"]) == ("delete", DEFINITION["source_query"])


def test_a_new_schedule_is_reckoned_anew(api: httpx.Client, api_metastore: Connection) -> None:
    create(api, schedule_interval="1h")
    api_metastore.execute("UPDATE etl.etl_pipelines SET next_run_at = now() + interval '1 hour'")
    api.patch(f"{PIPELINES}/films", json={"description": "same schedule"})
    before = api.get(f"{PIPELINES}/films").json()["next_run_at"]
    api.patch(f"{PIPELINES}/films", json={"schedule_interval": "30s"})
    assert api.get(f"{PIPELINES}/films").json()["next_run_at"] < before


def test_a_task_plan_is_replaced_as_a_whole(api: httpx.Client) -> None:
    create(api)
    plan = [
        {"order_index": 1, "task_type": "SQL", "body": "SELECT id FROM content.film_work"},
        {"order_index": 2, "task_type": "PYTHON", "body": "title_case", "params": {"column": "title"}},
    ]
    replaced = api.put(f"{PIPELINES}/films/tasks", json={"items": plan})
    assert replaced.status_code == 200
    assert [(t["order_index"], t["body"]) for t in replaced.json()["items"]] == [
        (1, "SELECT id FROM content.film_work"),
        (2, "title_case"),
    ]
    assert api.get(f"{PIPELINES}/films/tasks").json() == replaced.json()
    assert api.put(f"{PIPELINES}/films/tasks", json={"items": []}).json() == {"items": []}
    misnamed = problem(api.put(f"{PIPELINES}/films/tasks", json={"tasks": plan}))
    assert misnamed["detail"].endswith(": items is required; tasks is not a field that can be set here")


# --- wrong input --------------------------------------------------------------------------------------------------


def test_unknown_pipeline(api: httpx.Client) -> None:
    for name in ("nobody", str(uuid4()), "%00", "'; DROP TABLE etl.etl_pipelines"):
        for method, path in (("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/run"), ("GET", "/status")):
            response = api.request(method, f"{PIPELINES}/{name}{path}", json={} if method == "PATCH" else None)
            assert response.status_code == 404, (method, path, response.text)
    found = problem(api.get(f"{PIPELINES}/nobody"))
    assert found["code"] == "not_found"
    assert found["detail"] == (
        "there is no pipeline 'nobody'; `vitrina pipelines` or GET /pipelines lists all pipelines"
    )
    create(api, name="film_cards")
    found = problem(api.get(f"{PIPELINES}/film_card"))
    assert found["detail"] == "there is no pipeline 'film_card': did you mean 'film_cards'?"


def test_duplicate_name(api: httpx.Client) -> None:
    create(api)
    create(api, name="other")
    twice = api.post(PIPELINES, json=DEFINITION | {"target_table": "analytics.elsewhere"})
    renamed = api.patch(f"{PIPELINES}/other", json={"name": "films"})
    for response in (twice, renamed):
        assert response.status_code == 409
        assert problem(response)["code"] == "conflict"
        assert problem(response)["detail"] == (
            "a pipeline named 'films' already exists: choose another name, or change that one"
        )


FORBIDDEN = (
    "target_table {!r} is not allowed here; allowed: analytics.*, es:film_dim, es:film_rating_agg"
    " (the operator sets VITRINA_ALLOWED_TARGETS)"
)
NO_TARGET = (
    "target_table {!r} is not a target: write analytics.<table> in lower case for a mart"
    " or es:<index> for a search index"
)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("public.users", FORBIDDEN),
        ("etl.etl_pipelines", FORBIDDEN),
        ("es:secrets", FORBIDDEN),
        ("analytics.x; drop", NO_TARGET),
        ("analytics.x; DROP TABLE y", NO_TARGET),
        ('analytics."x"', NO_TARGET),
        ("Analytics.Film", NO_TARGET),
        ("films", NO_TARGET),
    ],
)
def test_forbidden_target(api: httpx.Client, target: str, message: str) -> None:
    create(api, name="existing")
    for response in (
        api.post(PIPELINES, json=DEFINITION | {"target_table": target}),
        api.patch(f"{PIPELINES}/existing", json={"target_table": target}),
    ):
        assert response.status_code == 422
        found = problem(response)
        assert found["code"] == "forbidden_target"
        expected = message.format(target)
        assert found["detail"] == expected
        assert wrong_fields(found) == [{"path": "target_table", "message": expected, "code": "forbidden_target"}]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0, "batch_size must be greater than or equal to 1, not 0"),
        (-5, "batch_size must be greater than or equal to 1, not -5"),
        (1_000_001, "batch_size must be less than or equal to 1000000, not 1000001"),
        (False, "batch_size must be a valid integer, not false"),
        (1.5, "batch_size must be a valid integer, not 1.5"),
        ("10", "batch_size must be a valid integer"),
        (None, "batch_size must be a valid integer"),
    ],
)
def test_wrong_batch_size(api: httpx.Client, value: object, message: str) -> None:
    create(api, name="existing")
    for response in (
        api.post(PIPELINES, json=DEFINITION | {"batch_size": value}),
        api.patch(f"{PIPELINES}/existing", json={"batch_size": value}),
    ):
        assert response.status_code == 422
        found = problem(response)
        assert (found["code"], found["detail"]) == ("invalid", message)
        assert wrong_fields(found) == [{"path": "batch_size", "message": message, "code": "invalid"}]


def test_source_query_with_a_syntax_error(api: httpx.Client) -> None:
    response = api.post(PIPELINES, json=DEFINITION | {"source_query": "SELECT id,\n  FROM content.film_work"})
    assert response.status_code == 422
    found = problem(response)
    assert found["code"] == "invalid_query"
    assert found["detail"].startswith("line 2, column 3: ")
    assert wrong_fields(found) == [{"path": "source_query", "message": found["detail"], "code": "invalid_query"}]


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM content.film_work",
        "SELECT * FROM auth.users",
        "SELECT pg_read_file('/etc/passwd')",
        "SELECT 1; DROP TABLE content.film_work",
        "SELECT * FROM film_work",
    ],
)
def test_hostile_source_query(api: httpx.Client, query: str) -> None:
    response = api.post(PIPELINES, json=DEFINITION | {"source_query": query})
    assert (response.status_code, problem(response)["code"]) == (422, "invalid_query")


def test_a_hostile_query_inside_a_task_is_named_by_its_place(api: httpx.Client) -> None:
    tasks = [{"order_index": 0, "task_type": "SQL", "body": "DELETE FROM content.film_work"}]
    response = api.post(PIPELINES, json=DEFINITION | {"tasks": tasks})
    assert response.status_code == 422
    assert [(e["path"], e["code"]) for e in problem(response)["errors"]] == [("tasks.0.body", "invalid_query")]


@pytest.mark.parametrize(
    ("fields", "path", "message"),
    [
        (
            {"mode": "incremental"},
            "incremental_key",
            "mode 'incremental' needs incremental_key, the column that shows which rows are new",
        ),
        ({"source_query": None}, "source_query", "a SQL pipeline needs source_query or tasks"),
        ({"source_query": "  "}, "source_query", "a SQL pipeline needs source_query or tasks"),
        ({"target_key": []}, "target_key", None),
        (
            {"name": "has spaces"},
            "name",
            "name must have 1 to 100 letters, digits, dots, dashes or underscores, and begin with a letter or a digit",
        ),
        ({"name": "11111111-1111-1111-1111-111111111111"}, "name", None),
        ({"schedule_interval": "whenever"}, "schedule_interval", None),
        ({"bach_size": 5}, "bach_size", "bach_size is not a field that can be set here: did you mean batch_size?"),
        (
            {"options": {"alow_shrink": True}},
            "options.alow_shrink",
            "options.alow_shrink is not a field that can be set here: did you mean allow_shrink?",
        ),
        ({"target_key": "id"}, "target_key", 'target_key must be a list, such as ["a", "b"]'),
        ({"status": "RUNNING"}, "status", "status is not a field that can be set here"),
    ],
)
def test_wrong_fields_are_named(api: httpx.Client, fields: dict[str, Any], path: str, message: str | None) -> None:
    response = api.post(PIPELINES, json=DEFINITION | fields)
    assert response.status_code == 422, response.text
    errors = problem(response)["errors"]
    assert [error["path"] for error in errors] == [path]
    assert message is None or errors[0]["message"] == message


def test_missing_fields_are_all_named(api: httpx.Client) -> None:
    response = api.post(PIPELINES, json={})
    assert response.status_code == 422
    assert wrong_fields(problem(response)) == [
        {"path": "name", "message": "name is required", "code": "missing"},
        {"path": "target_table", "message": "target_table is required", "code": "missing"},
    ]


def test_everything_wrong_is_said_at_once(api: httpx.Client) -> None:
    fields = {"target_table": "public.users", "source_query": "DELETE FROM content.x", "source_connection": "nowhere"}
    response = api.post(PIPELINES, json=DEFINITION | fields)
    assert response.status_code == 422
    found = problem(response)
    assert found["code"] == "invalid"
    assert found["detail"].startswith("3 fields are not valid: ")
    assert [(e["path"], e["code"]) for e in found["errors"]] == [
        ("target_table", "forbidden_target"),
        ("source_query", "invalid_query"),
        ("source_connection", "unknown_connection"),
    ]
    assert found["errors"][2]["message"] == (
        "connection 'nowhere' is not configured; known: default (the operator sets VITRINA_CONN_NOWHERE, or adds it"
        " with `vitrina connections add`)"
    )


def test_a_body_that_is_not_json(api: httpx.Client) -> None:
    response = api.post(PIPELINES, content=b"{name: films}", headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert problem(response)["code"] == "malformed_json"


def test_text_that_postgres_cannot_store(api: httpx.Client) -> None:
    for fields in ({"description": "a\x00b"}, {"description": "\ud800"}):
        body = json.dumps(DEFINITION | fields)
        response = api.post(PIPELINES, content=body, headers={"content-type": "application/json"})
        assert response.status_code == 422, response.text


def test_a_body_that_is_too_large(api: httpx.Client) -> None:
    response = api.post(PIPELINES, content=b"x" * (9 * 1024 * 1024), headers={"content-type": "application/json"})
    assert response.status_code == 413
    assert problem(response)["code"] == "body_too_large"


def test_an_endless_body_is_cut_off(api: httpx.Client) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(200):
            yield b" " * 65_536

    response = api.post(PIPELINES, content=endless(), headers={"content-type": "application/json"})
    assert response.status_code == 413


def test_paths_and_methods_that_do_not_exist(api: httpx.Client) -> None:
    response = api.get("/api/v1/nothing")
    assert (response.status_code, problem(response)["code"]) == (404, "not_found")
    response = api.put(PIPELINES)
    assert (response.status_code, problem(response)["code"]) == (405, "method_not_allowed")


def test_postgres_not_reachable(database: Settings) -> None:
    away = without_auth(database, database_url=SecretStr("postgresql://vitrina_app:s3cret-canary@127.0.0.1:1/nowhere"))
    with serving(away, pool_timeout_seconds=0.5) as api:
        for path in (PIPELINES, f"{PIPELINES}/films", "/api/v1/runs"):
            response = api.get(path)
            assert response.status_code == 503
            assert response.headers["retry-after"] == "2"
            found = problem(response)
            assert found["code"] == "metastore_unavailable"
            assert found["detail"].startswith("the metastore (Postgres) does not answer")
            assert "s3cret-canary" not in response.text
        assert api.get("/livez").status_code == 200
        for probe in ("/health", "/readyz"):
            response = api.get(probe)
            assert response.status_code == 503
            assert response.json()["database"] == "does not answer"
        assert "vitrina_metastore_up 0.0" in api.get("/metrics").text


# --- who writes where ---------------------------------------------------------------------------------------------


def test_a_second_pipeline_on_the_target_of_a_full_load_needs_both_to_share(api: httpx.Client) -> None:
    create(api, name="first", target_table="analytics.mart")
    second = DEFINITION | {"name": "second", "target_table": "analytics.mart"}
    refused = api.post(PIPELINES, json=second)
    assert refused.status_code == 409
    assert problem(refused)["detail"] == (
        "target analytics.mart is already written by pipeline first, and a full load deletes rows that its own source"
        " does not have; choose another target, or set options.shared_target on both"
    )
    assert api.post(PIPELINES, json=second | {"options": {"shared_target": True}}).status_code == 409
    api.patch(f"{PIPELINES}/first", json={"options": {"shared_target": True}}).raise_for_status()
    assert api.post(PIPELINES, json=second | {"options": {"shared_target": True}}).status_code == 201
    assert api.patch(f"{PIPELINES}/first", json={"options": {"shared_target": None}}).status_code == 409


def test_the_target_of_a_last_step_counts(api: httpx.Client) -> None:
    create(api, name="first", target_table="analytics.mart")
    tasks = [
        {"order_index": 0, "task_type": "SQL", "body": "SELECT id FROM content.film_work"},
        {"order_index": 1, "task_type": "PYTHON", "body": "upper", "target_table": "analytics.mart"},
    ]
    assert api.post(PIPELINES, json=DEFINITION | {"tasks": tasks}).status_code == 409


def test_incremental_pipelines_may_fill_one_target_together(api: httpx.Client) -> None:
    incremental = {"mode": "incremental", "incremental_key": "updated_at", "target_table": "analytics.mart"}
    create(api, name="one", **incremental)
    create(api, name="two", **incremental)
    assert api.patch(f"{PIPELINES}/two", json={"mode": "full"}).status_code == 409


# --- lists --------------------------------------------------------------------------------------------------------


def test_pages_neither_overlap_nor_skip(api: httpx.Client) -> None:
    for number in range(7):
        create(api, name=f"p{number}")
    for sort in ("name", "-name", "created_at", "-updated_at", "status", "-status_since"):
        names, cursor = [], None
        while True:
            page = api.get(PIPELINES, params={"limit": 3, "sort": sort} | ({"cursor": cursor} if cursor else {})).json()
            names += [item["name"] for item in page["items"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert sorted(names) == [f"p{number}" for number in range(7)], sort
        if sort in ("name", "created_at"):
            assert names == sorted(names)
        if sort in ("-name", "-updated_at"):
            assert names == sorted(names, reverse=True)


def test_filters(api: httpx.Client, api_metastore: Connection) -> None:
    create(api, name="films_full")
    create(api, name="films_daily", enabled=False)
    create(api, name="ratings")
    api.post(f"{PIPELINES}/ratings/run").raise_for_status()

    def names(**params: Any) -> list[str]:
        return [item["name"] for item in api.get(PIPELINES, params=params).json()["items"]]

    assert names(name="FILMS") == ["films_daily", "films_full"]
    assert names(enabled=False) == ["films_daily"]
    assert names(status=["RUN_REQUESTED", "FAILED"]) == ["ratings"]
    assert names(target="analytics.films_full") == ["films_full"]
    api_metastore.execute("UPDATE etl.etl_pipelines SET updated_at = '2001-01-01Z' WHERE name <> 'ratings'")
    assert names(since="2002-01-01T00:00:00Z") == ["ratings"]


@pytest.mark.parametrize("position", [["name", "x", 5], ["name", "x", [5]], ["name", "x", None], ["name", "x", {}]])
def test_a_cursor_with_a_part_of_another_kind(api: httpx.Client, position: list[Any]) -> None:
    runs = ["2026-01-01T00:00:00+00:00", position[-1]]
    for path, forged in ((PIPELINES, position), ("/api/v1/runs", runs)):
        response = api.get(path, params={"cursor": paging.encode(forged)})
        assert response.status_code == 422
        assert problem(response)["errors"][0]["path"] == "query.cursor"


@pytest.mark.parametrize("cursor", ["x", "W10", "WzFd", "WyJuYW1lIiwiYSIsImIiXQ", "💥"])
def test_a_cursor_that_is_not_ours(api: httpx.Client, cursor: str) -> None:
    response = api.get(PIPELINES, params={"cursor": cursor})
    assert response.status_code == 422
    assert problem(response)["errors"][0]["path"] == "query.cursor"


def test_a_limit_out_of_bounds(api: httpx.Client) -> None:
    response = api.get(PIPELINES, params={"limit": 0})
    assert response.status_code == 422
    assert wrong_fields(problem(response)) == [
        {"path": "query.limit", "message": "query.limit must be greater than or equal to 1", "code": "invalid"}
    ]


# --- versions -----------------------------------------------------------------------------------------------------


def test_versions_can_be_compared_and_rolled_back_to(api: httpx.Client) -> None:
    create(api)
    api.patch(f"{PIPELINES}/films", json={"batch_size": 10, "options": {"allow_empty": True}}).raise_for_status()
    compared = api.get(f"{PIPELINES}/films/versions/compare", params={"from": 1, "to": 2}).json()
    assert compared["changes"] == [
        {"path": "batch_size", "before": 5000, "after": 10},
        {"path": "options.allow_empty", "before": None, "after": True},
    ]
    rolled = api.post(f"{PIPELINES}/films/versions/1/rollback").json()
    assert (rolled["version"], rolled["batch_size"], rolled["options"]) == (3, 5000, {})
    newest = api.get(f"{PIPELINES}/films/versions").json()["items"][0]
    assert newest["change_summary"] == "rolled back to version 1"
    missing = api.get(f"{PIPELINES}/films/versions/9")
    assert missing.status_code == 404
    assert problem(missing)["detail"] == "pipeline films has no version 9; the latest is 3"


def test_a_row_made_with_psql_gets_its_versions_too(api: httpx.Client, api_metastore: Connection) -> None:
    api_metastore.execute(
        "INSERT INTO etl.etl_pipelines (name, source_query, target_table)"
        " VALUES ('by_hand', 'SELECT id FROM content.film_work', 'analytics.by_hand')"
    )
    api.patch(f"{PIPELINES}/by_hand", json={"batch_size": 1}).raise_for_status()
    versions = api.get(f"{PIPELINES}/by_hand/versions").json()["items"]
    assert [(v["version"], v["changed_by"], v["definition"]["batch_size"]) for v in versions] == [
        (2, "local", 1),
        (1, "unknown", 5000),
    ]


def test_reload_config_takes_up_what_was_edited_by_hand(api: httpx.Client, api_metastore: Connection) -> None:
    create(api)
    api_metastore.execute("UPDATE etl.etl_pipelines SET batch_size = 42")
    reloaded = api.post(f"{PIPELINES}/films/reload-config")
    assert (reloaded.status_code, reloaded.json()["version"]) == (200, 2)
    assert api.get(f"{PIPELINES}/films/versions/2").json()["definition"]["batch_size"] == 42
    assert api.post(f"{PIPELINES}/films/reload-config").json()["version"] == 2

    api_metastore.execute("UPDATE etl.etl_pipelines SET target_table = 'public.users'")
    refused = api.post(f"{PIPELINES}/films/reload-config")
    assert (refused.status_code, problem(refused)["code"]) == (422, "forbidden_target")
