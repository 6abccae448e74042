"""Labels over HTTP: given with a pipeline, changed key by key, asked for in lists; they make no version."""

import httpx
import pytest

from tests.integration.api import DEFINITION, create, problem
from vitrina.store import events
from vitrina.store.database import Connection

PIPELINES = "/api/v1/pipelines"
FILMS = f"{PIPELINES}/films"


def test_a_pipeline_is_created_with_labels(api: httpx.Client) -> None:
    created = create(api, labels={"team": "core", "tier": "1"})
    assert created["labels"] == {"team": "core", "tier": "1"}
    assert api.get("/api/v1/overview").json()["items"][0]["labels"] == {"team": "core", "tier": "1"}
    assert "labels" not in api.get(f"{FILMS}/versions/1").json()["definition"]


def test_labels_are_changed_key_by_key_without_a_version(api: httpx.Client) -> None:
    create(api, labels={"team": "core", "tier": "1"})
    changed = api.patch(FILMS, json={"labels": {"team": "web", "tier": None}}).json()
    assert (changed["labels"], changed["version"]) == ({"team": "web"}, 1)
    (entry,) = api.get("/api/v1/audit", params={"action": "label"}).json()["items"]
    assert (entry["before"]["labels"], entry["after"]["labels"]) == ({"team": "core", "tier": "1"}, {"team": "web"})
    both = api.patch(FILMS, json={"labels": {"a": "b"}, "batch_size": 7}).json()
    assert (both["labels"], both["batch_size"], both["version"]) == ({"team": "web", "a": "b"}, 7, 2)


def test_changed_labels_are_an_event_although_there_is_no_version(api: httpx.Client, api_metastore: Connection) -> None:
    """Require none if they stay the same."""
    create(api, labels={"team": "core"})
    newest = events.newest_id(api_metastore)
    for _ in range(2):
        api.patch(FILMS, json={"labels": {"team": "web"}}).raise_for_status()
    [event] = events.list_after(api_metastore, newest)
    assert (event["topic"], event["payload"]["pipeline"], event["payload"]["state"]) == ("pipeline", "films", "changed")


@pytest.mark.parametrize(
    ("labels", "path", "code"),
    [
        ({"a b": "c"}, "labels.a b", "definition.label_key"),
        ({"a": 1}, "labels.a", "definition.label"),
        ({"a": "x" * 201}, "labels.a", "definition.label"),
        (["a"], "labels", "definition.labels"),
        ({str(n): "x" for n in range(51)}, "labels", "definition.too_many_labels"),
    ],
)
def test_wrong_labels_are_refused_by_a_change_and_by_a_validation(
    api: httpx.Client, labels: object, path: str, code: str
) -> None:
    create(api)
    found = problem(api.patch(FILMS, json={"labels": labels}))
    assert (found["status"], found["errors"][0]["path"], found["detail_said"]["code"]) == (422, path, code)
    report = api.post("/api/v1/validate", json=DEFINITION | {"labels": labels}).json()
    assert [(error["path"], error["message_said"]["code"]) for error in report["errors"]] == [(path, code)]
    assert api.get(FILMS).json()["labels"] == {}


def test_wrong_labels_are_refused_with_a_new_pipeline(api: httpx.Client) -> None:
    assert api.post(PIPELINES, json=DEFINITION | {"labels": {"a b": "c"}}).status_code == 422
    assert api.post(PIPELINES, json=DEFINITION | {"labels": {"a": 1}}).status_code == 422


def test_lists_are_narrowed_to_labels(api: httpx.Client, api_metastore: Connection) -> None:
    for name, labels in (("films", {"team": "core"}), ("persons", {"team": "web", "tier": "1"}), ("genres", {})):
        created = create(api, name=name, labels=labels)
        api_metastore.execute(
            """
            INSERT INTO etl.etl_runs (pipeline_id, pipeline_version, trigger, status, started_at, finished_at)
            VALUES (%s, 1, 'manual', 'SUCCESS', now(), now())
            """,
            [created["id"]],
        )

    def names(path: str, *labels: str) -> list[str]:
        found = api.get(path, params={"label": list(labels)}).json()["items"]
        return sorted(item.get("pipeline") or item["name"] for item in found)

    for path in (PIPELINES, "/api/v1/runs"):
        assert names(path, "team=core") == ["films"]
        assert names(path, "team") == ["films", "persons"]
        assert names(path, "team", "tier=1") == ["persons"]
        assert names(path, "team=nobody") == []
        assert names(path) == ["films", "genres", "persons"]
    assert api.get("/api/v1/runs", params={"label": "tier"}).json()["items"][0]["labels"] == {
        "team": "web",
        "tier": "1",
    }
