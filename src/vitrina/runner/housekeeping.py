"""Remove what is no longer needed: old history, abandoned runs, orphaned stages."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from uuid import UUID

import psycopg
import structlog

from vitrina.checks import delete_scan, reconcile
from vitrina.errors import CannotConnect, ConfigError
from vitrina.loads import kept_connections
from vitrina.ports import registry
from vitrina.ports.connector import TidyUp
from vitrina.settings import DEFAULT_CONNECTION, Settings
from vitrina.store import (
    data_plans,
    database,
    databases,
    events,
    notifications,
    recovery,
    requests,
    run_logs,
    runners,
    runs,
    stages,
)
from vitrina.store.database import Connection

INTERVAL_SECONDS = 60.0
# A runner that has been silent for this many lease durations is removed from the list.
FORGET_AFTER_LEASES = 120
REQUEST_EXPIRY_SECONDS = 600.0

# Only one runner cleans up at a time; the others would wait for its row locks.
_LOCK = 0x5649_5452_484B


class Housekeeper:
    """Clean up in a separate thread, so that claims never wait for it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._old_runs = OldRuns()
        self._due_at = 0.0
        self._thread: threading.Thread | None = None

    def look(self, shutdown: threading.Event) -> None:
        """Start a round when one is due. The runner calls this often."""
        if time.monotonic() < self._due_at or shutdown.is_set() or (self._thread and self._thread.is_alive()):
            return
        self._due_at = time.monotonic() + INTERVAL_SECONDS
        self._thread = threading.Thread(target=self._tidy_up, name="housekeeping", daemon=True)
        self._thread.start()

    def _tidy_up(self) -> None:
        try:
            tidy_up(self._settings, self._old_runs)
        except (CannotConnect, psycopg.Error) as exc:
            structlog.get_logger().warning("housekeeping.failed", error=" ".join(str(exc).split()))
        except Exception:  # noqa: BLE001 - the next round tries again; claims do not depend on it
            structlog.get_logger().exception("housekeeping.crashed")


class OldRuns:
    """Delete old runs in portions; each round continues where the last one ended."""

    def __init__(self) -> None:
        self._after: tuple[datetime, UUID] | None = None

    def prune(self, metastore: Connection, *, older_than_days: int) -> None:
        # After an error, the next round starts again at the oldest run.
        after, self._after = self._after, None
        self._after = runs.prune(metastore, older_than_days=older_than_days, after=after).upto


def tidy_up(settings: Settings, old_runs: OldRuns | None = None) -> None:
    """Run one round, unless another runner is running one."""
    old_runs = old_runs or OldRuns()
    with _session(settings.require_database_url()) as metastore:
        row = metastore.execute("SELECT pg_try_advisory_lock(%s) AS ours", [_LOCK]).fetchone()
        if not (row and row["ours"]):
            return
        days, stale = settings.runs_retention_days, settings.lease_ttl_seconds * FORGET_AFTER_LEASES
        duties: dict[str, Callable[[], object]] = {
            "abandoned runs": lambda: recovery.close_abandoned_runs(metastore),
            "old runs": lambda: old_runs.prune(metastore, older_than_days=days),
            "events": lambda: events.prune(metastore, older_than_hours=settings.events_retention_hours),
            "logs": lambda: run_logs.prune(metastore, older_than_days=settings.logs_retention_days),
            "notifications": lambda: notifications.prune(metastore, older_than_days=settings.logs_retention_days),
            "reconciliations": lambda: reconcile.request_due(metastore),
            "scans for deletes": lambda: delete_scan.request_due(metastore),
            "unanswered requests": lambda: requests.expire(metastore, older_than_seconds=REQUEST_EXPIRY_SECONDS),
            "old requests": lambda: requests.prune(metastore, older_than_days=days),
            "old plans": lambda: data_plans.prune(metastore, older_than_days=days),
            "runners": lambda: runners.forget_stale(metastore, older_than_seconds=stale),
            "stages": lambda: stages.drop_orphans(metastore, metastore),
            "other databases": lambda: _drop_all_remote_orphans(metastore, settings),
            **{
                f"what {connector.name} left": partial(_tidy_up_after, connector.tidy_up, metastore, settings)
                for connector in registry.installed().connectors.values()
                if connector.tidy_up
            },
        }
        for duty, perform in duties.items():
            _do(duty, perform, metastore)


def _do(duty: str, perform: Callable[[], object], metastore: Connection) -> None:
    """Perform one duty. If it fails, for example because of a bad row, the others are still performed."""
    try:
        perform()
    except Exception as exc:
        if metastore.closed:
            raise
        structlog.get_logger().exception("housekeeping.duty_failed", duty=duty, error=" ".join(str(exc).split()))


def _drop_all_remote_orphans(metastore: Connection, settings: Settings) -> None:
    settings = kept_connections.with_kept(settings, metastore)
    for name in stages.list_target_connections(metastore):
        _drop_remote_orphans(metastore, settings, name)


def _drop_remote_orphans(metastore: Connection, settings: Settings, name: str) -> None:
    if name == DEFAULT_CONNECTION:
        return
    try:
        if settings.connector_of(name) != registry.POSTGRES:
            return  # other targets have no stages
        with _session(settings.connection_url(name)) as target:
            # With the database recognised, saving a second pipeline for the same mart is refused, not only its run.
            databases.recognise(metastore, name, target, lambda other: _session(settings.connection_url(other)))
            stages.drop_orphans(metastore, target, remote=True)
    except (CannotConnect, ConfigError, psycopg.Error) as exc:
        structlog.get_logger().warning("housekeeping.target_skipped", connection=name, error=" ".join(str(exc).split()))


def _tidy_up_after(tidy_up: TidyUp, metastore: Connection, settings: Settings) -> None:
    tidy_up(metastore, kept_connections.with_kept(settings, metastore))


@contextmanager
def _session(url: str) -> Iterator[Connection]:
    limits = {"lock_timeout": "1000", "statement_timeout": "60000"}
    connection = database.connect(url, "vitrina:housekeeping", settings=limits)
    try:
        yield connection
    finally:
        with suppress(psycopg.Error):
            connection.close()
