"""Keep the log lines of runs: queued where they are written, redacted and stored by a separate thread."""

import json
import threading
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg
import structlog

from vitrina.errors import CannotConnect
from vitrina.observe import logs
from vitrina.observe.monitoring import Connect
from vitrina.settings import Settings
from vitrina.store import run_logs
from vitrina.store.database import Connection
from vitrina.store.run_logs import LogLine

FLUSH_SECONDS = 1.0
# Lines that may wait while the metastore is unavailable; older lines are still on standard error.
QUEUE_LINES = 10_000
BATCH_LINES = 1_000
MAX_FIELDS_LENGTH = 8_000
TRIM_EVERY_LINES = 500
# These contain addresses and logins, which users who may see a run need not know; its own lines say the rest.
FOR_OPERATORS_ONLY = frozenset({"connection.failed"})

_Queued = tuple[datetime, str, dict[str, Any]]


class RunLogWriter:
    """Listen to the log of this process, and store the lines of a run with the run."""

    def __init__(
        self, settings: Settings, metastore: Connect, *, on_dropped: Callable[[int], None] = lambda count: None
    ) -> None:
        self._metastore = metastore
        self._redact = logs.Redactor(logs.secrets_of(settings))
        self._queue: deque[_Queued] = deque()
        self._since_trim: Counter[UUID] = Counter()
        self._on_dropped = on_dropped
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="log-lines", daemon=True)

    def start(self) -> None:
        logs.add_listener(self.receive)
        self._thread.start()

    def stop(self) -> None:
        logs.remove_listener(self.receive)
        self._stopping.set()
        self._thread.join(timeout=5)

    def receive(self, level: str, fields: dict[str, Any]) -> None:
        """Queue the line and return, because this runs on the run's own thread."""
        if "run_id" not in fields or level == "debug" or fields.get("event") in FOR_OPERATORS_ONLY:
            return
        if len(self._queue) >= QUEUE_LINES:
            self._on_dropped(1)
            return
        self._queue.append((datetime.now(UTC), level, fields))

    def _work(self) -> None:
        while not self._stopping.wait(FLUSH_SECONDS):
            self._store_queued()
        self._store_queued()

    def _store_queued(self) -> None:
        # What cannot be stored now waits, because lines matter most while the metastore is unavailable.
        with suppress(CannotConnect, psycopg.Error):
            while self._queue:
                with self._metastore() as metastore:
                    # By index, because runs append to the queue meanwhile.
                    self._store(metastore, [self._queue[n] for n in range(min(len(self._queue), BATCH_LINES))])

    def _store(self, metastore: Connection, queued: list[_Queued]) -> None:
        lines = [line for line in map(self._line, queued) if line]
        self._insert(metastore, lines)
        for _ in queued:
            self._queue.popleft()
        self._trim(metastore, lines)

    def _insert(self, metastore: Connection, lines: list[LogLine]) -> None:
        """Insert lines. Drop a line that the database refuses, because it would always fail and block the others."""
        try:
            run_logs.insert(metastore, lines)
        except (psycopg.DataError, psycopg.IntegrityError) as exc:
            if len(lines) > 1:
                for line in lines:
                    self._insert(metastore, [line])
                return
            self._on_dropped(1)
            structlog.get_logger().warning("logs.line_refused", error=" ".join(str(exc).split()))

    def _line(self, queued: _Queued) -> LogLine | None:
        at, level, found = queued
        fields = {name: value for name, value in found.items() if name not in ("event", "run_id")}
        event = str(found.get("event", ""))
        try:
            run_id = UUID(str(found["run_id"]))
        except ValueError:
            return None
        # PostgreSQL stores no character 0, neither in text nor in jsonb.
        return LogLine(run_id, at, level, self._redact(event).replace("\x00", ""), self._json(fields))

    def _json(self, fields: dict[str, Any]) -> str:
        written = logs.as_json(fields)
        text = self._redact(written).replace("\\u0000", "")
        # It is too long, or masking a numeric password has made it invalid.
        if len(text) > MAX_FIELDS_LENGTH or (text != written and not _is_json(text)):
            return json.dumps({"cut": text[:MAX_FIELDS_LENGTH]})
        return text

    def _trim(self, metastore: Connection, lines: list[LogLine]) -> None:
        self._since_trim.update(line.run_id for line in lines)
        long = [run_id for run_id, count in self._since_trim.items() if count >= TRIM_EVERY_LINES]
        if long:
            run_logs.trim(metastore, long)
        self._since_trim = Counter(
            {run_id: count for run_id, count in self._since_trim.items() if count < TRIM_EVERY_LINES}
        )
        if len(self._since_trim) > QUEUE_LINES:
            self._since_trim.clear()


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
