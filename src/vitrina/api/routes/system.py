"""`/health`, `/livez`, `/readyz`, `/metrics`, `/version`: for monitoring. No token is needed."""

import os
from contextlib import AbstractContextManager
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from vitrina import __version__, schemas
from vitrina.api.pool import Pool
from vitrina.api.state import AppState, State
from vitrina.observe.monitoring import UNREACHABLE, MetastoreCollector
from vitrina.settings import Settings
from vitrina.store import migrate, runners
from vitrina.store.database import Connection

router = APIRouter(tags=["system"])

# A probe repeats soon; it must not wait for a database that is away.
_PROBE_SECONDS = 2.0


@router.get("/health", responses={503: {"model": schemas.Health}})
def health(
    state: State,
    response: Response,
    runners: Annotated[
        Literal["optional", "required"], Query(description="`required`: 503 also while no runner is alive.")
    ] = "optional",
) -> schemas.Health:
    """Report health: 503 when the metastore cannot be used; with `runners=required`, also when no runner is alive."""
    found = _health(state, response)
    if runners == "required" and found.runners == 0:
        response.status_code, found.status = 503, "unavailable"
    return found


@router.get("/readyz", responses={503: {"model": schemas.Health}})
def readyz(
    state: State,
    response: Response,
    verbose: Annotated[str | None, Query(max_length=10, description="List each check.")] = None,
) -> schemas.Health:
    """Report whether requests can be served."""
    found = _health(state, response)
    if verbose is not None:
        found.checks = {"metastore": found.database}
    return found


@router.get("/livez")
async def livez() -> schemas.Health:
    """Report whether the process is alive; the database is not checked."""
    return schemas.Health(status="ok", version=__version__, database="not asked", runners=None)


@router.get("/version")
def version(state: State) -> schemas.VersionInfo:
    try:
        with _probing(state.pool) as connection:
            metastore = migrate.current_version(connection)
    except UNREACHABLE:
        metastore = None
    return schemas.VersionInfo(version=__version__, api="v1", metastore=metastore)


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(state: State) -> Response:
    """Return the metrics in the Prometheus text format."""
    return Response(generate_latest(state.registry), media_type=CONTENT_TYPE_LATEST)


def registry_of_counters(shown: CollectorRegistry) -> CollectorRegistry | None:
    """Choose where this process counts. Several workers count in files, and the scraped worker adds them up."""
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return shown
    MultiProcessCollector(shown)  # type: ignore[no-untyped-call]
    return None


def register_collectors(registry: CollectorRegistry, pool: Pool, settings: Settings) -> None:
    registry.register(MetastoreCollector(lambda: _probing(pool), settings))


def _probing(pool: Pool) -> AbstractContextManager[Connection]:
    return pool.connection(timeout=min(_PROBE_SECONDS, pool.timeout))


def _health(state: AppState, response: Response) -> schemas.Health:
    try:
        with _probing(state.pool) as connection:
            found, wanted = migrate.current_version(connection), state.schema_version
            if found != wanted:
                return _unwell(response, f"at version {found or 'none'}, {wanted} is needed: {migrate.advice(found)}")
            alive = runners.count_alive(connection, stale_after_seconds=state.settings.lease_ttl_seconds)
    except UNREACHABLE:
        return _unwell(response, "does not answer")
    working = "ok" if alive else "no runner is alive, so no pipeline runs; start one with `vitrina runner`"
    return schemas.Health(status="ok", version=__version__, database="ok", runners=alive, working=working)


def _unwell(response: Response, reason: str) -> schemas.Health:
    response.status_code = 503
    return schemas.Health(status="unavailable", version=__version__, database=reason, runners=None)
