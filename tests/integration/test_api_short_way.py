"""Whichever way a request takes, it is answered alike: each of them goes the short way, and FastAPI's own."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi.routing import RouteContext, iter_route_contexts

from tests.integration.api import create, serving
from vitrina.api.app import create_app
from vitrina.api.dispatch import Tree, is_plain
from vitrina.services import tokens
from vitrina.services.callers import Caller, Role
from vitrina.settings import Settings
from vitrina.store.database import Connection

JSON = {"content-type": "application/json"}
NOBODY = "00000000-0000-4000-8000-000000000000"
# In place of the parameters of a path. A pipeline that is not there is told after everything that is wrong with a body.
IDS = {"run_id": NOBODY, "request_id": NOBODY, "plan_id": NOBODY}
THERE = IDS | {"pipeline": "films", "version": "1", "name": "default"}
MISSING = THERE | {"pipeline": "nothing", "name": "nothing"}
BODIES: dict[str, tuple[bytes, dict[str, str]]] = {
    "none": (b"", {}),
    "none, though announced": (b"", JSON),
    "null": (b"null", JSON),
    "list": (b"[]", JSON),
    "unknown field": (b'{"nonsense": 1}', JSON),
    "wrong kinds": (b'{"name": 1, "batch_size": "x", "definition": 3, "documents": {}, "tasks": 1, "level": []}', JSON),
    "broken": (b'{"name": ', JSON),
    "two values": (b"{} {}", JSON),
    "not a number": (b'{"batch_size": NaN}', JSON),
    "endless number": (b'{"batch_size": ' + b"9" * 5_000 + b"}", JSON),
    "deep": (b"[" * 200 + b"]" * 200, JSON),
    "no UTF-8": (b'{"name": "\xff"}', JSON),
    "UTF-16": ('{"nonsense": 1}'.encode("utf-16"), JSON),
    "byte order mark": (b'\xef\xbb\xbf{"nonsense": 1}', JSON),
    "null character": (b'{"name": "\\u0000"}', JSON),
    "lone surrogate": (b'{"name": "\\ud800"}', JSON),
    "kind of its own": (b'{"nonsense": 1}', {"content-type": "application/merge-patch+json; charset=utf-8"}),
    "text": (b'{"nonsense": 1}', {"content-type": "text/plain"}),
    "form": (b"nonsense=1", {"content-type": "application/x-www-form-urlencoded"}),
    "of no kind": (b'{"nonsense": 1}', {}),
    "of a strange kind": (b'{"nonsense": 1}', {"content-type": "json"}),
}
QUERIES = ("{}=", "{}=%00", "{}=-1", "{}=nonsense", "{}=1&{}=2", "{}=0.5", "{}=2026-01-31T12:00:00Z", "{}=true")


@pytest.fixture(scope="module")
def routes(api_settings: Settings) -> list[RouteContext]:
    """One for each endpoint; their shorter paths lead to the same."""
    app = create_app(api_settings)
    return [found for found in iter_route_contexts(app.routes) if is_plain(found) and "/api/v1" in (found.path or "")]


@pytest.fixture
def ways(
    api: httpx.Client, api_settings: Settings, api_metastore: Connection, monkeypatch: pytest.MonkeyPatch
) -> Iterator["Ways"]:
    create(api, labels={"team": "core"})
    api_metastore.execute("UPDATE etl.etl_pipelines SET last_error = 'bad key: Key (id)=(secret 7) exists'")
    secrets = {
        role: tokens.create(api_metastore, Caller("setup", Role.ADMIN), name=role, role=role)[1]
        for role in (Role.VIEWER, Role.ADMIN)
    }
    settings = api_settings.model_copy(update={"auth": "token"})
    with serving(settings, request_wait_seconds=0.1) as short:
        monkeypatch.setattr(Tree, "of", lambda *_: Tree())
        with serving(settings, request_wait_seconds=0.1) as long:
            yield Ways(short, long, secrets)


class Ways:
    def __init__(self, short: httpx.Client, long: httpx.Client, secrets: dict[Role, str]) -> None:
        self._clients, self._secrets = (short, long), secrets

    def differ(self, method: str, path: str, role: Role | None = Role.ADMIN, **request: Any) -> tuple[Any, Any] | None:
        """The two answers, unless they are the same."""
        headers = request.pop("headers", {}) | {"X-Request-ID": "the-same"}
        if role:
            headers["Authorization"] = f"Bearer {self._secrets[role]}"
        short, long = (_seen(client.request(method, path, headers=headers, **request)) for client in self._clients)
        return None if short == long else (short, long)

    def counted(self) -> list[list[str]]:
        pages = (client.get("/metrics").text for client in self._clients)
        return [re.findall(r"^vitrina_http_request_duration_seconds_count.*$", page, re.M) for page in pages]


def _seen(answer: httpx.Response) -> tuple[int, dict[str, str], str]:
    """Without the moment at which it was asked."""
    told = {name: value for name, value in answer.headers.items() if name not in ("date", "content-length")}
    return answer.status_code, told, re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)", "(a moment)", answer.text)


def _path(route: RouteContext, values: dict[str, str]) -> str:
    return (route.path_format or "").format_map(values)


@pytest.mark.parametrize("role", [None, Role.VIEWER, Role.ADMIN])
def test_what_is_read_is_the_same_for_everybody(ways: Ways, routes: list[RouteContext], role: Role | None) -> None:
    read = [route for route in routes if route.methods == {"GET"}]
    assert len(read) > 25
    for route in read:
        for values in (THERE, MISSING):
            path = _path(route, values)
            assert ways.differ("GET", path, role) is None, path


def test_parameters_are_read_and_refused_alike(ways: Ways, routes: list[RouteContext]) -> None:
    asked = 0
    for route in routes:
        for field in route.dependant.query_params if route.methods == {"GET"} else []:
            for query in QUERIES:
                path = f"{_path(route, THERE)}?{query.replace('{}', field.alias)}&nonsense=1"
                assert ways.differ("GET", path) is None, path
                asked += 1
    assert asked > 200


def test_bodies_are_read_and_refused_alike(ways: Ways, routes: list[RouteContext]) -> None:
    asked = 0
    for route in routes:
        for method in (route.methods or set()) - {"GET"} if route.dependant.body_params else ():
            path = _path(route, MISSING)
            for kind, (content, headers) in BODIES.items():
                found = ways.differ(method, path, content=content, headers=headers)
                assert found is None, (method, path, kind)
                asked += 1
    assert asked > 15 * len(BODIES)


@pytest.mark.parametrize("role", [None, Role.VIEWER])
def test_who_may_not_is_refused_before_the_body_is_looked_at(
    ways: Ways, routes: list[RouteContext], role: Role | None
) -> None:
    for route in routes:
        for method in (route.methods or set()) - {"GET"}:
            path = _path(route, MISSING)
            assert ways.differ(method, path, role, content=b'{"name": ', headers=JSON) is None, (method, path)


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_long_answers_are_compressed_alike(ways: Ways, api: httpx.Client, encoding: str) -> None:
    for number in range(10):
        create(api, name=f"mart_{number}")
    for path in ("/api/v1/overview", "/api/v1/graph"):
        assert ways.differ("GET", path, Role.VIEWER, headers={"Accept-Encoding": encoding}) is None, path


def test_requests_are_counted_under_the_same_names(ways: Ways) -> None:
    for path in ("/api/v1/pipelines/films/runs", "/pipelines/films", "/api/v1/me", "/api/v1/nothing"):
        assert ways.differ("GET", path) is None
    short, long = ways.counted()
    assert len(short) == 4
    assert short == long
