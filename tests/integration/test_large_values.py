"""Single values of many megabytes: what they take of the runner's memory, and where they are refused."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from tests.support.workbench import Workbench

MEGABYTE = 1 << 20
SIZE = 60 * MEGABYTE
QUERY = "SELECT id, body FROM content.{}"


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    """The same database under another name: rows travel through the runner."""
    assert workbench.settings.reader_url
    elsewhere = {"elsewhere": SecretStr(workbench.settings.reader_url.get_secret_value())}
    workbench.settings = workbench.settings.model_copy(update={"connections": elsewhere})
    return workbench


def pipeline(bench: Workbench, name: str, route: str) -> None:
    fields: dict[str, Any] = {"source_connection": "elsewhere", "target_key": ["id"]}
    if route == "arrow":
        fields["tasks"] = [
            {"order_index": 0, "task_type": "SQL", "body": QUERY.format(name)},
            {"order_index": 1, "task_type": "PYTHON", "body": "drop_columns", "params": {"columns": ["spare"]}},
        ]
        fields["tasks"][0]["body"] = QUERY.format(name).replace("body", "body, 1 AS spare")
    bench.pipeline(name, QUERY.format(name), **fields)


def table(bench: Workbench, name: str, size: int) -> None:
    """Small rows, a large one, and small ones."""
    bench.source(
        f"""
        CREATE TABLE content.{name} (id int PRIMARY KEY, body text);
        INSERT INTO content.{name}
        SELECT i, CASE WHEN i = 50 THEN repeat('0123456789abcdef', {size} / 16) ELSE 'small' END
        FROM generate_series(1, 100) AS i
        """
    )


def memory(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) << 10


# Behind steps the driver keeps a value as it came, as it is written, and as it is sent.
@pytest.mark.parametrize(("route", "times"), [("copy", 3), ("arrow", 5)])
def test_a_large_value_takes_a_few_times_its_size_at_most(bench: Workbench, route: str, times: int) -> None:
    for name, size in (("small", 16), ("large", SIZE)):
        table(bench, name, size)
        pipeline(bench, name, route)
    assert bench.run("small")["status"] == "SUCCESS"  # with everything that is loaded only once

    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
    before = memory("VmRSS")
    run = bench.run("large")
    grown = memory("VmHWM") - before
    assert (run["status"], run["error_message"], run["metrics"]["plan"]["route"]) == ("SUCCESS", None, route)
    assert grown < times * SIZE, f"{grown / SIZE:.2f} times"
    assert bench.differences(QUERY.format("large"), "analytics.large") == 0


@pytest.mark.parametrize("route", ["copy", "arrow"])
def test_a_value_above_the_limit_is_refused_by_name(bench: Workbench, route: str) -> None:
    bench.settings = bench.settings.model_copy(update={"max_value_mb": 2})
    table(bench, "films", 3 * MEGABYTE)
    pipeline(bench, "films", route)
    run = bench.run("films")
    assert run["status"] == "FAILED"
    for words in ("column body", "a value of 3 MB", "= 50", "VITRINA_MAX_VALUE_MB"):
        assert words in run["error_message"]
    bench.settings = bench.settings.model_copy(update={"max_value_mb": 3})
    assert bench.run("films")["status"] == "SUCCESS"
