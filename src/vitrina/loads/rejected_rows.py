"""Record the rows that a run rejects, and resolve those of earlier runs that it delivers."""

from datetime import datetime
from functools import cached_property

from vitrina.loads.job import Job
from vitrina.observe.run_meter import RunMeter
from vitrina.ports.batch import DeadLetter, Part
from vitrina.store import dead_letters


class RunDeadLetters:
    """Hold the dead letters of one run.

    They are stored in the metastore. If the target is in the same database, they are resolved in the transaction that
    moves the checkpoint, otherwise right after its commit. In that case one may stay open, but none is resolved too
    early.
    """

    def __init__(self, job: Job, meter: RunMeter) -> None:
        self._job = job
        self._meter = meter
        # Those of the previous batch.
        self.latest: tuple[DeadLetter, ...] = ()
        # How many were rejected by checks, which have separate limits.
        self.by_checks = 0

    def record_rejected(self, filled: Part) -> None:
        """Record rejected rows in the transaction that moves the checkpoint past them."""
        self.latest = filled.letters
        if filled.letters:
            self.by_checks += sum(letter.by_check for letter in filled.letters)
            claim = self._job.claim
            dead_letters.record(self._job.metastore, claim.pipeline_id, claim.run_id, filled.letters)
            self._meter.left_behind(len(filled.letters))
        self.delivered(filled)

    @cached_property
    def open(self) -> set[str]:
        """Find the rows that earlier runs rejected, once per run."""
        return dead_letters.open_ids(self._job.metastore, self._job.claim.pipeline_id)

    def watch_steps(self) -> None:
        """Make the steps report which of these rows pass."""
        step_pipeline = self._job.fitted.step_pipeline
        if step_pipeline:
            step_pipeline.steps.watched = self.open

    def delivered(self, filled: Part, *, committed: bool = False) -> None:
        if filled.delivered and self._is_time(committed):
            dead_letters.resolve_delivered(self._job.metastore, self._job.claim.pipeline_id, filled.delivered)

    def rebuilt(self, begun_at: datetime | None, *, committed: bool = False) -> None:
        """Resolve what was rejected before a full load began: it is published now, or was rejected again."""
        if begun_at is not None and self._is_time(committed):
            dead_letters.resolve_rebuilt(self._job.metastore, self._job.claim.pipeline_id, before=begun_at)

    def _is_time(self, committed: bool) -> bool:
        return committed != (self._job.target.session in (None, self._job.metastore))
