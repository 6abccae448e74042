"""What the routes of one application share: settings, the connection pool, the event feed."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request
from prometheus_client import CollectorRegistry

from vitrina.api.feed import EventFeed
from vitrina.api.pool import Pool
from vitrina.settings import Settings
from vitrina.tracing import Tracing

if TYPE_CHECKING:
    from vitrina.api.security import FailedAttempts


@dataclass
class AppState:
    """Made once by `create_app`."""

    settings: Settings
    pool: Pool
    feed: EventFeed
    failed_attempts: "FailedAttempts"
    request_wait_seconds: float
    schema_version: str
    tracing: Tracing | None = None
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)


def state_of(request: Request) -> AppState:
    found: AppState = request.app.state.vitrina
    return found


async def _state(request: Request) -> AppState:
    """A coroutine, because a plain function would be sent through a thread only to read an attribute."""
    return state_of(request)


State = Annotated[AppState, Depends(_state)]
