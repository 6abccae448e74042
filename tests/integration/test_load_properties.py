"""Whatever the schema, the data, the batch size and the interruptions: in the end the mart equals the source."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from tests.support.workbench import NO_HEARTBEAT_SECONDS, Workbench
from vitrina.loads.control import RunControl
from vitrina.runner.dispatcher import PipelineDispatcher
from vitrina.store import pipelines

pytestmark = pytest.mark.usefixtures("either_way")

TEXTS = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=8)
COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "integer": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "numeric(8,3)": st.decimals(-99999, 99999, places=3),
    "numeric": st.decimals(allow_nan=False, places=5, min_value=-(10**12), max_value=10**12),
    "double precision": st.floats(),
    "boolean": st.booleans(),
    "text": TEXTS,
    "character varying(8)": TEXTS,
    "date": st.dates(),
    "timestamp with time zone": st.datetimes(timezones=st.timezones()),
    "text[]": st.lists(TEXTS, max_size=3),
    "jsonb": st.recursive(
        st.none() | st.booleans() | st.integers(-(10**9), 10**9) | TEXTS, lambda inner: st.lists(inner, max_size=3)
    ),
    "uuid": st.uuids(),
}


@dataclass(frozen=True)
class Scenario:
    kinds: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    changed: tuple[tuple[int, tuple[Any, ...]], ...]
    removed: frozenset[int]
    batch_size: int
    mode: str
    route: str
    pauses: int
    chunk: int


@st.composite
def scenarios(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Scenario:
    kinds = tuple(draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=0, max_size=4)))
    row = st.tuples(*(st.none() | COLUMNS[kind] for kind in kinds))
    rows = tuple(draw(st.lists(row, min_size=1, max_size=40)))
    changed = draw(st.lists(st.tuples(st.integers(0, len(rows) + 5), row), max_size=8))
    mode = draw(st.sampled_from(["full", "incremental"]))
    removed = draw(st.frozensets(st.integers(0, len(rows) - 1), max_size=len(rows) // 3)) if mode == "full" else ()
    return Scenario(
        kinds=kinds,
        rows=rows,
        changed=tuple(changed),
        removed=frozenset(removed),
        batch_size=draw(st.integers(1, 15)),
        mode=mode,
        route=draw(st.sampled_from(["auto", "copy", "arrow"])),
        pauses=draw(st.integers(0, 2)),
        chunk=draw(st.sampled_from([5, 1_000_000])),
    )


@pytest.mark.timeout(300)
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(scenario=scenarios())
def test_the_mart_always_ends_equal_to_the_source(workbench: Workbench, scenario: Scenario) -> None:
    query = make_source(workbench, scenario)
    make_pipeline(workbench, scenario, query)
    run_with_pauses(workbench, scenario.pauses)
    assert workbench.differences(query, "analytics.things", "*") == 0

    change_source(workbench, scenario)
    run_with_pauses(workbench, scenario.pauses)
    assert workbench.differences(query, "analytics.things", "*") == 0

    again = workbench.run("things")
    assert (again["status"], again["rows_written"], again["rows_deleted"]) == ("SUCCESS", 0, 0)


def make_source(bench: Workbench, scenario: Scenario) -> str:
    columns = "".join(f", c{n} {kind}" for n, kind in enumerate(scenario.kinds))
    bench.sql("DROP TABLE IF EXISTS content.things, analytics.things; TRUNCATE etl.etl_pipelines CASCADE")
    bench.source(
        f"CREATE TABLE content.things (id int PRIMARY KEY{columns}, modified timestamptz NOT NULL DEFAULT now())"
    )
    for number, row in enumerate(scenario.rows):
        put(bench, scenario, number, row)
    names = "".join(f", c{n}" for n in range(len(scenario.kinds)))
    return f"SELECT id{names}, modified FROM content.things"


def put(bench: Workbench, scenario: Scenario, number: int, row: tuple[Any, ...]) -> None:
    values = [bench_value(kind, value) for kind, value in zip(scenario.kinds, row, strict=True)]
    slots = "".join(f", %s::{kind}" for kind in scenario.kinds)
    bench.admin.execute("DELETE FROM content.things WHERE id = %s", [number])
    bench.admin.execute(f"INSERT INTO content.things VALUES (%s{slots}, clock_timestamp())", [number, *values])


def bench_value(kind: str, value: Any) -> Any:
    return Jsonb(value) if kind == "jsonb" and value is not None else value


def make_pipeline(bench: Workbench, scenario: Scenario, query: str) -> None:
    incremental = scenario.mode == "incremental"
    bench.pipeline(
        "things",
        query,
        target_key=["id"],
        mode=scenario.mode,
        incremental_key="modified" if incremental else None,
        incremental_id_key="id" if incremental else None,
        batch_size=scenario.batch_size,
        options={"route": scenario.route, "checkpoint_rows": scenario.chunk, "allow_shrink": True},
    )


def change_source(bench: Workbench, scenario: Scenario) -> None:
    for number in scenario.removed:
        bench.sql(f"DELETE FROM content.things WHERE id = {number}")
    for number, row in scenario.changed:
        put(bench, scenario, number, row)


def run_with_pauses(bench: Workbench, pauses: int) -> None:
    """Ask for a pause as soon as the run has begun, some times, then let it finish."""
    row = pipelines.find(bench.metastore, "things")
    assert row is not None
    for _ in range(pauses):
        bench.request("things")
        claim = bench.claim()
        assert pipelines.request_pause(bench.metastore, row["id"])
        PipelineDispatcher(bench.settings).work(claim, RunControl(NO_HEARTBEAT_SECONDS, threading.Event()))
        assert bench.status("things") == "PAUSED", bench.last_run("things")["error_message"]
    run = bench.run("things")
    assert run["status"] == "SUCCESS", run["error_message"]


@pytest.fixture(autouse=True)
def quick_checkpoints(workbench: Workbench) -> None:
    workbench.sql("SET synchronous_commit = off")
