"""Sending lineage events, in their order, to a URL and a file; runs never wait for either."""

import json
import threading
from collections import deque
from typing import Any

import httpx
import structlog

from vitrina import logs
from vitrina.runner.courier import Undelivered, open_client, post
from vitrina.runner.instruments import Instruments
from vitrina.settings import Settings

# What waits while the receiver is away; events behind these are dropped, and counted.
QUEUE_EVENTS = 1000
# Tries of one event, and the wait before the second; it doubles from there.
MAX_ATTEMPTS = 5
FIRST_WAIT_SECONDS = 1.0
STOP_SECONDS = 5.0


class LineageSender:
    """A thread beside the runs."""

    def __init__(
        self, settings: Settings, instruments: Instruments, *, first_wait_seconds: float = FIRST_WAIT_SECONDS
    ) -> None:
        self._settings = settings
        self._events = instruments.lineage_events
        self._first_wait = first_wait_seconds
        self._redact = logs.Redactor(logs.secrets_of(settings))
        self._queue: deque[dict[str, Any]] = deque()
        self._waiting = threading.Condition()
        self._client: httpx.Client | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="lineage", daemon=True)
        self._log = structlog.get_logger()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """What is queued is tried once more."""
        self._stopping.set()
        with self._waiting:
            self._waiting.notify()
        self._thread.join(STOP_SECONDS)

    def send(self, event: dict[str, Any]) -> None:
        """On the run's own thread: no more than putting it aside."""
        with self._waiting:
            if len(self._queue) >= QUEUE_EVENTS:
                self._events.labels("dropped").inc()
                return
            self._queue.append(event)
            self._waiting.notify()

    def _work(self) -> None:
        while (event := self._next()) is not None:
            try:
                self._deliver(event)
            except Exception:  # noqa: BLE001 - the next event may fare better; runs do not depend on it
                self._log.exception("lineage.crashed")
        if self._client:
            self._client.close()

    def _next(self) -> dict[str, Any] | None:
        """Waits for it; None when there is none and none will come."""
        with self._waiting:
            while not self._queue and not self._stopping.is_set():
                self._waiting.wait()
            return self._queue.popleft() if self._queue else None

    def _deliver(self, event: dict[str, Any]) -> None:
        body = self._redact(json.dumps(event, ensure_ascii=False))
        try:
            self._write(body)
            self._insist(body.encode())
        except (Undelivered, OSError) as exc:
            self._events.labels("dropped").inc()
            names = {"pipeline": event["job"]["name"], "run_id": event["run"]["runId"]}
            self._log.warning("lineage.given_up", **names, kind=event["eventType"], error=str(exc))
        else:
            self._events.labels("sent").inc()

    def _write(self, body: str) -> None:
        if self._settings.lineage_file:
            with self._settings.lineage_file.open("a", encoding="utf-8") as file:
                file.write(body + "\n")

    def _insist(self, body: bytes) -> None:
        if self._settings.lineage_url is None:
            return
        url = self._settings.lineage_url.get_secret_value()
        headers = {"Content-Type": "application/json"}
        if self._settings.lineage_api_key:
            headers["Authorization"] = f"Bearer {self._settings.lineage_api_key.get_secret_value()}"
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                self._client = self._client or open_client(url)
                post(url, body, headers, self._client)
            except Undelivered:
                if attempt == MAX_ATTEMPTS or self._stopping.wait(self._first_wait * 2 ** (attempt - 1)):
                    raise
            else:
                return
