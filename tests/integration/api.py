"""A real API for tests: uvicorn on a free loopback port, in a thread of the test's own process."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn

from vitrina.api.app import create_app
from vitrina.settings import Settings


@contextmanager
def serving(settings: Settings, **options: Any) -> Iterator[httpx.Client]:
    """A client of an API with these settings; the API ends with the block."""
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    config = uvicorn.Config(create_app(settings, **options), log_config=None, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        with httpx.Client(base_url=url, timeout=20, trust_env=False) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        listener.close()
    assert not thread.is_alive(), "the API did not stop"


def without_auth(settings: Settings, **changes: Any) -> Settings:
    return settings.model_copy(update={"auth": "off", **changes})


DEFINITION: dict[str, Any] = {
    "name": "films",
    "source_query": "SELECT id, title FROM content.film_work",
    "target_table": "analytics.films",
}


def create(api: httpx.Client, **fields: Any) -> dict[str, Any]:
    """A pipeline named `films`, unless said otherwise; each name gets its own target."""
    name = fields.get("name", DEFINITION["name"])
    response = api.post("/api/v1/pipelines", json=DEFINITION | {"target_table": f"analytics.{name}"} | fields)
    assert response.status_code == 201, response.text
    created: dict[str, Any] = response.json()
    return created


def problem(response: httpx.Response) -> dict[str, Any]:
    """The problem document of an error, whose form is checked here once for all."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    found: dict[str, Any] = response.json()
    assert found["type"] == "about:blank"
    assert found["status"] == response.status_code
    assert found["title"]
    assert found["instance"] == response.request.url.path
    assert found["request_id"] == response.headers["x-request-id"]
    return found
