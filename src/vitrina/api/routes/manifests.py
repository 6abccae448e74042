"""`/apply`, `/export`, `/schema/pipeline.json`, `/validate`: pipelines as files."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Query
from fastapi.responses import Response

from vitrina import schemas
from vitrina.api.requests import DEFINITION_EXAMPLES, ApplyRequest
from vitrina.api.security import GuardedRoute, Operator, Viewer
from vitrina.api.state import State, sendable
from vitrina.services import manifests, requests

router = APIRouter(tags=["files"], route_class=GuardedRoute)
# Editors fetch it without a token; it contains nothing about this installation.
schema_router = APIRouter(tags=["files"], route_class=GuardedRoute)

YAML = "application/yaml"


@router.post("/apply")
def apply(state: State, caller: Operator, body: ApplyRequest) -> schemas.ApplyReport:
    """Make the pipelines match the documents: all of them or none."""
    files: list[tuple[str | None, str]] = [(file.path, file.text) for file in body.files]
    if body.documents is not None:
        files.append((None, body.documents))
    with state.changing() as connection:
        return sendable(
            manifests.apply(
                connection,
                state.settings,
                caller,
                files,
                managed_by=body.managed_by,
                prune=body.prune,
                dry_run=body.dry_run,
                plans=body.require_plans,
            )
        )


@router.get(
    "/export",
    response_class=Response,
    responses={200: {"content": {YAML: {"schema": {}}}, "description": "YAML documents."}},
)
def export(
    state: State,
    caller: Viewer,
    name: Annotated[list[str], Query(max_length=1000, description="Names of pipelines. Default: all.")] = [],  # noqa: B006
) -> Response:
    """Export definitions as YAML, which `apply` accepts. The same definitions always produce the same bytes."""
    with state.pool.connection() as connection:
        return Response(manifests.export(connection, name), media_type=YAML)


@router.post("/validate")
def validate_definition(
    state: State,
    caller: Viewer,
    definition: Annotated[dict[str, Any], Body(openapi_examples=DEFINITION_EXAMPLES)],
) -> schemas.ValidationReport:
    """Report what is wrong with a definition that is not saved, as far as that is known without its source."""
    with state.pool.connection() as connection:
        return requests.static_report(connection, state.settings, definition)


@schema_router.get("/schema/pipeline.json")
def pipeline_schema() -> dict[str, Any]:
    """Return the JSON Schema of a pipeline document, for editors."""
    return manifests.json_schema()
