"""Compute when a pipeline is due next: `15m`, an ISO-8601 duration, or 5-field cron with a time zone."""

import hashlib
import re
import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from vitrina.errors import InvalidField
from vitrina.sentences import say

_SHORT = re.compile(r"(?P<count>[0-9]{1,6})\s*(?P<unit>[smhd])")
_ISO = re.compile(
    r"P(?:(?P<weeks>[0-9]{1,9})W)?(?:(?P<days>[0-9]{1,9})D)?"
    r"(?:T(?:(?P<hours>[0-9]{1,9})H)?(?:(?P<minutes>[0-9]{1,9})M)?(?:(?P<seconds>[0-9]{1,9})S)?)?"
)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_SHORTEST, _LONGEST = timedelta(seconds=1), timedelta(days=3660)
_CRON_FIELDS = 5
# These mean something different on every machine, or nothing.
_NO_ZONES = {"localtime", "posixrules", "Factory"}


def check(schedule: str) -> None:
    """Raise `InvalidField` unless `next_after` accepts the schedule."""
    next_after(schedule, datetime.now(UTC))


def next_after(
    schedule: str, moment: datetime, *, due: datetime | None = None, offset: timedelta = timedelta(0)
) -> datetime:
    """Compute the first due time after `moment`. Missed ticks collapse, because past ones are never computed.

    An interval counts from the last `due` time. `offset` moves every tick, to spread pipelines that share a schedule.
    """
    if not schedule.isascii():
        raise InvalidField(
            "schedule_interval", say("definition.schedule", field="schedule_interval", schedule=schedule)
        )
    interval = _interval(schedule)
    try:
        if interval is None:
            return _next_cron(schedule, moment - offset) + offset
        if due is None:
            return moment + interval + offset
        return due + interval * (max(0, (moment - due) // interval) + 1)
    except OverflowError as exc:
        raise InvalidField(
            "schedule_interval", say("definition.schedule_too_far", field="schedule_interval", schedule=schedule)
        ) from exc


def interval_of(text: str) -> timedelta | None:
    """Parse a duration, such as `15m` or `PT15M`. Return None if it is not one, or is too short or too long."""
    try:
        return _interval(text) if text.isascii() else None
    except InvalidField:
        return None


def _refused(code: str, schedule: str) -> InvalidField:
    return InvalidField("schedule_interval", say(code, field="schedule_interval", schedule=schedule))


def offset_of(identity: str, jitter_seconds: float) -> timedelta:
    """Compute a pipeline's offset within the jitter. It never changes, so that the time between runs stays equal."""
    digest = hashlib.sha256(identity.encode()).digest()
    return timedelta(seconds=int.from_bytes(digest[:8]) / 2**64 * jitter_seconds)


def _interval(schedule: str) -> timedelta | None:
    text = schedule.strip()
    try:
        if short := _SHORT.fullmatch(text):
            interval = timedelta(**{_UNITS[short["unit"]]: int(short["count"])})
        elif (iso := _ISO.fullmatch(text)) and any(iso.groupdict().values()):
            interval = timedelta(**{unit: int(count) for unit, count in iso.groupdict().items() if count})
        else:
            return None
    except OverflowError:
        interval = timedelta.max
    if not _SHORTEST <= interval <= _LONGEST:
        raise InvalidField(
            "schedule_interval", say("definition.schedule_range", field="schedule_interval", schedule=schedule)
        )
    return interval


def _next_cron(schedule: str, moment: datetime) -> datetime:
    fields = schedule.split()
    zone_name = fields.pop() if len(fields) == _CRON_FIELDS + 1 else "UTC"
    if len(fields) != _CRON_FIELDS:
        raise InvalidField(
            "schedule_interval", say("definition.schedule", field="schedule_interval", schedule=schedule)
        )
    if zone_name not in _zones():
        raise InvalidField("schedule_interval", say("definition.unknown_zone", zone=zone_name, schedule=schedule))
    zone = ZoneInfo(zone_name)
    follows_clock = fields[0].startswith("*") or fields[1].startswith("*")
    try:
        due = _next_of_clock(fields, zone, moment) if follows_clock else _next_of_day(fields, zone, moment)
    except CronSimError as exc:
        raise InvalidField("schedule_interval", say("definition.cron", schedule=schedule)) from exc
    return due


# --- cron and daylight saving time ---------------------------------------------------------------------------------
#
# The library computes local wall-clock times only; this module maps them to moments. The library's own handling of
# clock changes can return a time in the past.


def _next_of_day(fields: list[str], zone: ZoneInfo, moment: datetime) -> datetime:
    """Find the next fixed time as cron does: once where the hour is repeated, and once where it is missing."""
    for wall in _walls(fields, _wall(moment, zone)):
        due = wall.replace(tzinfo=zone).astimezone(UTC)
        if _wall(due, zone) != wall:
            due = _end_of_gap(wall, zone)
        if due > moment:
            return due
    raise CronSimError("no such time in the next fifty years")


def _next_of_clock(fields: list[str], zone: ZoneInfo, moment: datetime) -> datetime:
    """Find the next time for `*` among minutes or hours: every time that the clock shows it, even twice or never."""
    # The clock may show the current time again, if it is set back within a day.
    again = max(timedelta(0), _offset(moment, zone) - _offset(moment + timedelta(days=1), zone))
    best: datetime | None = None
    for wall in _walls(fields, _wall(moment, zone) - again):
        first, second = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
        shown = [due for due in (first, second) if due > moment and _wall(due, zone) == wall]
        best = min([*shown, best] if best else shown, default=None)
        if best and first > moment:
            return best
    raise CronSimError("no such time in the next fifty years")


def _walls(fields: list[str], after: datetime) -> Iterator[datetime]:
    """Yield the times of the expression, by a clock without changes."""
    return CronSim(" ".join(fields), after)


def _wall(moment: datetime, zone: ZoneInfo) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)


def _offset(moment: datetime, zone: ZoneInfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta(0)


def _end_of_gap(wall: datetime, zone: ZoneInfo) -> datetime:
    """Find the moment at which the clock jumped over a time that it never showed."""
    # With the offset from before the jump, the time is after the jump; with the offset from after it, before the jump.
    early, late = sorted(wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    before = _offset(early, zone)
    while late - early > timedelta(seconds=1):
        middle = (early + (late - early) / 2).replace(microsecond=0)
        early, late = (middle, late) if _offset(middle, zone) == before else (early, middle)
    return late


@cache
def _zones() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones() - _NO_ZONES)
