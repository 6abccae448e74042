"""List what is installed and running: `/runners`, `/transforms`, `/connectors`, `/feeds`, `/targets`."""

from fastapi import APIRouter

from vitrina import schemas
from vitrina.api import paging
from vitrina.api.security import GuardedRoute, Viewer
from vitrina.api.state import State
from vitrina.schemas import Page
from vitrina.services import connectors
from vitrina.store import feed_reports, runners
from vitrina.store import pipelines as pipeline_rows

router = APIRouter(tags=["installation"], route_class=GuardedRoute)


@router.get("/runners")
def list_runners(state: State, caller: Viewer) -> Page[schemas.Runner]:
    with state.pool.connection() as connection:
        found = runners.list_all(connection, stale_after_seconds=state.settings.lease_ttl_seconds)
    return Page(items=[schemas.Runner.model_validate(row) for row in found], next_cursor=None)


@router.get("/transforms")
def list_transforms(state: State, caller: Viewer) -> Page[schemas.Transform]:
    """List the Python steps that live runners have registered."""
    with state.pool.connection() as connection:
        found = runners.list_transforms(connection, stale_after_seconds=state.settings.lease_ttl_seconds)
    items = [schemas.Transform.model_validate({**row["described"], "runners": row["runners"]}) for row in found]
    return Page(items=items, next_cursor=None)


@router.get("/connectors")
def list_connectors(state: State, caller: Viewer) -> Page[schemas.Connector]:
    """List the kinds of sources and targets: those installed here, and those that live runners have."""
    with state.pool.connection() as connection:
        return Page(items=connectors.list_all(connection, state.settings), next_cursor=None)


@router.get("/feeds")
def list_feeds(state: State, caller: Viewer) -> Page[schemas.Feed]:
    """List the feeds that read the logs of source databases for live pipelines, and how far they are behind."""
    with state.pool.connection() as connection:
        found = feed_reports.list_all(connection)
    return Page(items=[schemas.Feed.model_validate(row) for row in found], next_cursor=None)


@router.get("/targets")
def list_targets(
    state: State, caller: Viewer, limit: paging.Limit = paging.MAX_LIMIT, cursor: paging.Cursor = None
) -> schemas.Targets:
    """List where pipelines may write, and where they do."""
    after = paging.decode(cursor, str)
    with state.pool.connection() as connection:
        found = pipeline_rows.list_targets(connection, after=after[0] if after else None, limit=limit + 1)
    listed = paging.page(found, limit, schemas.Target.model_validate, lambda row: [row["target"]])
    allowed = list(state.settings.target_policy.patterns)
    return schemas.Targets(allowed=allowed, items=listed.items, next_cursor=listed.next_cursor)
