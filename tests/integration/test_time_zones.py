"""Cursors without a time zone: which one is meant, what is done about the hour that comes twice."""

from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest

from tests.support.workbench import Workbench
from vitrina.connectors.postgres import cursor as cursors
from vitrina.connectors.postgres.cursor import Cursor

QUERY = "SELECT id, at FROM content.events"
FIELDS = {"target_key": ["id"], "mode": "incremental", "incremental_key": "at"}
# No summer time, far from UTC and from wherever this runs.
WEST, EAST = "Pacific/Honolulu", "Pacific/Auckland"


def set_server_zone(bench: Workbench, zone: str) -> None:
    [row] = bench.sql("SELECT current_database() AS name")
    bench.sql(f"ALTER DATABASE {row['name']} SET timezone = '{zone}'")


def write(bench: Workbench, zone: str, *ids: int) -> None:
    """As an application does whose sessions have the server's own zone."""
    for number in ids:
        bench.sql(f"INSERT INTO content.events VALUES ({number}, clock_timestamp() AT TIME ZONE '{zone}')")


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    workbench.source("CREATE TABLE content.events (id int PRIMARY KEY, at timestamp NOT NULL)")
    return workbench


@pytest.mark.parametrize("zone", [WEST, EAST])
def test_the_zone_is_the_servers_unless_it_is_said(bench: Workbench, zone: str) -> None:
    set_server_zone(bench, zone)
    bench.pipeline("events", QUERY, **FIELDS)
    write(bench, zone, 1, 2)
    assert bench.run("events")["status"] == "SUCCESS"
    write(bench, zone, 3, 4)
    assert bench.run("events")["status"] == "SUCCESS"
    write(bench, zone, 5, 6)
    run = bench.run("events")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert bench.differences(QUERY, "analytics.events") == 0
    assert run["metrics"]["guarantee"] == "bounded-lag"
    assert any(f"{zone} is assumed" in text for text in run["metrics"]["plan"]["warnings"])


def test_an_open_transaction_holds_the_checkpoint_back_in_that_zone(bench: Workbench) -> None:
    set_server_zone(bench, WEST)
    bench.pipeline("events", QUERY, **FIELDS)
    write(bench, WEST, 1)
    bench.run("events")
    with bench.admin.transaction():
        write(bench, WEST, 2)
        # Another session writes and commits, and is read, while the first one is still at work.
        _in_another_session(bench, f"INSERT INTO content.events VALUES (3, clock_timestamp() AT TIME ZONE '{WEST}')")
        assert bench.run("events")["status"] == "SUCCESS"
    bench.run("events")

    assert bench.differences(QUERY, "analytics.events") == 0


def _in_another_session(bench: Workbench, statement: str) -> None:
    assert bench.settings.admin_url is not None
    with psycopg.connect(bench.settings.admin_url.get_secret_value(), autocommit=True) as session:
        session.execute(statement)


def test_values_from_the_future_of_the_zone_are_refused(bench: Workbench) -> None:
    """Written east of the zone that is assumed: nobody would know what may still come."""
    bench.pipeline("events", QUERY, **FIELDS, options={"cursor_timezone": WEST})
    write(bench, EAST, 1)

    run = bench.run("events")

    assert run["status"] == "FAILED"
    assert "more than 15 minutes in the future in the time zone Pacific/Honolulu" in run["error_message"]
    assert "set options.cursor_timezone" in run["error_message"]
    bench.change("events", options={"cursor_timezone": EAST})
    assert bench.run("events")["status"] == "SUCCESS"


@pytest.mark.parametrize(
    ("zone", "moment", "lowest"),
    [
        # Clocks go back from 2:00 to 1:00 at 6:00 UTC: from 1:00 on, whatever is written is 1:00 or later.
        ("America/New_York", "2024-11-03 04:30:00+00", "2024-11-03 00:30:00"),
        ("America/New_York", "2024-11-03 05:20:00+00", "2024-11-03 01:00:00"),
        ("America/New_York", "2024-11-03 05:59:59+00", "2024-11-03 01:00:00"),
        ("America/New_York", "2024-11-03 06:10:00+00", "2024-11-03 01:10:00"),
        # By half an hour.
        ("Australia/Lord_Howe", "2024-04-06 14:40:00+00", "2024-04-07 01:30:00"),
        # Forward: an hour is missing, and nothing comes twice.
        ("America/New_York", "2024-03-10 06:59:00+00", "2024-03-10 01:59:00"),
    ],
)
def test_the_hour_that_comes_twice_is_read_twice(bench: Workbench, zone: str, moment: str, lowest: str) -> None:
    cursor = Cursor("at", "timestamp without time zone", zone=zone)
    at = datetime.fromisoformat(moment)
    assert cursors.lowest_to_come(bench.metastore, at, cursor) == lowest


def test_nothing_is_written_below_the_lowest_value_to_come(bench: Workbench) -> None:
    """Around the end of summer time, minute by minute, against another implementation of time zones."""
    zone, start = "Europe/Lisbon", datetime.fromisoformat("2024-10-26 22:00:00+00:00")
    cursor = Cursor("at", "timestamp without time zone", zone=zone)
    moments = [start + timedelta(minutes=7 * i) for i in range(50)]
    written = [moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None) for moment in moments]
    for i, moment in enumerate(moments):
        found = datetime.fromisoformat(cursors.lowest_to_come(bench.metastore, moment, cursor))
        assert found <= min(written[i:])


def test_a_zone_that_nobody_knows_is_refused_by_name(bench: Workbench) -> None:
    options: dict[str, Any] = {"cursor_timezone": "Mars/Olympus"}
    bench.pipeline("events", QUERY, **FIELDS, options=options)
    run = bench.run("events")
    assert run["status"] == "FAILED"
    assert "Mars/Olympus" in run["error_message"]
