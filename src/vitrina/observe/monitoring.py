"""Expose the metastore to Prometheus. It is read on each scrape, so lag and age stay right while nothing runs."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import psycopg
from prometheus_client import disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from psycopg_pool import PoolTimeout

from vitrina.errors import CannotConnect
from vitrina.settings import Settings
from vitrina.status import Status
from vitrina.store import feed_reports, metrics
from vitrina.store.database import Connection

# Further pipelines share one label, to limit the number of series in the monitoring server.
MAX_PIPELINES = 500
OTHER = "other"

UNREACHABLE = (psycopg.OperationalError, PoolTimeout, CannotConnect)

# Creation times of series are a third of all samples, and no rule or dashboard uses them.
disable_created_metrics()  # type: ignore[no-untyped-call]

Row = dict[str, Any]
Connect = Callable[[], AbstractContextManager[Connection]]


@dataclass(frozen=True)
class PipelineGauge:
    """Define one metric of a pipeline; `of_rest` computes the value for the label that many pipelines share."""

    name: str
    help: str
    value: Callable[[Row], float | None]
    of_rest: Callable[[Row], float | None]


class MetastoreCollector(Collector):
    """Read the metrics on each scrape."""

    def __init__(
        self,
        connect: Connect,
        settings: Settings,
        *,
        max_pipelines: int = MAX_PIPELINES,
        counted: Callable[[], Collection[str]] = tuple,
        on_pipelines: Callable[[Collection[str]], None] = lambda names: None,
    ) -> None:
        """Call `on_pipelines` with those of the `counted` names that still exist."""
        self._connect, self._settings, self._max_pipelines = connect, settings, max_pipelines
        self._counted, self._on_pipelines = counted, on_pipelines
        self.rest = Rest()

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return nothing, so that registering needs no database."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        up = GaugeMetricFamily("vitrina_metastore_up", "Whether the metastore answers.")
        try:
            with self._connect() as connection:
                found = self._read(connection)
        except UNREACHABLE:
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        yield up
        yield from _totals(found)
        yield _statuses(found)
        yield _failures(found)
        for gauge in PIPELINE_GAUGES:
            yield _gauge(gauge, found)
        yield from _feeds(found.feeds, self._max_pipelines)

    def _read(self, connection: Connection) -> "Found":
        rows = metrics.list_oldest(connection, limit=self._max_pipelines)
        totals = metrics.totals(connection, stale_after_seconds=self._settings.lease_ttl_seconds)
        if counted := self._counted():
            self._on_pipelines(metrics.find_existing(connection, counted))
        own = Counter(row["status"] for row in rows)
        all_statuses = own if len(rows) < self._max_pipelines else Counter(metrics.count_statuses(connection))
        has_rest = all_statuses.total() > len(rows)
        rest = self.rest.read(connection, rows[-1]) if has_rest else None
        return Found(rows, totals, all_statuses, rest, feed_reports.list_all(connection))


@dataclass(frozen=True)
class Found:
    """Hold what one scrape shows; `rest` sums up the pipelines that have no row here."""

    rows: list[Row]
    totals: Row
    statuses: Counter[str]
    rest: Row | None
    feeds: list[Row]

    @property
    def rest_statuses(self) -> Counter[str]:
        """Count the others by status, never below zero, because the totals are read a moment after the rows."""
        return self.statuses - Counter(row["status"] for row in self.rows)


FEED_GAUGES: dict[str, tuple[str, Callable[[Row], float | None]]] = {
    "feed_owned": ("Whether a runner reads the log of a source.", lambda feed: float(feed["is_owned"])),
    "feed_problem": ("Whether something keeps it from being read.", lambda feed: float(feed["problem"] is not None)),
    "feed_lag_seconds": ("How long ago the source wrote what is read now.", lambda feed: feed["lag_seconds"]),
    "feed_behind_bytes": ("What the source has written since.", lambda feed: feed["behind_bytes"]),
    "feed_retained_bytes": ("What the source keeps of its log for the feed.", lambda feed: feed["retained_bytes"]),
    "feed_keep_bytes": ("What it may keep before it gives the slot up.", lambda feed: feed["keep_bytes"]),
    "feed_stored_changes": ("Changes that were stored since the feed was made.", lambda feed: feed["stored_changes"]),
    "feed_kept_changes": ("Those that are kept, because a pipeline needs them.", lambda feed: feed["kept_changes"]),
}


def _feeds(feeds: list[Row], max_pipelines: int) -> Iterator[GaugeMetricFamily]:
    for name, (text, value) in FEED_GAUGES.items():
        family = GaugeMetricFamily(f"vitrina_{name}", text, labels=["connection"])
        for feed in feeds:
            found = value(feed)
            if found is not None:
                family.add_metric([feed["connection"]], found)
        yield family
    followers = [follower for feed in feeds for follower in feed["followers"]][:max_pipelines]
    backlog = GaugeMetricFamily(
        "vitrina_feed_backlog_changes", "Changes that a pipeline has not passed.", labels=["pipeline"]
    )
    reload = GaugeMetricFamily(
        "vitrina_feed_must_reload", "Whether changes are lost for a pipeline.", labels=["pipeline"]
    )
    for follower in followers:
        backlog.add_metric([follower["pipeline"]], follower["backlog_changes"] or 0)
        reload.add_metric([follower["pipeline"]], float(follower["must_reload"] is not None))
    yield from (backlog, reload)


class Rest:
    """Sum up the pipelines after those that have their own label.

    The sums are cached if computing them takes long; the ages in them keep growing.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._row: Row = {}
        self._good_until = 0.0
        self.kept_seconds = 0.0

    def read(self, connection: Connection, last: Row) -> Row:
        """Return the sums of the pipelines after `last`."""
        after = (last["created_at"], last["id"])
        # Of two concurrent callers, the second uses what the first has read.
        with self._lock:
            if time.monotonic() >= self._good_until or self._row["after"] != after:
                started = time.monotonic()
                self._row = _sum_up(connection, after)
                self.kept_seconds = _keep_seconds(took=time.monotonic() - started)
                self._good_until = time.monotonic() + self.kept_seconds
            return self._row | {"now": last["now"]}


# Up to this duration the rest is read on every scrape; beyond it, so rarely that it takes 1/400 of the time.
QUICK_SECONDS = 0.05
_KEEP_FACTOR = 400
_MAX_KEEP_SECONDS = 300.0


def _keep_seconds(took: float) -> float:
    return 0.0 if took <= QUICK_SECONDS else min(_KEEP_FACTOR * took, _MAX_KEEP_SECONDS)


def _sum_up(connection: Connection, after: metrics.Place) -> Row:
    found = metrics.sum_up_rest(connection, after)
    cursors = [cursor_time(row["safe_upto"], row["options"]) for row in metrics.list_oldest_cursors(connection, after)]
    known: list[float | None] = [found["success_started"], *(cursor.timestamp() for cursor in cursors if cursor)]
    held = [row["now"] - held_seconds(row) for row in metrics.list_held(connection, after)]
    return found | {
        "after": after,
        "as_of": min((moment for moment in known if moment is not None), default=None),
        "held_since": min(held, default=None),
        "failures": metrics.count_failures(connection, after),
    }


def _totals(found: Found) -> Iterator[GaugeMetricFamily]:
    by_status = GaugeMetricFamily("vitrina_pipelines", "Pipelines by status.", labels=["status"])
    for status in Status:
        by_status.add_metric([status], found.statuses[status])
    yield by_status
    totals = found.totals
    yield GaugeMetricFamily("vitrina_queue_depth", "Pipelines that wait for a runner.", value=totals["queue_depth"])
    yield GaugeMetricFamily(
        "vitrina_queue_oldest_seconds", "How long the longest-waiting pipeline waits.", value=totals["queue_oldest"]
    )
    yield GaugeMetricFamily(
        "vitrina_runners_alive", "Runners that gave a sign of life within a lease.", value=totals["runners_alive"]
    )
    yield GaugeMetricFamily(
        "vitrina_notifications_waiting", "Notifications not delivered yet.", value=totals["notifications_waiting"]
    )


def _statuses(found: Found) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "vitrina_pipeline_status", "1 for the status that the pipeline has.", labels=["pipeline", "status"]
    )
    for row in found.rows:
        for status in Status:
            family.add_metric([row["name"], status], int(row["status"] == status))
    if found.rest:
        for status in Status:
            family.add_metric([OTHER, status], found.rest_statuses[status])
    return family


def _failures(found: Found) -> GaugeMetricFamily:
    """Show why pipelines fail, by error code; there are few codes."""
    family = GaugeMetricFamily(
        "vitrina_pipeline_failed", "1 while the pipeline is FAILED, with the error's code.", labels=["pipeline", "code"]
    )
    for row in found.rows:
        if row["status"] == Status.FAILED:
            family.add_metric([row["name"], row["error_code"] or "unknown"], 1)
    for code, count in found.rest["failures"].items() if found.rest else ():
        family.add_metric([OTHER, code or "unknown"], count)
    return family


def _gauge(gauge: PipelineGauge, found: Found) -> GaugeMetricFamily:
    family = GaugeMetricFamily(gauge.name, gauge.help, labels=["pipeline"])
    for row in found.rows:
        value = gauge.value(row)
        if value is not None:
            family.add_metric([row["name"]], value)
    value = gauge.of_rest(found.rest) if found.rest else None
    if value is not None:
        family.add_metric([OTHER], value)
    return family


def lag_seconds(row: Row) -> float | None:
    """Return how old the mart's knowledge of its source is: since the safe cursor, or since the last success began.

    A live mart knows the moment that it shows.
    """
    modes = {"incremental": row["safe_upto"], "live": row.get("live_as_of")}
    upto = cursor_time(modes.get(row["mode"]), row["options"])
    return _age(row, upto.timestamp() if upto else row["success_started"])


def held_seconds(row: Row) -> float:
    """Return how long an open transaction of another session has kept the checkpoint from moving."""
    hold = row["hold"] if isinstance(row["hold"], dict) else {}
    since = cursor_time(hold.get("since"), {})
    if since is not None:
        return float(max(row["now"] - since.timestamp(), 0))
    return float(max(row["now"] - (row["success_finished"] or row["now"]), 0)) if hold else 0.0


def cursor_time(cursor: Any, options: Any) -> datetime | None:
    """Parse a cursor, which is text. Return None if it is not a point in time and so has no age."""
    try:
        moment = datetime.fromisoformat(str(cursor)) if cursor and "-" in str(cursor)[1:] else None
    except ValueError:
        return None
    return moment.replace(tzinfo=_zone(options)) if moment and moment.tzinfo is None else moment


def _zone(options: Any) -> tzinfo:
    name = options.get("cursor_timezone") if isinstance(options, dict) else None
    try:
        return ZoneInfo(name) if isinstance(name, str) else UTC
    except (ValueError, OSError, ZoneInfoNotFoundError):  # the name of a folder of zones is not a zone
        return UTC


def lag_limit_seconds(row: Row) -> float | None:
    limit = row["options"].get("max_lag_seconds") if isinstance(row["options"], dict) else None
    # A row may have been edited by hand, with a number too large for a float.
    return float(limit) if row["enabled"] and isinstance(limit, int | float) and abs(limit) < 1e300 else None


def _age(row: Row, moment: float | None) -> float | None:
    return max(row["now"] - moment, 0) if moment is not None else None


# For the shared label: the oldest time, the greatest age, the sum, the lowest limit.
PIPELINE_GAUGES = (
    PipelineGauge(
        "vitrina_pipeline_status_since_timestamp_seconds",
        "When the pipeline got the status that it has.",
        lambda row: row["status_since"],
        lambda rest: rest["status_since"],
    ),
    PipelineGauge(
        "vitrina_pipeline_failing_since_timestamp_seconds",
        "When a failing pipeline failed first; absent once it has succeeded again.",
        lambda row: row["failing_since"],
        lambda rest: rest["failing_since"],
    ),
    PipelineGauge(
        "vitrina_last_success_timestamp_seconds",
        "When the last successful run ended; absent before the first one.",
        lambda row: row["success_finished"],
        lambda rest: rest["success_finished"],
    ),
    PipelineGauge(
        "vitrina_lag_seconds",
        "Age of what the mart knows of its source; absent before a success.",
        lag_seconds,
        lambda rest: _age(rest, rest["as_of"]),
    ),
    PipelineGauge(
        "vitrina_lag_limit_seconds",
        "The pipeline's options.max_lag_seconds, where set.",
        lag_limit_seconds,
        lambda rest: rest["lag_limit"],
    ),
    PipelineGauge(
        "vitrina_run_progress_age_seconds",
        "Time since the current run last committed something; absent when no run is active.",
        lambda row: _age(row, row["progressed"]),
        lambda rest: _age(rest, rest["progressed"]),
    ),
    PipelineGauge(
        "vitrina_dead_letters",
        "Documents that were refused and not dealt with.",
        lambda row: row["dead_letters"],
        lambda rest: rest["dead_letters"],
    ),
    PipelineGauge(
        "vitrina_drift_rows",
        "Rows that the last reconciliation found different.",
        lambda row: row["drift_rows"],
        lambda rest: rest["drift_rows"],
    ),
    PipelineGauge(
        "vitrina_checkpoint_held_seconds",
        "How long open transactions have held the checkpoint back.",
        held_seconds,
        lambda rest: _age(rest, rest["held_since"]) or 0.0,
    ),
)
