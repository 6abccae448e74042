"""Send lineage events, in their order, to a URL and a file; runs never wait for either.

A run whose START was sent is recorded in the metastore until its end is sent. If its runner was killed, or could not
reach the receiver, another runner finds the run there and sends its end.
"""

import json
import threading
import time
from collections import deque
from contextlib import suppress

import httpx
import psycopg
import structlog

from vitrina.errors import CannotConnect
from vitrina.observe import logs
from vitrina.observe.lineage import Event, tell_left_behind
from vitrina.observe.monitoring import Connect
from vitrina.observe.notifications import Undelivered, open_client, post
from vitrina.observe.prometheus import Instruments
from vitrina.settings import Settings
from vitrina.store import lineage as lineage_begun
from vitrina.store import pipelines

# Events that may wait while the receiver is unavailable; further ones are dropped, and counted.
QUEUE_EVENTS = 1000
# Attempts for one event, and the wait before the second; it doubles from there.
MAX_ATTEMPTS = 5
FIRST_WAIT_SECONDS = 1.0
STOP_SECONDS = 5.0
# How often to look for runs whose end was not sent, and how long their own runner has to send it.
LOOK_SECONDS = 30.0
OWN_RUNNER_SECONDS = 60.0
LEFT_BEHIND_AT_ONCE = 20


class LineageSender:
    """Send events in a thread beside the runs."""

    def __init__(
        self,
        settings: Settings,
        instruments: Instruments,
        metastore: Connect,
        *,
        first_wait_seconds: float = FIRST_WAIT_SECONDS,
    ) -> None:
        self._settings = settings
        self._events = instruments.lineage_events
        self._metastore = metastore
        self._first_wait = first_wait_seconds
        self._redact = logs.Redactor(logs.secrets_of(settings))
        self._queue: deque[Event] = deque()
        # Runs whose start could not be recorded: their end is sent without asking.
        self._unnoted: set[str] = set()
        self._waiting = threading.Condition()
        self._looks_at = time.monotonic()
        self._client: httpx.Client | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="lineage", daemon=True)
        self._log = structlog.get_logger()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop, after one more attempt to send what is queued."""
        self._stopping.set()
        with self._waiting:
            self._waiting.notify()
        self._thread.join(STOP_SECONDS)

    def send(self, event: Event) -> None:
        """Queue the event and return, because this runs on the run's own thread."""
        with self._waiting:
            if len(self._queue) >= QUEUE_EVENTS:
                self._events.labels("dropped").inc()
                return
            self._queue.append(event)
            self._waiting.notify()

    def look(self) -> None:
        """Check at once for runs that were taken over and whose end was not sent."""
        with self._waiting:
            self._looks_at = 0.0
            self._waiting.notify()

    def _work(self) -> None:
        while not (self._stopping.is_set() and not self._queue):
            try:
                event = self._next()
                if event:
                    self._forward(event)
                elif not self._stopping.is_set():
                    self._tell_left_behind()
            except Exception:  # noqa: BLE001 - the next event may succeed; runs do not depend on it
                self._log.exception("lineage.crashed")
        if self._client:
            self._client.close()

    def _next(self) -> Event | None:
        """Return the next event, or None when it is time to look for runs that other runners left."""
        with self._waiting:
            while not self._queue and not self._stopping.is_set():
                wait = self._looks_at - time.monotonic()
                if wait <= 0:
                    return None
                self._waiting.wait(wait)
            return self._queue.popleft() if self._queue else None

    def _forward(self, event: Event) -> None:
        if event["eventType"] == "START":
            self._note_begun(event["run"]["runId"])
        elif not self._take_end(event["run"]["runId"]):
            return  # another runner considered this one dead and has sent it
        self._deliver(event)

    def _note_begun(self, run_id: str) -> None:
        """Record the start before it is sent, so that another runner can send the end of every start that was sent."""
        try:
            with self._metastore() as metastore:
                lineage_begun.note_begun(metastore, run_id)
        except (CannotConnect, psycopg.Error):
            self._unnoted.add(run_id)

    def _take_end(self, run_id: str) -> bool:
        if run_id in self._unnoted:
            self._unnoted.discard(run_id)
            return True
        try:
            with self._metastore() as metastore:
                return lineage_begun.take_end(metastore, run_id)
        except (CannotConnect, psycopg.Error):
            return True  # sending twice is better than not at all

    def _tell_left_behind(self) -> None:
        self._looks_at = time.monotonic() + LOOK_SECONDS
        try:
            for event in self._left_behind():
                names = {"pipeline": event["job"]["name"], "run_id": event["run"]["runId"]}
                self._log.info("lineage.left_behind", **names, kind=event["eventType"])
                self._deliver(event)
        except (CannotConnect, psycopg.Error):
            return  # it is tried again soon

    def _leave_behind(self, event: Event) -> None:
        """Record an end that no receiver accepted, so that any runner finds it at its next check."""
        if event["eventType"] != "START":
            with suppress(CannotConnect, psycopg.Error), self._metastore() as metastore:
                lineage_begun.note_begun(metastore, event["run"]["runId"])

    def _left_behind(self) -> list[Event]:
        events: list[Event] = []
        with self._metastore() as metastore:
            for run in lineage_begun.take_left_behind(
                metastore, after_seconds=OWN_RUNNER_SECONDS, limit=LEFT_BEHIND_AT_ONCE
            ):
                pipeline = pipelines.find(metastore, run["pipeline_id"])
                if pipeline:
                    tell_left_behind(self._settings, run, pipeline, events.append)
        return events

    def _deliver(self, event: Event) -> None:
        body = self._redact(json.dumps(event, ensure_ascii=False))
        try:
            self._write(body)
            self._insist(body.encode())
        except (Undelivered, OSError) as exc:
            self._events.labels("dropped").inc()
            names = {"pipeline": event["job"]["name"], "run_id": event["run"]["runId"]}
            self._log.warning("lineage.given_up", **names, kind=event["eventType"], error=str(exc))
            self._leave_behind(event)
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
