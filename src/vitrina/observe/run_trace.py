"""Trace a run: one span for the run, one for each batch, one for each stage of a batch."""

import time
from collections.abc import Mapping

from vitrina.observe.observer import PlannedRun, RunObserver, RunOutcome
from vitrina.observe.tracing import Tracing
from vitrina.ports.batch import Part, Timing
from vitrina.store.leases import Claim
from vitrina.store.runs import Counters

# A trace is for people to view, so further batches of a very long run are only in its log and metrics.
MAX_BATCHES = 1000
# Shorter stages are invisible beside the rest of their batch; their total is in the metrics.
SHORTEST_STAGE_SECONDS = 0.001
# Spans of many batches are created together, because creating each alone takes several times as long.
CREATE_BATCHES = 50
CREATE_SECONDS = 5.0


class RunTrace(RunObserver):
    """Create spans after what they describe is over, so that between batches a run only notes the time."""

    def __init__(self, tracing: Tracing, claim: Claim) -> None:
        self._span = tracing.begin(
            f"run {claim.name}",
            {
                "vitrina.pipeline": claim.name,
                "vitrina.pipeline_id": str(claim.pipeline_id),
                "vitrina.run_id": str(claim.run_id),
                "vitrina.version": claim.version,
                "vitrina.trigger": str(claim.row["requested_trigger"]),
            },
            traceparent=claim.row.get("traceparent"),
        )
        self.trace_id = self._span.trace_id
        self._batches = 0
        self._pending: list[tuple[int, int, Mapping[str, Timing], float]] = []

    def planned(self, job: PlannedRun, timing: Timing) -> None:
        self._span.part("plan", began=timing.began, ended=timing.began + timing.seconds)

    def batch_done(self, filled: Part, timings: Mapping[str, Timing]) -> None:
        self._batches += 1
        if self._batches <= MAX_BATCHES:
            now = time.time()
            self._pending.append((filled.number, filled.rows, timings, now))
            if len(self._pending) >= CREATE_BATCHES or now - self._pending[0][3] > CREATE_SECONDS:
                self._create_spans()

    def published(self, timing: Timing) -> None:
        self._span.part("publish", began=timing.began, ended=timing.began + timing.seconds)

    def retrying(self, attempt: int, error: str) -> None:
        self._span.event("retrying", {"vitrina.attempt": attempt, "exception.message": error})

    def ended(self, outcome: RunOutcome, counters: Counters) -> None:
        self._create_spans()
        self._span.end(
            attributes={
                "vitrina.outcome": outcome.status,
                "vitrina.rows_read": counters.rows_read,
                "vitrina.rows_written": counters.rows_written,
                "vitrina.rows_deleted": counters.rows_deleted,
                "vitrina.batches": counters.batches,
                "error.type": outcome.code,
            },
            error=outcome.message,
        )

    def _create_spans(self) -> None:
        pending, self._pending = self._pending, []
        for number, rows, timings, ended in pending:
            attributes = {"vitrina.batch_no": number, "vitrina.rows": rows}
            began = min(timing.began for timing in timings.values())
            batch = self._span.part("batch", began=began, ended=ended, attributes=attributes)
            for stage, timing in timings.items():
                if timing.seconds >= SHORTEST_STAGE_SECONDS:
                    self._span.part(stage, began=timing.began, ended=timing.began + timing.seconds, of=batch)
