"""Compare a mart with its source, twice before anything counts as a difference, and repair it on request."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import structlog
from pydantic import ValidationError

from vitrina import schedule
from vitrina.checks import compare, comparison, repair, repairs
from vitrina.checks.compare import Comparison, Confirmation
from vitrina.checks.comparison import Compared
from vitrina.checks.report import ReconcileReport
from vitrina.definition import ReconcileSchedule
from vitrina.errors import InvalidField, NotFound
from vitrina.loads import opening
from vitrina.loads.control import Hold
from vitrina.loads.job import Job
from vitrina.ports.compare import ComparableSide, Difference, Rescans
from vitrina.settings import Settings
from vitrina.status import Status
from vitrina.store import database, events, leases, pipelines, requests, runs, state
from vitrina.store.database import Connection

# Between the two comparisons: long enough for rows in flight to arrive, short enough to wait for.
CONFIRM_AFTER_SECONDS = 2.0
# How long a follower may take to pass what the first comparison saw.
FOLLOWER_SECONDS = 30.0
_LOOK_SECONDS = 0.2
DEFAULT_SHOWN, MAX_SHOWN = 100, 10_000
SAMPLE_KEYS, MAX_SAMPLE_KEYS = 1_000, 10_000


def reconcile(
    request: dict[str, Any],
    metastore: Connection,
    settings: Settings,
    hold: Hold,
    *,
    confirm_after_seconds: float = CONFIRM_AFTER_SECONDS,
) -> dict[str, Any]:
    """Compare; with `repair`, also correct the differences. Return the report."""
    row = pipelines.find(metastore, request["pipeline_id"])
    if row is None:
        raise NotFound(f"pipeline {request['pipeline_id']} was deleted meanwhile")
    asked = request["payload"]
    if asked.get("repair"):
        leases.refuse_beside_a_run(row)
    started, began_at = time.monotonic(), datetime.now(UTC).isoformat()
    report = _compared(row, metastore, settings, asked, confirm_after_seconds)
    if asked.get("repair") and report.verdict.confirmed:
        report.repair = repairs.repair(request, metastore, settings, report.verdict, hold)
    elif report.verdict.confirmed:
        report.repair = {"done": False, **repair.plan(report.verdict.confirmed)}
    report.started_at, report.duration_seconds = began_at, time.monotonic() - started
    _announce(row, metastore, report)
    return report.as_dict()


def request_due(metastore: Connection) -> int:
    """Request the comparisons that `options.reconcile` schedules; any runner may perform them."""
    count = 0
    for found in requests.list_reconcile_schedules(metastore):
        try:
            asked = ReconcileSchedule.model_validate(found["asked"])
            is_due = schedule.next_after(asked.interval, found["last_at"]) <= found["now"]
        except (ValidationError, InvalidField) as exc:
            structlog.get_logger().error("reconcile.schedule_invalid", pipeline=found["name"], error=str(exc))
            continue
        if is_due:
            requests.insert(metastore, "reconcile", found["id"], {"level": asked.level}, "schedule")
            count += 1
    return count


def _announce(row: dict[str, Any], metastore: Connection, report: ReconcileReport) -> None:
    """Log the result; publish an event if an operator should look at it."""
    told = {
        "pipeline_id": str(row["id"]),
        "pipeline": row["name"],
        "differences": report.differences,
        "remaining": report.remaining,
        "in_flight": report.verdict.in_flight,
        **{str(kind): number for kind, number in report.verdict.counts.items()},
    }
    structlog.get_logger().info("reconcile.done", **told, duration_ms=round(report.duration_seconds * 1000))
    if report.differences:
        events.publish(metastore, "drift", told | {"level": report.level})


def _compared(
    row: dict[str, Any], metastore: Connection, settings: Settings, asked: dict[str, Any], wait_seconds: float
) -> ReconcileReport:
    level = asked.get("level", "full")
    with ExitStack() as sessions:
        found = opening.open_for_inspection(row, settings, metastore, sessions)
        with database.translated(f"comparing with {found.definition.final_target}"):
            opened = comparison.inspect(found)
            cuts = comparison.cut(opened) if level == "full" else None
            with opened.both_sides() as (source, target):
                first = _look(level, source, target, opened.job, asked)
            report = _report(opened, level, first)
            report.cuts = cuts
            if level == "quick":
                return _confirm_quickly(opened, report, first, wait_seconds)
            if first.places:
                _confirm(opened, report, first, asked, wait_seconds)
            return report


def _look(level: str, source: ComparableSide, target: ComparableSide, job: Job, asked: dict[str, Any]) -> Comparison:
    if level == "quick":
        return compare.look_quickly(source, target)
    if level == "sample":
        keys = min(int(asked.get("keys") or SAMPLE_KEYS), MAX_SAMPLE_KEYS)
        return compare.look_at_sample(source, target, keys=keys)
    return compare.look_fully(source, target, expected_rows=job.described.estimated_rows)


def _confirm(
    opened: Compared, report: ReconcileReport, first: Comparison, asked: dict[str, Any], wait_seconds: float
) -> None:
    pending = _waited(opened.job, wait_seconds)
    job = opened.job
    with opened.both_sides() as (source, target):
        report.verdict = compare.confirm(
            first,
            source,
            target,
            still_moving=_movement(job, pending=pending),
            others_write=job.definition.options.only_adds,
        )
        shown = min(int(asked.get("limit") or DEFAULT_SHOWN), MAX_SHOWN)
        report.details = compare.details(report.verdict.confirmed[:shown], source, target)
    report.looks = 2


def _confirm_quickly(
    opened: Compared, report: ReconcileReport, first: Comparison, wait_seconds: float
) -> ReconcileReport:
    job = opened.job
    others = job.definition.options.only_adds
    findings = compare.quick_findings(first, others_write=others)
    if findings:
        pending = _waited(job, wait_seconds)
        with opened.both_sides() as (source, target):
            second = compare.look_quickly(source, target)
        again = compare.quick_findings(second, others_write=others)
        report.looks, report.extents, report.rows = 2, second.extents, second.rows
        in_flight = pending and not comparison.knows_age(job)
        report.quick_findings = again if not in_flight else []
        report.verdict.in_flight = len(again) if in_flight else 0
    return report


def _waited(job: Job, wait_seconds: float) -> bool:
    """Wait for rows that were in flight in the first comparison; return True if a run may still be writing them."""
    if job.definition.mode == "live" and _is_pending(job):
        return not _follower_passed(job)
    time.sleep(wait_seconds)
    return _is_pending(job)


def _follower_passed(job: Job) -> bool:
    """Wait until the follower has passed the current end of the source's log; differences count after that."""
    row = job.reader.connection.execute(
        "SELECT pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_insert_lsn(), '0/0')::int8 AS lsn"
    ).fetchone()
    end = time.monotonic() + FOLLOWER_SECONDS
    while row and time.monotonic() < end:
        place = state.peek(job.metastore, job.claim.pipeline_id).identity.get("live")
        if place and place["lsn"] >= row["lsn"]:
            return True
        time.sleep(_LOOK_SECONDS)
    return False


def _is_pending(job: Job) -> bool:
    row = pipelines.find(job.metastore, job.claim.pipeline_id)
    return row is not None and row["status"] in (Status.RUN_REQUESTED, Status.RUNNING, Status.PAUSE_REQUESTED)


def _movement(job: Job, *, pending: bool) -> Callable[[Difference, Difference], bool]:
    """Choose what shows that a row is in flight: its age with a cursor, else a running load or a changing row."""
    if comparison.knows_age(job):
        return lambda before, again: False
    if pending:
        return lambda before, again: True
    return lambda before, again: before.source_image != again.source_image


def _report(opened: Compared, level: str, look: Comparison) -> ReconcileReport:
    job = opened.job
    return ReconcileReport(
        level=level,
        key=job.key,
        compared=opened.comparison.compared,
        not_compared=opened.comparison.not_compared,
        guarantee=_guarantee(opened, level),
        checkpoint=job.checkpoint.safe_upto if comparison.knows_age(job) else None,
        verdict=Confirmation(),
        rows=look.rows,
        extents=look.extents,
    )


def _guarantee(opened: Compared, level: str) -> str:
    what = {
        "quick": "row counts and ends of key and cursor only",
        "sample": "random keys of both sides, column by column",
        "full": opened.comparison.full_guarantee,
    }[level]
    job = opened.job
    cursor = job.source.cursor_name if isinstance(job.source, Rescans) else None
    if not isinstance(job.source, Rescans) or cursor is None:
        last = runs.find_last_success(job.metastore, job.claim.pipeline_id)
        since = f"the last load, begun {last['started_at'].isoformat()}," if last else "the beginning"
        return f"{what}; against the source as it is now: what changed in it since {since} counts as a difference"
    kept = job.source.guarantee()
    return (
        f"{what}; rows whose {cursor} is before the checkpoint must be in the mart ({kept}), newer ones are in"
        " flight; rows deleted in the source are extra"
    )
