"""`/health`, `/livez`, `/readyz`, `/metrics`, `/version`: for machines that watch this one. No token needed."""

from collections.abc import Iterable
from contextlib import AbstractContextManager

import psycopg
from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from psycopg_pool import PoolTimeout

from vitrina import __version__, answers
from vitrina.api.pool import Pool
from vitrina.api.state import AppState, State
from vitrina.settings import Settings
from vitrina.status import Status
from vitrina.store import migrate, pipelines, runners
from vitrina.store.database import Connection

router = APIRouter(tags=["system"])

# A probe asks again soon; it must not queue behind a database that is away.
_PROBE_SECONDS = 2.0
UNREACHABLE = (psycopg.OperationalError, PoolTimeout)


@router.get("/health", responses={503: {"model": answers.Health}})
def health(state: State, response: Response) -> answers.Health:
    """503 when the metastore cannot be used; the number of live runners is for information."""
    return _health(state, response)


@router.get("/readyz", responses={503: {"model": answers.Health}})
def readyz(state: State, response: Response) -> answers.Health:
    """Whether requests can be served."""
    return _health(state, response)


@router.get("/livez")
async def livez() -> answers.Health:
    """Whether the process lives; says nothing about the database."""
    return answers.Health(status="ok", version=__version__, database="not asked", runners=None)


@router.get("/version")
def version(state: State) -> answers.VersionInfo:
    try:
        with _probing(state.pool) as connection:
            metastore = migrate.current_version(connection)
    except UNREACHABLE:
        metastore = None
    return answers.VersionInfo(version=__version__, api="v1", metastore=metastore)


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(state: State) -> Response:
    """Prometheus text format."""
    return Response(generate_latest(state.registry), media_type=CONTENT_TYPE_LATEST)


def register_collectors(registry: CollectorRegistry, pool: Pool, settings: Settings) -> None:
    registry.register(_MetastoreCollector(pool, settings))


class _MetastoreCollector(Collector):
    """Reads the figures when they are asked for."""

    def __init__(self, pool: Pool, settings: Settings) -> None:
        self._pool, self._settings = pool, settings

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Known without asking the database, so registering needs none."""
        return []

    def collect(self) -> Iterable[GaugeMetricFamily]:
        reachable = GaugeMetricFamily("vitrina_metastore_up", "Whether the metastore answers.")
        by_status = GaugeMetricFamily("vitrina_pipelines", "Pipelines by status.", labels=["status"])
        queue = GaugeMetricFamily("vitrina_queue_depth", "Pipelines that wait for a runner.")
        alive = GaugeMetricFamily("vitrina_runners_alive", "Runners that gave a sign of life lately.")
        try:
            with _probing(self._pool) as connection:
                counts = pipelines.count_by_status(connection)
                living = runners.count_alive(connection, stale_after_seconds=self._settings.lease_ttl_seconds)
        except UNREACHABLE:
            reachable.add_metric([], 0)
            return [reachable]
        reachable.add_metric([], 1)
        for status in Status:
            by_status.add_metric([status], counts.get(status, 0))
        queue.add_metric([], counts.get(Status.RUN_REQUESTED, 0))
        alive.add_metric([], living)
        return [reachable, by_status, queue, alive]


def _probing(pool: Pool) -> AbstractContextManager[Connection]:
    return pool.connection(timeout=min(_PROBE_SECONDS, pool.timeout))


def _health(state: AppState, response: Response) -> answers.Health:
    try:
        with _probing(state.pool) as connection:
            found, wanted = migrate.current_version(connection), state.schema_version
            if found != wanted:
                return _unwell(response, f"at version {found or 'none'}, {wanted} is needed: run `vitrina migrate`")
            alive = runners.count_alive(connection, stale_after_seconds=state.settings.lease_ttl_seconds)
    except UNREACHABLE:
        return _unwell(response, "does not answer")
    return answers.Health(status="ok", version=__version__, database="ok", runners=alive)


def _unwell(response: Response, reason: str) -> answers.Health:
    response.status_code = 503
    return answers.Health(status="unavailable", version=__version__, database=reason, runners=None)
