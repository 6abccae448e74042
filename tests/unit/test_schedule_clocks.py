"""Schedules while clocks are changed: the next tick is always ahead, and the ticks are those of another library."""

import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from tests.support.clocks import FIXED, FOLLOWING, FROM, HOUR, MINUTE, ZONES, offset, predicted, transitions
from vitrina import schedule


def ticks(expression: str, zone: str, start: datetime, end: datetime) -> Iterator[datetime]:
    moment = schedule.next_after(f"{expression} {zone}", start)
    while moment <= end:
        yield moment
        moment = schedule.next_after(f"{expression} {zone}", moment)


@pytest.mark.parametrize("zone", ZONES)
def test_the_ticks_around_every_change_of_the_clocks_are_those_of_another_library(zone: str) -> None:
    changes = transitions(zone)
    assert len(changes) >= 4, f"{zone} has only {changes}: choose another"
    for change in changes:
        start, end = change - 14 * HOUR, change + 14 * HOUR
        for expression in (*FIXED, *FOLLOWING):
            assert list(ticks(expression, zone, start, end)) == predicted(expression, zone, start, end), expression


def test_the_next_tick_is_ahead_before_at_and_behind_every_change_of_every_zone() -> None:
    clocks: dict[tuple[datetime | timedelta | None, ...], str] = {}
    for zone in zoneinfo.available_timezones() - {"localtime", "posixrules", "Factory"}:
        clocks.setdefault((offset(FROM, ZoneInfo(zone)), *transitions(zone)), zone)
    assert len(clocks) > 50
    for zone in clocks.values():
        for change in transitions(zone):
            for minutes in (-75, -60, -30, -29, 0, 1, 29, 30, 31, 60, 75):
                moment = change + minutes * MINUTE + timedelta(microseconds=minutes % 2)
                for expression in ("30 2 * * *", "0 0 * * *", "*/10 1-3 * * *"):
                    assert schedule.next_after(f"{expression} {zone}", moment) > moment, (zone, moment)


def test_a_fixed_time_in_the_repeated_hour_fires_once_also_when_asked_within_it() -> None:
    """Berlin, 25 October 2026, 01:05 UTC: it is 02:05 for the second time, and 02:30 was an hour ago."""
    within = datetime(2026, 10, 25, 1, 5, tzinfo=UTC)
    assert schedule.next_after("30 2 * * * Europe/Berlin", within) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)
