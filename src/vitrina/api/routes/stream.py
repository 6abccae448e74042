"""`/events`: stream events as they happen (server-sent events)."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Annotated

import orjson
from fastapi import APIRouter, Header, Query, Request
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

from vitrina.api import viewers
from vitrina.api.feed import Event
from vitrina.api.security import GuardedRoute, Viewer, is_still_known
from vitrina.api.server import max_connections
from vitrina.api.state import AppState, State
from vitrina.services.callers import Role
from vitrina.store import events

router = APIRouter(tags=["events"], route_class=GuardedRoute)

_SIGN_OF_LIFE_SECONDS = 15
_REPLAY_SLICE = 1000
# An event is delivered without looking at the token again if that was done less than this ago.
_TRUST_SECONDS = 1.0
_LOOK_AGAIN_SECONDS = 2.0


@router.get(
    "/events",
    response_class=EventSourceResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def follow_events(
    *,
    request: Request,
    state: State,
    caller: Viewer,
    last_event_id: Annotated[int | None, Header(alias="Last-Event-ID", ge=0, le=2**63 - 1)] = None,
    after: Annotated[int | None, Query(ge=0, le=2**63 - 1, description="The same as Last-Event-ID.")] = None,
) -> EventSourceResponse:
    """Stream status changes, progress, and starts and stops of runners.

    With `Last-Event-ID`, events after that id are replayed first. After the caller's token is revoked or expires,
    events are sent for at most a second, and the stream ends at the next event or within 20 seconds. Events wait while
    the API cannot look the token up.
    """
    await asyncio.to_thread(state.feed.start)
    since = last_event_id if last_event_id is not None else after
    is_viewer = not caller.role.includes(Role.OPERATOR)
    stream = _stream(state, since, lambda: is_still_known(request, state), is_viewer=is_viewer)
    return _LimitedStream(stream, state)


class _LimitedStream(EventSourceResponse):
    """Stream while there is a place: half of the connections are left to other requests.

    The place is taken only when the answer is sent, so that it is free again however the sending ends.
    """

    def __init__(self, stream: AsyncIterator[ServerSentEvent], state: AppState) -> None:
        super().__init__(stream, ping=_SIGN_OF_LIFE_SECONDS)
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._state.feed.place(max_connections(self._state.settings) // 2):
            await super().__call__(scope, receive, send)


async def _stream(
    state: AppState, since: int | None, is_known: Callable[[], bool | None], *, is_viewer: bool
) -> AsyncIterator[ServerSentEvent]:
    """Yield events until the caller's token is revoked or expires. Look at the token while it is quiet, too."""
    looked_at = time.monotonic()
    async for event in state.feed.listen(_replay(state, since), quiet_seconds=_SIGN_OF_LIFE_SECONDS):
        if event is None or time.monotonic() - looked_at >= _TRUST_SECONDS:
            if not await _answer(is_known):
                return
            looked_at = time.monotonic()
        if event is not None:
            yield _sent(viewers.shown(event) if is_viewer else event)


async def _answer(is_known: Callable[[], bool | None]) -> bool:
    """Look at the token until the metastore answers; the event waits and signs of life are sent.

    If streams ended instead, all clients would connect again to an API that is overloaded.
    """
    while (answer := await asyncio.to_thread(is_known)) is None:
        await asyncio.sleep(_LOOK_AGAIN_SECONDS)
    return answer


def _sent(event: Event) -> ServerSentEvent:
    return ServerSentEvent(id=str(event["id"]), event=event["topic"], data=orjson.dumps(event).decode())


async def _replay(state: AppState, since: int | None) -> AsyncIterator[Event]:
    """Yield all events after `since`, in slices, because they may be more than fit into memory."""
    while since is not None:
        found = await asyncio.to_thread(_list_after, state, since)
        for event in found:
            yield event
        since = found[-1]["id"] if len(found) == _REPLAY_SLICE else None


def _list_after(state: AppState, since: int) -> list[Event]:
    with state.pool.connection() as connection:
        return events.list_after(connection, since, limit=_REPLAY_SLICE)
