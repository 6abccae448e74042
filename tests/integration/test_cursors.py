"""Cursors of every kind: what they promise, how they resume, and values at the edges."""

from datetime import datetime
from typing import Any

import pytest

from tests.support.workbench import Workbench
from vitrina.connectors.postgres.cursor import Cursor, guarantee
from vitrina.definition import Options

ROUTES = pytest.mark.parametrize("route", ["auto", "copy", "arrow"])

# Type of the cursor -> expression over i, in the order of i. Most clocks pass the present behind the 60th.
KINDS = {
    "timestamptz": "timestamptz '2024-01-01' + make_interval(years => i / 61 * 100, secs => i)",
    "timestamp": "timestamp '2024-01-01' + make_interval(secs => i)",
    "timestamptz(3)": "timestamptz '2024-01-01' + make_interval(years => i / 61 * 100, secs => i)",
    "date": "date '2024-01-01' + i / 61 * 36500 + i",
    "smallint": "i",
    "integer": "i",
    "bigint": "i",
    "numeric(12,2)": "i / 4.0",
    "text": "lpad(i::text, 6, '0')",
    "varchar(10)": "lpad(i::text, 6, '0')",
    "uuid": "lpad(to_hex(i), 32, '0')::uuid",
}


def make_events(bench: Workbench, kind: str, count: int = 60) -> None:
    bench.source(f"CREATE TABLE content.events (id int PRIMARY KEY, at {kind} NOT NULL, note text)")
    add_events(bench, kind, 1, count)


def add_events(bench: Workbench, kind: str, first: int, last: int) -> None:
    bench.sql(
        f"INSERT INTO content.events SELECT i, {KINDS[kind]}, 'n' || i FROM generate_series({first}, {last}) AS i"
    )


def make_pipeline(bench: Workbench, **fields: Any) -> None:
    defaults = {"target_key": ["id"], "mode": "incremental", "incremental_key": "at", "batch_size": 7}
    bench.pipeline("events", "SELECT id, at, note FROM content.events", **defaults | fields)


@ROUTES
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_cursor_resumes(workbench: Workbench, kind: str, route: str) -> None:
    make_events(workbench, kind)
    make_pipeline(workbench, options={"route": route})
    run = workbench.run("events")
    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    add_events(workbench, kind, 61, 90)

    run = workbench.run("events")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert workbench.differences("SELECT id, at, note FROM content.events", "analytics.events") == 0
    assert run["metrics"]["inserted"] == 30
    # The last value itself may be read again; everything before it is not.
    assert run["rows_read"] <= 31


@ROUTES
def test_microsecond_neighbours_and_infinity(workbench: Workbench, route: str) -> None:
    make_events(workbench, "timestamptz", count=3)
    make_pipeline(workbench, batch_size=1, incremental_id_key="id", options={"route": route})
    workbench.run("events")
    workbench.sql(
        """
        INSERT INTO content.events
        SELECT 100 + i, timestamptz '2100-01-01' + make_interval(secs => i * 0.000001), 'close'
        FROM generate_series(1, 5) AS i;
        INSERT INTO content.events VALUES (200, 'infinity', 'never'), (201, '-infinity', 'always');
        """
    )

    assert workbench.run("events")["status"] == "SUCCESS"

    # What lies before the checkpoint is not looked at again; everything after it arrives, however far or close.
    assert workbench.sql("SELECT id FROM analytics.events WHERE id >= 100 ORDER BY id") == [
        {"id": n} for n in (101, 102, 103, 104, 105, 200)
    ]


@ROUTES
def test_fan_out_where_key_and_id_are_not_unique(workbench: Workbench, route: str) -> None:
    make_events(workbench, "timestamptz", count=20)
    workbench.source(
        "CREATE TABLE content.tags (event int, tag int); INSERT INTO content.tags SELECT e, t FROM"
        " generate_series(1, 20) e, generate_series(1, 9) t"
    )
    query = "SELECT e.id, t.tag, e.at FROM content.events e JOIN content.tags t ON t.event = e.id"
    workbench.pipeline(
        "events",
        query,
        target_key=["id", "tag"],
        mode="incremental",
        incremental_key="at",
        incremental_id_key="id",
        batch_size=4,
        options={"route": route, "cursor_clock": "database"},
    )
    workbench.run("events")
    workbench.sql("UPDATE content.events SET at = now() WHERE id <= 10")

    run = workbench.run("events")

    assert (run["status"], run["rows_read"]) == ("SUCCESS", 90)
    assert workbench.differences(query, "analytics.events") == 0


@ROUTES
def test_numbers_that_are_equal_stay_together(workbench: Workbench, route: str) -> None:
    """1.0 and 1.00 are one place in the order: a checkpoint between them would pass the second one by."""
    workbench.source("CREATE TABLE content.events (id int PRIMARY KEY, at numeric NOT NULL, note text)")
    workbench.sql("INSERT INTO content.events VALUES (1, 0, 'first')")
    make_pipeline(workbench, batch_size=1, options={"route": route, "max_attempts": 20})
    workbench.run("events")
    workbench.sql("INSERT INTO content.events VALUES (2, 1.0, 'b'), (3, 1.00, 'c'), (4, 1.000, 'd'), (5, 2, 'e')")

    run = workbench.run_interrupted("events")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert workbench.differences("SELECT id, at, note FROM content.events", "analytics.events") == 0


@ROUTES
def test_rows_without_an_id_are_read_and_passed(workbench: Workbench, route: str) -> None:
    workbench.source("CREATE TABLE content.events (id int PRIMARY KEY, at int NOT NULL, part int, note text)")
    workbench.sql("INSERT INTO content.events VALUES (1, 0, 1, 'first')")
    query = "SELECT id, at, part, note FROM content.events"
    fields = {"target_key": ["id"], "mode": "incremental", "incremental_key": "at", "incremental_id_key": "part"}
    workbench.pipeline("events", query, batch_size=1, options={"route": route, "max_attempts": 20}, **fields)
    workbench.run("events")
    workbench.sql(
        "INSERT INTO content.events VALUES (2, 1, 1, 'b'), (3, 1, NULL, 'c'), (4, 1, NULL, 'd'), (5, 2, NULL, 'e'),"
        " (6, 3, 1, 'f')"
    )

    run = workbench.run_interrupted("events")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert workbench.differences(query, "analytics.events") == 0


def test_an_outer_join_may_leave_the_id_out(workbench: Workbench) -> None:
    """Its column has no NULL in its own table, which says nothing about the result."""
    workbench.source("CREATE TABLE content.events (id int PRIMARY KEY, at int NOT NULL, part int)")
    workbench.source("CREATE TABLE content.parts (id int PRIMARY KEY)")
    workbench.sql("INSERT INTO content.parts VALUES (1), (2)")
    workbench.sql("INSERT INTO content.events VALUES (1, 0, 1)")
    query = "SELECT e.id, e.at, p.id AS part FROM content.events e LEFT JOIN content.parts p ON p.id = e.part"
    fields = {"target_key": ["id"], "mode": "incremental", "incremental_key": "at", "incremental_id_key": "part"}
    workbench.pipeline("events", query, batch_size=1, options={"max_attempts": 20}, **fields)
    workbench.run("events")
    workbench.sql("INSERT INTO content.events VALUES (2, 1, 1), (3, 1, 2), (4, 1, NULL), (5, 2, 7)")

    workbench.run_interrupted("events")

    assert workbench.differences(query, "analytics.events") == 0


def test_lookback_reads_again_what_may_be_late(workbench: Workbench) -> None:
    make_events(workbench, "timestamptz", count=5)
    make_pipeline(workbench, options={"lookback_seconds": 3600})
    workbench.run("events")
    workbench.sql("INSERT INTO content.events VALUES (50, now() - interval '30 minutes', 'written by a slow clock')")

    assert workbench.run("events")["metrics"]["inserted"] == 1


def test_a_checkpoint_in_the_future_does_not_blind_the_pipeline(workbench: Workbench) -> None:
    """The clock was ahead once and has been put back: reading starts again from the clock."""
    make_events(workbench, "timestamptz", count=5)
    make_pipeline(workbench)
    workbench.run("events")
    workbench.sql("UPDATE etl.etl_state SET safe_upto = (now() + interval '1 day')::text")
    workbench.run("events")

    assert datetime.fromisoformat(workbench.checkpoint("events").safe_upto or "") < workbench.now()


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("timestamp with time zone", {"cursor_clock": "database"}, "exact"),
        ("timestamp with time zone", {}, "bounded-lag"),
        ("bigint", {"cursor_clock": "database"}, "exact"),
        ("date", {}, "bounded-lag"),
        ("text", {"cursor_clock": "database"}, "reconciled"),
        ("uuid", {}, "reconciled"),
    ],
)
def test_what_a_cursor_promises(kind: str, options: dict[str, Any], expected: str) -> None:
    assert guarantee(Cursor("at", kind), Options(**options)) == expected


def test_a_checkpoint_edited_by_hand_is_named(workbench: Workbench) -> None:
    workbench.source("CREATE TABLE content.event (id int PRIMARY KEY, at timestamptz NOT NULL DEFAULT now())")
    workbench.source("INSERT INTO content.event SELECT n FROM generate_series(1, 5) AS n")
    workbench.pipeline(
        "events", "SELECT id, at FROM content.event", target_key=["id"], incremental_key="at", mode="incremental"
    )
    workbench.run("events")
    assert workbench.run("events")["status"] == "SUCCESS"
    workbench.sql("UPDATE etl.etl_state SET safe_upto = 'garbage'")
    run = workbench.run("events")
    assert run["status"] == "FAILED"
    assert "the checkpoint" in run["error_message"]
    assert "garbage" in run["error_message"]
    assert "vitrina state" in run["error_message"]
