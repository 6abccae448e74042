"""Report status and history: `/runs`, `/plans`, `/requests`, and parts of `/pipelines/{id}`.

Those are `status`, `state`, `lag`, `alerts`, `reconciles`, `plans` and `runs`.
"""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query

from vitrina import schemas
from vitrina.api import paging
from vitrina.api.routes.pipelines import PipelineId
from vitrina.api.security import GuardedRoute, Viewer
from vitrina.api.state import AppState, State
from vitrina.errors import Forbidden, NotFound
from vitrina.schemas import Page
from vitrina.sentences import say
from vitrina.services import data_plans, pipelines, reports, requests
from vitrina.services.callers import Role
from vitrina.status import RunStatus, Trigger
from vitrina.store import data_plans as plan_rows
from vitrina.store import notifications, run_logs, runs
from vitrina.store import requests as request_rows

of_pipeline = APIRouter(tags=["reports"], route_class=GuardedRoute)
router = APIRouter(tags=["reports"], route_class=GuardedRoute)

LogLevel = Literal["info", "warning", "error"]
LOG_LEVELS: tuple[LogLevel, ...] = ("info", "warning", "error")

RunStatuses = Annotated[list[RunStatus], Query(description="One of these.")]
Triggers = Annotated[list[Trigger], Query(description="One of these.")]
Since = Annotated[paging.Moment | None, Query(description="Started at or after this time.")]
Until = Annotated[paging.Moment | None, Query(description="Started before this time.")]


@of_pipeline.get("/pipelines/{pipeline}/status")
def get_status(state: State, caller: Viewer, pipeline: PipelineId) -> schemas.PipelineStatus:
    """Show status and its start, runner, progress, checkpoint, lag, last error with advice, and recent runs."""
    with state.pool.connection() as connection:
        row = pipelines.get(connection, pipeline)
        return reports.pipeline_status(connection, state.settings, row)


@of_pipeline.get("/pipelines/{pipeline}/state")
def get_state(state: State, caller: Viewer, pipeline: PipelineId) -> schemas.Checkpoint:
    """Show the checkpoint, which says where the next batch starts."""
    with state.pool.connection() as connection:
        return reports.checkpoint(connection, pipelines.get(connection, pipeline))


@of_pipeline.get("/pipelines/{pipeline}/lag")
def get_lag(state: State, caller: Viewer, pipeline: PipelineId) -> schemas.Lag:
    with state.pool.connection() as connection:
        return reports.lag(connection, pipelines.get(connection, pipeline))


@of_pipeline.get("/pipelines/{pipeline}/alerts")
def list_alerts(
    state: State, caller: Viewer, pipeline: PipelineId, limit: paging.Limit = paging.DEFAULT_LIMIT
) -> Page[schemas.Alert]:
    """List failures, recoveries and drift that receivers were notified of, newest first; kept as long as run logs."""
    with state.pool.connection() as connection:
        found = notifications.list_newest(connection, pipelines.get(connection, pipeline)["id"], limit=limit)
    return Page(items=[schemas.Alert.model_validate(row) for row in found], next_cursor=None)


@of_pipeline.get("/pipelines/{pipeline}/reconciles")
def list_reconciles(
    state: State, caller: Viewer, pipeline: PipelineId, limit: paging.Limit = paging.DEFAULT_LIMIT
) -> Page[schemas.Reconciliation]:
    """List comparisons of source and target, newest first, without the keys that they list."""
    with state.pool.connection() as connection:
        found = request_rows.list_reconciles(connection, pipelines.get(connection, pipeline)["id"], limit=limit)
    return Page(items=[schemas.Reconciliation.model_validate(row) for row in found], next_cursor=None)


@of_pipeline.get("/pipelines/{pipeline}/plans")
def list_plans(
    state: State, caller: Viewer, pipeline: PipelineId, limit: paging.Limit = paging.DEFAULT_LIMIT
) -> Page[schemas.PlanSummary]:
    """List plans of a pipeline, newest first: who made them, what they count, and which were applied."""
    with state.pool.connection() as connection:
        found = plan_rows.list_newest(connection, pipelines.get(connection, pipeline)["id"], limit=limit)
    return Page(items=[schemas.PlanSummary.model_validate(row) for row in found], next_cursor=None)


@of_pipeline.get("/pipelines/{pipeline}/runs")
def list_runs_of_pipeline(
    *,
    state: State,
    caller: Viewer,
    pipeline: PipelineId,
    status: RunStatuses = [],  # noqa: B006
    trigger: Triggers = [],  # noqa: B006
    since: Since = None,
    until: Until = None,
    limit: paging.Limit = paging.DEFAULT_LIMIT,
    cursor: paging.Cursor = None,
) -> Page[schemas.Run]:
    """List runs of a pipeline, newest first."""
    with state.pool.connection() as connection:
        pipeline_id = pipelines.get(connection, pipeline)["id"]
    narrowed: dict[str, Any] = {"status": status, "trigger": trigger, "since": since, "until": until}
    return _runs(state, pipeline_id, narrowed, limit=limit, cursor=cursor)


@router.get("/runs")
def list_runs(
    *,
    state: State,
    caller: Viewer,
    pipeline: Annotated[str | None, Query(max_length=100, description="UUID or name of a pipeline.")] = None,
    status: RunStatuses = [],  # noqa: B006
    trigger: Triggers = [],  # noqa: B006
    since: Since = None,
    until: Until = None,
    label: paging.Labels = [],  # noqa: B006
    limit: paging.Limit = paging.DEFAULT_LIMIT,
    cursor: paging.Cursor = None,
) -> Page[schemas.Run]:
    """List runs, newest first."""
    pipeline_id = None
    if pipeline is not None:
        with state.pool.connection() as connection:
            pipeline_id = pipelines.get(connection, pipeline)["id"]
    narrowed: dict[str, Any] = {"status": status, "trigger": trigger, "since": since, "until": until, "labels": label}
    return _runs(state, pipeline_id, narrowed, limit=limit, cursor=cursor)


@router.get("/runs/{run_id}")
def get_run(state: State, caller: Viewer, run_id: UUID) -> schemas.Run:
    with state.pool.connection() as connection:
        run = runs.find(connection, run_id)
    if run is None:
        raise NotFound(say("run.none", id=run_id))
    return reports.run_answer(run)


@router.get("/runs/{run_id}/logs")
def get_run_log(
    *,
    state: State,
    caller: Viewer,
    run_id: UUID,
    level: Annotated[LogLevel, Query(description="This level and more severe ones.")] = "info",
    after: Annotated[int, Query(ge=0, le=2**63 - 1, description="Only lines after this one.")] = 0,
    limit: paging.Limit = paging.MAX_LIMIT,
) -> Page[schemas.LogLine]:
    """Show what the run logged, oldest first. To follow it, repeat the request with `after` set to the last line's id.

    Kept for the operator's `VITRINA_LOGS_RETENTION_DAYS`; of a very long log the newest lines stay.
    """
    with state.pool.connection() as connection:
        if runs.find(connection, run_id) is None:
            raise NotFound(say("run.none", id=run_id))
        levels = LOG_LEVELS[LOG_LEVELS.index(level) :]
        found = run_logs.list_of_run(connection, run_id, levels=levels, after_id=after, limit=limit)
    return Page(items=[schemas.LogLine.model_validate(line) for line in found], next_cursor=None)


@router.get("/plans/{plan_id}")
def get_plan(state: State, caller: Viewer, plan_id: UUID) -> schemas.Plan:
    """Show a whole plan. Viewers are not shown its sample rows."""
    with state.pool.connection() as connection:
        return schemas.Plan.model_validate(data_plans.get(connection, plan_id))


@router.get("/requests/{request_id}")
def get_request(state: State, caller: Viewer, request_id: UUID) -> schemas.Request:
    """Show the progress of a request to a runner."""
    with state.pool.connection() as connection:
        found = requests.get(connection, request_id)
    if found["kind"] == requests.TEST_CONNECTION and not caller.role.includes(Role.ADMIN):
        raise Forbidden(say("request.test_is_for_admins", name=caller.name, role=caller.role))
    return schemas.Request.model_validate(found)


def _runs(
    state: AppState,
    pipeline_id: UUID | None,
    narrowed: dict[str, Any],
    *,
    limit: int,
    cursor: str | None,
) -> Page[schemas.Run]:
    after = paging.decode(cursor, datetime.fromisoformat, UUID)
    with state.pool.connection() as connection:
        found = runs.list_page(
            connection,
            pipeline_id=pipeline_id,
            **narrowed,
            after=(after[0], after[1]) if after else None,
            limit=limit + 1,
        )
    return paging.page(found, limit, reports.run_answer, lambda run: [run["started_at"].isoformat(), str(run["id"])])
