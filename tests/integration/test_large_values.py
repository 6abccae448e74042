"""Single values of many megabytes: what they take of the runner's memory, and where they are refused."""

import re
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pydantic import SecretStr

from tests.support.workbench import Workbench
from vitrina.connectors.postgres import sampling
from vitrina.loads.control import RunControl
from vitrina.runner import requests
from vitrina.store import pipelines
from vitrina.store.leases import Claim
from vitrina.transforms import StepContext, transform

MEGABYTE = 1 << 20
# More than a batch may hold: smaller values count as batches do.
SIZE = 72 * MEGABYTE
# What a batch of small rows takes beside it.
BESIDE = 32 * MEGABYTE
QUERY = "SELECT id, body FROM content.{}"


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    """The same database under another name: rows travel through the runner."""
    assert workbench.settings.reader_url
    elsewhere = {"elsewhere": SecretStr(workbench.settings.reader_url.get_secret_value())}
    workbench.settings = workbench.settings.model_copy(update={"connections": elsewhere})
    return workbench


def pipeline(bench: Workbench, name: str, route: str, columns: str = "id, body") -> None:
    query = f"SELECT {columns} FROM content.{name}"
    fields: dict[str, Any] = {"source_connection": "elsewhere", "target_key": ["id"]}
    if route == "arrow":
        fields["options"] = {"route": "arrow"}
    if route == "workers":
        fields["options"] = {"parallel": 2}
    if route in ("steps", "workers"):
        fields["tasks"] = [
            {"order_index": 0, "task_type": "SQL", "body": query.replace(" FROM", ", 1 AS spare FROM")},
            {"order_index": 1, "task_type": "PYTHON", "body": "drop_columns", "params": {"columns": ["spare"]}},
        ]
    bench.pipeline(name, query, **fields)


def table(bench: Workbench, name: str, size: int, large: str = "50") -> None:
    """Small rows, large ones, and small ones."""
    bench.source(
        f"""
        CREATE TABLE content.{name} (id int PRIMARY KEY, body text);
        INSERT INTO content.{name}
        SELECT i, CASE WHEN i IN ({large}) THEN repeat('0123456789abcdef', {size} / 16) ELSE 'small' END
        FROM generate_series(1, 100) AS i
        """
    )


def memory(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) << 10


# Arrow: as the socket gave it, as libpq hands it over, and in the batch.
@pytest.mark.parametrize(
    ("route", "large", "times"),
    [("copy", "50, 51", 3), ("arrow", "50", 3), ("steps", "50", 3), ("workers", "50", 4)],
)
def test_a_large_value_takes_a_few_times_its_size_at_most(bench: Workbench, route: str, large: str, times: int) -> None:
    for name, size in (("small", 16), ("large", SIZE)):
        table(bench, name, size, large)
        pipeline(bench, name, route)
    assert bench.run("small")["status"] == "SUCCESS"  # with everything that is loaded only once

    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
    before = memory("VmRSS")
    run = bench.run("large")
    grown = memory("VmHWM") - before
    taken = "copy" if route == "copy" else "arrow"
    assert (run["status"], run["error_message"], run["metrics"]["plan"]["route"]) == ("SUCCESS", None, taken)
    assert grown < times * SIZE + BESIDE, f"{grown / SIZE:.2f} times"
    assert bench.differences(QUERY.format("large"), "analytics.large") == 0


@pytest.mark.parametrize("route", ["arrow", "steps"])
def test_values_beside_a_large_one_are_exact(bench: Workbench, route: str) -> None:
    """Wide rows are written by us, not by the driver."""
    bench.source(
        """
        CREATE TABLE content.wide (
            id int PRIMARY KEY, body text, raw bytea, i2 smallint, i8 bigint, f4 real, f8 double precision, b boolean,
            u uuid, d date, t time, ts timestamp, tz timestamptz, n numeric(12, 3), doc jsonb, words varchar(9)
        );
        INSERT INTO content.wide VALUES
        (1, repeat('Ж', 10 << 20), decode(repeat('00ff5c', 1 << 20), 'hex'), -32768, -9223372036854775808, 'NaN',
         '-Infinity', true, '00112233-4455-6677-8899-aabbccddeeff', '1969-12-31', '23:59:59.999999',
         '1999-12-31 23:59:59.999999', '0001-01-01 00:00:00.000001+00', -12.345, '{"a": [1, null]}', 'a'),
        (2, '', '', 32767, 9223372036854775807, 0.1, 0.1, false, 'ffffffff-ffff-ffff-ffff-ffffffffffff', '2000-01-01',
         '00:00', '2000-01-01', '2026-11-16 01:02:03.000004+00', 0, '"x"', '');
        INSERT INTO content.wide (id) VALUES (3)
        """
    )
    columns = "id, body, raw, i2, i8, f4, f8, b, u, d, t, ts, tz, n, doc, words"
    pipeline(bench, "wide", route, columns)
    run = bench.run("wide")
    assert (run["status"], run["error_message"], run["rows_written"]) == ("SUCCESS", None, 3)
    assert bench.differences(f"SELECT {columns} FROM content.wide", "analytics.wide") == 0


@pytest.mark.parametrize("route", ["copy", "arrow", "steps"])
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


# --- what is read before a run, or instead of one ------------------------------------------------------------------


@transform("largest_of_all")
def largest_of_all(batch: pa.RecordBatch, *, context: StepContext) -> pa.RecordBatch:
    """Reads a reference of one row that no runner should be given."""
    context.reference("SELECT id, a, b FROM content.films")
    return batch


def ask(bench: Workbench, kind: str, name: str = "films", **payload: Any) -> tuple[dict[str, Any], str]:
    """What a runner answers, and its refusal's words."""
    row = pipelines.find(bench.metastore, name)
    assert row is not None
    request = {"id": uuid4(), "kind": kind, "pipeline_id": row["id"], "payload": payload}
    result, error = requests.perform(request, bench.metastore, bench.settings, _no_lease_is_needed)
    return result or {}, error["message"] if error else ""


def _no_lease_is_needed(claim: Claim, claimed_at: float) -> AbstractContextManager[RunControl]:
    raise AssertionError("looking needs no lease")


def growth(bench: Workbench, kind: str, **payload: Any) -> tuple[int, dict[str, Any], str]:
    """Ask twice: the second time, what is loaded only once is there."""
    ask(bench, kind, **payload)
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    result, refusal = ask(bench, kind, **payload)
    return memory("VmHWM") - before, result, refusal


def giant(bench: Workbench, *small_rows: int) -> None:
    """One row of 60 MB in three values, each of which could be carried."""
    small = "".join(f", ({row}, 'a', 'b', 'c')" for row in small_rows)
    bench.source(
        f"""
        CREATE TABLE content.films (id int PRIMARY KEY, a text, b text, c bytea);
        INSERT INTO content.films VALUES
        (1, repeat('x', 24 << 20), repeat('y', 24 << 20), decode(repeat('00', 12 << 20), 'hex')){small}
        """
    )


def test_steps_are_tried_with_the_rows_beside_a_giant_one(bench: Workbench) -> None:
    giant(bench, 2, 3)
    pipeline(bench, "films", "steps", "id, a, b, c")
    grown, found, _ = growth(bench, "validate")
    assert [column["name"] for column in found["columns"]] == ["id", "a", "b", "c"]
    assert grown < BESIDE, f"{grown / MEGABYTE:.0f} MB"


def test_steps_are_tried_with_a_giant_row_when_there_is_no_other(bench: Workbench) -> None:
    giant(bench)
    pipeline(bench, "films", "steps", "id, a, b, c")
    assert [column["name"] for column in ask(bench, "validate")[0]["columns"]] == ["id", "a", "b", "c"]

    bench.settings = bench.settings.model_copy(update={"max_value_mb": 30})
    grown, _, refusal = growth(bench, "validate")
    assert refusal.startswith("the first row of the query has 60 MB; the steps are tried with rows of up to 30 MB: ")
    assert "VITRINA_MAX_VALUE_MB" in refusal
    assert grown < BESIDE, f"{grown / MEGABYTE:.0f} MB"


def test_a_preview_of_steps_is_refused_before_a_giant_row_comes(bench: Workbench) -> None:
    giant(bench, 2, 3)
    pipeline(bench, "films", "steps", "id, a, b, c")
    grown, _, refusal = growth(bench, "preview", limit=10)
    assert refusal.startswith("the first 10 rows are more than 8 MB: ask for fewer")
    assert grown < BESIDE, f"{grown / MEGABYTE:.0f} MB"


def test_a_reference_is_refused_before_a_giant_row_comes(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "MAX_REFERENCE_BYTES", 30 * MEGABYTE)
    giant(bench)
    query = "SELECT 1 AS id"
    tasks = [
        {"order_index": 0, "task_type": "SQL", "body": query},
        {"order_index": 1, "task_type": "PYTHON", "body": "largest_of_all"},
    ]
    bench.pipeline("films", query, tasks=tasks, target_key=["id"], source_connection="elsewhere")
    grown, _, refusal = growth(bench, "validate")
    assert "a reference query gives more than 30 MB: join it in the source query instead" in refusal
    assert grown < BESIDE, f"{grown / MEGABYTE:.0f} MB"
