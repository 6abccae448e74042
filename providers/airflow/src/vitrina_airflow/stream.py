"""Share one stream of Vitrina's events among all triggers of a process, instead of polling by each of them."""

import asyncio
import json
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

# The server sends a heartbeat every 15 seconds. A stream that is silent for longer is broken, or a proxy buffers it.
_SILENT_SECONDS = 40.0
_RECONNECT_SECONDS = 5.0
# If a thousand triggers have to look again, they do so one after the other.
_SPREAD_SECONDS = 10.0
_ABOUT_RUNS = ("status", "run")


class News:
    """Wake the triggers that wait for a pipeline when it has an event. Follow the stream while any trigger waits."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options) | {"timeout": httpx.Timeout(options["timeout"], read=_SILENT_SECONDS)}
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._following: asyncio.Task[None] | None = None
        # Whether events arrive: triggers may then poll less often.
        self.arrive = False

    @contextmanager
    def about(self, pipeline: str | None) -> Iterator[asyncio.Event]:
        """Return an event that is set when the pipeline has to be looked at again; clear it before looking."""
        event = asyncio.Event()
        if pipeline is None:
            yield event
            return
        self._waiting.setdefault(pipeline, set()).add(event)
        if self._following is None:
            self._following = asyncio.create_task(self._follow())
        try:
            yield event
        finally:
            self._waiting[pipeline].discard(event)
            if not self._waiting[pipeline]:
                del self._waiting[pipeline]
            if not self._waiting:
                self._following.cancel()
                self._following = None
                self.arrive = False

    async def _follow(self) -> None:
        while True:
            try:
                async with httpx.AsyncClient(**self._options) as http, http.stream("GET", "/events") as answer:
                    answer.raise_for_status()
                    async for line in answer.aiter_lines():
                        self._hear(line)
            except (httpx.HTTPError, ValueError, LookupError, AttributeError, TypeError):
                pass  # it ended, or is not a stream of Vitrina: the triggers poll instead
            if self.arrive:
                self.arrive = False
                self._wake_all()
            await asyncio.sleep(_RECONNECT_SECONDS)

    def _hear(self, line: str) -> None:
        if not self.arrive:
            self.arrive = True
            # Something may have happened between the last look and the first line.
            self._wake_all()
        if line.startswith("data:"):
            event = json.loads(line[5:])
            if event["topic"] in _ABOUT_RUNS:
                for waiting in self._waiting.get(event["payload"]["pipeline"], ()):
                    waiting.set()

    def _wake_all(self) -> None:
        loop = asyncio.get_running_loop()
        for waiting in self._waiting.values():
            for event in waiting:
                loop.call_later(random.uniform(0, _SPREAD_SECONDS), event.set)  # noqa: S311
