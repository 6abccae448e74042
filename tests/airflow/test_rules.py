"""The rules of the provider that need no Airflow: keys, and which run answers a request."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from vitrina_airflow.keys import key_of, numbered
from vitrina_airflow.runs import judge, looks_over

ASKED_AT = "2026-11-15T10:00:00Z"
PLAIN = {"trigger": "api", "since": None, "until": None}


def task(**changes: Any) -> dict[str, Any]:
    """What Airflow gives to a task."""
    instance = {"dag_id": "films", "run_id": "manual__1", "task_id": "run", "map_index": -1, "try_number": 1}
    told = instance | {"max_tries": 2, "retries": 2, "start_date": datetime(2026, 11, 15, tzinfo=UTC)} | changes
    return {
        "ti": SimpleNamespace(**told),
        "dag_run": SimpleNamespace(start_date=told["start_date"]),
        "task": SimpleNamespace(retries=told["retries"]),
    }


def test_a_retry_has_the_same_key() -> None:
    assert key_of(task(try_number=3), PLAIN) == key_of(task(), PLAIN)


@pytest.mark.parametrize(
    "changed",
    [
        {"dag_id": "other"},
        {"run_id": "manual__2"},
        {"task_id": "other"},
        {"map_index": 0},
        {"max_tries": 3},
        {"max_tries": 2, "retries": 1},
        {"start_date": datetime(2026, 11, 16, tzinfo=UTC)},
    ],
    ids=["dag", "run", "task", "map index", "cleared", "cleared after retries were edited", "made again"],
)
def test_other_work_has_another_key(changed: dict[str, Any]) -> None:
    assert key_of(task(**changed), PLAIN) != key_of(task(), PLAIN)


def test_another_range_has_another_key_and_every_key_fits_into_a_header() -> None:
    key = key_of(task(dag_id="ф" * 250, task_id="t" * 250), PLAIN)
    assert key != key_of(task(), PLAIN | {"since": "2026-01-01"})
    assert key.isascii()
    assert len(numbered(key, 1000)) <= 200


def run(number: int, status: str, **more: Any) -> dict[str, Any]:
    told: dict[str, Any] = {"id": f"run-{number}", "pipeline": "films", "trigger": "api", "status": status}
    told |= {"started_at": f"2026-11-15T10:{number:02}:00Z", "error_code": None, "metrics": {}, "backfill": None}
    return told | more


LOST = {"error_code": "lease_lost", "error_message": "its runner fell silent"}
MINE = {"answers_request": ASKED_AT}
THEIRS = {"answers_request": "2026-11-15T10:00:30Z"}


@pytest.mark.parametrize(
    ("status", "runs", "ended", "which"),
    [
        ("RUN_REQUESTED", [], None, None),
        ("RUNNING", [run(1, "RUNNING")], None, None),
        ("RUNNING", [run(1, "RUNNING", **MINE)], None, "run-1"),
        ("IDLE", [run(1, "SUCCESS", **MINE)], "SUCCESS", "run-1"),
        ("RUNNING", [run(1, "SUCCESS", **MINE), run(2, "RUNNING")], "SUCCESS", "run-1"),
        ("FAILED", [run(1, "SUCCESS", **MINE), run(2, "FAILED", **THEIRS)], "SUCCESS", "run-1"),
        ("FAILED", [run(1, "FAILED", **MINE)], "FAILED", "run-1"),
        ("FAILED", [run(1, "FAILED")], "FAILED", "run-1"),
        ("IDLE", [run(1, "CANCELLED", error_code="cancelled")], "CANCELLED", "run-1"),
        ("IDLE", [], "CANCELLED", None),
        ("RUN_REQUESTED", [run(1, "FAILED", **LOST, **MINE)], None, "run-1"),
        ("IDLE", [run(1, "FAILED", **LOST, **MINE), run(2, "SUCCESS")], "SUCCESS", "run-2"),
        ("FAILED", [run(1, "FAILED", error_code="too_many_losses", **MINE)], "FAILED", "run-1"),
        ("PAUSED", [run(1, "PAUSED", **MINE)], None, "run-1"),
        ("IDLE", [run(1, "PAUSED", **MINE), run(2, "SUCCESS")], "SUCCESS", "run-2"),
        ("RUN_REQUESTED", [run(1, "SUCCESS")], None, None),
        ("IDLE", [run(1, "SUCCESS"), run(2, "SUCCESS", trigger="follow-up", **MINE)], "SUCCESS", "run-2"),
        ("IDLE", [run(1, "SUCCESS"), run(2, "SUCCESS", **THEIRS)], "SUCCESS", "run-2"),
        ("RUN_REQUESTED", [run(1, "SUCCESS", metrics={"repair": {}}, **MINE)], None, None),
    ],
    ids=[
        "waits",
        "an older load is at work",
        "at work",
        "over",
        "over, and another is at work",
        "over, and a later one failed",
        "failed",
        "failed before it read",
        "cancelled before it read",
        "taken back",
        "its runner was lost",
        "continued by another runner",
        "lost too often",
        "paused",
        "resumed",
        "an older load was continued first",
        "the one behind the older load",
        "somebody asked again meanwhile",
        "a repair came between",
    ],
)
def test_which_run_answers_a_request(
    status: str, runs: list[dict[str, Any]], ended: str | None, which: str | None
) -> None:
    told = {"pipeline": "films", "status": status, "last_error": None}
    answer = judge(told, runs, ASKED_AT)
    assert (answer.status, answer.run["id"] if answer.run else None) == (ended, which)


def test_a_sensor_waits_for_the_first_run_since() -> None:
    told = {"pipeline": "films", "status": "IDLE", "last_error": None}
    assert judge(told, [], ASKED_AT, asked=False).run is None
    backfilled = run(1, "SUCCESS", backfill={"since": "1"})
    found = judge(told, [backfilled, run(2, "SUCCESS", **THEIRS), run(3, "FAILED")], ASKED_AT, asked=False)
    assert found.run
    assert (found.run["id"], found.status) == ("run-2", "SUCCESS")


def test_the_history_is_looked_at_only_when_something_ended() -> None:
    def status(state: str, latest: dict[str, Any] | None) -> dict[str, Any]:
        return {"pipeline": "films", "status": state, "run": latest}

    assert not looks_over(status("RUN_REQUESTED", run(1, "SUCCESS", started_at="2026-11-15T09:00:00Z")), ASKED_AT)
    assert not looks_over(status("RUNNING", run(1, "RUNNING", **MINE)), ASKED_AT)
    assert looks_over(status("RUNNING", run(2, "RUNNING", **THEIRS)), ASKED_AT)
    assert looks_over(status("RUN_REQUESTED", run(1, "FAILED", **LOST, **MINE)), ASKED_AT)
    assert looks_over(status("IDLE", None), ASKED_AT)
