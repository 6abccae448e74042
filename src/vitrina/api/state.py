"""Hold what the routes of one application share: settings, the connection pool, the event feed."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from fastapi import Depends, Request
from prometheus_client import CollectorRegistry
from pydantic import BaseModel

from vitrina.api.failed_attempts import FailedAttempts
from vitrina.api.feed import EventFeed
from vitrina.api.pool import Pool
from vitrina.observe.tracing import Tracing
from vitrina.services.home import StaleMarts
from vitrina.settings import Settings
from vitrina.store.database import Connection

Model = TypeVar("Model", bound=BaseModel)


@dataclass
class AppState:
    """Hold the state of one application. `create_app` builds it once."""

    settings: Settings
    pool: Pool
    feed: EventFeed
    failed_attempts: FailedAttempts
    request_wait_seconds: float
    schema_version: str
    threads: ThreadPoolExecutor
    tracing: Tracing | None = None
    stale_marts: StaleMarts = field(default_factory=StaleMarts)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    @contextmanager
    def changing(self) -> Iterator[Connection]:
        """Open one transaction around a change and the building of its answer: see `sendable`."""
        with self.pool.connection() as connection, connection.transaction():
            yield connection


def sendable(answer: Model) -> Model:
    """Write the answer once before the commit: what cannot be shown must not be stored."""
    answer.model_dump_json()
    return answer


def state_of(request: Request) -> AppState:
    found: AppState = request.app.state.vitrina
    return found


async def of_application(request: Request) -> AppState:
    """Return the application's state. This is a coroutine, because a plain function would be sent through a thread."""
    return state_of(request)


State = Annotated[AppState, Depends(of_application)]
