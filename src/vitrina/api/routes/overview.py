"""`/home`, `/overview`, `/graph`, `/schedule`, `/me`: what the console shows first."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query

from vitrina import schemas
from vitrina.api import paging
from vitrina.api.compression import CompressedRoute
from vitrina.api.security import Viewer
from vitrina.api.state import State
from vitrina.schemas import Page
from vitrina.services import connectors, graph, home, schedules
from vitrina.store import graph as lines
from vitrina.store import overview

router = APIRouter(tags=["overview"], route_class=CompressedRoute)

MAX_ROWS = 2000
# A larger drawing cannot be read.
DRAWN = 500


@router.get("/me")
def who_am_i(state: State, caller: Viewer) -> schemas.Me:
    """Name the caller as the audit does, and its role."""
    return schemas.Me(name=caller.name, role=caller.role, auth=state.settings.auth)


@router.get("/home")
def get_home(
    state: State,
    caller: Viewer,
    hours: Annotated[int, Query(ge=1, le=168, description="How far to look back for runs.")] = 24,
) -> schemas.Home:
    """Show what needs attention, what ran lately, what comes next, and which runners are alive."""
    with state.pool.connection() as connection:
        return home.home(connection, state.settings, state.stale_marts, hours=hours)


@router.get("/schedule")
def list_schedule_times(
    state: State,
    caller: Viewer,
    interval: Annotated[str, Query(min_length=1, max_length=200, description="As in `schedule_interval`.")],
    count: Annotated[int, Query(ge=1, le=20, description="How many times to list.")] = 5,
) -> schemas.ScheduleTimes:
    """List when a schedule would be due from now on; 422 says what is wrong with it."""
    with state.pool.connection() as connection:
        return schemas.ScheduleTimes(times=schedules.next_times(connection, interval, count=count))


@router.get("/overview")
def list_overview(
    *,
    state: State,
    caller: Viewer,
    pipeline: Annotated[list[UUID], Query(max_length=200, description="Names of pipelines. Default: all.")] = [],  # noqa: B006
    limit: Annotated[int, Query(ge=1, le=MAX_ROWS, description="Pipelines in one answer.")] = MAX_ROWS,
    cursor: paging.Cursor = None,
) -> Page[schemas.PipelineOverview]:
    """List every pipeline with its latest runs, by name; compressed for clients that accept gzip."""
    after = paging.decode(cursor, str)
    with state.pool.connection() as connection:
        found = overview.list_page(connection, only=pipeline, after_name=after[0] if after else None, limit=limit + 1)
        waiting = connectors.waiting(connection, state.settings, found)
    found = [row | {"waiting": waiting.get(row["id"])} for row in found]
    return paging.page(found, limit, schemas.PipelineOverview.model_validate, lambda row: [row["name"]])


@router.get("/graph")
def draw_graph(
    *,
    state: State,
    caller: Viewer,
    name: Annotated[str | None, Query(max_length=100, description="Part of the name of a pipeline.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_ROWS, description="Pipelines in one answer.")] = DRAWN,
    cursor: paging.Cursor = None,
) -> schemas.Graph:
    """Show tables, pipelines and targets with the edges between them, and which pipeline runs after which.

    Pipelines come by name, each with what it reads, writes and runs after. A node may be in several answers.
    """
    after = paging.decode(cursor, str)
    with state.pool.connection() as connection:
        found = lines.list_lines(connection, name=name, after_name=after[0] if after else None, limit=limit + 1)
        drawn = graph.graph(connection, state.settings, found[:limit])
    more = len(found) > limit
    return drawn.model_copy(update={"next_cursor": paging.encode([found[limit - 1]["name"]]) if more else None})
