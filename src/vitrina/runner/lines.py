"""Keeping the lines of runs: queued where they are written, redacted and stored by a thread of their own."""

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

from vitrina import logs
from vitrina.errors import CannotConnect
from vitrina.settings import Settings
from vitrina.store import database, run_logs
from vitrina.store.run_logs import Line

FLUSH_SECONDS = 0.5
# After so many of them without a line the session is given back.
QUIET_FLUSHES = 20
# What waits while the metastore is away; older lines are still on standard error.
QUEUE_LINES = 10_000
BATCH_LINES = 1_000
MAX_FIELDS_LENGTH = 8_000
TRIM_EVERY_LINES = 500
# They tell addresses and logins: who may see a run need not know them, and its own lines say the rest.
FOR_OPERATORS_ONLY = frozenset({"connection.failed"})

_Queued = tuple[datetime, str, dict[str, Any]]


class LineKeeper:
    """Listens to the log of this process; what was written for a run is kept with the run."""

    def __init__(self, settings: Settings, *, on_dropped: Callable[[int], None] = lambda count: None) -> None:
        self._settings = settings
        self._redact = logs.Redactor(logs.secrets_of(settings))
        self._queue: deque[_Queued] = deque()
        self._since_trim: Counter[UUID] = Counter()
        self._on_dropped = on_dropped
        self._session: database.Connection | None = None
        self._quiet_flushes = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="log-lines", daemon=True)

    def start(self) -> None:
        logs.add_listener(self.hear)
        self._thread.start()

    def stop(self) -> None:
        logs.remove_listener(self.hear)
        self._stopping.set()
        self._thread.join(timeout=5)

    def hear(self, level: str, fields: dict[str, Any]) -> None:
        """On the run's own thread: no more than putting it aside."""
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
        self._leave()

    def _store_queued(self) -> None:
        self._quiet_flushes = 0 if self._queue else self._quiet_flushes + 1
        if self._quiet_flushes > QUIET_FLUSHES:
            self._leave()
        try:
            while self._queue:
                # Kept for the next lines: logging in costs more than storing some.
                self._session = self._session or self._metastore()
                self._store(self._session, [self._queue[n] for n in range(min(len(self._queue), BATCH_LINES))])
        except (CannotConnect, psycopg.Error):
            # What cannot be stored now waits: the metastore may be away for a while, and that is when lines matter.
            self._leave()

    def _leave(self) -> None:
        session, self._session = self._session, None
        if session:
            with suppress(psycopg.Error):
                session.close()

    def _store(self, metastore: database.Connection, queued: list[_Queued]) -> None:
        lines = [line for line in map(self._line, queued) if line]
        self._insert(metastore, lines)
        for _ in queued:
            self._queue.popleft()
        self._trim(metastore, lines)

    def _insert(self, metastore: database.Connection, lines: list[Line]) -> None:
        """A line that the database refuses would be refused for ever, and all others behind it: it is left out."""
        try:
            run_logs.insert(metastore, lines)
        except (psycopg.DataError, psycopg.IntegrityError) as exc:
            if len(lines) > 1:
                for line in lines:
                    self._insert(metastore, [line])
                return
            self._on_dropped(1)
            structlog.get_logger().warning("logs.line_refused", error=" ".join(str(exc).split()))

    def _line(self, queued: _Queued) -> Line | None:
        at, level, found = queued
        fields = {name: value for name, value in found.items() if name not in ("event", "run_id")}
        event = str(found.get("event", ""))
        try:
            run_id = UUID(str(found["run_id"]))
        except ValueError:
            return None
        # Postgres has no character 0, neither in text nor in jsonb.
        return Line(run_id, at, level, self._redact(event).replace("\x00", ""), self._json(fields))

    def _json(self, fields: dict[str, Any]) -> str:
        text = self._redact(json.dumps(fields, default=str, skipkeys=True)).replace("\\u0000", "")
        # Too long, or a password that was a number has left a hole in it.
        return (
            text if len(text) <= MAX_FIELDS_LENGTH and _is_json(text) else json.dumps({"cut": text[:MAX_FIELDS_LENGTH]})
        )

    def _trim(self, metastore: database.Connection, lines: list[Line]) -> None:
        self._since_trim.update(line.run_id for line in lines)
        long = [run_id for run_id, count in self._since_trim.items() if count >= TRIM_EVERY_LINES]
        if long:
            run_logs.trim(metastore, long)
        self._since_trim = Counter(
            {run_id: count for run_id, count in self._since_trim.items() if count < TRIM_EVERY_LINES}
        )
        if len(self._since_trim) > QUEUE_LINES:
            self._since_trim.clear()

    def _metastore(self) -> database.Connection:
        return database.connect(
            self._settings.require_database_url(),
            "vitrina:log-lines",
            connect_timeout_seconds=self._settings.connect_timeout_seconds,
            settings={"statement_timeout": "10000", "lock_timeout": "5000"},
        )


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
