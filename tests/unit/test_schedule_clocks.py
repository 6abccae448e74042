"""Schedules while clocks are changed: the next tick is always ahead, and the ticks are those of another library."""

import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter

from vitrina import schedule

FROM, TO = datetime(2026, 1, 1, tzinfo=UTC), datetime(2028, 1, 1, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
# Changes of an hour and of half an hour, at midnight and at three, both halves of the globe, and Ramadan.
ZONES = (
    *("Europe/Berlin", "America/New_York", "America/Santiago", "Australia/Lord_Howe", "Africa/Casablanca"),
    *("Asia/Beirut", "Pacific/Auckland", "America/Havana", "Europe/London", "Antarctica/Troll"),
)
FIXED = ("30 2 * * *", "0 0 * * *", "15,45 1-3 * * *", "0 3 * * SUN", "59 1 25 10 *")
FOLLOWING = ("*/5 2 * * *", "0 * * * *", "*/20 * * * *", "* 1-2 * * SUN", "30 */2 * * *")


@cache
def transitions(zone: str) -> list[datetime]:
    """The moments of 2026 and 2027 at which a clock is changed, to the second."""
    info, found, day = ZoneInfo(zone), [], FROM
    while day < TO:
        early, late = day, day + timedelta(days=1)
        if _offset(early, info) != _offset(late, info):
            while late - early > timedelta(seconds=1):
                middle = (early + (late - early) / 2).replace(microsecond=0)
                early, late = (middle, late) if _offset(middle, info) == _offset(early, info) else (early, middle)
            found.append(late)
        day += timedelta(days=1)
    return found


def _offset(moment: datetime, zone: ZoneInfo) -> timedelta | None:
    return moment.astimezone(zone).utcoffset()


def ticks(expression: str, zone: str, start: datetime, end: datetime) -> Iterator[datetime]:
    moment = schedule.next_after(f"{expression} {zone}", start)
    while moment <= end:
        yield moment
        moment = schedule.next_after(f"{expression} {zone}", moment)


def predicted(expression: str, zone: str, start: datetime, end: datetime) -> list[datetime]:
    """What croniter says of the time on the wall, under the documented rule of which moment that is."""
    meant = set(_walls(expression, _wall(start, zone) - 3 * HOUR, _wall(end, zone) + 3 * HOUR))
    if expression in FOLLOWING:
        found = {at for at in _minutes(start, end) if _wall(at, zone) in meant}
    else:
        found = {_first_at_or_behind(wall, zone) for wall in meant}
    return sorted(at for at in found if start < at <= end)


def _walls(expression: str, start: datetime, end: datetime) -> Iterator[datetime]:
    times = croniter(expression, start)
    while (wall := times.get_next(datetime)) <= end:
        yield wall


def _minutes(start: datetime, end: datetime) -> Iterator[datetime]:
    at = start + MINUTE
    while at <= end:
        yield at
        at += MINUTE


def _wall(moment: datetime, zone: str) -> datetime:
    return moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None)


def _first_at_or_behind(wall: datetime, zone: str) -> datetime:
    """The first moment at which the clock shows that time or has jumped over it: minute by minute."""
    at = wall.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC) - 3 * HOUR
    while _wall(at, zone) < wall:
        at += MINUTE
    return at


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
        clocks.setdefault((_offset(FROM, ZoneInfo(zone)), *transitions(zone)), zone)
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
