"""What is loaded for a command, and for a runner at rest: as little as they need."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from vitrina.cli.app import COMMANDS, called

_LARGE = ("alembic", "fastapi", "httpx", "psycopg", "pyarrow", "rich", "sqlalchemy", "vitrina.sqlguard", "yaml")
# Each of these takes as long as all the rest of a command that calls the API.
_NOT_FOR_CALLS = (
    "dotenv",
    "importlib.metadata",
    "pydantic",
    "vitrina.schemas",
    "vitrina.sentences",
    "vitrina.settings",
)


def loaded_by(code: str, *names: str) -> list[str]:
    asked = f"{code}\nimport sys\nprint([name for name in {names!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    names_found: list[str] = eval(found.stdout.splitlines()[-1])
    return names_found


def loaded_by_command(command: str, url: str, code: int, *names: str) -> list[str]:
    return loaded_by(
        f"""
import os, sys
os.environ["VITRINA_API_URL"] = {url!r}
sys.argv = ["vitrina", *{command.split()!r}]
import vitrina.cli
try:
    vitrina.cli.main()
except SystemExit as ended:
    assert (ended.code or 0) == {code}, ended.code
""",
        *names,
    )


COMMANDS_THAT_CALL = ["pipelines", "status films", "run films", "pause films", "runs", "runs -o json", "logs films"]


@pytest.mark.parametrize("command", COMMANDS_THAT_CALL)
def test_a_command_that_calls_the_api_loads_nothing_large(command: str) -> None:
    """Nobody listens there: that is said, and all that a call takes has been loaded by then."""
    assert loaded_by_command(command, "http://127.0.0.1:1", 4, *_LARGE, *_NOT_FOR_CALLS) == []


@pytest.mark.parametrize("command", ["pipelines", "runs", "pause films"])
def test_an_answer_is_shown_without_its_model(command: str, answering: str) -> None:
    assert loaded_by_command(command, answering, 0, *_LARGE, *_NOT_FOR_CALLS) == []


PIPELINE = {
    "name": "films", "status": "IDLE", "enabled": True, "mode": "full", "target_table": "analytics.films",
    "schedule_interval": None, "batch_size": 1, "version": 1,
}  # fmt: skip
RUN = {
    "id": "7d6c", "pipeline": "films", "status": "SUCCESS", "rows_read": 3, "rows_deleted": 0, "duration_seconds": 0.5,
    "metrics": {"inserted": 3}, "started_at": "2025-03-01T12:00:00Z", "trigger": "api", "error_message": None,
}  # fmt: skip
ANSWERS = {
    "/api/v1/pipelines": {"items": [PIPELINE], "next_cursor": None},
    "/api/v1/runs": {"items": [RUN], "next_cursor": None},
    "/api/v1/pipelines/films/pause": {"pipeline": "films", "status": "PAUSED", "message": "resume it"},
}


class Answering(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps(ANSWERS[self.path.partition("?")[0]]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def answering() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_runner_at_rest_has_no_arrow() -> None:
    code = """
from vitrina.loads import steps
from vitrina.runner import manager
from vitrina.settings import Settings
assert any(step["name"] == "select_columns" for step in steps.describe(Settings()))
"""
    assert loaded_by(code, "pyarrow", "adbc_driver_manager") == []


def test_one_command_is_made_for_its_name_and_all_for_anything_else() -> None:
    assert [entry.place for entry in called(["status", "films"])] == ["pipelines.status"]
    for words in ([], ["--help"], ["--version"], ["satus"]):
        assert called(words) == COMMANDS
