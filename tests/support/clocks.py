"""Compute ticks around clock changes with another library (croniter) and the documented rule."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

from croniter import croniter

FROM, TO = datetime(2026, 1, 1, tzinfo=UTC), datetime(2028, 1, 1, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
# Changes of an hour and of half an hour, at midnight and at three, in both hemispheres, and Ramadan.
ZONES = (
    *("Europe/Berlin", "America/New_York", "America/Santiago", "Australia/Lord_Howe", "Africa/Casablanca"),
    *("Asia/Beirut", "Pacific/Auckland", "America/Havana", "Europe/London", "Antarctica/Troll"),
)
FIXED = ("30 2 * * *", "0 0 * * *", "15,45 1-3 * * *", "0 3 * * SUN", "59 1 25 10 *")
FOLLOWING = ("*/5 2 * * *", "0 * * * *", "*/20 * * * *", "* 1-2 * * SUN", "30 */2 * * *")


@cache
def transitions(zone: str) -> list[datetime]:
    """Return the moments of 2026 and 2027 at which a clock is changed, to the second."""
    info, found, day = ZoneInfo(zone), [], FROM
    while day < TO:
        early, late = day, day + timedelta(days=1)
        if offset(early, info) != offset(late, info):
            while late - early > timedelta(seconds=1):
                middle = (early + (late - early) / 2).replace(microsecond=0)
                early, late = (middle, late) if offset(middle, info) == offset(early, info) else (early, middle)
            found.append(late)
        day += timedelta(days=1)
    return found


def offset(moment: datetime, zone: ZoneInfo) -> timedelta | None:
    return moment.astimezone(zone).utcoffset()


def predicted(expression: str, zone: str, start: datetime, end: datetime) -> list[datetime]:
    """Return what croniter computes for wall-clock times, mapped to moments by the documented rule."""
    meant = set(_walls(expression, _wall(start, zone) - 3 * HOUR, _wall(end, zone) + 3 * HOUR))
    if any(field.startswith("*") for field in expression.split()[:2]):
        found = {at for at in _minutes(start, end) if _wall(at, zone) in meant}
    else:
        found = {_first_at_or_after(wall, zone) for wall in meant}
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


def _first_at_or_after(wall: datetime, zone: str) -> datetime:
    """Find the first moment at which the clock shows that time or has skipped it, minute by minute."""
    at = wall.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC) - 3 * HOUR
    while _wall(at, zone) < wall:
        at += MINUTE
    return at
