"""What is set up here.

`/runners`, `/transforms`, `/connectors`, `/feeds`, `/targets`, `/audit`, `/dead-letters`, `/tokens`.
"""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from vitrina import answers
from vitrina.answers import Page
from vitrina.api import bodies, paging
from vitrina.api.routes import verbs
from vitrina.api.security import Admin, GuardedRoute, Operator, Viewer
from vitrina.api.state import State
from vitrina.services import connectors, pipelines, reconciliation, tokens
from vitrina.services.callers import Role
from vitrina.store import audit, dead_letters, feed_reports, leases, runners
from vitrina.store import pipelines as pipeline_rows
from vitrina.store import tokens as token_rows

NO_ZERO = r"^[^\x00]*$"

router = APIRouter(tags=["installation"], route_class=GuardedRoute)


@router.get("/runners")
def list_runners(state: State, caller: Viewer) -> Page[answers.Runner]:
    with state.pool.connection() as connection:
        found = runners.list_all(connection, stale_after_seconds=state.settings.lease_ttl_seconds)
    return Page(items=[answers.Runner.model_validate(row) for row in found], next_cursor=None)


@router.get("/transforms")
def list_transforms(state: State, caller: Viewer) -> Page[answers.Transform]:
    """List the Python steps that live runners have registered."""
    with state.pool.connection() as connection:
        found = runners.list_transforms(connection, stale_after_seconds=state.settings.lease_ttl_seconds)
    items = [answers.Transform.model_validate({**row["described"], "runners": row["runners"]}) for row in found]
    return Page(items=items, next_cursor=None)


@router.get("/connectors")
def list_connectors(state: State, caller: Viewer) -> Page[answers.Connector]:
    """List the kinds of sources and targets: those installed here, and those that live runners have."""
    with state.pool.connection() as connection:
        return Page(items=connectors.list_all(connection, state.settings), next_cursor=None)


@router.get("/feeds")
def list_feeds(state: State, caller: Viewer) -> Page[answers.Feed]:
    """The logs of source databases that live pipelines follow, and how far they are behind."""
    with state.pool.connection() as connection:
        found = feed_reports.list_all(connection)
    return Page(items=[answers.Feed.model_validate(row) for row in found], next_cursor=None)


@router.get("/targets")
def list_targets(state: State, caller: Viewer) -> answers.Targets:
    """List where pipelines may write, and where they do."""
    with state.pool.connection() as connection:
        found = pipeline_rows.list_targets(connection)
    items = [answers.Target.model_validate(row) for row in found]
    return answers.Targets(allowed=list(state.settings.target_policy.patterns), items=items)


@router.get("/audit")
def list_audit(
    *,
    state: State,
    caller: Viewer,
    object: Annotated[str | None, Query(max_length=200, description="`pipeline:<name>` or `token:<name>`.")] = None,
    who: Annotated[str | None, Query(max_length=100)] = None,
    action: Annotated[str | None, Query(max_length=100)] = None,
    since: paging.Moment | None = None,
    limit: paging.Limit = paging.DEFAULT_LIMIT,
    cursor: paging.Cursor = None,
) -> Page[answers.AuditEntry]:
    """List entries of the audit log, newest first."""
    before = paging.decode(cursor, int)
    with state.pool.connection() as connection:
        found = audit.list_page(
            connection,
            target=object,
            who=who,
            action=action,
            since=since,
            before_id=before[0] if before else None,
            limit=limit + 1,
        )
    return paging.page(found, limit, answers.AuditEntry.model_validate, lambda entry: [entry["id"]])


@router.get("/dead-letters")
def list_dead_letters(
    *,
    state: State,
    caller: Viewer,
    pipeline: Annotated[str | None, Query(max_length=100, description="Its uuid or its name.")] = None,
    resolved: bool = False,
    reason: Annotated[
        str | None, Query(max_length=10_000, pattern=NO_ZERO, description="Of this group of `/dead-letters/groups`.")
    ] = None,
    limit: paging.Limit = paging.DEFAULT_LIMIT,
    cursor: paging.Cursor = None,
) -> Page[answers.DeadLetter]:
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
    return paging.page(found, limit, answers.DeadLetter.model_validate, lambda letter: [letter["id"]])


@router.get("/dead-letters/groups")
def list_dead_letter_groups(
    *,
    state: State,
    caller: Viewer,
    pipeline: Annotated[str | None, Query(max_length=100, description="Its uuid or its name.")] = None,
    resolved: bool = False,
    limit: paging.Limit = paging.DEFAULT_LIMIT,
) -> Page[answers.DeadLetterGroup]:
    """List dead letters by pipeline and reason, the largest group first: many of them usually have one cause."""
    with state.pool.connection() as connection:
        found = dead_letters.list_groups(
            connection,
            pipeline_id=pipelines.get(connection, pipeline)["id"] if pipeline is not None else None,
            resolved=resolved,
            limit=limit,
        )
    return Page(items=[answers.DeadLetterGroup.model_validate(row) for row in found], next_cursor=None)


@router.post("/dead-letters/replay", responses={202: {"model": answers.Request}})
def replay_dead_letters(state: State, caller: Operator, response: Response, wish: bodies.ReplayWish) -> answers.Request:
    """Read the rows of a pipeline's dead letters again, by their keys, and send them again. Performed by a runner.

    A dead letter is marked resolved when its row is accepted, or is no longer in the source. It stays open when the row
    is refused again. 409 unless the pipeline is IDLE or PAUSED, because a replay cannot run beside a run; of a live
    pipeline it runs between two batches.
    """
    payload = wish.model_dump(include={"letters"}, exclude_none=True)
    with state.pool.connection() as connection:
        row = pipelines.get(connection, wish.pipeline)
        leases.refuse_beside_a_run(row, "pipeline.no_replay_now")
        if wish.reason is not None:
            payload["letters"] = reconciliation.letters_of_group(connection, row, wish.reason, wish.letters)
    return verbs.ask_runner(state, caller, response, kind="replay", pipeline=wish.pipeline, payload=payload)


@router.get("/tokens")
def list_tokens(state: State, caller: Admin) -> Page[answers.Token]:
    with state.pool.connection() as connection:
        found = token_rows.list_all(connection)
    return Page(items=[answers.Token.model_validate(row) for row in found], next_cursor=None)


@router.post("/tokens", status_code=201)
def create_token(state: State, caller: Admin, wish: bodies.NewTokenWish) -> answers.NewToken:
    """Create a token. It is shown in this answer and never again."""
    with state.pool.connection() as connection:
        row, secret = tokens.create(
            connection, caller, name=wish.name, role=Role(wish.role), expires_in_days=wish.expires_in_days
        )
    return answers.NewToken.model_validate(row | {"token": secret})


@router.delete("/tokens/{name}", status_code=204)
def revoke_token(state: State, caller: Admin, name: Annotated[str, Path(max_length=100)]) -> None:
    with state.pool.connection() as connection:
        tokens.revoke(connection, caller, name)
