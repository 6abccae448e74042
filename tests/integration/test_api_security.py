"""Who may come in: tokens, roles, a brake on guessing, and no secret in anything that leaves the server."""

import io
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from uuid import uuid4

import httpx
import psycopg
import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from psycopg import sql
from pydantic import SecretStr

from tests.integration.api import DEFINITION, create, problem, serving
from tests.support.waiting import until
from vitrina.api.app import create_app
from vitrina.api.pool import make_pool
from vitrina.api.security import GuardedRoute, Needs
from vitrina.client import Client
from vitrina.errors import ConfigError, Unauthenticated
from vitrina.observe import logs
from vitrina.services import tokens
from vitrina.services.callers import Caller, Role
from vitrina.settings import Settings
from vitrina.store import database as postgres
from vitrina.store import events
from vitrina.store.database import Connection

REVOKE = "UPDATE etl.etl_api_tokens SET revoked_at = clock_timestamp() WHERE name = 'ci'"
SETUP = Caller("setup", Role.ADMIN)
PIPELINES = "/api/v1/pipelines"

# Routes that answer without a token: probes, and pages that hold nothing of the installation's.
OPEN_PATHS = {"/health", "/livez", "/readyz", "/metrics", "/version", "/", "/ui", "/ui/{path:path}", "/docs"}
OPEN_PATHS |= {"/openapi.json", "/schema/pipeline.json", "/api/v1/schema/pipeline.json"}


@pytest.fixture
def guarded(api_settings: Settings, api: httpx.Client) -> Iterator[httpx.Client]:
    """An API that wants tokens, on the emptied database."""
    with serving(api_settings.model_copy(update={"auth": "token"})) as client:
        yield client


@pytest.fixture
def secrets_by_role(api_metastore: Connection) -> dict[str, str]:
    return {role: tokens.create(api_metastore, SETUP, name=f"a-{role}", role=role)[1] for role in Role}


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


# --- tokens -------------------------------------------------------------------------------------------------------


def test_no_token_no_answer(guarded: httpx.Client) -> None:
    response = guarded.get(PIPELINES)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    found = problem(response)
    assert (found["code"], found["detail"]) == (
        "unauthenticated",
        "the request has no token: send `Authorization: Bearer <token>`",
    )


@pytest.mark.parametrize("secret", ["wrong", "vtr_" + "x" * 43, "vtr_" + "x" * 10_000, "Bearer", "vtr_é"])
def test_wrong_tokens(guarded: httpx.Client, secret: str) -> None:
    response = guarded.get(PIPELINES, headers={b"Authorization": f"Bearer {secret}".encode()})
    assert (response.status_code, problem(response)["code"]) == (401, "unauthenticated")


def test_a_token_works_until_it_is_revoked_or_expired(guarded: httpx.Client, api_metastore: Connection) -> None:
    row, secret = tokens.create(api_metastore, SETUP, name="ci", role=Role.VIEWER, expires_in_days=1)
    assert guarded.get(PIPELINES, headers=bearer(secret)).status_code == 200
    api_metastore.execute("UPDATE etl.etl_api_tokens SET expires_at = now() WHERE id = %s", [row["id"]])
    assert guarded.get(PIPELINES, headers=bearer(secret)).status_code == 401
    api_metastore.execute("UPDATE etl.etl_api_tokens SET expires_at = NULL WHERE id = %s", [row["id"]])
    assert guarded.get(PIPELINES, headers=bearer(secret)).status_code == 200
    tokens.revoke(api_metastore, SETUP, "ci")
    assert guarded.get(PIPELINES, headers=bearer(secret)).status_code == 401


@pytest.mark.parametrize(
    "ends", ["revoked_at = clock_timestamp()", "expires_at = clock_timestamp()"], ids=["revoked", "expired"]
)
def test_an_open_stream_ends_with_its_token(
    guarded: httpx.Client, api_metastore: Connection, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Require that what happens afterwards is not told."""
    monkeypatch.setattr("vitrina.api.routes.stream._TRUST_SECONDS", 0.0)
    _, secret = tokens.create(api_metastore, SETUP, name="ci", role=Role.VIEWER)
    newest = events.newest_id(api_metastore)
    with Client(str(guarded.base_url), secret) as client:
        stream = client.events(last_event_id=newest)
        events.publish(api_metastore, "before", {})
        assert next(stream).topic == "before"
        api_metastore.execute(f"UPDATE etl.etl_api_tokens SET {ends} WHERE name = 'ci'".encode())
        events.publish(api_metastore, "after", {})
        assert list(stream) == []
        with pytest.raises(Unauthenticated):
            next(client.events(last_event_id=newest))


def test_a_quiet_stream_ends_with_its_token(
    guarded: httpx.Client, api_metastore: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitrina.api.routes.stream._SIGN_OF_LIFE_SECONDS", 0.2)
    _, secret = tokens.create(api_metastore, SETUP, name="ci", role=Role.VIEWER)
    with guarded.stream("GET", "/api/v1/events", headers=bearer(secret)) as answer:
        lines = answer.iter_lines()
        assert [next(lines)[:6] for _ in range(6)] == [": ping", ""] * 3
        tokens.revoke(api_metastore, SETUP, "ci")
        deadline = time.monotonic() + 5
        assert all(time.monotonic() < deadline for _ in lines), "the stream goes on"


@pytest.mark.parametrize(
    ("meanwhile", "told"), [("SELECT", ["during"]), (REVOKE, [])], ids=["the token stays", "the token is revoked"]
)
def test_an_open_stream_outlasts_an_overloaded_api(
    api_settings: Settings, api_metastore: Connection, monkeypatch: pytest.MonkeyPatch, meanwhile: str, told: list[str]
) -> None:
    """Require that an event waits until the token can be looked up again."""
    monkeypatch.setattr("vitrina.api.routes.stream._TRUST_SECONDS", 0.0)
    monkeypatch.setattr("vitrina.api.routes.stream._LOOK_AGAIN_SECONDS", 0.1)
    monkeypatch.setattr("vitrina.api.app.make_pool", partial(make_pool, max_connections=1))
    _, secret = tokens.create(api_metastore, SETUP, name="ci", role=Role.VIEWER)
    newest = events.newest_id(api_metastore)
    settings, url = api_settings.model_copy(update={"auth": "token"}), api_settings.require_database_url()
    with (
        ThreadPoolExecutor() as threads,
        serving(settings, pool_timeout_seconds=0.2) as api,
        Client(str(api.base_url), secret) as client,
        postgres.connect(url, "vitrina:lock", autocommit=False) as lock,
    ):
        stream = client.events(last_event_id=newest)
        events.publish(api_metastore, "before", {})
        assert next(stream).topic == "before"
        lock.execute("LOCK TABLE etl.etl_api_tokens")
        lock.execute(meanwhile.encode())
        busy = threads.submit(api.get, PIPELINES, headers=bearer(secret))
        until(lambda: _waits(api_metastore))
        events.publish(api_metastore, "during", {})
        found = threads.submit(lambda: [event.topic for event in islice(stream, 1)])
        with pytest.raises(TimeoutError):
            found.result(timeout=1)
        lock.commit()
        assert found.result(timeout=10) == told
        assert busy.result().status_code == (200 if told else 401)


def _waits(connection: Connection) -> bool:
    """Whether the only session of the API's pool waits for the lock."""
    waiting = "SELECT FROM pg_stat_activity WHERE application_name = 'vitrina:api' AND wait_event_type = 'Lock'"
    return connection.execute(waiting).rowcount == 1


def test_only_the_hash_of_a_token_is_kept(api_settings: Settings, api_metastore: Connection) -> None:
    _, secret = tokens.create(api_metastore, SETUP, name="ci", role=Role.ADMIN)
    assert secret.startswith("vtr_")
    assert len(secret) >= len("vtr_") + 43
    assert secret not in everything_stored(api_settings)
    assert secret.removeprefix("vtr_") not in everything_stored(api_settings)


def test_tokens_over_http(guarded: httpx.Client, secrets_by_role: dict[str, str]) -> None:
    admin = bearer(secrets_by_role["admin"])
    made = guarded.post("/api/v1/tokens", json={"name": "airflow", "role": "operator"}, headers=admin)
    assert made.status_code == 201
    assert guarded.post(PIPELINES, json=DEFINITION, headers=bearer(made.json()["token"])).status_code == 201
    listed = guarded.get("/api/v1/tokens", headers=admin).json()["items"]
    assert [(token["name"], token["role"]) for token in listed][-1] == ("airflow", "operator")
    assert "token" not in listed[-1]
    assert "token_hash" not in listed[-1]
    again = guarded.post("/api/v1/tokens", json={"name": "airflow", "role": "viewer"}, headers=admin)
    assert again.status_code == 409
    assert guarded.delete("/api/v1/tokens/airflow", headers=admin).status_code == 204
    assert guarded.get(PIPELINES, headers=bearer(made.json()["token"])).status_code == 401
    assert guarded.delete("/api/v1/tokens/nobody", headers=admin).status_code == 404
    audit = guarded.get("/api/v1/audit", params={"object": "token:airflow"}, headers=admin).json()["items"]
    assert [(entry["who"], entry["action"]) for entry in audit] == [
        ("a-admin", "revoke_token"),
        ("a-admin", "create_token"),
    ]


def test_a_stranger_s_body_is_not_read(guarded: httpx.Client) -> None:
    json = {"content-type": "application/json"}
    for content in (b"{broken", b"{}", b"x" * 9_000_000):
        response = guarded.post(PIPELINES, content=content, headers=json)
        assert (response.status_code, problem(response)["code"]) == (401, "unauthenticated")


def test_guessing_is_slowed_down_but_right_tokens_pass(guarded: httpx.Client, secrets_by_role: dict[str, str]) -> None:
    viewer = bearer(secrets_by_role["viewer"])
    assert guarded.get(PIPELINES, headers=viewer).status_code == 200
    statuses = [guarded.get(PIPELINES, headers=bearer(f"vtr_{n}")).status_code for n in range(12)]
    assert statuses == [401] * 10 + [429] * 2
    refused = guarded.get(PIPELINES, headers=bearer("vtr_another"))
    assert problem(refused)["code"] == "too_many_requests"
    assert refused.headers["retry-after"] == "60"
    # Nobody is locked out by what somebody else sent from the same address, seen before or not.
    assert guarded.get(PIPELINES, headers=bearer(secrets_by_role["admin"])).status_code == 200
    assert guarded.get(PIPELINES, headers=viewer).status_code == 200


def test_an_address_is_believed_of_configured_proxies_only(
    api_settings: Settings, guarded: httpx.Client, secrets_by_role: dict[str, str]
) -> None:
    def statuses(client: httpx.Client) -> list[int]:
        pretended = [{"X-Forwarded-For": f"10.0.0.{n}"} | bearer(f"vtr_{n}") for n in range(12)]
        return [client.get(PIPELINES, headers=headers).status_code for headers in pretended]

    assert statuses(guarded) == [401] * 10 + [429] * 2
    behind_proxy = api_settings.model_copy(update={"auth": "token", "trusted_proxies": "127.0.0.1"})
    with serving(behind_proxy) as client:
        assert statuses(client) == [401] * 12


# --- values of rows -----------------------------------------------------------------------------------------------

POISON = (
    'invalid input syntax for type integer: "canary-1". Key (email)=(canary-2) exists.'
    " Failing row contains (canary-3, (x))."
)


def test_values_of_rows_in_messages_are_for_operators(
    guarded: httpx.Client, api_metastore: Connection, secrets_by_role: dict[str, str]
) -> None:
    operator, viewer = bearer(secrets_by_role["operator"]), bearer(secrets_by_role["viewer"])
    assert guarded.post(PIPELINES, json=DEFINITION, headers=operator).status_code == 201
    api_metastore.execute("UPDATE etl.etl_pipelines SET last_error = %s, status = 'FAILED'", [POISON])
    row = api_metastore.execute(
        """
        INSERT INTO etl.etl_runs (pipeline_id, pipeline_version, trigger, status, epoch, error_code, error_message,
                                  finished_at)
        SELECT id, 1, 'api', 'FAILED', 1, 'source_query_failed', %s, now() FROM etl.etl_pipelines RETURNING id
        """,
        [POISON],
    ).fetchone()
    assert row is not None
    api_metastore.execute(
        """
        INSERT INTO etl.etl_dead_letters (pipeline_id, run_id, document_id, error, document)
        SELECT id, %s, '1', %s, '{"email": "canary-4"}' FROM etl.etl_pipelines
        """,
        [row["id"], POISON],
    )
    paths = (PIPELINES, f"{PIPELINES}/films", f"{PIPELINES}/films/status", f"{PIPELINES}/films/runs", "/api/v1/runs")
    for path in (*paths, f"/api/v1/runs/{row['id']}", "/api/v1/overview", "/api/v1/dead-letters"):
        assert "canary" in guarded.get(path, headers=operator).text, path
        seen = guarded.get(path, headers=viewer)
        assert seen.status_code == 200
        assert "canary" not in seen.text, path
        assert "invalid input syntax for type integer" in seen.text, path


# --- every route --------------------------------------------------------------------------------------------------


def test_every_route_outside_the_open_ones_demands_a_token_and_the_right_role(
    guarded: httpx.Client, api_settings: Settings, secrets_by_role: dict[str, str]
) -> None:
    walked = 0
    for served in served_by(create_app(api_settings)):
        if served.path in OPEN_PATHS:
            assert served.needs is None, served
            continue
        assert served.needs is not None, f"{served} lets everybody in"
        path = concrete(served.path)
        assert guarded.request(served.method, path).status_code == 401, served
        for role in Role:
            # An event stream would never end; what matters is known before it begins.
            if served.path.endswith("/events") and role.includes(served.needs):
                continue
            answer = guarded.request(served.method, path, headers=bearer(secrets_by_role[role]))
            assert (answer.status_code != 403) == role.includes(served.needs), (served, role, answer.text)
            assert answer.status_code < 500, (served, role, answer.text)
        walked += 1
    assert walked > 60


def test_changing_needs_more_than_looking(api_settings: Settings) -> None:
    for served in served_by(create_app(api_settings)):
        if served.needs is None or served.path.endswith("/validate"):
            continue
        wants_more = served.method != "GET" or "/tokens" in served.path
        assert served.needs.includes(Role.OPERATOR) == wants_more, served


@dataclass(frozen=True)
class Served:
    """One path with one method."""

    method: str
    path: str
    needs: Role | None


def served_by(app: FastAPI) -> list[Served]:
    """Everything the application answers, the bare paths too, which its OpenAPI document does not show."""
    found = []
    for route in iter_route_contexts(app.routes):
        dependant = getattr(route.original_route, "dependant", None)
        if dependant and any(isinstance(part.call, Needs) for part in dependant.dependencies):
            assert isinstance(route.original_route, GuardedRoute), f"{route.path} would read a stranger's body"
        calls = [dependency.call for dependency in dependant.dependencies] if dependant else []
        roles = [call.role for call in calls if isinstance(call, Needs)]
        found += [
            Served(method, route.path or "", roles[0] if roles else None)
            for method in sorted((route.methods or set()) - {"HEAD"})
        ]
    return found


def concrete(path: str) -> str:
    values = {"pipeline": "films", "run_id": uuid4(), "request_id": uuid4(), "version": 1, "name": "nobody"}
    for name, value in values.items():
        path = path.replace(f"{{{name}}}", str(value))
    return path


@pytest.mark.parametrize(
    "statement", ["UPDATE etl.etl_audit SET who = 'nobody'", "DELETE FROM etl.etl_audit", "TRUNCATE etl.etl_audit"]
)
def test_the_audit_cannot_be_changed(api_metastore: Connection, statement: str) -> None:
    tokens.create(api_metastore, SETUP, name="ci", role=Role.VIEWER)
    with pytest.raises(psycopg.errors.RaiseException, match="append-only"):
        api_metastore.execute(statement)


# --- auth off -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "example.org", "::"])
def test_auth_off_is_for_loopback_only(api_settings: Settings, host: str) -> None:
    with pytest.raises(ConfigError, match="VITRINA_AUTH=off is for loopback addresses only"):
        create_app(api_settings, bind_host=host)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.1.2.3"])
def test_auth_off_is_accepted_on_loopback(api_settings: Settings, host: str) -> None:
    create_app(api_settings, bind_host=host)


def test_pages_from_elsewhere_cannot_use_a_server_without_auth(api: httpx.Client) -> None:
    create(api)
    foreign_page = api.post(f"{PIPELINES}/films/run", headers={"Origin": "http://evil.example"})
    no_address = api.post(f"{PIPELINES}/films/run", headers={"Origin": "http://["})
    rebound_name = api.get(PIPELINES, headers={"Host": "evil.example"})
    for response in (foreign_page, no_address, rebound_name):
        assert response.status_code == 403
    own_page = api.post(f"{PIPELINES}/films/run", headers={"Origin": str(api.base_url).rstrip("/")})
    assert own_page.status_code == 202


# --- what leaves the server ---------------------------------------------------------------------------------------


def test_security_headers_on_every_answer(api: httpx.Client) -> None:
    for path in (PIPELINES, f"{PIPELINES}/nobody", "/ui/", "/docs", "/health"):
        headers = api.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert "default-src 'self'" in headers["content-security-policy"]
        assert "access-control-allow-origin" not in headers
    assert api.get(PIPELINES).headers["cache-control"] == "no-store"


def test_an_answer_to_a_crash_has_the_headers_of_all_others(api: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise ZeroDivisionError

    usual = api.get(PIPELINES).headers
    monkeypatch.setattr("vitrina.api.paging.decode", crash)
    crashed = api.get(PIPELINES, headers={"X-Request-ID": "dag-1.task_2"})
    assert crashed.status_code == 500
    assert problem(crashed)["request_id"] == "dag-1.task_2"
    own = {"content-length", "content-type", "date", "x-request-id"}
    assert [name for name in usual if name not in own and crashed.headers.get(name) != usual[name]] == []


def test_pages_load_nothing_from_elsewhere(api: httpx.Client) -> None:
    assert api.get("/").headers["location"] == "/ui/"
    for path in ("/ui/", "/docs"):
        page = api.get(path)
        assert page.status_code == 200
        assert "http://" not in page.text.replace("http://127.0.0.1", "")
        assert "https://" not in page.text
        loaded = re.findall(r"<(?:script|link|img)[^>]* (?:src|href)=\"([^\"]*)\"", page.text)
        assert [address for address in loaded if not address.startswith("/ui/")] == []
        assert not re.search(r"<script(?![^>]* src=)", page.text), "scripts stand in files, which the policy can name"


def test_request_ids_are_kept_when_harmless(api: httpx.Client) -> None:
    assert api.get("/livez", headers={"X-Request-ID": "dag-1.task_2"}).headers["x-request-id"] == "dag-1.task_2"
    for strange in ("a b", "x" * 101, "<script>"):
        assert api.get("/livez", headers={"X-Request-ID": strange}).headers["x-request-id"] != strange


def test_canary_secrets_appear_nowhere(api_settings: Settings, api: httpx.Client, api_metastore: Connection) -> None:
    """The operator's secrets in no answer at all; what an author puts into parameters in no log and no audit row."""
    operators, authors = "canary-operator", "canary-author"
    settings = api_settings.model_copy(
        update={
            "auth": "token",
            "log_level": "debug",
            "token": SecretStr(f"{operators}-client"),
            "elasticsearch_url": SecretStr(f"http://elastic:{operators}-es@127.0.0.1:1"),
            "elasticsearch_api_key": SecretStr(f"{operators}-key"),
            "connections": {"crm": SecretStr(f"postgresql://crm:{operators}-crm@127.0.0.1:1/crm")},
        }
    )
    _, admin = tokens.create(api_metastore, SETUP, name="admin", role=Role.ADMIN)
    params = {"password": f"{authors}-param", "url": f"postgresql://u:{authors}-url@h/d"}
    tasks = [
        {"order_index": 0, "task_type": "SQL", "body": "SELECT id FROM content.film_work"},
        {"order_index": 1, "task_type": "PYTHON", "body": "step", "params": params},
    ]
    said = io.StringIO()
    logs.configure(settings, stream=said)
    try:
        with serving(settings) as client:
            client.headers.update(bearer(admin))
            heard = [client.post(PIPELINES, json=DEFINITION | {"source_connection": "crm", "tasks": tasks}).text]
            for served in served_by(create_app(settings)):
                if served.method == "GET" and not served.path.endswith("/events"):
                    heard.append(client.get(concrete(served.path)).text)
            for verb in ("run", "pause", "validate", "preview", "reload-config"):
                heard.append(client.post(f"{PIPELINES}/films/{verb}").text)
            heard.append(client.patch(f"{PIPELINES}/films", json={"batch_size": f"{authors}-value"}).text)
            heard.append(client.get(PIPELINES, headers=bearer("vtr_wrong")).text)
    finally:
        logs.configure(api_settings)
    assert "films" in heard[0]
    for answer in heard:
        assert operators not in answer
        assert admin not in answer
    assert f"{authors}-value" not in heard[-2]
    assert "method=GET" in said.getvalue()
    audited = " ".join(row["entry"] for row in api_metastore.execute("SELECT a::text AS entry FROM etl.etl_audit a"))
    assert "films" in audited
    for secret in (operators, authors, admin):
        assert secret not in said.getvalue()
        assert secret not in audited


def everything_stored(settings: Settings) -> str:
    assert settings.admin_url
    with postgres.connect(settings.admin_url.get_secret_value(), "vitrina:test") as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'etl'").fetchall()
        texts = []
        for table in tables:
            rows = connection.execute(
                sql.SQL("SELECT t::text AS row FROM etl.{} t").format(sql.Identifier(table["tablename"]))
            ).fetchall()
            texts += [row["row"] for row in rows]
    return "\n".join(texts)
