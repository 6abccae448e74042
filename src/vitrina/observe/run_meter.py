"""Measure a run: counters, timings and the distribution of its batches."""

import time
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from vitrina.observe.observer import PlannedRun, RunObserver, RunOutcome
from vitrina.observe.prometheus import Instruments, RunTally
from vitrina.ports.batch import Counts, Part, Timing
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.checks import CheckOutcome
from vitrina.sentences import say
from vitrina.store import events, runs
from vitrina.store.database import Connection
from vitrina.store.leases import Claim
from vitrina.store.runs import Counters

# Listeners are notified of progress at most this often.
_ANNOUNCE_SECONDS = 0.5

# The times of this many batches are kept; a live run has millions of batches.
_BATCHES_KEPT = 10_000

# What a transaction with a batch counts, and takes back if it is rolled back.
_COUNTED = (
    *("_batch_seconds", "_consistency", "_counts", "_letters", "_null_cursors"),
    *("_outcomes", "_stage_seconds", "_timings"),
)

# What a run spends time on. Filling and writing overlap, so stages do too; `wait` is the time spent waiting for
# filling.
STAGES = ("plan", "read", "transform", "stage", "merge", "index", "publish", "wait")


class RunMeter:
    """Count for one run, across its attempts, and notify its observers."""

    def __init__(self, tally: RunTally | None = None, observers: Sequence[RunObserver] = ()) -> None:
        self.tally = tally or RunTally(Instruments(), "")
        self._observers = observers
        # For the current batch: how long the run waited for it, and when its writing began.
        self._timings: dict[str, Timing] = {}
        self.counters = Counters()
        self.attempt = 1
        self.attempts_without_progress = 0
        # When an attempt last got further than all before it.
        self.progressed_at = self._started = time.monotonic()
        # Rows of the current load or pass, and how many an earlier attempt of it had reached.
        self._rows_since_start = 0
        self._rows_to_surpass = 0
        self._batch_seconds: list[float] = []
        self._stage_seconds = dict.fromkeys(STAGES, 0.0)
        self._counts = Counts()
        # A run that ends sooner is announced only by its status.
        self._announced = time.monotonic()
        self._consistency = "snapshot"
        self._null_cursors = 0
        self._letters = 0
        self._outcomes: dict[str, CheckOutcome] = {}

    def planned(self, job: PlannedRun, seconds: float) -> None:
        plan = job.plan
        self.spent("plan", seconds)
        self.counters.metrics |= {
            "route": plan.route,
            "paging": plan.paging,
            "guarantee": plan.guarantee,
            "plan": plan.as_dict(),
            "rows_estimate": job.described.estimated_rows,
        }
        if job.described.cursor:
            # The ranges that users request are checked against it.
            self.counters.metrics["cursor"] = dict(job.described.cursor)
        self.no_longer_waiting()
        for observer in self._observers:
            observer.planned(job, _timing(seconds))

    def continued(self, checkpoint: Checkpoint) -> None:
        # A load that is split into ranges has a position before any of them is accepted.
        if checkpoint.accepted and checkpoint.last_key is not None:
            self._consistency = "mixed"
        self.counters.metrics.setdefault("continued", []).append(
            {"rows": checkpoint.rows, "batches": checkpoint.batch_no, "after": checkpoint.last_key}
        )

    def starts_over(self) -> None:
        """Start over: what was done before is repeated, and is no progress until it gets further."""
        self._rows_to_surpass = max(self._rows_to_surpass, self._rows_since_start)
        self._rows_since_start = 0

    def note(self, name: str, value: Any) -> None:
        self.counters.metrics[name] = value

    def warn(self, text: str) -> None:
        """Add a warning to those of the plan, where people look for them."""
        plan = self.counters.metrics.get("plan", {})
        said = plan.get("warnings", [])
        if text not in said:
            # Replaced, not changed: `remember` keeps the plan as it is.
            self.note("plan", plan | {"warnings": [*said, text]})

    def rejected(self, rows: int) -> None:
        self._null_cursors = rows
        self.counters.rows_rejected = rows + self._letters
        if rows:
            self.note("null_cursors", rows)

    def left_behind(self, rows: int) -> None:
        """Count rows that a step failed on and that became dead letters."""
        self._letters += rows
        self.counters.rows_rejected = self._null_cursors + self._letters
        self.note("dead_letters", self._letters)

    def checked(self, outcomes: Sequence[CheckOutcome], *, whole: bool = False) -> None:
        """Record outcomes of checks: of another batch, or (`whole`) of all rows that they cover."""
        for one in outcomes:
            before = None if whole else self._outcomes.get(one.name)
            self._outcomes[one.name] = outcome = before + one if before else one
            if outcome.result in ("warned", "accepted"):
                self.warn(say("check.warned", check=outcome.name, found=outcome.found.message))
        if outcomes:
            self.note("checks", [outcome.as_dict() for outcome in self._outcomes.values()])

    @property
    def counts(self) -> Counts:
        return self._counts

    @property
    def letters(self) -> int:
        return self._letters

    def started_from(self, cursor: str | None) -> None:
        self.counters.cursor_from = self.counters.cursor_from or cursor

    def reached(self, cursor: str | None) -> None:
        self.counters.cursor_to = cursor

    def batch(self, filled: Part, counts: Counts, seconds: float) -> None:
        self.counters.rows_read += filled.rows
        self.counters.batches += 1
        for stage, timing in filled.timings.items():
            self.spent(stage, timing.seconds)
        self.spent("merge", seconds)
        if seconds:
            self._timings["merge"] = _timing(seconds)
        if filled.reopened:
            self._consistency = "mixed"
        self._batch_seconds.append(filled.seconds + seconds)
        if filled.last:
            self.counters.cursor_to = filled.last[0]
        self._summarise()

    def merged(self, counts: Counts) -> None:
        self._counts += counts
        self._summarise()

    def published(self, counts: Counts, seconds: float) -> None:
        self.spent("publish", seconds)
        self.merged(counts)
        self.note("consistency", self._consistency)
        for observer in self._observers:
            observer.published(_timing(seconds))

    def spent(self, stage: str, seconds: float) -> None:
        """Add to the time, in seconds, of one of `STAGES`."""
        self._stage_seconds[stage] += seconds

    def waited(self, seconds: float) -> None:
        """Record a wait for the source while nothing was left to write."""
        self.spent("wait", seconds)
        self._timings = {"wait": _timing(seconds)}

    def progressed(self, filled: Part) -> None:
        """Record a committed batch: the count of attempts without progress starts again at zero."""
        self._rows_since_start += filled.rows
        if self._rows_since_start > self._rows_to_surpass:
            self.attempts_without_progress = 0
            self.progressed_at = time.monotonic()
        for observer in self._observers:
            observer.batch_done(filled, {**filled.timings, **self._timings})

    def is_alive(self) -> None:
        """Reset the count of attempts without progress: a follower that has nothing to write works all the same."""
        self.attempts_without_progress = 0

    def retrying(self, error: str) -> None:
        self.tally.retried()
        self.attempt += 1
        self.note("waiting", error)
        for observer in self._observers:
            observer.retrying(self.attempt, error)

    def no_longer_waiting(self) -> None:
        if "waiting" in self.counters.metrics:
            self.note("waiting", None)

    def ended(self, outcome: RunOutcome) -> None:
        self.tally.ended(outcome.status)
        self.tally.checked([found.result for found in self._outcomes.values()])
        for observer in self._observers:
            observer.ended(outcome, self.counters)

    @property
    def last_batch_ms(self) -> int:
        return round(self._batch_seconds[-1] * 1000) if self._batch_seconds else 0

    def _summarise(self) -> None:
        counts = self._counts
        self.counters.rows_written = counts.inserted + counts.updated
        self.counters.rows_deleted = counts.deleted
        seconds = time.monotonic() - self._started
        ordered = sorted(self._batch_seconds[-_BATCHES_KEPT:])
        self.counters.metrics |= {
            **vars(counts),
            "seconds": round(seconds, 3),
            "rows_per_second": round(self.counters.rows_read / seconds) if seconds > 0 else None,
            "stage_seconds": {name: round(value, 6) for name, value in self._stage_seconds.items() if value},
            "batch_ms": {
                "p50": _milliseconds(ordered, 0.5),
                "p95": _milliseconds(ordered, 0.95),
                "max": _milliseconds(ordered, 1.0),
            },
        }

    def remember(self) -> Mapping[str, Any]:
        """Return a copy of what was counted, for `restore`."""
        counters = replace(self.counters, metrics=dict(self.counters.metrics))
        return {"counters": counters} | {name: copy(getattr(self, name)) for name in _COUNTED}

    def restore(self, remembered: Mapping[str, Any]) -> None:
        """Take back what a transaction counted that was rolled back; the retry counts it again."""
        vars(self).update(remembered)

    def record(self, metastore: Connection, claim: Claim) -> None:
        self._summarise()
        self._tell()
        runs.record_progress(metastore, claim.run_id, self.counters, attempts=self.attempt)

    def total(self) -> runs.Progress:
        """Return what the run did, to be recorded with its end."""
        self._summarise()
        self._tell()
        return runs.progress_of(self.counters, attempts=self.attempt)

    def announce(self, metastore: Connection, claim: Claim) -> None:
        """Publish the progress. The run calls this after every commit."""
        self._tell()
        if time.monotonic() - self._announced < _ANNOUNCE_SECONDS:
            return
        self._announced = time.monotonic()
        events.publish(
            metastore,
            "progress",
            {
                "pipeline_id": str(claim.pipeline_id),
                "pipeline": claim.name,
                "run_id": str(claim.run_id),
                "rows_read": self.counters.rows_read,
                "rows_written": self.counters.rows_written,
                "batches": self.counters.batches,
                "rows_per_second": self.counters.metrics.get("rows_per_second"),
                "rows_estimate": self.counters.metrics.get("rows_estimate"),
            },
        )

    def _tell(self) -> None:
        self.tally.advance(self.counters, self._stage_seconds, self._batch_seconds)
        if len(self._batch_seconds) > 2 * _BATCHES_KEPT:
            self.tally.forget(len(self._batch_seconds) - _BATCHES_KEPT)
            del self._batch_seconds[:-_BATCHES_KEPT]


def _timing(seconds: float) -> Timing:
    """Return a timing that has just ended."""
    return Timing(time.time() - seconds, seconds)


def _milliseconds(ordered: list[float], quantile: float) -> float | None:
    if not ordered:
        return None
    return round(ordered[min(len(ordered) - 1, int(quantile * len(ordered)))] * 1000, 1)
