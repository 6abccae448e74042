"""Count runs, rows, batches, stages and losses of a runner for Prometheus. Labels are bounded: never a run id."""

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from vitrina import __version__
from vitrina.observe.monitoring import MAX_PIPELINES, OTHER
from vitrina.store.runs import Counters

RUN_BUCKETS = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14_400, 43_200)
BATCH_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 300)


class Instruments:
    """Hold the metrics of a runner."""

    def __init__(self, registry: CollectorRegistry | None = None, *, max_pipelines: int = MAX_PIPELINES) -> None:
        self.registry = registry or CollectorRegistry()
        self._max_pipelines = max_pipelines
        self._pipelines: set[str] = set()
        self._missed: set[str] = set()
        self._of_pipelines: list[Counter | Histogram] = []
        self._lock = threading.Lock()
        self.runs = self._counter("runs", "Runs that ended, by outcome.", "pipeline", "status")
        self.run_seconds = self._histogram("run_duration_seconds", "Duration of runs.", RUN_BUCKETS)
        self.batch_seconds = self._histogram("batch_duration_seconds", "Time to fill and merge a batch.", BATCH_BUCKETS)
        self.rows = {
            "rows_read": self._counter("rows_read", "Rows read from sources.", "pipeline"),
            "rows_written": self._counter("rows_written", "Rows inserted or updated in targets.", "pipeline"),
            "rows_deleted": self._counter("rows_deleted", "Rows deleted from targets.", "pipeline"),
            "rows_rejected": self._counter("rows_rejected", "Rows that were left out.", "pipeline"),
        }
        self.stage_seconds = self._counter(
            "stage_seconds", "Time spent in each stage of runs; stages overlap.", "pipeline", "stage"
        )
        self.checks = self._counter(
            "checks", "Checks of definitions that runs evaluated, by result.", "pipeline", "result"
        )
        self.plans = self._counter(
            "plans", "Plans of what a load would change, by what they found.", "pipeline", "result"
        )
        self.retries = self._counter("retries", "Tries of a run after its first one.", "pipeline")
        self.errors = self._counter(
            "errors", "Errors that ended a run, by code; those that a retry cured are none.", "pipeline", "code"
        )
        self.lease_lost = self._counter(
            "lease_lost", "Leases lost, seen by their holder or by the runner that took over.", "pipeline", "seen_by"
        )
        self.notifications = self._counter("notifications", "Notifications, by outcome.", "channel", "outcome")
        self.lineage_events = self._counter("lineage_events", "Lineage events, by outcome.", "outcome")
        self.lines_dropped = self._counter("log_lines_dropped", "Lines of runs that could not be kept.")
        self.running = self._gauge("runner_running", "Runs that this runner is working on.")
        self.capacity = self._gauge("runner_capacity", "Runs that this runner may work on at a time.")
        Gauge("vitrina_build_info", "The running version; always 1.", ["version"], registry=self.registry).labels(
            __version__
        ).set(1)

    def label(self, pipeline: str) -> str:
        """Return the pipeline's name, or the shared label once there are too many."""
        with self._lock:
            if pipeline in self._pipelines or len(self._pipelines) < self._max_pipelines:
                self._pipelines.add(pipeline)
                return pipeline
        return OTHER

    def counted(self) -> list[str]:
        """Return the pipelines that have their own series."""
        with self._lock:
            return list(self._pipelines)

    def retain(self, pipelines: Collection[str]) -> None:
        """Remove deleted pipelines: their series, and their places among the labels.

        A pipeline is removed when it is missing twice: one that is missing once may be newer than the list.
        """
        with self._lock:
            missed = self._pipelines.difference(pipelines)
            removed, self._missed = missed & self._missed, missed
            self._pipelines -= removed
        for pipeline in removed:
            for metric in self._of_pipelines:
                metric.remove_by_labels({"pipeline": pipeline})

    def planned(self, plan: Mapping[str, Any] | None, pipeline: str) -> None:
        """Count a plan of a saved pipeline; None: it could not be made."""
        self.plans.labels(self.label(pipeline), _plan_result(plan)).inc()

    def lost_elsewhere(self, pipeline: str) -> None:
        self.lease_lost.labels(self.label(pipeline), "successor").inc()

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        counter = Counter(f"vitrina_{name}", what, labels, registry=self.registry)
        if "pipeline" in labels:
            self._of_pipelines.append(counter)
        return counter

    def _histogram(self, name: str, what: str, buckets: Sequence[float]) -> Histogram:
        histogram = Histogram(f"vitrina_{name}", what, ["pipeline"], buckets=buckets, registry=self.registry)
        self._of_pipelines.append(histogram)
        return histogram

    def _gauge(self, name: str, what: str) -> Gauge:
        return Gauge(f"vitrina_{name}", what, registry=self.registry)


def _plan_result(plan: Mapping[str, Any] | None) -> str:
    if plan is None:
        return "failed"
    if plan["refusals"]:
        return "refused"
    rows = plan["rows"] or {}
    return "changes" if any(rows.get(name) for name in ("added", "changed", "removed")) else "same"


class RunTally:
    """Count one run: add what is new since the last commit to the runner's counters."""

    def __init__(self, instruments: Instruments, pipeline: str) -> None:
        self._instruments = instruments
        self._label = instruments.label(pipeline)
        self._started = time.monotonic()
        self._told: dict[str, float] = {}
        self._series: dict[str, Counter] = {}
        self._batch_seconds = instruments.batch_seconds.labels(self._label)
        self._batches_told = 0

    def advance(self, counters: Counters, stages: Mapping[str, float], batches: Sequence[float]) -> None:
        for name, counter in self._instruments.rows.items():
            self._add(counter, name, getattr(counters, name))
        for stage, seconds in stages.items():
            self._add(self._instruments.stage_seconds, stage, seconds, stage)
        for seconds in batches[self._batches_told :]:
            self._batch_seconds.observe(seconds)
        self._batches_told = len(batches)

    def forget(self, batches: int) -> None:
        """Adjust to a list of batches that lost its first so many entries."""
        self._batches_told -= batches

    def checked(self, results: Sequence[str]) -> None:
        for result in results:
            self._instruments.checks.labels(self._label, result).inc()

    def retried(self) -> None:
        self._instruments.retries.labels(self._label).inc()

    def failed(self, code: str) -> None:
        self._instruments.errors.labels(self._label, code).inc()

    def lost_lease(self) -> None:
        self._instruments.lease_lost.labels(self._label, "holder").inc()

    def ended(self, outcome: str) -> None:
        self._instruments.runs.labels(self._label, outcome).inc()
        self._instruments.run_seconds.labels(self._label).observe(time.monotonic() - self._started)

    def _add(self, counter: Counter, name: str, value: float, *labels: str) -> None:
        """Add to a counter, which only increases, even if a rolled-back attempt is counted again."""
        told = self._told.get(name)
        if told is None:
            # Looked up once, because a run calls this after every commit.
            self._series[name] = counter.labels(self._label, *labels)
            told = self._told[name] = 0.0
        if value > told:
            self._series[name].inc(value - told)
            self._told[name] = value
