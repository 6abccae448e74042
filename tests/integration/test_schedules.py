"""Due times: set as soon as they are known, fired exactly once, and never in the way of other pipelines'."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.clocks import ZONES, predicted, transitions
from tests.support.processes import runner_process
from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina.definition import Definition
from vitrina.runner import scheduler
from vitrina.services import pipelines as services
from vitrina.services.callers import Caller, Role
from vitrina.store import pipelines, schedules

OPERATOR = Caller("ann", Role.OPERATOR)
QUERY = "SELECT id, title FROM content.films"


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    workbench.source("CREATE TABLE content.films (id int PRIMARY KEY, title text)")
    return workbench


def row(bench: Workbench, name: str) -> dict[str, Any]:
    found = pipelines.find(bench.metastore, name)
    assert found is not None
    return found


def create(bench: Workbench, name: str, **fields: Any) -> dict[str, Any]:
    """As the API does."""
    fields = {"name": name, "source_query": QUERY, "target_table": f"analytics.{name}", "target_key": ["id"]} | fields
    return services.create(bench.metastore, bench.settings, OPERATOR, Definition.model_validate(fields))


def fired(bench: Workbench) -> Counter[str]:
    """How often each pipeline's schedule asked for a run."""
    found = bench.sql(
        "SELECT payload ->> 'pipeline' AS name FROM etl.etl_events"
        " WHERE topic = 'status' AND payload ->> 'from' = 'IDLE' AND payload ->> 'to' = 'RUN_REQUESTED'"
    )
    return Counter(event["name"] for event in found)


# --- when a due time is known --------------------------------------------------------------------------------------


def test_the_first_tick_counts_from_the_definition_not_from_the_first_runner(bench: Workbench) -> None:
    made = create(bench, "films", schedule_interval="0 * * * *")
    assert timedelta(0) < made["next_run_at"] - made["created_at"] <= timedelta(hours=1)

    # No runner lived when it was due, and one comes hours later.
    assert scheduler.fire_due(bench.metastore, now=made["next_run_at"] + timedelta(hours=5)) == 1


def test_reloading_a_schedule_that_stayed_the_same_does_not_put_it_off(bench: Workbench) -> None:
    due = create(bench, "films", schedule_interval="1h")["next_run_at"]
    for _ in range(3):
        services.reload_config(bench.metastore, bench.settings, OPERATOR, "films")
        assert row(bench, "films")["next_run_at"] == due
    bench.sql("UPDATE etl.etl_pipelines SET schedule_interval = '2h'")
    services.reload_config(bench.metastore, bench.settings, OPERATOR, "films")
    assert row(bench, "films")["next_run_at"] > due + timedelta(minutes=30)


def test_another_jitter_is_another_due_time(bench: Workbench) -> None:
    due = create(bench, "films", schedule_interval="1h")["next_run_at"]
    fields = {"options": {"schedule_jitter_seconds": 80_000}}
    changed = services.change(bench.metastore, bench.settings, OPERATOR, "films", fields)
    assert changed["next_run_at"] > due


def test_a_pipeline_that_is_enabled_again_has_a_due_time_at_once(bench: Workbench) -> None:
    create(bench, "films", schedule_interval="1h")
    services.disable(bench.metastore, OPERATOR, "films")
    assert row(bench, "films")["next_run_at"] is None
    services.enable(bench.metastore, OPERATOR, "films")
    assert row(bench, "films")["next_run_at"] is not None


# --- rows that nobody can follow -----------------------------------------------------------------------------------


def test_many_invalid_schedules_do_not_stop_a_valid_one_and_say_what_is_wrong(bench: Workbench) -> None:
    bench.sql(
        "INSERT INTO etl.etl_pipelines (name, source_query, target_table, schedule_interval, next_run_at)"
        " SELECT 'bad' || i, 'SELECT 1', 'analytics.bad' || i, (ARRAY['0 3 * * * Mars/Base', '١٥m', '', 'P9999W'])"
        "[1 + i % 4], now() - interval '1 day' FROM generate_series(1, 250) AS i"
    )
    create(bench, "films", schedule_interval="1h")
    bench.sql("UPDATE etl.etl_pipelines SET next_run_at = now() - interval '1 minute' WHERE name = 'films'")

    assert scheduler.fire_due(bench.metastore) == 1

    assert fired(bench) == {"films": 1}
    assert "Mars/Base" in row(bench, "bad4")["needs_attention"]["schedule"]
    assert scheduler.fire_due(bench.metastore) == 0
    assert schedules.list_due(bench.metastore) == []


def test_a_schedule_that_was_corrected_by_hand_is_followed_again_from_its_next_tick(bench: Workbench) -> None:
    create(bench, "films", schedule_interval="1h")
    bench.sql("UPDATE etl.etl_pipelines SET schedule_interval = 'often', next_run_at = now() - interval '1 minute'")
    scheduler.fire_due(bench.metastore)
    bench.sql("UPDATE etl.etl_pipelines SET schedule_interval = '2h'")

    assert scheduler.fire_due(bench.metastore, now=datetime.now(UTC) + timedelta(minutes=11)) == 0
    assert row(bench, "films")["needs_attention"] == {}
    assert scheduler.fire_due(bench.metastore, now=datetime.now(UTC) + timedelta(hours=3)) == 1


def test_times_that_no_program_can_read_are_refused_from_whoever_writes_them(bench: Workbench) -> None:
    create(bench, "films", schedule_interval="1h")
    for value in ("-infinity", "infinity", "0044-03-15 BC", "294000-01-01"):
        with pytest.raises(psycopg.errors.CheckViolation, match="readable"):
            bench.sql(f"UPDATE etl.etl_pipelines SET next_run_at = '{value}'")


# --- exactly once --------------------------------------------------------------------------------------------------


@pytest.mark.timeout(900)
def test_five_hundred_pipelines_due_in_one_second_fire_once_each_while_runners_are_killed(
    bench: Workbench, tmp_path: Path
) -> None:
    bench.sql(
        "INSERT INTO etl.etl_pipelines (name, source_query, target_table, schedule_interval, next_run_at)"
        f" SELECT 'p' || i, '{QUERY}', 'analytics.p' || i, '365d', now() FROM generate_series(1, 500) AS i"
    )
    # Killed behind so many ticks, in the middle of the crowd; the last one is left alive.
    for number, crash in enumerate(("schedule.fired:kill:40", "schedule.fired:kill:150", "")):
        directory = tmp_path / str(number)
        directory.mkdir()
        more = {"VITRINA_FAILPOINTS": crash, "VITRINA_POLL_SECONDS": "0.2"}
        with runner_process(bench.settings, directory, **more) as runner:
            if crash:
                runner.wait(timeout=240)  # where many things run, a process needs its time to start
                assert 0 < len(fired(bench)) < 500
            else:
                until(lambda: len(fired(bench)) == 500, seconds=240)
    assert set(fired(bench).values()) == {1}


# --- a week of every change of the clocks --------------------------------------------------------------------------

EXPRESSIONS = ("30 2 * * *", "0 0 * * *", "0 */12 * * *")


@pytest.mark.timeout(900)
def test_the_week_of_every_change_of_the_clocks_fires_what_another_library_predicts(bench: Workbench) -> None:
    """Ten zones, 2026 and 2027: simulated time, the runner's own code, a real metastore."""
    for zone in ZONES:
        for number, expression in enumerate(EXPRESSIONS):
            bench.pipeline(f"{zone.replace('/', '.')}.{number}", QUERY, schedule_interval=f"{expression} {zone}")
    for week, zones in weeks().items():
        start, end = week, week + timedelta(days=7)
        seen = simulate(bench, [zone.replace("/", ".") for zone in zones], start, end)
        for zone in zones:
            for number, expression in enumerate(EXPRESSIONS):
                expected = predicted(expression, zone, start, end)
                assert seen.get(f"{zone.replace('/', '.')}.{number}", []) == expected, (zone, expression, week)


def weeks() -> dict[datetime, list[str]]:
    """Weeks in the middle of which clocks are changed somewhere, each with the zones that do."""
    found: dict[datetime, list[str]] = {}
    for zone in ZONES:
        for change in transitions(zone):
            week = change.replace(hour=0, minute=0, second=0) - timedelta(days=3)
            found.setdefault(week, []).append(zone)
    return found


def simulate(bench: Workbench, prefixes: list[str], start: datetime, end: datetime) -> dict[str, list[datetime]]:
    """Let time pass from one due time to the next; what fired when."""
    like = [f"{prefix}.%" for prefix in prefixes]
    bench.admin.execute(
        "UPDATE etl.etl_pipelines SET status = 'IDLE', next_run_at = NULL, enabled = name LIKE ANY(%s)", [like]
    )
    scheduler.fire_due(bench.metastore, now=start)
    seen: dict[str, list[datetime]] = {}
    while (now := bench.sql("SELECT min(next_run_at) AS due FROM etl.etl_pipelines WHERE enabled")[0]["due"]) <= end:
        scheduler.fire_due(bench.metastore, now=now)
        done = bench.sql("UPDATE etl.etl_pipelines SET status = 'IDLE' WHERE status = 'RUN_REQUESTED' RETURNING name")
        assert done, "a tick that fires nothing would be looked at for ever"
        for one in done:
            seen.setdefault(one["name"], []).append(now)
    return seen
