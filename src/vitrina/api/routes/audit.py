"""`/audit`: who changed what, and when."""

from typing import Annotated

from fastapi import APIRouter, Query

from vitrina import schemas
from vitrina.api import paging
from vitrina.api.security import GuardedRoute, Viewer
from vitrina.api.state import State
from vitrina.schemas import Page
from vitrina.store import audit

router = APIRouter(tags=["installation"], route_class=GuardedRoute)


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
) -> Page[schemas.AuditEntry]:
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
    return paging.page(found, limit, schemas.AuditEntry.model_validate, lambda entry: [entry["id"]])
