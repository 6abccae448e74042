"""Authenticate callers: bearer tokens with roles, a limit on guesses, and authentication off only on loopback."""

import ipaddress
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Annotated, Any
from urllib.parse import urlsplit

import psycopg
import structlog
from fastapi import Depends, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from vitrina import json_values
from vitrina.api import viewers
from vitrina.api.state import AppState, state_of
from vitrina.errors import CannotConnect, ConfigError, FieldError, Forbidden, Invalid, TooManyRequests, Unauthenticated
from vitrina.sentences import say
from vitrina.services import tokens
from vitrina.services.callers import Caller, Role
from vitrina.settings import Settings

log = structlog.get_logger("vitrina.api")

LOCAL_CALLER = "local"

# Only for the OpenAPI document: the header itself is read by `_authenticated`.
_bearer = HTTPBearer(auto_error=False, description="A token from `vitrina tokens create` or POST /tokens.")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


def require_auth_or_loopback(settings: Settings, bind_host: str) -> None:
    if settings.auth == "off" and not is_loopback(bind_host):
        raise ConfigError(
            f"VITRINA_AUTH=off is for loopback addresses only, not {bind_host}: set VITRINA_AUTH=token,"
            " make a token with `vitrina tokens create`, or bind 127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Needs:
    """Return the caller of a route if its role is sufficient. `GuardedRoute` has authenticated it."""

    def __init__(self, role: Role) -> None:
        self.role = role

    async def __call__(self, request: Request, credentials: Credentials) -> Caller:
        if getattr(request.state, "caller", None) is None:  # a route of another class
            await run_in_threadpool(self.check, request)
        caller: Caller = request.state.caller
        return caller

    def check(self, request: Request) -> None:
        state = state_of(request)
        caller = _local(request) if state.settings.auth == "off" else _authenticated(request, state)
        if request.state.traceparent:
            caller = replace(caller, traceparent=request.state.traceparent)
        request.state.caller = caller
        if not caller.role.includes(self.role):
            raise Forbidden(say("request.role_too_low", name=caller.name, role=caller.role, needed=self.role))


class GuardedRoute(APIRoute):
    """Authenticate the caller before the body is read, so that a stranger's body is not even parsed."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        takes_body = self.body_field is not None
        guards = [part.call for part in self.dependant.dependencies if isinstance(part.call, Needs)]

        async def guarded(request: Request) -> Response:
            for guard in guards:
                await run_in_threadpool(guard.check, request)
            if takes_body:
                await refuse_deep_body(request)
            return await run_in_threadpool(self.finish, request, await handle(request))

        return guarded

    def finish(self, request: Request, response: Response) -> Response:
        """Convert an answer to what this caller may see, whichever route built it. This may take a while."""
        return viewers.shown_to_viewers(response) if request.method == "GET" and is_viewer(request) else response


def is_viewer(request: Request) -> bool:
    caller: Caller | None = getattr(request.state, "caller", None)
    return caller is not None and not caller.role.includes(Role.OPERATOR)


async def refuse_deep_body(request: Request) -> None:
    """Refuse a body that is nested too deeply: a text of a few kilobytes could exhaust the stack of recursive code."""
    body = await request.body()
    # Use a thread only if it may take long: most bodies have fewer brackets than that.
    if json_values.may_be_deeper(body, json_values.MAX_DEPTH_WRAPPED) and await run_in_threadpool(
        json_values.text_is_deeper, body, json_values.MAX_DEPTH_WRAPPED
    ):
        said = say("request.nested", levels=json_values.MAX_DEPTH_WRAPPED)
        raise Invalid(said, (FieldError("", said, "nested_too_deeply"),))


Viewer = Annotated[Caller, Depends(Needs(Role.VIEWER))]
Operator = Annotated[Caller, Depends(Needs(Role.OPERATOR))]
Admin = Annotated[Caller, Depends(Needs(Role.ADMIN))]


def _authenticated(request: Request, state: AppState) -> Caller:
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    secret = secret.strip()
    if scheme.lower() != "bearer" or not secret:
        raise Unauthenticated(say("request.no_token"))
    address = request.client.host if request.client else "unknown"
    with state.pool.connection() as connection:
        caller = tokens.authenticate(connection, secret, request_id=request.state.request_id)
    if caller is None:
        # Each token is looked up, even from an address with many wrong ones: 256 random bits cannot be guessed, and a
        # lock on the address would let one client shut out the others there. The limit only keeps the log short.
        if state.failed_attempts.failed(address):
            raise TooManyRequests(say("request.too_many_attempts"))
        log.warning("api.wrong_token", address=address, path=request.url.path[:200])
        raise Unauthenticated(say("request.unknown_token"))
    return caller


def is_still_known(request: Request, state: AppState) -> bool | None:
    """Return whether the token of an answer that is still being sent may be used, as it could when the answer began.

    Return None when that cannot be looked up now: the API is overloaded, or the metastore is away.
    """
    if state.settings.auth == "off":
        return True
    secret = request.headers.get("authorization", "").partition(" ")[2].strip()
    try:
        with state.pool.connection() as connection:
            return tokens.authenticate(connection, secret, request_id=None) is not None
    except (CannotConnect, psycopg.Error):
        return None


def _local(request: Request) -> Caller:
    """Accept every caller on this machine. Pages of other sites in the same browser are refused."""
    server = (request.scope.get("server") or ("127.0.0.1", None))[0]
    if not is_loopback(server) or not is_loopback(request.url.hostname or ""):
        raise Forbidden(say("request.this_machine_only"))
    origin = request.headers.get("origin")
    if origin is not None and _host_of(origin) != request.headers.get("host"):
        raise Forbidden(say("request.foreign_page", origin=origin))
    return Caller(LOCAL_CALLER, Role.ADMIN, request.state.request_id)


def _host_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:  # for example a bracket that is not closed
        return None
