"""Names of Python steps over HTTP: a name is looked up among registered functions, and nothing else can be one."""

from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.integration.api import DEFINITION, create
from vitrina.store import runners
from vitrina.store.database import Connection
from vitrina.transforms import registry

HOSTILE = [
    "os.system",
    "__import__",
    "__class__",
    "vitrina.transforms.registry",
    "../../etc/passwd",
    "/bin/sh",
    "..\\windows",
    "subprocess:Popen",
    "eval('1')",
    "lambda: 0",
    "exec",
    "gASVIAAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOULg==",
    "cos\nsystem\n(S'id'\ntR.",
    "{{7*7}}",
    "${jndi:ldap://x}",
    "keep_rows; DROP TABLE etl.etl_pipelines",
    "Keep_Rows",
    "keep rows",
    "ｋeep_rows",
    "keep_rows\u202e",
    "a" * 64,
    "1step",
]
READ = {"order_index": 0, "task_type": "SQL", "body": "SELECT id, title FROM content.film_work"}


def step(name: str) -> dict[str, Any]:
    return {"order_index": 1, "task_type": "PYTHON", "body": name}


@pytest.mark.parametrize("name", [name for name in HOSTILE if name != "exec"])
def test_a_hostile_name_is_refused_before_anybody_looks_it_up(api: httpx.Client, name: str) -> None:
    create(api)
    for response, path in (
        (api.put("/api/v1/pipelines/films/tasks", json={"items": [READ, step(name)]}), "tasks.1.body"),
        (api.patch("/api/v1/pipelines/films", json={"type": "PYTHON", "python_task": name}), "python_task"),
        (api.post("/api/v1/pipelines", json=DEFINITION | {"name": "b", "tasks": [READ, step(name)]}), "tasks.1.body"),
    ):
        assert response.status_code == 422, response.text
        [error] = response.json()["errors"]
        assert error["path"] == path
        assert "is not the name of a Python step" in error["message"]


def test_a_name_that_is_only_a_word_is_only_a_word(api: httpx.Client, api_metastore: Connection) -> None:
    """`exec` is a fine name; nobody has registered such a step, and no runner would run Python's own."""
    create(api, tasks=[READ, step("exec")])
    row = api_metastore.execute("SELECT body FROM etl.etl_pipeline_tasks WHERE task_type = 'PYTHON'").fetchone()
    assert row == {"body": "exec"}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_hostile_name_leads_anywhere_in_a_runner(name: str) -> None:
    from vitrina.transforms import registry

    assert registry.load().find(name) is None


# --- params, as live runners describe them -------------------------------------------------------------------------


def test_params_are_judged_when_the_definition_is_saved(api: httpx.Client, api_metastore: Connection) -> None:
    def plan(*steps: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
        return [READ, *(step(name) | {"order_index": i, "params": given} for i, (name, given) in enumerate(steps, 1))]

    create(api)
    wrong = plan(("mask_columns", {"columns": "title"}), ("demo_film_dim", {"speed": 1, "on_error": "never"}))
    good = plan(("mask_columns", {"columns": ["title"], "on_error": "dead_letter"}))
    create(api, name="early", tasks=wrong)  # no runner is alive, so nobody can tell
    known = registry.load().describe()
    runners.heartbeat(api_metastore, uuid4(), host="here", pid=1, version="1", capacity=1, running=0, transforms=known)

    refused = api.put("/api/v1/pipelines/films/tasks", json={"items": wrong})
    assert refused.status_code == 422
    assert {(error["path"], error["code"]) for error in refused.json()["errors"]} == {
        ("tasks.1.params.columns", "invalid_params"),
        ("tasks.2.params.speed", "unknown_params"),
        ("tasks.2.params.on_error", "invalid_params"),
    }
    assert api.post("/api/v1/pipelines", json=DEFINITION | {"name": "b", "tasks": wrong}).status_code == 422
    alone = {"type": "PYTHON", "python_task": "mask_columns", "options": {"params": {"columns": []}}}
    [error] = api.post("/api/v1/pipelines", json=DEFINITION | {"name": "b"} | alone).json()["errors"]
    assert error["path"] == "options.params.columns"
    create(api, name="alone", **alone | {"options": {"params": {"columns": ["title"]}}})
    changed = api.patch("/api/v1/pipelines/alone", json={"options": {"params": {"columns": 5}}})
    assert changed.status_code == 422
    assert api.put("/api/v1/pipelines/films/tasks", json={"items": good}).status_code == 200
