"""Build the OpenAPI document: FastAPI's, with problem documents and the schema of partial changes added."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from vitrina import __version__
from vitrina.api.errors import MEDIA_TYPE
from vitrina.schemas import Problem

DESCRIPTION = (
    "Control plane of Vitrina: pipelines, runs, status, history. Errors are problem documents (RFC 9457) with a stable"
    " `code`. Send `Authorization: Bearer <token>`."
)
_REFERENCE = "#/components/schemas/{}"
_WORDS = {
    400: "The body is not JSON.",
    401: "No valid token.",
    403: "The token's role is not enough.",
    404: "The resource does not exist.",
    409: "The state of the resource does not allow the request now.",
    412: "The resource has changed since you read it.",
    413: "The body is too large.",
    422: "A value is not valid.",
    429: "Too many wrong tokens.",
    503: "The metastore does not answer.",
}
_CHANGING = ("post", "put", "patch", "delete")


def install(app: FastAPI) -> None:
    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    found = get_openapi(title="Vitrina", version=__version__, description=DESCRIPTION, routes=app.routes)
    schemas = found["components"]["schemas"]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    problem = Problem.model_json_schema(ref_template=_REFERENCE.format("{model}"))
    schemas |= problem.pop("$defs", {})
    schemas["Problem"] = problem
    schemas["PipelineChange"] = _change_of(schemas["NewPipeline"])
    schemas["OptionsChange"] = _nullable(_change_of(schemas["Options"]))
    schemas["PipelineChange"]["properties"]["options"] = {"$ref": _REFERENCE.format("OptionsChange")}
    _allow_null_values(schemas["PipelineChange"]["properties"]["labels"])
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            _complete(path, method, operation)
    return found


def _complete(path: str, method: str, operation: dict[str, Any]) -> None:
    for parameter in operation.get("parameters", []):
        parameter["schema"] = _without_null(parameter["schema"])
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    if method == "patch" or path.endswith("/update-config"):
        body["schema"] = {"$ref": _REFERENCE.format("PipelineChange")}
    operation["responses"].pop("422", None)
    for status in _problems_of(path, method, operation, has_body=bool(body)):
        operation["responses"][str(status)] = {
            "description": _WORDS[status],
            "content": {MEDIA_TYPE: {"schema": {"$ref": _REFERENCE.format("Problem")}}},
        }


def _problems_of(path: str, method: str, operation: dict[str, Any], *, has_body: bool) -> list[int]:
    """List the errors that an operation can answer with."""
    named = {parameter["name"] for parameter in operation.get("parameters", [])}
    if "security" not in operation:
        return [422] if named else []
    statuses = {401, 403, 422, 429, 503}
    if "{" in path or "pipeline" in named or path.endswith("/export"):
        statuses |= {404}
    if method in _CHANGING:
        statuses |= {404, 409, 412}
    if has_body:
        statuses |= {400, 413}
    return sorted(statuses)


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Remove null from a parameter's schema: one that is not given is left out of an address or a header."""
    kinds = [kind for kind in schema.get("anyOf", []) if kind.get("type") != "null"]
    if len(kinds) != 1:
        return schema
    return {**kinds[0], **{key: value for key, value in schema.items() if key not in ("anyOf", "default")}}


def _change_of(schema: dict[str, Any]) -> dict[str, Any]:
    """Build the schema of a change: the same fields, none required, and no defaults for those left out."""
    properties = {
        name: {key: value for key, value in field.items() if key != "default"}
        for name, field in schema["properties"].items()
    }
    return {
        "type": "object",
        "title": f"{schema['title']} change",
        "description": "Only the fields to change.",
        "properties": properties,
        "additionalProperties": False,
    }


def _allow_null_values(schema: dict[str, Any]) -> None:
    """Allow null as a value, which removes the key."""
    for part in ("patternProperties", "additionalProperties"):
        values = schema.get(part)
        if part == "patternProperties" and values:
            schema[part] = {key: {"anyOf": [value, {"type": "null"}]} for key, value in values.items()}
        elif isinstance(values, dict):
            schema[part] = {"anyOf": [values, {"type": "null"}]}


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    nullable = {name: {"anyOf": [field, {"type": "null"}]} for name, field in schema["properties"].items()}
    return schema | {"properties": nullable}
