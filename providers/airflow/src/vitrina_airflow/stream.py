"""News from Vitrina for all triggers of a process: one stream of events, instead of a thousand that ask and ask."""

import asyncio
import json
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

# The server sends a sign of life every 15 seconds; a stream that is silent for longer has broken, or is kept back by a
# proxy on the way.
_SILENT_SECONDS = 40.0
_RECONNECT_SECONDS = 5.0
# A thousand triggers that are all to look again do so one after the other.
_SPREAD_SECONDS = 10.0
_ABOUT_RUNS = ("status", "run")


class News:
    """Wakes whoever waits for a pipeline when something happens to it; follows the stream while anybody waits."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options) | {"timeout": httpx.Timeout(options["timeout"], read=_SILENT_SECONDS)}
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._following: asyncio.Task[None] | None = None
        # Whether news come: whoever waits may then look more seldom.
        self.arrive = False

    @contextmanager
    def about(self, pipeline: str | None) -> Iterator[asyncio.Event]:
        """Give an event that is set when the pipeline is to be looked at again; clear it before looking."""
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
                pass  # it ended, or is no stream of Vitrina's: the triggers ask instead
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
