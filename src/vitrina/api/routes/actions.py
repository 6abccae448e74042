"""`/pipelines/{id}/<verb>`: request runs, pauses and other work of runners."""

import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Header, Query, Response

from vitrina import schemas
from vitrina.api.requests import CancelRequest, NewState, PreviewRequest, ReconcileRequest, RunRequest
from vitrina.api.routes.pipelines import PipelineId
from vitrina.api.security import GuardedRoute, Operator, Viewer
from vitrina.api.state import AppState, State
from vitrina.sentences import say
from vitrina.services import idempotency, pipelines, reconciliation, reports, requests, versions
from vitrina.services.callers import Caller
from vitrina.status import Status, Trigger
from vitrina.store import leases
from vitrina.store.database import Connection
from vitrina.store.pipelines import Row

router = APIRouter(tags=["verbs"], route_class=GuardedRoute)

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=idempotency.MAX_KEY_LENGTH,
        description="A repeated request with the same key gets the first answer and changes nothing.",
    ),
]


@router.post("/pipelines/{pipeline}/run", status_code=202)
def run(
    *,
    state: State,
    caller: Operator,
    response: Response,
    pipeline: PipelineId,
    body: Annotated[RunRequest | None, Body()] = None,
    key: IdempotencyKey = None,
) -> schemas.RunAccepted:
    """Request a run. Repeating the request has no effect. During a run, the request is kept for another run."""
    body = body or RunRequest()
    with state.changing() as connection:
        if key is None:
            return _run(connection, caller, pipeline, body)
        row = pipelines.get(connection, pipeline)
        answer, replayed = idempotency.once(
            connection,
            caller,
            row,
            key,
            lambda: _run(connection, caller, pipeline, body).model_dump(mode="json"),
            asked=body.model_dump(mode="json"),
        )
    if replayed:
        response.headers["Idempotent-Replayed"] = "true"
    return schemas.RunAccepted.model_validate(answer)


@router.post("/pipelines/{pipeline}/pause", status_code=202)
def pause(state: State, caller: Operator, pipeline: PipelineId) -> schemas.Accepted:
    """Request a pause at the next batch boundary; the schedule stops too."""
    with state.changing() as connection:
        row = pipelines.request_pause(connection, caller, pipeline)
        done = "pipeline.paused" if row["status"] == Status.PAUSED else "pipeline.will_pause"
        return _accepted(row, say(done, name=row["name"]))


@router.post("/pipelines/{pipeline}/resume", status_code=202)
def resume(state: State, caller: Operator, pipeline: PipelineId) -> schemas.RunAccepted:
    """Resume a paused pipeline where it stopped, with exactly one run. 409 unless it is PAUSED."""
    with state.changing() as connection:
        row = pipelines.resume(connection, caller, pipeline)
        message = say("pipeline.goes_on", name=row["name"])
        return schemas.RunAccepted(
            **_accepted(row, message).model_dump(),
            run_requested_at=row["run_requested_at"],
            asked="resume",
            run=None,
        )


@router.post("/pipelines/{pipeline}/cancel", status_code=202)
def cancel(
    *, state: State, caller: Operator, pipeline: PipelineId, body: Annotated[CancelRequest | None, Body()] = None
) -> schemas.Accepted:
    """Withdraw a waiting run, or end the current one without waiting for its batch; committed rows stay."""
    with state.changing() as connection:
        row = pipelines.cancel(connection, caller, pipeline, requested_at=body.run_requested_at if body else None)
        return _accepted(row, say("pipeline.cancelled", name=row["name"]))


@router.post("/pipelines/{pipeline}/enable")
def enable(state: State, caller: Operator, pipeline: PipelineId) -> schemas.Accepted:
    with state.changing() as connection:
        row = pipelines.enable(connection, caller, pipeline)
        return _accepted(row, say("pipeline.enabled", name=row["name"]))


@router.post("/pipelines/{pipeline}/disable")
def disable(state: State, caller: Operator, pipeline: PipelineId) -> schemas.Accepted:
    """Stop starting the pipeline; a current run continues to its end."""
    with state.changing() as connection:
        row = pipelines.disable(connection, caller, pipeline)
        return _accepted(row, say("pipeline.disabled", name=row["name"]))


@router.post("/pipelines/{pipeline}/reload-config")
def reload_config(state: State, caller: Operator, pipeline: PipelineId) -> schemas.Accepted:
    """Use the pipeline as it is in the metastore, also when it was edited there by hand."""
    with state.changing() as connection:
        row = pipelines.reload_config(connection, state.settings, caller, pipeline)
        when = "pipeline.from_next_batch" if row["status"] == Status.RUNNING else "pipeline.from_next_run"
        return _accepted(row, say(when, name=row["name"], version=row["version"]))


@router.post("/pipelines/{pipeline}/reset-state")
def reset_state(
    *, state: State, caller: Operator, pipeline: PipelineId, body: Annotated[NewState | None, Body()] = None
) -> schemas.Checkpoint:
    """Discard the checkpoint, so that the next run starts over, or starts at a cursor value."""
    with state.changing() as connection:
        row = pipelines.reset_state(connection, caller, pipeline, cursor=body.cursor if body else None)
        return schemas.Checkpoint.model_validate(row)


@router.post("/pipelines/{pipeline}/validate", responses={202: {"model": schemas.ValidationReport}})
def validate(state: State, caller: Viewer, response: Response, pipeline: PipelineId) -> schemas.ValidationReport:
    """Report what keeps it from running. A live runner also plans the query against the real source."""
    with state.pool.connection() as connection:
        row = pipelines.get(connection, pipeline)
        report = requests.static_report(connection, state.settings, versions.fields_of(row))
        if not report.valid or not requests.somebody_works(connection, state.settings):
            return report
    report.deep = ask_runner(state, caller, response, kind="validate", pipeline=pipeline, payload={})
    return requests.with_findings(report)


@router.post("/pipelines/{pipeline}/preview", responses={202: {"model": schemas.Request}})
def preview(
    *,
    state: State,
    caller: Operator,
    response: Response,
    pipeline: PipelineId,
    body: Annotated[PreviewRequest | None, Body()] = None,
) -> schemas.Request:
    """Show the first rows after the transforms; nothing is written. Performed by a runner."""
    payload = {"limit": (body or PreviewRequest()).limit}
    return ask_runner(state, caller, response, kind="preview", pipeline=pipeline, payload=payload)


@router.post("/pipelines/{pipeline}/reconcile", responses={202: {"model": schemas.Request}})
def reconcile(
    *,
    state: State,
    caller: Operator,
    response: Response,
    pipeline: PipelineId,
    body: Annotated[ReconcileRequest | None, Body()] = None,
) -> schemas.Request:
    """Compare source and target; with `repair`, correct what differs. Performed by a runner.

    Rows cannot be repaired during a run: 409 unless the pipeline is IDLE or PAUSED. A live one is repaired between two
    batches.
    """
    payload = (body or ReconcileRequest()).model_dump()
    if payload["repair"]:
        with state.pool.connection() as connection:
            leases.refuse_beside_a_run(pipelines.get(connection, pipeline))
    return ask_runner(state, caller, response, kind="reconcile", pipeline=pipeline, payload=payload)


@router.post("/pipelines/{pipeline}/plan", responses={202: {"model": schemas.Request}})
def plan(state: State, caller: Operator, response: Response, pipeline: PipelineId) -> schemas.Request:
    """Report what the next full load would change in the target; nothing is written there. Performed by a runner.

    `result` has the columns and rows that would be added, changed and removed, with some of them before and after, why
    the run would publish nothing, and what depends on the pipeline.
    """
    return ask_runner(state, caller, response, kind="plan", pipeline=pipeline, payload={})


@router.post("/pipelines/{pipeline}/profile", responses={202: {"model": schemas.Request}})
def profile(state: State, caller: Operator, response: Response, pipeline: PipelineId) -> schemas.Request:
    """Profile the target: rows, size, and for each column NULLs, distinct values, minimum, maximum, frequent values.

    Performed by a runner, for tables in Postgres. With more than a million rows, columns are profiled on a sample.
    """
    return ask_runner(state, caller, response, kind="profile", pipeline=pipeline, payload={})


@router.get("/pipelines/{pipeline}/profile")
def last_profile(state: State, caller: Viewer, pipeline: PipelineId) -> schemas.Request:
    """Show the latest profile of the target. Viewers are not shown its values."""
    with state.pool.connection() as connection:
        found = requests.get_latest(connection, pipelines.get(connection, pipeline), "profile")
    return schemas.Request.model_validate(found)


@router.get("/pipelines/{pipeline}/reconcile")
def last_reconcile(state: State, caller: Viewer, pipeline: PipelineId) -> schemas.Request:
    """Show the latest report."""
    with state.pool.connection() as connection:
        found = requests.get_latest(connection, pipelines.get(connection, pipeline), "reconcile")
    return schemas.Request.model_validate(found)


@router.get(
    "/pipelines/{pipeline}/reconcile/differences",
    responses={200: {"content": {"text/csv": {"schema": {"type": "string"}}}}},
)
def differences(
    state: State,
    caller: Viewer,
    pipeline: PipelineId,
    format: Annotated[Literal["json", "csv"], Query(description="A list, or one line per key and column.")] = "json",
) -> Response:
    """Download the keys that the latest finished report lists, as a file."""
    with state.pool.connection() as connection:
        row = pipelines.get(connection, pipeline)
        keys = reconciliation.listed_differences(connection, row)
    name = f"{row['name']}-differences.{format}"
    return Response(
        reconciliation.as_csv(keys) if format == "csv" else json.dumps(keys, ensure_ascii=False),
        media_type="text/csv" if format == "csv" else "application/json",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


def _run(connection: Connection, caller: Caller, pipeline: str, body: RunRequest) -> schemas.RunAccepted:
    before = pipelines.get(connection, pipeline)
    row = pipelines.request_run(
        connection,
        caller,
        pipeline,
        trigger=Trigger(body.trigger),
        since=body.since,
        until=body.until,
        accepts=body.accept,
    )
    current = pipelines.find_current_run(connection, row)
    message = say("pipeline.waits_for_runner", name=row["name"])
    if row["status"] == Status.RUNNING:
        message = say("pipeline.at_work", name=row["name"])
    elif before["requested_range"] is not None and before["status"] != Status.FAILED and body.is_plain:
        message = say("pipeline.backfill_first", name=row["name"])
    elif before["status"] == Status.PAUSED:
        message = say("pipeline.asked_while_paused", name=row["name"])
    return schemas.RunAccepted(
        **_accepted(row, message).model_dump(),
        run_requested_at=row["run_requested_at"],
        asked="run" if body.is_plain else "backfill",
        run=reports.run_answer(current) if current else None,
    )


def _accepted(row: Row, message: str) -> schemas.Accepted:
    return schemas.Accepted.model_validate(
        row | {"pipeline_id": row["id"], "pipeline": row["name"], "message": message}
    )


def ask_runner(
    state: AppState, caller: Caller, response: Response, *, kind: str, pipeline: str, payload: dict[str, Any]
) -> schemas.Request:
    """Wait a moment for a runner's answer; after that, answer 202 with the address of the request."""
    with state.pool.connection() as connection:
        asked = requests.ask(connection, caller, kind, pipelines.get(connection, pipeline), payload)
    return wait_for_runner(state, response, asked)


def wait_for_runner(state: AppState, response: Response, asked: Row) -> schemas.Request:
    with state.pool.connection() as connection:
        wait = state.request_wait_seconds if requests.somebody_works(connection, state.settings) else 0
    asked = requests.wait_for(state.pool.connection, asked, seconds=wait)
    if asked["finished_at"] is None:
        response.status_code = 202
        response.headers["Location"] = f"/api/v1/requests/{asked['id']}"
        response.headers["Retry-After"] = "1"
    return schemas.Request.model_validate(asked)
