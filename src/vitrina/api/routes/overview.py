"""`/overview`, `/graph`, `/me`: what the console shows first."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query

from vitrina import answers
from vitrina.answers import Page
from vitrina.api import paging
from vitrina.api.security import GuardedRoute, Viewer
from vitrina.api.state import State
from vitrina.services import connectors, graph
from vitrina.store import overview

router = APIRouter(tags=["overview"], route_class=GuardedRoute)

MAX_ROWS = 2000


@router.get("/me")
def who_am_i(state: State, caller: Viewer) -> answers.Me:
    """The caller as the audit names it, and what it may do."""
    return answers.Me(name=caller.name, role=caller.role, auth=state.settings.auth)


@router.get("/overview")
def list_overview(
    *,
    state: State,
    caller: Viewer,
    pipeline: Annotated[list[UUID], Query(max_length=200, description="Only these; all when none is given.")] = [],  # noqa: B006
    limit: Annotated[int, Query(ge=1, le=MAX_ROWS, description="Pipelines in one answer.")] = MAX_ROWS,
    cursor: paging.Cursor = None,
) -> Page[answers.PipelineOverview]:
    """Every pipeline with its latest runs, by name."""
    after = paging.decode(cursor, str)
    with state.pool.connection() as connection:
        found = overview.list_page(connection, only=pipeline, after_name=after[0] if after else None, limit=limit + 1)
        waiting = connectors.waiting(connection, state.settings)
    found = [row | {"waiting": waiting.get(row["id"])} for row in found]
    return paging.page(found, limit, answers.PipelineOverview.model_validate, lambda row: [row["name"]])


@router.get("/graph")
def draw_graph(state: State, caller: Viewer) -> answers.Graph:
    """Tables, pipelines and targets with the edges between them, and who runs after whom."""
    with state.pool.connection() as connection:
        return graph.graph(connection, state.settings)
