"""What one request may carry, and that what it carried cannot break the answers to others."""

import re
import socket
import threading
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.integration.api import DEFINITION, create, problem, serving
from tests.support.waiting import until
from vitrina import json_values
from vitrina.api import middleware, server
from vitrina.api.feed import EventFeed
from vitrina.settings import Settings
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
    assert "nested more than" in problem(answer)["detail"]
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


# --- connections --------------------------------------------------------------------------------------------------


def test_connections_without_a_request_take_no_place_from_others(api_settings: Settings) -> None:
    """Also when there are more of them than places."""
    settings = api_settings.model_copy(update={"api_max_connections": 20})
    with serving(settings) as client, ExitStack() as opened:
        port = client.base_url.port
        assert port is not None
        for _ in range(60):
            half_open = opened.enter_context(socket.create_connection(("127.0.0.1", port)))
            half_open.sendall(b"GET /health HTTP/1.1\r\nHost: ")
        for _ in range(3):
            with httpx.Client(base_url=client.base_url, trust_env=False, timeout=30) as another:
                assert another.get("/livez").status_code == 200


def test_a_request_whose_headers_do_not_come_is_given_up(
    api_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEADER_SECONDS", 0.2)
    with serving(api_settings) as client:
        port = client.base_url.port
        assert port is not None
        with socket.create_connection(("127.0.0.1", port), timeout=60) as silent:
            assert silent.recv(1) == b""
        with socket.create_connection(("127.0.0.1", port), timeout=60) as slow:
            slow.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert slow.recv(100).startswith(b"HTTP/1.1 200")
            slow.sendall(b"GET /livez HTTP/1.1\r\nHost")
            while slow.recv(4096):
                pass


def test_connections_that_are_kept_behind_an_answer_take_no_place_from_others(api_settings: Settings) -> None:
    settings = api_settings.model_copy(update={"api_max_connections": 10})
    with serving(settings) as client, ExitStack() as opened:
        port = client.base_url.port
        assert port is not None
        for _ in range(30):
            kept = opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            kept.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert kept.recv(100).startswith(b"HTTP/1.1 200")
        for _ in range(3):
            with httpx.Client(base_url=client.base_url, trust_env=False, timeout=60) as another:
                assert another.get("/livez").status_code == 200


def test_a_body_that_does_not_come_is_given_up(api_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "BODY_SECONDS", 0.5)
    request = "POST /api/v1/pipelines HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with serving(api_settings) as client:
        port = client.base_url.port
        assert port is not None
        with socket.create_connection(("127.0.0.1", port), timeout=60) as slow:
            slow.sendall(f"{request}Content-Length: 100\r\n\r\n{{".encode())
            answer = slow.recv(4096)
            assert answer.startswith(b"HTTP/1.1 408")
            while b"body_too_slow" not in answer:
                answer += slow.recv(4096)


def test_streams_of_events_leave_half_of_the_places_to_others(api_settings: Settings) -> None:
    settings = api_settings.model_copy(update={"api_max_connections": 8})
    with serving(settings) as client, ExitStack() as opened:
        port = client.base_url.port
        assert port is not None
        for _ in range(4):
            stream = opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            stream.sendall(b"GET /api/v1/events?after=0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert stream.recv(100).startswith(b"HTTP/1.1 200")
        refused = problem(client.get("/api/v1/events"))
        assert refused["code"] == "too_many_requests"
        assert "4 event streams are open" in refused["detail"]
        assert client.get("/api/v1/pipelines").status_code == 200


def test_streams_that_begin_at_once_are_as_many_as_there_are_places(
    api_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(5)
    monkeypatch.setattr(EventFeed, "start", lambda _: together.wait(timeout=60))
    settings = api_settings.model_copy(update={"api_max_connections": 8})
    with serving(settings) as client, ExitStack() as opened:
        port = client.base_url.port
        assert port is not None
        streams = [opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)) for _ in range(5)]
        for stream in streams:
            stream.sendall(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answers = [stream.recv(12).removeprefix(b"HTTP/1.1 ") for stream in streams]
        assert sorted(answers) == [b"200"] * 4 + [b"429"]


def test_the_place_of_a_stream_that_has_ended_is_free(api_settings: Settings) -> None:
    settings = api_settings.model_copy(update={"api_max_connections": 2})
    with serving(settings) as client:
        for _ in range(3):
            with client.stream("GET", "/api/v1/events") as answer:
                assert answer.status_code == 200
            until(lambda: not _is_full(client))


def _is_full(client: httpx.Client) -> bool:
    with client.stream("GET", "/api/v1/events") as answer:
        return answer.status_code == 429


# --- keys and files -----------------------------------------------------------------------------------------------


def test_a_key_with_another_body_is_refused(api: httpx.Client) -> None:
    create(api, mode="incremental", incremental_key="updated_at")
    run, headers = f"{PIPELINES}/films/run", {"Idempotency-Key": "k1"}
    assert api.post(run, json={"since": "2026-01-01"}, headers=headers).status_code == 202
    again = api.post(run, json={"since": "2026-01-01"}, headers=headers)
    assert (again.status_code, again.headers["idempotent-replayed"]) == (202, "true")
    assert "asked_digest" not in again.text
    other = api.post(run, json={"since": "2020-01-01"}, headers=headers)
    assert other.status_code == 409
    assert "another body" in problem(other)["detail"]


def test_apply_takes_a_thousand_documents_and_lists_a_hundred_problems(api: httpx.Client) -> None:
    wrong = "---\n".join("apiVersion: vitrina/v1\nkind: Wrong\nmetadata: {}\nspec: {}\n" for _ in range(300))
    answer = api.post("/api/v1/apply", json={"documents": wrong})
    assert answer.status_code == 422
    found = problem(answer)
    assert len(found["errors"]) == 100
    assert "500 more" in found["detail"]
    assert len(answer.content) < 100_000
    tiny = "--- {}\n" * 100_000
    answer = api.post("/api/v1/apply", json={"documents": tiny})
    assert answer.status_code == 422
    assert "more than 1000 documents" in problem(answer)["detail"]


# --- heads --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        "GET /livez HTTP/1.1\r\n\r\n",
        "GET /livez HTTP/1.1\r\nHost: localhost\r\nHost: elsewhere\r\n\r\n",
        "GET /livez HTTP/1.1\r\nHost: localhost\r\nX: " + "x" * server.MAX_HEAD_BYTES + "\r\n\r\n",
        "GET /livez?" + "x" * server.MAX_HEAD_BYTES + " HTTP/1.1\r\nHost: localhost\r\n\r\n",
        # No end of a header, or of what stands between the parts of a body, ever comes.
        "GET /livez HTTP/1.1\r\nHost: localhost\r\nX: " + "x" * server.MAX_HEAD_BYTES,
        "POST /api/v1/pipelines HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nX: "
        + "x" * 2 * server.MAX_HEAD_BYTES,
    ],
    ids=["no host", "two hosts", "large header", "large address", "endless header", "endless trailer"],
)
def test_a_head_that_is_wrong_or_has_no_end_is_refused(api: httpx.Client, head: str) -> None:
    port = api.base_url.port
    assert port is not None
    with socket.create_connection(("127.0.0.1", port), timeout=60) as wrong:
        wrong.sendall(head.encode())
        answer = b""
        while received := wrong.recv(4096):
            answer += received
    assert answer.startswith(b"HTTP/1.1 400"), answer
    assert api.get("/livez").status_code == 200


@pytest.mark.parametrize("method", ["BREW", "PROPFIND", "GETS", "A" * 1000])
def test_a_method_of_any_name_is_told_what_can_be_used_instead(api: httpx.Client, method: str) -> None:
    for content in (b"", b"GET /livez HTTP/1.1"):
        answer = api.request(method, PIPELINES, content=content)
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST")
        assert problem(answer)["detail_said"]["params"] == {"method": method, "path": PIPELINES}
        assert api.get(PIPELINES).status_code == 200


def test_a_method_that_comes_in_parts_behind_another_request_does_not_mix_with_it(api: httpx.Client) -> None:
    port = api.base_url.port
    assert port is not None
    with socket.create_connection(("127.0.0.1", port), timeout=60) as talk, talk.makefile("rb") as answers:
        for first, second, status in (
            (b"BREW /livez HT", b"TP/1.1\r\nHost: localhost\r\n\r\n", b"405"),
            (b"GET /livez HT", b"TP/1.1\r\nHost: localhost\r\n\r\n", b"200"),
        ):
            talk.sendall(first)
            talk.sendall(second)
            head = b"".join(iter(answers.readline, b"\r\n"))
            assert head.split()[1] == status, head
            found = re.search(rb"content-length: (\d+)", head)
            assert found
            answers.read(int(found[1]))
