"""Serve plain routes without FastAPI's general machinery: authenticate, validate and answer in one call on one thread.

FastAPI describes the routes: their parameters, their errors, their document. It could serve them too, and does serve
those that are not plain (streams, files, answers without a body). For a plain one its general path costs several times
what the answer itself does: it walks along all routes, solves a tree of dependencies, changes threads for each of its
steps and validates the answer once more. What can be known about a route is found out here once, when the application
is made; parameters and bodies are still validated by FastAPI's own fields, so that they are refused in the same words.
"""

import asyncio
import contextvars
import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, field
from email.message import Message
from typing import Any, Self, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi._compat import ModelField, Undefined
from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import request_body_to_args, request_params_to_args
from fastapi.exceptions import RequestValidationError
from fastapi.routing import RouteContext, iter_route_contexts
from pydantic import BaseModel
from starlette.datastructures import Headers, QueryParams
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from vitrina.api import errors, security, state
from vitrina.api.security import GuardedRoute, Needs

Result = TypeVar("Result")


class ShortWay:
    """Serve plain routes, and pass everything else on. This is a middleware."""

    def __init__(self, app: ASGIApp, routes: "Tree") -> None:
        self._app, self._routes = app, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._routes.find(scope) if scope["type"] == "http" else None
        if found is None:
            await self._app(scope, receive, send)
            return
        route, scope["path_params"] = found
        scope["route"] = route.described  # as FastAPI does: metrics and traces have its name
        request = Request(scope, receive, send)
        try:
            response = await route.answer(request)
        except Exception as error:
            refusal = errors.find_answer(request, error)
            if refusal is None:
                raise
            response = refusal
        await response(scope, receive, send)


def is_plain(context: RouteContext) -> bool:
    """Return whether a route takes values, does its work at once and answers with a whole model."""
    if not isinstance(context.original_route, GuardedRoute) or asyncio.iscoroutinefunction(context.endpoint):
        return False
    return _answers_with_a_whole_model(context) and _takes_values_alone(context.dependant)


def _answers_with_a_whole_model(context: RouteContext) -> bool:
    annotation = context.response_field.field_info.annotation if context.response_field else None
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return is_model and not any(getattr(context, f"response_model_{part}") for part in _LEFT_OUT)


def _takes_values_alone(dependant: Dependant) -> bool:
    """Return whether a route takes only values, besides the caller and the state that every route receives."""
    known = all(isinstance(part.call, Needs) or part.call is state.of_application for part in dependant.dependencies)
    return known and not any(getattr(dependant, part) for part in _NEVER_GIVEN)


# FastAPI supports these; no route uses them today. A route that did would be served by FastAPI.
_LEFT_OUT = ("include", "exclude", "exclude_unset", "exclude_defaults", "exclude_none")
_NEVER_GIVEN = (
    "cookie_params",
    "request_param_name",
    "http_connection_param_name",
    "background_tasks_param_name",
    "security_scopes_param_name",
)


# --- finding it ------------------------------------------------------------------------------------------------------


@dataclass
class _Node:
    words: dict[str, "_Node"] = field(default_factory=dict)
    any_word: "_Node | None" = None
    routes: dict[str, "PlainRoute"] = field(default_factory=dict)


class Tree:
    """Hold routes by the segments of their paths. A literal segment takes precedence over a parameter."""

    def __init__(self) -> None:
        self._root = _Node()

    @classmethod
    def of(cls, application: FastAPI, threads: ThreadPoolExecutor) -> Self:
        """Collect the plain routes of an application that has all of its routes."""
        tree = cls()
        for context in iter_route_contexts(application.routes):
            if is_plain(context):
                tree.add(PlainRoute(context, threads))
        return tree

    def add(self, route: "PlainRoute") -> None:
        node = self._root
        for word in route.path.split("/"):
            if word.startswith("{"):
                node.any_word = node = node.any_word or _Node()
            else:
                node = node.words.setdefault(word, _Node())
        for method in route.methods:
            node.routes.setdefault(method, route)

    def find(self, scope: Scope) -> "tuple[PlainRoute, dict[str, str]] | None":
        """Find the route and the values of its path. Return None to leave it to FastAPI, which also reports errors."""
        if scope.get("root_path"):
            return None
        node, values = self._root, []
        for word in scope["path"].split("/"):
            inner = node.words.get(word)
            if inner is None:
                inner = node.any_word if word else None
                if inner is None:
                    return None
                values.append(word)
            node = inner
        route = node.routes.get(scope["method"])
        return (route, dict(zip(route.names, values, strict=True))) if route else None


# --- serving it ------------------------------------------------------------------------------------------------------


def _guarded(context: RouteContext) -> GuardedRoute:
    if not isinstance(context.original_route, GuardedRoute):
        raise TypeError(f"{context.path_format} is not a guarded route")
    return context.original_route


class PlainRoute:
    """Hold one route with everything that its requests have in common."""

    def __init__(self, context: RouteContext, threads: ThreadPoolExecutor) -> None:
        dependant = context.dependant
        self.described = _guarded(context)
        self.path: str = context.path_format or ""
        self.methods: Iterable[str] = context.methods or ()
        self.names = [word[1:-1] for word in self.path.split("/") if word.startswith("{")]
        self._endpoint: Callable[..., Any] = dependant.call
        self._finish: Callable[[Request, Response], Response] = self.described.finish
        self._threads = threads
        self._status: int = context.status_code or 200
        self._path_fields = dependant.path_params
        self._path_is_text = all(map(_is_any_text, self._path_fields))
        self._query_fields = _Fields(dependant.query_params)
        self._header_fields = _Fields(dependant.header_params)
        self._body_fields = dependant.body_params
        self._embeds_body: bool = context._embed_body_fields
        self._response_name: str | None = dependant.response_param_name
        self._guards = [part.call for part in dependant.dependencies if isinstance(part.call, Needs)]
        self._caller_names = [part.name for part in dependant.dependencies if isinstance(part.call, Needs)]
        self._state_names = [part.name for part in dependant.dependencies if not isinstance(part.call, Needs)]

    async def answer(self, request: Request) -> Response:
        if not self._body_fields:
            return await self._in_thread(self._let_in_and_perform, request)
        await self._in_thread(self._let_in, request)
        await security.refuse_deep_body(request)
        values, problems = await request_body_to_args(
            body_fields=self._body_fields,
            received_body=await _body_of(request),
            embed_body_fields=self._embeds_body,
        )
        return await self._in_thread(self._perform, request, values, problems)

    async def _in_thread(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Run work in a thread, with the context of the request, so that log lines there belong to the same request."""
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._threads, context.run, work, *arguments)

    def _let_in_and_perform(self, request: Request) -> Response:
        self._let_in(request)
        return self._perform(request, {}, [])

    def _let_in(self, request: Request) -> None:
        for guard in self._guards:
            guard.check(request)

    def _perform(self, request: Request, of_body: dict[str, Any], problems: list[Any]) -> Response:
        values = self._parameters(request, problems)
        values.update(of_body)
        values.update(dict.fromkeys(self._state_names, state.state_of(request)))
        values.update(dict.fromkeys(self._caller_names, getattr(request.state, "caller", None)))
        said = self._said(values, self._response_name) if self._response_name else None
        answer = self._endpoint(**values)
        response = Response(
            answer.__pydantic_serializer__.to_json(answer, by_alias=True), self._status, media_type="application/json"
        )
        if said:
            response.status_code = said.status_code
            response.raw_headers.extend(said.raw_headers)
        return self._finish(request, response)

    def _said(self, values: dict[str, Any], name: str) -> Response:
        """Pass the endpoint a response on which it sets headers and status."""
        said = Response(status_code=self._status)
        said.raw_headers.clear()
        values[name] = said
        return said

    def _parameters(self, request: Request, problems: list[Any]) -> dict[str, Any]:
        """Read parameters in FastAPI's order: errors in the address and the headers come before those in the body."""
        values, wrong = self._path_values(request.path_params)
        for fields, given in ((self._query_fields, request.query_params), (self._header_fields, request.headers)):
            found, more = fields.read(given)
            values.update(found)
            wrong = wrong + more
        if wrong or problems:
            raise RequestValidationError(wrong + problems)
        return values

    def _path_values(self, given: dict[str, str]) -> tuple[dict[str, Any], list[Any]]:
        if self._path_is_text:
            return {field.name: given[field.alias] for field in self._path_fields}, []
        return request_params_to_args(self._path_fields, given)


def _is_any_text(parameter: ModelField) -> bool:
    """Return whether a parameter accepts every text unchanged, so that there is nothing to validate."""
    return parameter.field_info.annotation is str and not parameter.field_info.metadata


class _Fields:
    """Hold parameters of a query or of headers. Most requests have none and get the defaults without validation."""

    def __init__(self, fields: list[ModelField]) -> None:
        self._fields = fields
        self._required = {field.alias for field in fields if field.field_info.is_required()}
        self._defaults = {field.name: field.default for field in fields if field.alias not in self._required}
        # A list is copied, so that no request changes the default itself.
        self._changeable = [name for name, default in self._defaults.items() if isinstance(default, list)]

    def read(self, given: QueryParams | Headers) -> tuple[dict[str, Any], list[Any]]:
        values = self._defaults | {name: copy(self._defaults[name]) for name in self._changeable}
        asked = [field for field in self._fields if field.alias in self._required or field.alias in given]
        if not asked:
            return values, []
        found, wrong = request_params_to_args(asked, given)
        return values | found, wrong


async def _body_of(request: Request) -> Any:
    """Read JSON as FastAPI does: only a body whose content type is JSON is parsed."""
    body = await request.body()
    if not body:
        return Undefined
    kind = Message()
    kind["content-type"] = request.headers.get("content-type") or "application/octet-stream"
    subtype = kind.get_content_subtype()
    if kind.get_content_maintype() != "application" or not (subtype == "json" or subtype.endswith("+json")):
        return body
    try:
        return json.loads(body)
    except json.JSONDecodeError as exc:
        said = {"type": "json_invalid", "loc": ("body", exc.pos), "msg": "JSON decode error", "input": {}}
        raise RequestValidationError([said | {"ctx": {"error": exc.msg}}], body=exc.doc) from exc
    except (ValueError, RecursionError) as exc:  # another encoding, or a number with too many digits
        raise HTTPException(400) from exc
