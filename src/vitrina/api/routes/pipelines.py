"""`/pipelines`: definitions, task plans and versions."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Body, Header, Path, Query, Response

from vitrina import schemas
from vitrina.api import paging
from vitrina.api.requests import CHANGE_EXAMPLES, DEFINITION_EXAMPLES, NewPipeline, TaskPlan
from vitrina.api.security import GuardedRoute, Operator, Viewer
from vitrina.api.state import State, sendable
from vitrina.errors import InvalidField
from vitrina.schemas import Page
from vitrina.sentences import say
from vitrina.services import connectors, pipelines, versions
from vitrina.status import Status
from vitrina.store import audit as version_rows
from vitrina.store import pipelines as rows
from vitrina.store.pipelines import Filter, Row

router = APIRouter(tags=["pipelines"], route_class=GuardedRoute)

PipelineId = Annotated[str, Path(description="UUID or name of a pipeline.", examples=["film_dim_full"])]
VersionNumber = Annotated[int, Path(ge=1, le=2**31 - 1)]
IfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match",
        pattern=r'^(\*|(W/)?"[0-9]{1,9}")$',
        description='The ETag that you read, such as `"3"`. 412 if the pipeline has changed since.',
    ),
]
Sort = Literal[
    "name", "-name", "status", "-status", "status_since", "-status_since",
    "created_at", "-created_at", "updated_at", "-updated_at",
]  # fmt: skip


@router.get("/pipelines")
def list_pipelines(
    *,
    state: State,
    caller: Viewer,
    status: Annotated[list[Status], Query(description="One of these.")] = [],  # noqa: B006
    enabled: bool | None = None,
    name: Annotated[str | None, Query(max_length=100, description="A part of the name.")] = None,
    target: Annotated[str | None, Query(max_length=200, description="Exactly this target.")] = None,
    since: Annotated[paging.Moment | None, Query(description="Changed at or after this time.")] = None,
    managed_by: Annotated[str | None, Query(max_length=200)] = None,
    label: paging.Labels = [],  # noqa: B006
    sort: Sort = "name",
    limit: paging.Limit = paging.DEFAULT_LIMIT,
    cursor: paging.Cursor = None,
) -> Page[schemas.Pipeline]:
    column, descending = sort.removeprefix("-"), sort.startswith("-")
    is_time = rows.SORTABLE[column] == "timestamptz"
    after = paging.decode(cursor, str, datetime.fromisoformat if is_time else str, UUID)
    if after is not None and after[0] != sort:
        raise InvalidField("query.cursor", say("request.cursor_of_other_sort", sort=after[0]))
    with state.pool.connection() as connection:
        found = rows.list_page(
            connection,
            Filter(status, enabled, name, target, since, managed_by, label),
            limit=limit + 1,
            sort=column,
            descending=descending,
            after=(after[1], after[2]) if after else None,
        )
        waiting = connectors.waiting(connection, state.settings, found)
    for row in found:
        row["waiting"] = waiting.get(row["id"])
    return paging.page(
        found, limit, schemas.Pipeline.model_validate, lambda row: [sort, _text(row[column]), str(row["id"])]
    )


@router.post("/pipelines", status_code=201)
def create_pipeline(
    *,
    state: State,
    caller: Operator,
    response: Response,
    body: Annotated[NewPipeline, Body(openapi_examples=DEFINITION_EXAMPLES)],
) -> schemas.Pipeline:
    with state.changing() as connection:
        row = pipelines.create(connection, state.settings, caller, body.definition, labels=body.labels)
        response.headers["Location"] = f"/api/v1/pipelines/{row['id']}"
        return _answer(response, row)


@router.get("/pipelines/{pipeline}")
def get_pipeline(
    *,
    state: State,
    caller: Viewer,
    response: Response,
    pipeline: PipelineId,
) -> schemas.Pipeline:
    with state.pool.connection() as connection:
        return _shown(response, pipelines.get(connection, pipeline))


@router.patch("/pipelines/{pipeline}")
def update_pipeline(
    *,
    state: State,
    caller: Operator,
    response: Response,
    pipeline: PipelineId,
    changes: Annotated[dict[str, Any], Body(openapi_examples=CHANGE_EXAMPLES)],
    if_match: IfMatch = None,
) -> schemas.Pipeline:
    """Set the given fields; `options` and `labels` are merged key by key, null resets one to its default.

    Labels are not part of the definition: a change of labels alone creates no version.
    """
    with state.changing() as connection:
        row = pipelines.change(
            connection, state.settings, caller, pipeline, changes, expected_version=version_in(if_match)
        )
        return _answer(response, row)


@router.post("/pipelines/{pipeline}/update-config")
def update_config(
    *,
    state: State,
    caller: Operator,
    response: Response,
    pipeline: PipelineId,
    changes: Annotated[dict[str, Any], Body(openapi_examples=CHANGE_EXAMPLES)],
    if_match: IfMatch = None,
) -> schemas.Pipeline:
    """Do the same as PATCH."""
    return update_pipeline(
        state=state, caller=caller, response=response, pipeline=pipeline, changes=changes, if_match=if_match
    )


@router.delete("/pipelines/{pipeline}", status_code=204)
def delete_pipeline(state: State, caller: Operator, pipeline: PipelineId, if_match: IfMatch = None) -> None:
    """Delete a pipeline with its history and checkpoint; the target table stays."""
    with state.pool.connection() as connection:
        pipelines.remove(connection, caller, pipeline, expected_version=version_in(if_match))


@router.get("/pipelines/{pipeline}/tasks")
def get_tasks(state: State, caller: Viewer, response: Response, pipeline: PipelineId) -> schemas.TaskPlan:
    with state.pool.connection() as connection:
        return _plan(response, pipelines.get(connection, pipeline))


@router.put("/pipelines/{pipeline}/tasks")
def replace_tasks(
    *,
    state: State,
    caller: Operator,
    response: Response,
    pipeline: PipelineId,
    plan: TaskPlan,
    if_match: IfMatch = None,
) -> schemas.TaskPlan:
    """Replace the task plan. With an empty plan, `source_query` is used again."""
    tasks = [task.model_dump() for task in plan.items]
    with state.changing() as connection:
        row = pipelines.replace_tasks(
            connection, state.settings, caller, pipeline, tasks, expected_version=version_in(if_match)
        )
        return _plan(response, row)


@router.get("/pipelines/{pipeline}/versions")
def list_versions(
    *,
    state: State,
    caller: Viewer,
    pipeline: PipelineId,
    limit: paging.Limit = paging.DEFAULT_LIMIT,
    cursor: paging.Cursor = None,
) -> Page[schemas.Version]:
    """List versions of the definition, newest first."""
    before = paging.decode(cursor, int)
    with state.pool.connection() as connection:
        row = pipelines.get(connection, pipeline)
        versions.keep_baseline(connection, row)
        found = version_rows.list_versions(
            connection, row["id"], limit=limit + 1, before_version=before[0] if before else None
        )
    return paging.page(found, limit, schemas.Version.model_validate, lambda version: [version["version"]])


@router.get("/pipelines/{pipeline}/versions/compare")
def compare_versions(
    *,
    state: State,
    caller: Viewer,
    pipeline: PipelineId,
    before: Annotated[int, Query(alias="from", ge=1, le=2**31 - 1)],
    after: Annotated[int, Query(alias="to", ge=1, le=2**31 - 1)],
) -> schemas.VersionComparison:
    with state.pool.connection() as connection:
        row = pipelines.get(connection, pipeline)
        older, newer = versions.get(connection, row, before), versions.get(connection, row, after)
    return schemas.VersionComparison(
        pipeline=row["name"],
        from_version=before,
        to_version=after,
        changes=versions.compare(older["definition"], newer["definition"]),
    )


@router.get("/pipelines/{pipeline}/versions/{version}")
def get_version(state: State, caller: Viewer, pipeline: PipelineId, version: VersionNumber) -> schemas.Version:
    with state.pool.connection() as connection:
        found = versions.get(connection, pipelines.get(connection, pipeline), version)
    return schemas.Version.model_validate(found)


@router.post("/pipelines/{pipeline}/versions/{version}/rollback")
def roll_back(
    *,
    state: State,
    caller: Operator,
    response: Response,
    pipeline: PipelineId,
    version: VersionNumber,
    if_match: IfMatch = None,
) -> schemas.Pipeline:
    """Make the definition of an older version the newest one."""
    with state.changing() as connection:
        row = pipelines.roll_back(
            connection, state.settings, caller, pipeline, version, expected_version=version_in(if_match)
        )
        return _answer(response, row)


def version_in(if_match: str | None) -> int | None:
    """Parse the version of an `If-Match` header; `*` means any."""
    return int(if_match.removeprefix("W/").strip('"')) if if_match and if_match != "*" else None


def _answer(response: Response, row: Row) -> schemas.Pipeline:
    return sendable(_shown(response, row))


def _shown(response: Response, row: Row) -> schemas.Pipeline:
    response.headers["ETag"] = etag(row)
    return schemas.Pipeline.model_validate(row)


def _plan(response: Response, row: Row) -> schemas.TaskPlan:
    response.headers["ETag"] = etag(row)
    return sendable(schemas.TaskPlan(items=[schemas.Task.model_validate(task) for task in row["tasks"]]))


def etag(row: Row) -> str:
    return f'"{row["version"]}"'


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
