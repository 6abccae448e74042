"""When a scheduled pipeline is due next: `15m`, an ISO-8601 duration, or 5-field cron with a time zone."""

import hashlib
import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from vitrina.errors import InvalidField

_SHORT = re.compile(r"(?P<count>\d{1,6})\s*(?P<unit>[smhd])")
_ISO = re.compile(
    r"P(?:(?P<weeks>\d+)W)?(?:(?P<days>\d+)D)?"
    r"(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+)S)?)?"
)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_SHORTEST, _LONGEST = timedelta(seconds=1), timedelta(days=3660)
_CRON_FIELDS = 5

HELP = "30s, 15m, 1h, 1d, an ISO-8601 duration such as PT15M, or cron such as '0 3 * * *' or '0 3 * * * Europe/Moscow'"


def check(schedule: str) -> None:
    """Raise `InvalidField` unless `next_after` can work with it."""
    next_after(schedule, datetime.now(UTC))


def next_after(
    schedule: str, moment: datetime, *, due: datetime | None = None, offset: timedelta = timedelta(0)
) -> datetime:
    """The first due time after `moment`; missed ticks collapse because the past is never asked about.

    An interval keeps the rhythm of the last `due` time. `offset` moves every tick: it spreads pipelines that share one.
    """
    interval = _interval(schedule)
    if interval is None:
        return _next_cron(schedule, moment - offset) + offset
    if due is None:
        return moment + interval + offset
    return due + interval * (max(0, (moment - due) // interval) + 1)


def offset_of(identity: str, jitter_seconds: float) -> timedelta:
    """Where within the jitter a pipeline fires: always the same, so that the time between two runs stays the same."""
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
            "schedule_interval", f"schedule_interval {schedule!r} is not between one second and ten years"
        )
    return interval


def _next_cron(schedule: str, moment: datetime) -> datetime:
    fields = schedule.split()
    zone_name = fields.pop() if len(fields) == _CRON_FIELDS + 1 else "UTC"
    if len(fields) != _CRON_FIELDS:
        raise InvalidField("schedule_interval", f"schedule_interval {schedule!r} is not understood; write {HELP}")
    try:
        zone = ZoneInfo(zone_name)
    except (ZoneInfoNotFoundError, ValueError) as exc:
        raise InvalidField("schedule_interval", f"time zone {zone_name!r} in {schedule!r} is unknown") from exc
    try:
        due = next(CronSim(" ".join(fields), moment.astimezone(zone)))
    except (CronSimError, StopIteration) as exc:
        raise InvalidField("schedule_interval", f"cron {schedule!r} is not valid or never fires; write {HELP}") from exc
    return due.astimezone(UTC)
