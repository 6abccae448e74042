"""What queries may read, for whoever writes one: the allowed schemas as the reader sees them, told by a runner."""

from contextlib import AbstractContextManager
from typing import Any
from uuid import uuid4

import httpx

from tests.integration.api import problem
from tests.support.workbench import Workbench
from vitrina.loads.control import RunControl
from vitrina.runner import requests as runner_requests
from vitrina.store import requests
from vitrina.store.database import Connection
from vitrina.store.leases import Claim

TABLES = "/api/v1/connections/default/tables"


def listed(bench: Workbench) -> dict[str, list[tuple[str, str]]]:
    request = {"id": uuid4(), "kind": "tables", "pipeline_id": None, "payload": {"connection": "default"}}
    result, error = runner_requests.perform(request, bench.metastore, bench.settings, _no_lease_is_needed)
    assert error is None
    assert result is not None
    assert result["complete"] is True
    return {
        f"{table['schema']}.{table['name']}": [(column["name"], column["type"]) for column in table["columns"]]
        for table in result["tables"]
    }


def _no_lease_is_needed(claim: Claim, claimed_at: float) -> AbstractContextManager[RunControl]:
    raise AssertionError("looking needs no lease")


def test_tables_and_views_of_the_allowed_schemas_with_their_types(workbench: Workbench) -> None:
    workbench.source(
        """
        CREATE TABLE content.films (id int PRIMARY KEY, gone text, rating numeric(3,1)) PARTITION BY RANGE (id);
        CREATE TABLE content.films_1 PARTITION OF content.films FOR VALUES FROM (1) TO (1000);
        ALTER TABLE content.films DROP COLUMN gone;
        CREATE VIEW ugc.best AS SELECT id FROM content.films;
        CREATE TABLE analytics.mart (id int);
        """
    )
    assert listed(workbench) == {
        "content.films": [("id", "integer"), ("rating", "numeric(3,1)")],
        "ugc.best": [("id", "integer")],
    }


def test_what_the_reader_may_not_select_is_not_named(workbench: Workbench) -> None:
    workbench.source("CREATE TABLE content.films (id int); CREATE TABLE ugc.users (id int, email text)")
    workbench.sql("CREATE TABLE ugc.secrets (id int); REVOKE SELECT ON ugc.secrets FROM vitrina_reader")
    workbench.sql("REVOKE SELECT ON ugc.users FROM vitrina_reader; GRANT SELECT (id) ON ugc.users TO vitrina_reader")
    assert listed(workbench) == {"content.films": [("id", "integer")], "ugc.users": [("id", "integer")]}


def test_whoever_asks_soon_after_shares_the_answer(api: httpx.Client, api_metastore: Connection) -> None:
    first = api.get(TABLES)
    assert first.status_code == 202
    assert api.get(TABLES).json()["id"] == first.json()["id"]
    _answer(api_metastore, {"connection": "default", "tables": [], "complete": True})
    second = api.get(TABLES)
    assert (second.status_code, second.json()["id"]) == (200, first.json()["id"])
    api_metastore.execute("UPDATE etl.etl_requests SET created_at = created_at - interval '2 minutes'")
    assert api.get(TABLES).json()["id"] != first.json()["id"]


def test_an_unknown_connection_is_said_to_be_unknown(api: httpx.Client) -> None:
    answer = api.get("/api/v1/connections/nowhere/tables")
    assert answer.status_code == 404
    assert problem(answer)["detail"] == "there is no connection 'nowhere'; there are: default"


def test_old_answers_about_no_pipeline_are_forgotten(api: httpx.Client, api_metastore: Connection) -> None:
    asked = api.get(TABLES).json()["id"]
    _answer(api_metastore, {"tables": []})
    assert requests.prune(api_metastore, older_than_days=7) == 0
    api_metastore.execute("UPDATE etl.etl_requests SET finished_at = finished_at - interval '8 days'")
    assert requests.prune(api_metastore, older_than_days=7) == 1
    assert api.get(f"/api/v1/requests/{asked}").status_code == 404


def _answer(metastore: Connection, result: dict[str, Any]) -> None:
    runner = uuid4()
    taken = requests.claim_next(metastore, runner, 30)
    assert taken
    assert requests.finish(metastore, taken["id"], runner, result=result, error=None)
