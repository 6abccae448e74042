"""What one request may carry, and that what it carried cannot break the answers to others."""

from typing import Any

import httpx
import pytest

from tests.integration.api import DEFINITION, create, problem
from vitrina import json_values
from vitrina.store.database import Connection

PIPELINES = "/api/v1/pipelines"
READ = [PIPELINES, f"{PIPELINES}/films", f"{PIPELINES}/films/versions", "/api/v1/audit", "/api/v1/export"]


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


# --- deep and large values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [json_values.MAX_DEPTH + 1, 60, 300, 5_000])
@pytest.mark.parametrize("place", ["options.params", "options.index", "tasks.params"])
def test_a_deep_value_is_refused_and_leaves_nothing_behind(api: httpx.Client, depth: int, place: str) -> None:
    text = '{"a":' * depth + "1" + "}" * depth
    if place == "tasks.params":
        task = f'{{"order_index": 0, "task_type": "SQL", "body": "SELECT 1 AS id", "params": {text}}}'
        part = f'"tasks": [{task}]'
    else:
        inner = f'{{"settings": {text}}}' if place == "options.index" else text
        part = f'"options": {{"{place.removeprefix("options.")}": {inner}}}'
    body = f'{{"name": "films", "source_query": "SELECT 1 AS id", "target_table": "analytics.films", {part}}}'
    answer = api.post(PIPELINES, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422, answer.text
    assert "nested deeper than" in problem(answer)["detail"]
    assert api.get(PIPELINES).json()["items"] == []
    assert api.get("/api/v1/audit").json()["items"] == []


@pytest.mark.parametrize("path", ["/validate", "/preview", "/apply", f"{PIPELINES.removeprefix('/api/v1')}/x"])
def test_no_route_takes_a_deep_body(api: httpx.Client, path: str) -> None:
    body = '{"definition":' + "[" * 70_000 + "]" * 70_000 + "}"
    send = api.patch if path.endswith("/x") else api.post
    answer = send(f"/api/v1{path}", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422, answer.text
    assert problem(answer)["code"] == "nested_too_deeply"


def test_a_value_as_deep_as_allowed_comes_back_as_it_was(api: httpx.Client) -> None:
    params = nested(json_values.MAX_DEPTH)
    created = create(api, options={"params": params})
    assert created["options"]["params"] == params
    for path in READ:
        assert api.get(path).status_code == 200, path


def test_large_and_impossible_values_are_refused(api: httpx.Client) -> None:
    for params, said in (
        ({"a": "x" * (json_values.MAX_CHARACTERS + 1)}, "longer than"),
        ({"a": [1] * json_values.MAX_CHARACTERS}, "longer than"),
    ):
        answer = api.post(PIPELINES, json=DEFINITION | {"options": {"params": params}})
        assert answer.status_code == 422
        assert said in problem(answer)["detail"]
    body = '{"name": "n", "source_query": "SELECT 1 AS id", "target_table": "analytics.n", "options": {"params": %s}}'
    for impossible in ('{"a": NaN}', '{"a": [1e999]}', '{"a": {"b": -Infinity}}'):
        answer = api.post(PIPELINES, content=body % impossible, headers={"content-type": "application/json"})
        assert answer.status_code == 422
        assert "NaN" in problem(answer)["detail"]


@pytest.mark.parametrize("depth", [300, 3_000])
def test_what_is_stored_already_breaks_no_answer(api: httpx.Client, api_metastore: Connection, depth: int) -> None:
    create(api)
    create(api, name="others")
    poison = '{"params": ' + '{"a":' * depth + "1" + "}" * depth + "}"
    api_metastore.execute("UPDATE etl.etl_pipelines SET options = %s::jsonb WHERE name = 'films'", [poison])
    api_metastore.execute(
        """
        INSERT INTO etl.etl_audit (who, action, object, after) VALUES ('x', 'change', 'pipeline:films', %s::jsonb)
        """,
        [poison],
    )
    for path in (*READ, f"{PIPELINES}/films/status", "/api/v1/overview"):
        assert api.get(path).status_code == 200, path
    assert json_values.CUT in api.get(f"{PIPELINES}/films").text
    assert len(api.get(PIPELINES).json()["items"]) == 2
    # It can be mended over the same API.
    assert api.patch(f"{PIPELINES}/films", json={"options": {"params": None}}).status_code == 200
    assert api.get(f"{PIPELINES}/films").json()["options"].get("params") in (None, {})


def test_an_answer_that_cannot_be_sent_stores_nothing(
    api: httpx.Client, api_metastore: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limits at the door moved away: the next line of defence is that the answer is built before the commit."""
    monkeypatch.setattr(json_values, "MAX_DEPTH", 10_000)
    monkeypatch.setattr(json_values, "MAX_DEPTH_WRAPPED", 10_000)
    deep = {"options": {"params": nested(300)}}
    once = {"Connection": "close"}  # the server closes a connection on which it failed
    assert api.post(PIPELINES, json=DEFINITION | deep, headers=once).status_code == 500
    assert api_metastore.execute("SELECT count(*) AS n FROM etl.etl_pipelines").fetchone() == {"n": 0}
    create(api)
    assert api.patch(f"{PIPELINES}/films", json=deep, headers=once).status_code == 500
    assert api.get(f"{PIPELINES}/films").json()["version"] == 1
