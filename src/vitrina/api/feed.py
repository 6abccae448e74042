"""Distribute events of the metastore to many listeners, in the order of their ids, with one LISTEN per process."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import structlog

from vitrina.errors import CannotConnect, TooManyRequests
from vitrina.sentences import say
from vitrina.settings import Settings
from vitrina.store import database, events

log = structlog.get_logger("vitrina.api")

Event = dict[str, Any]

_CHANNEL = "vitrina_events"
_LOOK_SECONDS = 1.0
_RECONNECT_SECONDS = 1.0
# Ids are taken before they are committed: a number that is missing may still come. One that was rolled back never
# does, so the wait is short; an id that is committed after the wait is delivered late rather than lost.
_GAP_SECONDS = 1.0
_GAP_LOOK_SECONDS = 0.05
_QUEUE_LENGTH = 1000
# A new event may be among the last that were replayed. A replay of any length must not be remembered as a whole.
_REMEMBERED = 10 * _QUEUE_LENGTH
_START_SECONDS = 5.0


class EventFeed:
    """Follow the metastore once started; any number of readers may `listen`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._listeners: set[_Listener] = set()
        self._places_taken = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._ready = threading.Event()
        self._newest = 0
        self._skipped: set[int] = set()

    @contextmanager
    def place(self, most: int) -> Iterator[None]:
        """Hold one of `most` places for a stream. Raise `TooManyRequests` when all are taken."""
        with self._lock:
            if self._places_taken >= most:
                raise TooManyRequests(say("request.too_many_streams", most=most))
            self._places_taken += 1
        try:
            yield
        finally:
            with self._lock:
                self._places_taken -= 1

    def start(self) -> None:
        """Follow the metastore from now on. Raise `CannotConnect` when it cannot be reached."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="vitrina-events", daemon=True)
                self._thread.start()
        if not self._ready.wait(_START_SECONDS):
            raise CannotConnect(say("request.no_events"))

    def stop(self) -> None:
        self._stopping.set()
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener.end()
        if self._thread:
            self._thread.join(timeout=2 * _LOOK_SECONDS)

    async def listen(self, replay: AsyncIterator[Event], *, quiet_seconds: float) -> AsyncIterator[Event | None]:
        """Yield the events of `replay`, then every new one, and None each time that none came for `quiet_seconds`.

        No event is missed in between, and none comes twice. A reader that falls behind during the replay is
        disconnected after it.
        """
        listener = _Listener(asyncio.get_running_loop())
        with self._registered(listener):
            last: deque[int] = deque(maxlen=_REMEMBERED)
            async for event in replay:
                last.append(event["id"])
                yield event
            seen = set(last)
            while True:
                try:
                    async with asyncio.timeout(quiet_seconds):
                        new = await listener.queue.get()
                except TimeoutError:
                    yield None
                    continue
                if new is None:
                    return
                if new["id"] not in seen:
                    yield new

    @contextmanager
    def _registered(self, listener: "_Listener") -> Iterator[None]:
        with self._lock:
            self._listeners.add(listener)
        try:
            yield
        finally:
            with self._lock:
                self._listeners.discard(listener)

    def _work(self) -> None:
        while not self._stopping.is_set():
            try:
                self._follow()
            except (psycopg.Error, CannotConnect) as exc:
                log.warning("api.events_lost", error=type(exc).__name__)
            except Exception:
                log.exception("api.events_crashed")
            self._stopping.wait(_RECONNECT_SECONDS)

    def _follow(self) -> None:
        with database.connect(self._settings.require_database_url(), "vitrina:events") as connection:
            connection.execute(f"LISTEN {_CHANNEL}")
            self._newest = self._newest or events.newest_id(connection)
            self._ready.set()
            while not self._stopping.is_set():
                waiting = self._deliver_new(connection)
                seconds = _GAP_LOOK_SECONDS if waiting else _LOOK_SECONDS
                notified = {note.payload for note in connection.notifies(timeout=seconds, stop_after=1)}
                # Compared as texts: every login may notify this channel, with any words.
                self._deliver_late(connection, {missing for missing in self._skipped if str(missing) in notified})

    def _deliver_new(self, connection: database.Connection) -> bool:
        """Deliver everything up to the first gap that may still be filled. Return True when there is one."""
        for event in events.list_after(connection, self._newest):
            if event["id"] > self._newest + 1 and event["age"] < _GAP_SECONDS:
                return True
            self._skipped.update(range(self._newest + 1, event["id"]))
            self._newest = event["id"]
            self._deliver(event)
        return False

    def _deliver_late(self, connection: database.Connection, ids: set[int]) -> None:
        for event in events.list_by_id(connection, sorted(ids)) if ids else []:
            self._skipped.discard(event["id"])
            self._deliver(event)
        if len(self._skipped) > _QUEUE_LENGTH:
            self._skipped = {missing for missing in self._skipped if missing > self._newest - _QUEUE_LENGTH}

    def _deliver(self, event: Event) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener.put(event)


class _Listener:
    """Represent one open stream. A reader that cannot keep up is disconnected; it reconnects with its Last-Event-ID."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.queue: asyncio.Queue[Event | None] = asyncio.Queue()
        self._loop = loop

    def put(self, event: Event) -> None:
        if self.queue.qsize() > _QUEUE_LENGTH:
            self.end()
        else:
            self._hand_over(event)

    def end(self) -> None:
        self._hand_over(None)

    def _hand_over(self, event: Event | None) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.queue.put_nowait, event)
