"""The metastore as Prometheus sees it: read when asked, so lag and age stay right while nothing runs."""

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
from vitrina.store import figures
from vitrina.store.database import Connection

# More pipelines than this share one label: a monitoring server must survive whatever is created here.
MAX_PIPELINES = 500
OTHER = "other"

UNREACHABLE = (psycopg.OperationalError, PoolTimeout, CannotConnect)

# When each series began is a third of all samples, and no rule or dashboard asks for it.
disable_created_metrics()  # type: ignore[no-untyped-call]

Row = dict[str, Any]
Connect = Callable[[], AbstractContextManager[Connection]]


@dataclass(frozen=True)
class PipelineGauge:
    """One figure of a pipeline; `combined` says what stands under the label that many share."""

    name: str
    help: str
    value: Callable[[Row], float | None]
    combined: Callable[[Iterable[float]], float]


class MetastoreCollector(Collector):
    """Reads the figures when they are asked for."""

    def __init__(
        self,
        connect: Connect,
        settings: Settings,
        *,
        max_pipelines: int = MAX_PIPELINES,
        on_pipelines: Callable[[Collection[str]], None] = lambda names: None,
    ) -> None:
        """`on_pipelines` is told the names of all there are."""
        self._connect, self._settings, self._max_pipelines = connect, settings, max_pipelines
        self._on_pipelines = on_pipelines

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Known without asking the database, so registering needs none."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        up = GaugeMetricFamily("vitrina_metastore_up", "Whether the metastore answers.")
        try:
            with self._connect() as connection:
                rows = figures.list_pipelines(connection)
                totals = figures.totals(connection, stale_after_seconds=self._settings.lease_ttl_seconds)
        except UNREACHABLE:
            up.add_metric([], 0)
            yield up
            return
        self._on_pipelines([row["name"] for row in rows])
        up.add_metric([], 1)
        yield up
        yield from _totals(rows, totals)
        labels = [row["name"] if n < self._max_pipelines else OTHER for n, row in enumerate(rows)]
        yield _statuses(rows, labels)
        yield _failures(rows, labels)
        for gauge in PIPELINE_GAUGES:
            yield _gauge(gauge, rows, labels)


def _totals(rows: list[Row], totals: Row) -> Iterator[GaugeMetricFamily]:
    counts = Counter(row["status"] for row in rows)
    by_status = GaugeMetricFamily("vitrina_pipelines", "Pipelines by status.", labels=["status"])
    for status in Status:
        by_status.add_metric([status], counts[status])
    yield by_status
    waiting = sum(row["status"] == Status.RUN_REQUESTED and row["enabled"] for row in rows)
    yield GaugeMetricFamily("vitrina_queue_depth", "Pipelines that wait for a runner.", value=waiting)
    yield GaugeMetricFamily(
        "vitrina_queue_oldest_seconds", "How long the longest-waiting pipeline waits.", value=totals["queue_oldest"]
    )
    yield GaugeMetricFamily(
        "vitrina_runners_alive", "Runners that gave a sign of life within a lease.", value=totals["runners_alive"]
    )
    yield GaugeMetricFamily(
        "vitrina_notifications_waiting", "Notifications not delivered yet.", value=totals["notifications_waiting"]
    )


def _statuses(rows: list[Row], labels: list[str]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "vitrina_pipeline_status", "1 for the status that the pipeline has.", labels=["pipeline", "status"]
    )
    counts = Counter((label, row["status"]) for label, row in zip(labels, rows, strict=True))
    for label in dict.fromkeys(labels):
        for status in Status:
            family.add_metric([label, status], counts[label, status])
    return family


def _failures(rows: list[Row], labels: list[str]) -> GaugeMetricFamily:
    """Why: by the error's code, of which there are few."""
    family = GaugeMetricFamily(
        "vitrina_pipeline_failed", "1 while the pipeline is FAILED, with the error's code.", labels=["pipeline", "code"]
    )
    counts = Counter(
        (label, row["error_code"] or "unknown")
        for label, row in zip(labels, rows, strict=True)
        if row["status"] == Status.FAILED
    )
    for (label, code), count in counts.items():
        family.add_metric([label, code], count)
    return family


def _gauge(gauge: PipelineGauge, rows: list[Row], labels: list[str]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(gauge.name, gauge.help, labels=["pipeline"])
    found: dict[str, list[float]] = {}
    for label, row in zip(labels, rows, strict=True):
        value = gauge.value(row)
        if value is not None:
            found.setdefault(label, []).append(value)
    for label, values in found.items():
        family.add_metric([label], gauge.combined(values))
    return family


# --- the figures ---------------------------------------------------------------------------------------------------


def lag_seconds(row: Row) -> float | None:
    """How old the mart's knowledge of its source is: since the safe cursor, else since the last success began."""
    upto = cursor_time(row["safe_upto"], row["options"]) if row["mode"] == "incremental" else None
    as_of = upto.timestamp() if upto else row["success_started"]
    return max(row["now"] - as_of, 0) if as_of is not None else None


def held_seconds(row: Row) -> float:
    """How long somebody's open transaction has kept the checkpoint from moving."""
    hold = row["hold"] if isinstance(row["hold"], dict) else {}
    since = cursor_time(hold.get("since"), {})
    if since is not None:
        return float(max(row["now"] - since.timestamp(), 0))
    return float(max(row["now"] - (row["success_finished"] or row["now"]), 0)) if hold else 0.0


def cursor_time(cursor: Any, options: Any) -> datetime | None:
    """Cursors are text; only one that is a point in time has an age."""
    try:
        moment = datetime.fromisoformat(str(cursor)) if cursor and "-" in str(cursor)[1:] else None
    except ValueError:
        return None
    return moment.replace(tzinfo=_zone(options)) if moment and moment.tzinfo is None else moment


def _zone(options: Any) -> tzinfo:
    name = options.get("cursor_timezone") if isinstance(options, dict) else None
    try:
        return ZoneInfo(name) if isinstance(name, str) else UTC
    except (ValueError, OSError, ZoneInfoNotFoundError):  # a folder of zones is none
        return UTC


def lag_limit_seconds(row: Row) -> float | None:
    limit = row["options"].get("max_lag_seconds") if isinstance(row["options"], dict) else None
    # A row may have been edited by hand, to a number that is too large for a figure.
    return float(limit) if row["enabled"] and isinstance(limit, int | float) and abs(limit) < 1e300 else None


PIPELINE_GAUGES = (
    PipelineGauge(
        "vitrina_pipeline_status_since_timestamp_seconds",
        "When the pipeline got the status that it has.",
        lambda row: row["status_since"],
        min,
    ),
    PipelineGauge(
        "vitrina_pipeline_failing_since_timestamp_seconds",
        "When a failing pipeline failed first; absent once it has succeeded again.",
        lambda row: row["failing_since"],
        min,
    ),
    PipelineGauge(
        "vitrina_last_success_timestamp_seconds",
        "When the last successful run ended; absent before the first one.",
        lambda row: row["success_finished"],
        min,
    ),
    PipelineGauge(
        "vitrina_lag_seconds", "Age of what the mart knows of its source; absent before a success.", lag_seconds, max
    ),
    PipelineGauge(
        "vitrina_lag_limit_seconds", "The pipeline's options.max_lag_seconds, where set.", lag_limit_seconds, min
    ),
    PipelineGauge(
        "vitrina_run_progress_age_seconds",
        "Time since the run at work last committed something; absent when none is at work.",
        lambda row: row["progress_age"],
        max,
    ),
    PipelineGauge(
        "vitrina_dead_letters", "Documents that were refused and not dealt with.", lambda r: r["dead_letters"], sum
    ),
    PipelineGauge(
        "vitrina_drift_rows", "Rows that the last reconciliation found different.", lambda row: row["drift_rows"], sum
    ),
    PipelineGauge(
        "vitrina_checkpoint_held_seconds",
        "How long open transactions have held the checkpoint back.",
        held_seconds,
        max,
    ),
)
