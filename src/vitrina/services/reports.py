"""Report the state of pipelines: status, progress, errors, what comes next."""

from datetime import UTC, datetime
from typing import Any

from vitrina import schemas, status
from vitrina.sentences import say
from vitrina.services import advice, connectors, run_after
from vitrina.settings import Settings
from vitrina.status import RunStatus, Status
from vitrina.store import runners, runs, state
from vitrina.store.database import Connection
from vitrina.store.pipelines import Row


def pipeline_status(connection: Connection, settings: Settings, row: Row) -> schemas.PipelineStatus:
    run = runs.find_current(connection, row["id"])
    load = run if run is None or runs.is_load(run) else runs.find_latest_load(connection, row["id"])
    checkpoint = state.find(connection, row["id"])
    summary = runs.summarise(connection, row["id"])
    recent, now = _recent(summary), summary["now"]
    is_over = row["status"] in status.ACTIVE and row["lease_until"] is not None and row["lease_until"] < now
    return schemas.PipelineStatus(
        pipeline_id=row["id"],
        pipeline=row["name"],
        status=row["status"],
        since=row["status_since"],
        enabled=row["enabled"],
        version=row["version"],
        run_requested_at=row["run_requested_at"],
        next_run_at=row["next_run_at"],
        needs_attention=row["needs_attention"],
        waiting=connectors.waiting(connection, settings, [row]).get(row["id"]),
        runner=_runner(connection, settings, row),
        lease_until=row["lease_until"],
        lease_is_over=is_over,
        run=run_answer(run) if run else None,
        last_load=run_answer(load) if load else None,
        progress=_progress(run) if run and run["status"] == RunStatus.RUNNING and not is_over else None,
        following=_following(now, row, run, checkpoint) if not is_over else None,
        checkpoint=schemas.Checkpoint.model_validate(checkpoint) if checkpoint else None,
        lag=_lag(connection, now, row, checkpoint, recent.last_success_at, load=load),
        waits_for=run_after.waits_for(connection, row) if row["run_after"] else [],
        hold=row["hold"],
        guarantee=_metrics(load).get("guarantee"),
        last_error=_last_error(row, run),
        recent=recent,
    )


def lag(connection: Connection, row: Row) -> schemas.Lag:
    summary = runs.summarise(connection, row["id"])
    return _lag(connection, summary["now"], row, state.find(connection, row["id"]), summary["last_success_at"])


def checkpoint(connection: Connection, row: Row) -> schemas.Checkpoint:
    """Return the checkpoint, which is empty for a pipeline that never ran."""
    return schemas.Checkpoint.model_validate(state.find(connection, row["id"]) or {"pipeline_id": row["id"]})


def run_answer(run: Row) -> schemas.Run:
    seconds = float(run["seconds"])
    return schemas.Run.model_validate(
        run
        | {
            "duration_seconds": round(seconds, 3),
            "rows_per_second": _rate(run["rows_read"], seconds),
            "next_step": advice.next_step(run["error_code"], run["error_message"]) if run["error_code"] else None,
        }
    )


def _runner(connection: Connection, settings: Settings, row: Row) -> schemas.RunnerName | None:
    if row["runner_id"] is None:
        return None
    found = runners.find(connection, row["runner_id"], stale_after_seconds=settings.lease_ttl_seconds)
    return schemas.RunnerName.model_validate(found) if found else None


def _metrics(run: Row | None) -> dict[str, Any]:
    """Return what a run has measured: nothing if there is no run, or its row was edited to no object."""
    found = run["metrics"] if run else None
    return found if isinstance(found, dict) else {}


def _progress(run: Row) -> schemas.Progress:
    seconds, read = float(run["seconds"]), int(run["rows_read"])
    rate = _rate(read, seconds)
    estimate = _metrics(run).get("rows_estimate")
    estimate = int(estimate) if isinstance(estimate, int | float) and estimate > 0 else None
    left = max(estimate - read, 0) if estimate is not None else None
    return schemas.Progress(
        rows_read=read,
        rows_written=run["rows_written"],
        batches=run["batches"],
        elapsed_seconds=round(seconds, 3),
        rows_per_second=rate,
        rows_estimate=estimate,
        # The total is an estimate, so progress stays below 100 % until the load is done.
        percent=round(min(100 * read / estimate, 99.9), 1) if estimate else None,
        eta_seconds=round(left / rate, 1) if left is not None and rate else None,
        ranges=_metrics(run).get("ranges"),
    )


def _following(now: datetime, row: Row, run: Row | None, found: Row | None) -> schemas.Following | None:
    """Compute how old a live pipeline's target is, unless a full load is running."""
    follows = row["status"] in status.ACTIVE and _metrics(run).get("following")
    as_of = live_as_of(row, found) if follows else None
    return schemas.Following(as_of=as_of, lag_seconds=_age(now, as_of) or 0.0) if as_of else None


def live_as_of(row: Row, found: Row | None) -> datetime | None:
    """Return the time, by the source's clock, that the target of a live pipeline reflects."""
    place = found["identity"].get("live") if found and row["mode"] == "live" else None
    return _as_time(place.get("as_of")) if isinstance(place, dict) else None


def _last_error(row: Row, run: Row | None) -> schemas.LastError | None:
    failed_run = run if run and run["error_message"] and run["status"] == RunStatus.FAILED else None
    if row["status"] != Status.FAILED and not (failed_run and row["status"] not in status.ACTIVE):
        return None
    code = failed_run["error_code"] if failed_run else None
    message = (failed_run["error_message"] if failed_run else None) or row["last_error"] or say("run.no_message")
    return schemas.LastError(
        code=code or "error",
        message=message,
        next_step=advice.next_step(code, message),
        run_id=failed_run["id"] if failed_run else None,
        at=failed_run["finished_at"] if failed_run else row["status_since"],
    )


def _recent(found: Row) -> schemas.RecentRuns:
    judged = found["succeeded"] + found["failed"]
    return schemas.RecentRuns.model_validate(
        found | {"success_rate": round(found["succeeded"] / judged, 4) if judged else None}
    )


def _lag(
    connection: Connection,
    now: datetime,
    row: Row,
    found: Row | None,
    last_success_at: datetime | None,
    *,
    load: Row | None = None,
) -> schemas.Lag:
    """Compute how far the target is behind. `load` is its latest run that read the source, if known."""
    safe_upto = found["safe_upto"] if found else None
    cursor_time = _as_time(safe_upto)
    success = load if load and load["status"] == RunStatus.SUCCESS else None
    if success is None and last_success_at:
        success = runs.find_last_success(connection, row["id"])
    as_of = live_as_of(row, found)
    return schemas.Lag(
        pipeline_id=row["id"],
        pipeline=row["name"],
        last_success_at=last_success_at,
        seconds_since_success=_age(now, last_success_at),
        safe_upto=safe_upto,
        cursor_lag_seconds=_age(now, as_of or cursor_time),
        data_as_of=as_of or _as_of_runs(success),
    )


def _as_of_runs(success: Row | None) -> datetime | None:
    return min(success["started_at"], success["data_as_of"] or success["started_at"]) if success else None


def _age(now: datetime, moment: datetime | None) -> float | None:
    return round(max((now - moment).total_seconds(), 0), 3) if moment else None


def _as_time(cursor: Any) -> datetime | None:
    """Parse a cursor, which is text. Return None if it is not a time: then it has no age."""
    try:
        moment = datetime.fromisoformat(str(cursor)) if cursor and "-" in str(cursor)[1:] else None
    except ValueError:
        return None
    return moment.replace(tzinfo=UTC) if moment and moment.tzinfo is None else moment


def _rate(rows: int, seconds: float) -> float | None:
    return round(rows / seconds, 1) if seconds > 0 else None
