"""When a schedule is due: intervals keep their rhythm, cron keeps its time zone, missed ticks are one tick."""

from datetime import UTC, datetime, timedelta

import pytest

from vitrina import schedule
from vitrina.errors import InvalidField

NOON = datetime(2026, 3, 10, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("15m", 900), ("1h", 3600), ("1d", 86_400), ("PT15M", 900), ("P1DT1H", 90_000), ("P2W", 1_209_600)],
)
def test_intervals(text: str, seconds: int) -> None:
    assert schedule.next_after(text, NOON) == NOON + timedelta(seconds=seconds)


def test_an_interval_keeps_its_rhythm_however_late_it_is_noticed() -> None:
    assert schedule.next_after("15m", NOON + timedelta(seconds=3), due=NOON) == NOON + timedelta(minutes=15)


def test_missed_ticks_are_one_tick() -> None:
    late = NOON + timedelta(hours=5, minutes=7)
    assert schedule.next_after("15m", late, due=NOON) == NOON + timedelta(hours=5, minutes=15)
    assert schedule.next_after("0 * * * *", late, due=NOON) == NOON + timedelta(hours=6)


def test_cron_is_in_utc_unless_a_zone_is_named() -> None:
    assert schedule.next_after("0 3 * * *", NOON) == datetime(2026, 3, 11, 3, tzinfo=UTC)
    assert schedule.next_after("0 3 * * * Europe/Moscow", NOON) == datetime(2026, 3, 11, 0, tzinfo=UTC)


def ticks(text: str, moment: datetime, count: int) -> list[str]:
    found = []
    for _ in range(count):
        moment = schedule.next_after(text, moment)
        found.append(moment.strftime("%d %H:%M"))
    return found


def test_a_skipped_hour_does_not_skip_the_day() -> None:
    """Berlin, 29 March 2026: 02:00 becomes 03:00 (01:00 UTC)."""
    before = datetime(2026, 3, 28, 12, tzinfo=UTC)
    assert ticks("30 2 * * * Europe/Berlin", before, 2) == ["29 01:00", "30 00:30"]


def test_a_repeated_hour_fires_once_a_day_and_every_hour() -> None:
    """Berlin, 25 October 2026: 03:00 becomes 02:00 (01:00 UTC)."""
    before = datetime(2026, 10, 24, 12, tzinfo=UTC)
    assert ticks("30 2 * * * Europe/Berlin", before, 2) == ["25 00:30", "26 01:30"]
    hourly = ticks("0 * * * * Europe/Berlin", datetime(2026, 10, 24, 23, 30, tzinfo=UTC), 4)
    assert hourly == ["25 00:00", "25 01:00", "25 02:00", "25 03:00"]


def test_jitter_moves_every_tick_by_the_same_time() -> None:
    offset = schedule.offset_of("11111111-1111-1111-1111-111111111111", 600)
    assert timedelta(0) <= offset < timedelta(minutes=10)
    first = schedule.next_after("0 * * * *", NOON, offset=offset)
    second = schedule.next_after("0 * * * *", first, due=first, offset=offset)
    assert second - first == timedelta(hours=1)
    assert len({schedule.offset_of(str(i), 600) for i in range(50)}) == 50


@pytest.mark.parametrize(
    "text",
    [
        *("", "0s", "15 minutes", "P", "PT", "99999999d", "P999999W", f"P{'9' * 5000}W", "* * * *", "61 * * * *"),
        *("0 3 * * * Mars/Base", "0 3 * * * localtime", "0 3 * * * posix/Europe/Berlin", "0 3 * * * Factory"),
        # Digits of other scripts are digits to Python, not to a reader of a crontab; nor is a long s an S.
        *("١٥m", "PT١٥M", "０ 3 * * *", "0 3 * * ſUN", "0 3 30 2 *"),
    ],
)
def test_what_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(InvalidField, match=r"schedule_interval|time zone|cron"):
        schedule.check(text)
