"""`/dead-letters`: rejected rows, listed one by one or in groups, and replayed."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from vitrina import schemas
from vitrina.api import paging
from vitrina.api.requests import ReplayRequest
from vitrina.api.routes import actions
from vitrina.api.security import GuardedRoute, Operator, Viewer
from vitrina.api.state import State
from vitrina.schemas import Page
from vitrina.services import pipelines, reconciliation
from vitrina.store import dead_letters, leases

NO_ZERO = r"^[^\x00]*$"

router = APIRouter(tags=["installation"], route_class=GuardedRoute)


@router.get("/dead-letters")
def list_dead_letters(
    *,
    state: State,
    caller: Viewer,
    pipeline: Annotated[str | None, Query(max_length=100, description="UUID or name of a pipeline.")] = None,
    resolved: bool = False,
    reason: Annotated[
        str | None,
        Query(max_length=10_000, pattern=NO_ZERO, description="Those in this group of `/dead-letters/groups`."),
    ] = None,
    limit: paging.Limit = paging.DEFAULT_LIMIT,
    cursor: paging.Cursor = None,
) -> Page[schemas.DeadLetter]:
    """List documents that a target refused, newest first."""
    before = paging.decode(cursor, int)
    with state.pool.connection() as connection:
        found = dead_letters.list_page(
            connection,
            pipeline_id=pipelines.get(connection, pipeline)["id"] if pipeline is not None else None,
            resolved=resolved,
            reason=reason,
            before_id=before[0] if before else None,
            limit=limit + 1,
        )
    return paging.page(found, limit, schemas.DeadLetter.model_validate, lambda letter: [letter["id"]])


@router.get("/dead-letters/groups")
def list_dead_letter_groups(
    *,
    state: State,
    caller: Viewer,
    pipeline: Annotated[str | None, Query(max_length=100, description="UUID or name of a pipeline.")] = None,
    resolved: bool = False,
    limit: paging.Limit = paging.DEFAULT_LIMIT,
) -> Page[schemas.DeadLetterGroup]:
    """List dead letters by pipeline and reason, the largest group first: many of them usually have one cause."""
    with state.pool.connection() as connection:
        found = dead_letters.list_groups(
            connection,
            pipeline_id=pipelines.get(connection, pipeline)["id"] if pipeline is not None else None,
            resolved=resolved,
            limit=limit,
        )
    return Page(items=[schemas.DeadLetterGroup.model_validate(row) for row in found], next_cursor=None)


@router.post("/dead-letters/replay", responses={202: {"model": schemas.Request}})
def replay_dead_letters(state: State, caller: Operator, response: Response, body: ReplayRequest) -> schemas.Request:
    """Read the rows of a pipeline's dead letters again, by their keys, and send them again. Performed by a runner.

    A dead letter is marked resolved when its row is accepted, or is no longer in the source. It stays open when the row
    is refused again. 409 unless the pipeline is IDLE or PAUSED, because a replay cannot run beside a run. The replay of
    a live pipeline runs between two batches.
    """
    payload = body.model_dump(include={"letters"}, exclude_none=True)
    with state.pool.connection() as connection:
        row = pipelines.get(connection, body.pipeline)
        leases.refuse_beside_a_run(row, "pipeline.no_replay_now")
        if body.reason is not None:
            payload["letters"] = reconciliation.letters_of_group(connection, row, body.reason, body.letters)
    return actions.ask_runner(state, caller, response, kind="replay", pipeline=body.pipeline, payload=payload)
