"""A real API for tests: in a thread of the test's own process, or as the process that people start."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.ports import kept_port
from vitrina.api.app import create_app
from vitrina.api.server import make_server
from vitrina.client import Client
from vitrina.errors import CannotConnect
from vitrina.settings import Settings


@contextmanager
def serving(settings: Settings, **options: Any) -> Iterator[httpx.Client]:
    """A client of an API with these settings; the API ends with the block."""
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = make_server(create_app(settings, **options), listener, settings=settings)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(timeout=60)
        listener.close()
    assert not thread.is_alive(), "the API did not stop"


@contextmanager
def api_process(
    settings: Settings, directory: Path, *, arguments: Sequence[str] = (), **more: str
) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """`vitrina api`, which wants tokens, and its URL; with `more` in its environment; its output goes to `api.log`."""
    environment = {
        "PATH": os.environ["PATH"],
        "VITRINA_DATABASE_URL": settings.require_database_url(),
        "VITRINA_LOG_FORMAT": "json",
    }
    log = directory / "api.log"
    with kept_port() as port, log.open("w") as output:
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name("vitrina")), "api", "--port", str(port), *arguments],
            env=environment | more,
            cwd=directory,
            stdout=output,
            stderr=output,
            text=True,
        )
        url = f"http://127.0.0.1:{port}"
        try:
            wait_until_healthy(process, url, log)
            yield process, url
        finally:
            process.kill()
            process.wait()


def wait_until_healthy(process: "subprocess.Popen[str]", url: str, log: Path, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    with Client(url) as client:
        while time.monotonic() < deadline:
            assert process.poll() is None, log.read_text()
            try:
                if client.health().status == "ok":
                    return
            except CannotConnect:
                pass
            time.sleep(0.1)
    pytest.fail(f"no healthy API within {seconds} s: {log.read_text()}")


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


def wrong_fields(answer: dict[str, Any]) -> list[dict[str, str]]:
    """What is wrong with which field, in words: how the words were made, and where in a query, has tests of its own."""
    return [{name: error[name] for name in ("path", "message", "code")} for error in answer["errors"]]
