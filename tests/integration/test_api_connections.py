"""Connections over the API: they go in, are sealed, and never come out; runners use and try them."""

import base64
import os
import threading
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pytest
from pydantic import SecretStr

from tests.integration.api import api_process, create, problem, serving, without_auth
from tests.integration.test_kept_connections import SECRET, shop, with_keys
from tests.support.processes import command, environment_of, runner_process
from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina.services import connections, tokens
from vitrina.services.callers import Caller, Role
from vitrina.settings import Settings
from vitrina.store import database, kept_connections, runners
from vitrina.store.database import Connection
from vitrina.unsealing import Keyring

__all__ = ["shop"]  # a fixture

URL = "postgresql://reader:canary-7c2b@db.example:5432/shop"
CONNECTIONS = "/api/v1/connections"


@pytest.fixture
def keyed(api: httpx.Client, api_metastore: Connection) -> httpx.Client:
    """The API beside a runner that has a key."""
    a_runner(api_metastore, SECRET)
    return api


def a_runner(metastore: Connection, *secrets: bytes) -> None:
    runners.heartbeat(
        metastore,
        uuid4(),
        host="here",
        pid=1,
        version="1",
        capacity=1,
        running=0,
        transforms=[],
        sealing_keys=Keyring(secrets).public_keys,
    )


def key_text(*secrets: bytes) -> str:
    return ",".join(base64.b64encode(secret).decode() for secret in secrets)


def test_a_connection_is_sealed_for_runners_and_never_shown(keyed: httpx.Client, api_metastore: Connection) -> None:
    answer = keyed.post(CONNECTIONS, json={"name": "shop", "url": URL})
    assert answer.status_code == 201, answer.text
    assert answer.json() == {
        "name": "shop",
        "connector": "postgres",
        "set_in": "metastore",
        "pipelines": [],
        "updated_at": answer.json()["updated_at"],
        "updated_by": "local",
    }
    box = kept_connections.list_sealed(api_metastore)["shop"]
    assert Keyring([SECRET]).open("shop", box) == URL
    assert b"canary" not in box.box
    said = keyed.get(CONNECTIONS).text + keyed.get("/api/v1/audit").text + keyed.get("/api/v1/export").text
    assert "add_connection" in said
    assert "canary" not in said
    assert "db.example" not in said


def test_a_name_is_taken_once_and_its_url_can_be_replaced(keyed: httpx.Client, api_metastore: Connection) -> None:
    assert keyed.put(f"{CONNECTIONS}/shop", json={"url": URL}).status_code == 404
    keyed.post(CONNECTIONS, json={"name": "shop", "url": URL})
    assert "already" in problem(keyed.post(CONNECTIONS, json={"name": "shop", "url": URL}))["detail"]
    other = URL.replace("db.example", "other.example")
    assert keyed.put(f"{CONNECTIONS}/shop", json={"url": other}).status_code == 200
    assert Keyring([SECRET]).open("shop", kept_connections.list_sealed(api_metastore)["shop"]) == other


@pytest.mark.parametrize(
    ("secrets", "said"), [(None, "no runner is alive"), ((), "no live runner has VITRINA_SECRET_KEY")]
)
def test_without_a_runner_s_key_the_refusal_says_how_to_make_one(
    api: httpx.Client, api_metastore: Connection, secrets: tuple[bytes, ...] | None, said: str
) -> None:
    if secrets is not None:
        a_runner(api_metastore, *secrets)
    refused = api.post(CONNECTIONS, json={"name": "shop", "url": URL})
    assert refused.status_code == 409
    assert said in problem(refused)["detail"]
    assert "openssl rand -base64 32" in problem(refused)["detail"]
    assert kept_connections.list_names(api_metastore) == []


def test_the_key_that_most_runners_have_seals(api: httpx.Client, api_metastore: Connection) -> None:
    """While a new key is given to one runner after the other, all of them can open what is added."""
    new, old = os.urandom(32), SECRET
    a_runner(api_metastore, old)
    a_runner(api_metastore, new, old)
    a_runner(api_metastore)
    api.post(CONNECTIONS, json={"name": "shop", "url": URL})
    assert Keyring([old]).open("shop", kept_connections.list_sealed(api_metastore)["shop"]) == URL


@pytest.mark.parametrize(
    ("name", "url", "said"),
    [
        ("Shop", URL, "name"),
        ("default", URL, "the metastore's own database"),
        ("shop_file", URL, "not ending in"),
        ("shop", "canary-7c2b", "not a valid postgresql:// URL"),
        ("shop", URL + "?options=-c%20x%3Dcanary-7c2b", "must not set options"),
        ("shop", URL + "?passfile=/canary-7c2b", "must not set passfile"),
        ("shop", "postgresql://reader:canary-7c2b@/shop?host=/run", "must name a host"),
        ("shop", URL + "?x=" + "y" * 5_000, "url"),
    ],
)
def test_what_is_refused_is_not_repeated(keyed: httpx.Client, name: str, url: str, said: str) -> None:
    refused = keyed.post(CONNECTIONS, json={"name": name, "url": url})
    assert refused.status_code == 422
    assert said in problem(refused)["detail"]
    assert "canary" not in refused.text


def test_the_environment_s_names_are_taken(database: Settings, metastore: Connection, tmp_path: Path) -> None:
    a_runner(metastore, SECRET)
    settings = without_auth(database, connections={"shop": SecretStr(URL)})
    with serving(settings) as api:
        for refused in (
            api.post(CONNECTIONS, json={"name": "shop", "url": URL}),
            api.delete(f"{CONNECTIONS}/shop"),
        ):
            assert refused.status_code == 409
            assert "set in the environment (VITRINA_CONN_SHOP)" in problem(refused)["detail"]
        assert api.delete(f"{CONNECTIONS}/default").status_code == 409
        assert api.delete(f"{CONNECTIONS}/nowhere").status_code == 404


def test_one_that_pipelines_use_is_not_removed(keyed: httpx.Client) -> None:
    keyed.post(CONNECTIONS, json={"name": "shop", "url": URL})
    keyed.post(CONNECTIONS, json={"name": "warehouse", "url": URL})
    create(keyed, name="orders", source_connection="shop")
    create(keyed, name="goods", target_key=["id"], options={"target_connection": "warehouse"})
    for name, pipeline in {"shop": "orders", "warehouse": "goods"}.items():
        refused = keyed.delete(f"{CONNECTIONS}/{name}")
        assert refused.status_code == 409
        assert f"is used by {pipeline}" in problem(refused)["detail"]
        assert keyed.delete(f"/api/v1/pipelines/{pipeline}").status_code in (200, 204)
        assert keyed.delete(f"{CONNECTIONS}/{name}").status_code == 204
    refused = keyed.post(
        "/api/v1/pipelines",
        json={
            "name": "late",
            "source_connection": "shop",
            "source_query": "SELECT 1",
            "target_table": "analytics.late",
        },
    )
    assert "connection 'shop' is not configured" in problem(refused)["detail"]


def test_a_pipeline_that_is_being_saved_keeps_its_connection(
    database: Settings, metastore: Connection, workbench: Workbench
) -> None:
    """Whoever removes it waits for the saving to end, then sees the pipeline."""
    a_runner(metastore, SECRET)
    caller = Caller("test", Role.ADMIN)
    connections.add(metastore, database, caller, "shop", URL)
    refusals: list[str] = []

    def remove() -> None:
        with postgres(database) as session:
            try:
                connections.remove(session, database, caller, "shop")
            except Exception as exc:  # noqa: BLE001 - judged below
                refusals.append(str(exc))

    with postgres(database) as saving, saving.transaction():
        assert kept_connections.hold(saving, "shop")
        remover = threading.Thread(target=remove)
        remover.start()
        until(lambda: workbench.sql("SELECT 1 FROM pg_locks WHERE NOT granted") != [])
        workbench.metastore = saving
        workbench.pipeline("orders", "SELECT 1 AS id", source_connection="shop")
    remover.join(timeout=60)
    assert refusals == ["connection 'shop' is used by orders: change or delete these first"]


def postgres(settings: Settings) -> Connection:
    return database.connect(settings.require_database_url(), "vitrina:test")


@pytest.mark.parametrize(("role", "may"), [("viewer", 403), ("operator", 403), ("admin", 201)])
def test_only_admins_add_try_and_remove(database: Settings, metastore: Connection, role: str, may: int) -> None:
    a_runner(metastore, SECRET)
    _, token = tokens.create(metastore, Caller("test", Role.ADMIN), name=role, role=Role(role))
    _, admins = tokens.create(metastore, Caller("test", Role.ADMIN), name="root", role=Role.ADMIN)
    with serving(database, request_wait_seconds=0) as api:
        api.headers["Authorization"] = f"Bearer {token}"
        assert api.post(CONNECTIONS, json={"name": "shop", "url": URL}).status_code == may
        assert api.put(f"{CONNECTIONS}/shop", json={"url": URL}).status_code == (200 if may == 201 else 403)
        assert api.get(CONNECTIONS).status_code == 200
        asked = api.post(f"{CONNECTIONS}/default/test", headers={"Authorization": f"Bearer {admins}"})
        assert asked.status_code == 202
        assert api.post(f"{CONNECTIONS}/default/test").status_code == (202 if may == 201 else 403)
        # Its answer will say where the connection leads.
        found = api.get(f"/api/v1/requests/{asked.json()['id']}")
        assert found.status_code == (200 if may == 201 else 403)
        assert api.delete(f"{CONNECTIONS}/shop").status_code == (204 if may == 201 else 403)


def test_added_used_tried_replaced_and_rotated_without_a_restart(
    workbench: Workbench, shop: str, tmp_path: Path
) -> None:
    """The whole life of a connection, with processes as people start them; its password is nowhere afterwards."""
    password = psycopg.conninfo.conninfo_to_dict(shop)["password"]
    assert isinstance(password, str)
    old, new = os.urandom(32), os.urandom(32)
    settings = workbench.settings
    with (
        api_process(settings, tmp_path, VITRINA_AUTH="off", VITRINA_SECRET_KEY=key_text(old)) as (api_pid, address),
        runner_process(settings, tmp_path, VITRINA_SECRET_KEY=key_text(new, old), VITRINA_POLL_SECONDS="0.2"),
        httpx.Client(base_url=address, timeout=60, trust_env=False) as api,
    ):
        until(lambda: bool(workbench.sql("SELECT 1 FROM etl.etl_runners WHERE sealing_keys <> '{}'")), seconds=180)
        assert api.post(CONNECTIONS, json={"name": "shop", "url": shop}).status_code == 201
        tried = result_of(api, api.post(f"{CONNECTIONS}/shop/test"))
        assert tried["usable"], tried

        suggested = result_of(api, api.post(f"{CONNECTIONS}/shop/copy", json={"schema": "content", "table": "orders"}))
        assert suggested["guarantee"] == "exact"
        assert any("primary key" in reason for reason in suggested["reasons"])
        assert api.post("/api/v1/pipelines", json=suggested["definition"]).status_code == 201
        api.post("/api/v1/pipelines/orders/run")
        until(lambda: workbench.sql("SELECT 1 FROM etl.etl_runs WHERE status = 'SUCCESS'") != [], seconds=180)
        assert workbench.sql("SELECT count(*) AS rows FROM analytics.orders") == [{"rows": 100}]

        wrong = shop.replace(password, "canary-5e0d")
        assert api.put(f"{CONNECTIONS}/shop", json={"url": wrong}).status_code == 200
        tried = result_of(api, api.post(f"{CONNECTIONS}/shop/test"))
        assert not tried["usable"]
        assert "password authentication failed" in tried["findings"][0]["finding"]
        assert "correct the login or the password in its URL" in tried["findings"][0]["next_step"]

        workbench.sql("CREATE ROLE blind_reader LOGIN PASSWORD 'canary-1f77'")
        blind = shop.replace("vitrina_reader", "blind_reader").replace(password, "canary-1f77")
        assert api.put(f"{CONNECTIONS}/shop", json={"url": blind}).status_code == 200
        tried = result_of(api, api.post(f"{CONNECTIONS}/shop/test"))
        assert 'GRANT USAGE ON SCHEMA "content" TO "blind_reader"' in str(tried).replace("\\", "")

        everything = "".join(
            api.get(f"/api/v1/{path}").text
            for path in ("connections", "audit", "export", "requests", "runs", "runners", "pipelines", "targets")
        )
        environ = Path(f"/proc/{api_pid.pid}/environ").read_text() + Path(f"/proc/{api_pid.pid}/cmdline").read_text()
    workbench.sql("DROP ROLE blind_reader")

    keys = environment_of(settings) | {"VITRINA_SECRET_KEY": key_text(old)}
    assert "give it that key too" in command(tmp_path, keys, "connections", "rotate")
    kept = workbench.sql("SELECT key_id FROM etl.etl_connections")
    assert "0 of 1 connections sealed again" in command(
        tmp_path, keys | {"VITRINA_SECRET_KEY": key_text(new, old)}, "connections", "rotate"
    )
    newest = os.urandom(32)
    assert "1 of 1 connections sealed again" in command(
        tmp_path, keys | {"VITRINA_SECRET_KEY": key_text(newest, new)}, "connections", "rotate"
    )
    assert workbench.sql("SELECT key_id FROM etl.etl_connections") != kept
    box = kept_connections.list_sealed(workbench.metastore)["shop"]
    assert Keyring([newest]).open("shop", box) == blind

    rows = "".join(text_of_table(workbench, name) for name in tables_of_metastore(workbench))
    logs = (tmp_path / "api.log").read_text() + (tmp_path / "runner.log").read_text()
    for canary in (password, "canary-5e0d", "canary-1f77"):
        for where, said in {"answers": everything, "rows": rows, "logs": logs, "API process": environ}.items():
            known = where == "API process" and canary == password  # its VITRINA_DATABASE_URL may have the same
            assert canary not in said or known, where
    for secret in (old, new):
        assert key_text(secret) not in rows + logs + everything


def result_of(api: httpx.Client, answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code in (200, 202), answer.text
    address = f"/api/v1/requests/{answer.json()['id']}"
    until(lambda: api.get(address).json()["finished_at"] is not None, seconds=180)
    found = api.get(address).json()
    assert found["error"] is None, found
    result: dict[str, Any] = found["result"]
    return result


def tables_of_metastore(bench: Workbench) -> list[str]:
    found = bench.sql("SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables WHERE schemaname = 'etl'")
    return [row["name"] for row in found]


def text_of_table(bench: Workbench, name: str) -> str:
    [row] = bench.sql(f"SELECT coalesce(string_agg(t::text, ' '), '') AS text FROM {name} AS t")
    text: str = row["text"]
    return text


def test_the_command_line_keeps_lists_tries_and_forgets(workbench: Workbench, shop: str, tmp_path: Path) -> None:
    import subprocess

    from tests.support.processes import VITRINA

    with_key = environment_of(with_keys(workbench.settings, SECRET)) | {"VITRINA_SECRET_KEY": key_text(SECRET)}
    added = subprocess.run(
        [VITRINA, "connections", "add", "shop"],
        input=f"{shop}\n",
        env=with_key,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert added.returncode == 0, added.stderr
    said = command(tmp_path, with_key, "connections", "list")
    assert "metastore, by shell:" in said
    assert "vitrina_reader@127.0.0.1" in said
    without = {name: value for name, value in with_key.items() if name != "VITRINA_SECRET_KEY"}
    assert "sealed" in command(tmp_path, without, "connections", "list")
    assert "PostgreSQL" in command(tmp_path, with_key, "connections", "test", "shop")
    assert "none is alive" in command(tmp_path, without, "connections", "test", "shop")
    assert "connection shop" in command(tmp_path, with_key, "doctor")
    assert "VITRINA_SECRET_KEY" in command(tmp_path, without, "doctor")
    made = command(tmp_path, with_key, "new", "--from", "shop.content.orders", "-f", "-")
    assert "source_connection: shop" in made
    assert "is deleted" in command(tmp_path, with_key, "connections", "remove", "shop")
    assert "connection 'shop' is not stored" in command(tmp_path, with_key, "connections", "remove", "shop")


def test_a_connection_of_any_kind_is_kept(keyed: httpx.Client, api_metastore: Connection) -> None:
    url = "elasticsearch+https://ada:quiet@search.example:9200?fingerprint=ab"
    kept = keyed.post(CONNECTIONS, json={"name": "logs", "url": url})
    assert (kept.status_code, kept.json()["connector"]) == (201, "search")
    [row] = api_metastore.execute("SELECT scheme, sealed FROM etl.etl_connections").fetchall()
    assert row["scheme"] == "elasticsearch+https"
    assert b"quiet" not in bytes(row["sealed"])
    for refused in ("mysql://ada:quiet@db.example/shop", f"{url}&ca_file=/etc/ssl/ca.pem"):
        answer = keyed.post(CONNECTIONS, json={"name": "other", "url": refused})
        assert answer.status_code == 422
        assert "quiet" not in answer.text

    mart = {"name": "films", "source_query": "SELECT id FROM content.film_work", "target_table": "analytics.films"}
    wrong = keyed.post("/api/v1/pipelines", json=mart | {"options": {"target_connection": "logs"}})
    assert wrong.status_code == 422
    assert "connection 'logs' belongs to connector search" in wrong.json()["detail"]
