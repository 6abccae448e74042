"""Log lines: for people or for programs, with the fields that were bound, and never with a secret."""

import io
import json
import logging
import warnings
from collections.abc import Iterator
from typing import Literal

import pytest
import structlog
from pydantic import SecretStr

from vitrina.observe import logs
from vitrina.settings import Settings

PASSWORD = "s3cr3t-p@ss/word é\"'"
IN_URL = "s3cr3t-p%40ss%2Fword%20%C3%A9%22%27"


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    logging.captureWarnings(False)
    structlog.reset_defaults()


@pytest.mark.parametrize("log_format", ["console", "json"])
@pytest.mark.parametrize(
    "settings",
    [
        {"database_url": f"postgresql://app:{IN_URL}@db/vitrina"},
        {"database_url": "postgresql://app@db/vitrina?password=" + IN_URL},
        {"admin_url": "host=db user=admin password='s3cr3t-p@ss/word é\"\\''"},
        {"reader_password": PASSWORD},
        {"token": PASSWORD},
        {"elasticsearch_api_key": PASSWORD},
        {"elasticsearch_url": f"http://one:9200,https://elastic:{IN_URL}@two:9200"},
        {"connections": {"billing": f"postgresql://reader:{IN_URL}@billing/db"}},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_no_secret_of_the_settings_gets_out(
    settings: dict[str, object], log_format: Literal["console", "json"]
) -> None:
    written = configured(Settings.model_validate({**settings, "log_format": log_format}))
    log = structlog.get_logger("vitrina.test")
    log.info(f"connecting with {PASSWORD}", url=f"postgresql://app:{IN_URL}@db", nested={"deep": [PASSWORD]})
    logging.getLogger("library").warning("it says %r", PASSWORD)
    try:
        raise_with_secret(PASSWORD)
    except ValueError:
        log.exception("failed", attempt=1)
    text = written.getvalue()
    assert "connecting with ***" in text
    assert "ValueError" in text
    for part in ("s3cr3t", "p@ss", "p%40ss"):
        assert part not in text


def test_a_password_of_a_url_that_nobody_configured_is_masked_too() -> None:
    written = configured(Settings())
    structlog.get_logger().error("cannot connect to postgresql://someone:hidden@host:5432/db")
    assert "postgresql://someone:***@host:5432/db" in written.getvalue()


def test_a_short_password_hides_only_where_it_stands_alone() -> None:
    written = configured(Settings(database_url=SecretStr("postgresql://postgres:postgres@db/cinema")))
    structlog.get_logger().info("postgresql is up", password="postgres")
    assert "postgresql is up" in written.getvalue()
    assert "password=***" in written.getvalue()


def test_json_lines_carry_the_bound_fields() -> None:
    written = configured(Settings(log_format="json"))
    with structlog.contextvars.bound_contextvars(pipeline="film_dim", run_id="42"):
        structlog.get_logger().info("batch done", rows=5000)
    line = json.loads(written.getvalue())
    assert line["timestamp"].endswith("Z")
    del line["timestamp"]
    assert line == {"event": "batch done", "level": "info", "pipeline": "film_dim", "run_id": "42", "rows": 5000}


def test_the_level_of_the_settings_counts_for_everybody() -> None:
    written = configured(Settings(log_level="warning"))
    structlog.get_logger().info("too quiet")
    logging.getLogger("library").info("too quiet")
    structlog.get_logger().warning("loud enough")
    assert "quiet" not in written.getvalue()
    assert "loud enough" in written.getvalue()


def test_chatty_libraries_speak_only_of_problems() -> None:
    written = configured(Settings())
    logging.getLogger("httpx").info("HTTP Request: GET /health")
    logging.getLogger("alembic.runtime.migration").warning("a problem")
    assert "HTTP Request" not in written.getvalue()
    assert "a problem" in written.getvalue()


def test_warnings_become_lines() -> None:
    written = configured(Settings())
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("something is deprecated", DeprecationWarning, stacklevel=1)
    assert "something is deprecated" in written.getvalue()


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)],
)
def test_colours_are_for_terminals_and_those_who_ask(
    variables: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    written = configured(Settings())
    structlog.get_logger().info("hello")
    assert ("\x1b[" in written.getvalue()) == coloured


def configured(settings: Settings) -> io.StringIO:
    written = io.StringIO()
    logs.configure(settings, stream=written)
    return written


def raise_with_secret(secret: str) -> None:
    raise ValueError(f"the server refused {secret}")


def test_a_line_has_a_bounded_length() -> None:
    """A cast that fails repeats the value it failed on."""
    written = configured(Settings(log_format="json"))
    structlog.get_logger().error("run.failed", error="x" * 47_000_000)
    logging.getLogger("library").error("y" * 1_000_000)
    lines = written.getvalue().splitlines()
    assert all(len(line) < 11_000 for line in lines)
    assert "46990000 more characters" in lines[0]
