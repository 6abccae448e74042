"""Remove rows that left the source of an incremental pipeline: no pass can see them, so keys are compared.

Only keys are compared. What is found twice is read again under the pipeline's lease before it is removed. A key that
has come back by then is written, not removed, whatever other sessions do to the source.
"""

import time
from contextlib import ExitStack
from typing import Any

import structlog
from pydantic import ValidationError

from vitrina import schedule
from vitrina.checks import compare, comparison, repairs
from vitrina.checks.compare import Confirmation
from vitrina.errors import Conflict, InvalidField, NotFound
from vitrina.loads import opening
from vitrina.loads.control import Hold
from vitrina.mart_options import Deletes
from vitrina.settings import Settings
from vitrina.status import can_move
from vitrina.store import database, pipelines, requests
from vitrina.store.database import Connection

KIND = "delete_scan"
# Between the two comparisons, as in reconcile.
CONFIRM_AFTER_SECONDS = 2.0
# How long to wait for a running run; the next scan finds what this one had to leave.
WAIT_SECONDS = 60.0


def scan(
    request: dict[str, Any],
    metastore: Connection,
    settings: Settings,
    hold: Hold,
    *,
    confirm_after_seconds: float = CONFIRM_AFTER_SECONDS,
) -> dict[str, Any]:
    """Find the keys that left the source, and remove them from the target in a separate run."""
    row = pipelines.find(metastore, request["pipeline_id"])
    if row is None:
        raise NotFound(f"pipeline {request['pipeline_id']} was deleted meanwhile")
    verdict = _find(row, metastore, settings, confirm_after_seconds)
    found: dict[str, Any] = {"found": verdict.total}
    if verdict.confirmed:
        _wait_for_runs(metastore, row)
        found |= repairs.repair(request, metastore, settings, verdict, hold)
    structlog.get_logger().info("deletes.scanned", pipeline=row["name"], pipeline_id=str(row["id"]), **found)
    return found


def request_due(metastore: Connection) -> int:
    """Request the scans that `options.deletes` schedules; any runner may perform them."""
    asked = 0
    for found in requests.list_scan_schedules(metastore, KIND):
        try:
            interval = Deletes.model_validate(found["asked"]).scan
            is_due = interval is not None and schedule.next_after(interval, found["last_at"]) <= found["now"]
        except (ValidationError, InvalidField) as exc:
            structlog.get_logger().error("deletes.schedule_invalid", pipeline=found["name"], error=str(exc))
            continue
        if is_due:
            requests.insert(metastore, KIND, found["id"], {}, "schedule")
            asked += 1
    return asked


def _find(row: dict[str, Any], metastore: Connection, settings: Settings, wait_seconds: float) -> Confirmation:
    with ExitStack() as sessions:
        found = opening.open_for_inspection(row, settings, metastore, sessions)
        with database.translated(f"looking for rows that left the source of {row['name']}"):
            opened = comparison.inspect(found)
            comparison.cut(opened)
            with opened.both_keys() as (source, target):
                rows = opened.job.described.estimated_rows
                first = compare.look_for_extra(source, target, expected_rows=rows)
            if not first.count:
                return Confirmation()
            time.sleep(wait_seconds)
            with opened.both_keys() as (source, target):
                return compare.confirm_extra(first, source, target)


def _wait_for_runs(metastore: Connection, row: dict[str, Any]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        now = pipelines.find(metastore, row["id"])
        if now is None or can_move("claim_idle", now["status"]):
            return
        if time.monotonic() > deadline:
            raise Conflict(
                f"pipeline {row['name']} is {now['status']}: rows that left its source are not removed during a run;"
                " the next scan tries again"
            )
        time.sleep(0.5)
