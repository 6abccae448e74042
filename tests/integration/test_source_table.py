"""`source_table: content.genre` stands for a query that reads the table whole."""

from typing import Any

import httpx
import pytest
import yaml
from pydantic import ValidationError

from tests.integration.api import create, problem
from tests.support.workbench import Workbench
from vitrina.definition import Definition
from vitrina.store import pipelines


def test_a_table_is_read_whole(workbench: Workbench) -> None:
    workbench.source("CREATE TABLE content.genre (id int PRIMARY KEY, name text)")
    workbench.source("INSERT INTO content.genre VALUES (1, 'a')")
    definition = Definition(
        name="genre", source_table="content.genre", target_table="analytics.genre", target_key=["id"]
    )
    pipelines.insert(workbench.metastore, definition, pipeline_id=None, managed_by=None)
    assert workbench.run("genre")["status"] == "SUCCESS"
    assert workbench.sql("SELECT * FROM analytics.genre") == [{"id": 1, "name": "a"}]
    # A column that the table gets is one that the query gives: the mart lacks it.
    workbench.source("ALTER TABLE content.genre ADD COLUMN more text")
    run = workbench.run("genre")
    assert (run["status"], "more" in run["error_message"]) == ("FAILED", True)


@pytest.mark.parametrize(
    ("table", "query"),
    [
        ("content.genre", 'SELECT * FROM "content"."genre"'),
        ("Content.Genre", 'SELECT * FROM "content"."genre"'),
        ('content."Genre of Films"', 'SELECT * FROM "content"."Genre of Films"'),
        ("content.order", 'SELECT * FROM "content"."order"'),
    ],
)
def test_names_read_as_they_do_in_a_query(table: str, query: str) -> None:
    assert Definition(name="g", source_table=table, target_table="analytics.g").query == query


@pytest.mark.parametrize(
    "fields",
    [
        {"source_table": "genre"},
        {"source_table": "content.genre; DROP TABLE x"},
        {"source_table": "a.b.c"},
        {"source_table": 'content."ge"nre"'},
        {"source_table": "content.genre", "source_query": "SELECT 1"},
        {"source_table": "content.genre", "tasks": [{"order_index": 0, "task_type": "SQL", "body": "SELECT 1"}]},
    ],
)
def test_anything_else_is_a_query(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        Definition.model_validate({"name": "g", "target_table": "analytics.g", **fields})
    (error,) = caught.value.errors()
    assert error["ctx"]["error"].field == "source_table"


def test_the_api_takes_it_judges_it_and_shows_it(api: httpx.Client) -> None:
    created = create(api, source_query=None, source_table="content.film_work")
    assert (created["source_table"], created["source_query"]) == ("content.film_work", None)
    assert yaml.safe_load(api.get("/api/v1/export").text)["spec"]["source_table"] == "content.film_work"
    refused = api.post(
        "/api/v1/pipelines", json={"name": "x", "source_table": "secret.logins", "target_table": "analytics.x"}
    )
    assert (refused.status_code, problem(refused)["errors"][0]["path"]) == (422, "source_table")
    changed = api.patch("/api/v1/pipelines/films", json={"source_table": None, "source_query": "SELECT 1 AS id"})
    assert (changed.status_code, changed.json()["source_table"]) == (200, None)
    back = api.post("/api/v1/pipelines/films/versions/1/rollback")
    assert back.json()["source_table"] == "content.film_work"
