"""Assemble the FastAPI application: middleware, routes, error handlers, state."""

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import anyio.to_thread
from fastapi import FastAPI
from fastapi.routing import APIRoute

from vitrina import __version__
from vitrina.api import errors, openapi, security
from vitrina.api.dispatch import ShortWay, Tree
from vitrina.api.failed_attempts import FailedAttempts
from vitrina.api.feed import EventFeed
from vitrina.api.middleware import RequestContextMiddleware
from vitrina.api.pool import make_pool
from vitrina.api.routes import (
    actions,
    audit,
    connections,
    dead_letters,
    manifests,
    notices,
    overview,
    pages,
    pipelines,
    previews,
    reports,
    runners,
    stream,
    system,
    tokens,
)
from vitrina.api.state import AppState
from vitrina.observe import tracing
from vitrina.settings import Settings
from vitrina.store import migrate

PREFIX = "/api/v1"

# Requests that wait for a runner occupy a thread each; other requests must not queue up behind them.
_THREADS = 40


def create_app(
    settings: Settings,
    *,
    bind_host: str = "127.0.0.1",
    request_wait_seconds: float = 2.0,
    pool_timeout_seconds: float = 5.0,
    wrong_tokens_a_minute: int = 10,
) -> FastAPI:
    """Build the control plane. `bind_host` is the address it will listen on: auth may be off on loopback only."""
    security.require_auth_or_loopback(settings, bind_host)
    # One environment file may serve the API and the runners, so the key may be in it. No code of the API may have it.
    settings = settings.model_copy(update={"secret_key": None})
    state = AppState(
        settings=settings,
        pool=make_pool(settings, timeout_seconds=pool_timeout_seconds),
        feed=EventFeed(settings),
        failed_attempts=FailedAttempts(limit=wrong_tokens_a_minute),
        request_wait_seconds=request_wait_seconds,
        schema_version=migrate.newest_version(),
        tracing=tracing.start("vitrina-api"),
        threads=ThreadPoolExecutor(_THREADS, thread_name_prefix="vitrina-request"),
    )
    app = FastAPI(
        title="Vitrina",
        version=__version__,
        lifespan=_lifespan,
        docs_url=None,  # FastAPI's own page loads scripts from another host
        redoc_url=None,
        generate_unique_id_function=_operation_id,
        telemetry={
            "tracing": False,
            "metrics": False,
            "logs": False,
        },  # `RequestContextMiddleware` logs requests
    )
    app.state.vitrina = state
    errors.install(app)
    _include_routes(app)
    # The middleware added last is the outermost. The tree is built here, not when the server starts: while FastAPI
    # inspects routes it changes the warning filters of the whole process, which another thread may be using then.
    app.add_middleware(ShortWay, routes=Tree.of(app, state.threads))
    app.add_middleware(
        RequestContextMiddleware, registry=system.registry_of_counters(state.registry), tracing=state.tracing
    )
    system.register_collectors(state.registry, state.pool, settings)
    openapi.install(app)
    return app


def _include_routes(app: FastAPI) -> None:
    of_pipelines = (pipelines.router, actions.router, reports.of_pipeline)
    others = (
        reports.router,
        manifests.router,
        manifests.schema_router,
        connections.router,
        runners.router,
        audit.router,
        dead_letters.router,
        tokens.router,
        overview.router,
        previews.router,
        notices.router,
        stream.router,
    )
    for router in (*of_pipelines, *others):
        app.include_router(router, prefix=PREFIX)
    # The paths of the first design documents, for the scripts that use them.
    for router in of_pipelines:
        app.include_router(router, include_in_schema=False)
    app.include_router(manifests.schema_router, include_in_schema=False)
    app.include_router(system.router)
    app.include_router(pages.router)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    state: AppState = app.state.vitrina
    anyio.to_thread.current_default_thread_limiter().total_tokens = _THREADS
    # Not waited for: while the metastore is away, requests get 503 and the probes say why.
    state.pool.open(wait=False)
    yield
    state.threads.shutdown(wait=False, cancel_futures=True)
    await anyio.to_thread.run_sync(state.feed.stop)
    await anyio.to_thread.run_sync(state.pool.close)
    if state.tracing:
        await anyio.to_thread.run_sync(state.tracing.stop)


def _operation_id(route: APIRoute) -> str:
    return route.name
