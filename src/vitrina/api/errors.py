"""Map errors to HTTP statuses and problem documents (RFC 9457). Routes have no `try`."""

import http
from collections.abc import Callable, Mapping
from typing import Any

import psycopg
import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import iter_route_contexts
from psycopg_pool import PoolTimeout, TooManyRequests
from starlette.exceptions import HTTPException

from vitrina import errors
from vitrina.api import middleware
from vitrina.schemas import FieldProblem, Problem
from vitrina.sentences import Sentence, say
from vitrina.services import policy
from vitrina.store import database

MEDIA_TYPE = "application/problem+json"

log = structlog.get_logger("vitrina.api")

# The first matching class decides, so subclasses come before their bases.
STATUSES: dict[type[errors.VitrinaError], int] = {
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.PreconditionFailed: 412,
    errors.Invalid: 422,
    errors.Unauthenticated: 401,
    errors.Forbidden: 403,
    errors.TooManyRequests: 429,
    errors.RequestError: 400,
    errors.CannotConnect: 503,
    errors.TransientError: 503,
    errors.ConfigError: 500,
    errors.VitrinaError: 500,
}
_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "60"}, 503: {"Retry-After": "2"}}


def install(app: FastAPI) -> None:
    for kind, handler in _HANDLERS.items():
        app.add_exception_handler(kind, handler)
    app.add_exception_handler(Exception, _on_surprise)


def find_answer(request: Request, error: Exception) -> JSONResponse | None:
    """Find the answer to an expected error. Return None for a surprise."""
    handler = next((_HANDLERS[kind] for kind in type(error).__mro__ if kind in _HANDLERS), None)
    return handler(request, error) if handler else None


def status_of(error: errors.VitrinaError) -> int:
    return next(status for kind, status in STATUSES.items() if isinstance(error, kind))


def answer(
    request: Request,
    status: int,
    code: str,
    detail: str,
    *,
    fields: tuple[errors.FieldError, ...] = (),
    extra: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    problem = Problem(
        title=http.HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        code=code,
        instance=request.url.path,
        request_id=getattr(request.state, "request_id", None),
        errors=[FieldProblem.model_validate(vars(field)) for field in fields],
        **(extra or {}),
    )
    return JSONResponse(
        problem.model_dump(mode="json"),
        status_code=status,
        media_type=MEDIA_TYPE,
        headers={**_HEADERS.get(status, {}), **(headers or {})},
    )


def _on_ours(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, errors.VitrinaError)
    status = status_of(error)
    if status >= 500:
        log.error("api.request_failed", code=error.code, error=error.message)
    fields = error.fields if isinstance(error, errors.Invalid) else ()
    return answer(request, status, _code(error, fields), error.message, fields=fields)


def _code(error: errors.VitrinaError, fields: tuple[errors.FieldError, ...]) -> str:
    """Choose the code of a single wrong field, which says more than the class: `forbidden_target`, `invalid_query`."""
    return fields[0].code if type(error) is errors.Invalid and len(fields) == 1 else error.code


def _on_validation(request: Request, error: Exception) -> JSONResponse:
    """Report what FastAPI itself refuses in the words of this API: 400 for broken JSON, 422 for wrong values."""
    assert isinstance(error, RequestValidationError)
    details = [{**detail, "loc": _place(detail["loc"])} for detail in error.errors()]
    if any(detail["type"] == "json_invalid" for detail in details):
        return answer(request, 400, "malformed_json", _why_no_json(details[0]))
    found = policy.invalid(policy.field_errors(details))
    return answer(request, 422, _code(found, found.fields), found.message, fields=found.fields)


def _why_no_json(detail: Mapping[str, Any]) -> Sentence:
    reason = detail.get("ctx", {}).get("error")
    if reason is None or not detail["loc"]:
        return say("request.no_json", reason=reason or say("request.unparsable"))
    return say("request.no_json_at", reason=reason, character=detail["loc"][0])


def _place(location: tuple[Any, ...]) -> tuple[Any, ...]:
    """Name the place: `batch_size` for the body's fields, nothing for the body itself, `query.limit` for the others."""
    return location[1:] if location[0] == "body" else location


def _on_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    headers = {"Allow": _allowed_methods(request)} if error.status_code == 405 else error.headers
    if error.status_code not in _HTTP_CODES:
        return answer(request, error.status_code, "error", str(error.detail), headers=headers)
    code = _HTTP_CODES[error.status_code]
    said = say(f"request.{code}", path=request.url.path, method=request.method)
    return answer(request, error.status_code, code, said, headers=headers)


def _allowed_methods(request: Request) -> str:
    """List the methods of every route on the path: the framework names only those of the first one."""
    found: set[str] = set()
    for route in iter_route_contexts(request.app.routes):
        pattern = getattr(route, "path_regex", None)
        if pattern is not None and pattern.match(request.url.path):
            found |= route.methods or set()
    return ", ".join(sorted(found))


_HTTP_CODES = {
    400: "bad_request",
    404: "not_found",
    405: "method_not_allowed",
    408: "body_too_slow",
    413: "body_too_large",
}


def _on_database(request: Request, error: Exception) -> JSONResponse:
    """Answer when Postgres refused a value, is busy or is away. Only the log has its words, which may name logins."""
    if isinstance(error, psycopg.DataError):
        return answer(request, 422, "invalid", say("request.unstorable"))
    said = database.sql_message(error) if isinstance(error, psycopg.Error) else str(error)
    log.error("api.metastore_failed", error=said, sqlstate=database.sqlstate_of(error))
    if isinstance(error, psycopg.Error) and not isinstance(error, psycopg.OperationalError):
        return _on_surprise(request, error)
    return answer(
        request,
        503,
        "metastore_unavailable",
        say("request.metastore_away"),
    )


def _on_surprise(request: Request, error: Exception) -> JSONResponse:
    log.error("api.crashed", exc_info=error)
    reference = getattr(request.state, "request_id", None)
    # The framework answers surprises outside of the middleware that adds these headers to all other answers.
    headers = middleware.common_headers(reference) if reference else None
    return answer(request, 500, "internal", say("request.internal", reference=reference), headers=headers)


_HANDLERS: dict[type[Exception], Callable[[Request, Exception], JSONResponse]] = {
    errors.VitrinaError: _on_ours,
    RequestValidationError: _on_validation,
    HTTPException: _on_http,
    psycopg.Error: _on_database,
    PoolTimeout: _on_database,
    TooManyRequests: _on_database,
}
