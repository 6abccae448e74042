"""Share between full loads, incremental runs and replays: the checkpoint, its fence, and the flow of rows to a load."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

import psycopg
import structlog

from vitrina import failpoints
from vitrina.definition import fingerprint
from vitrina.errors import CheckFailed, FatalError, ShrinkRefused
from vitrina.loads import load_input
from vitrina.loads.context import RunContext
from vitrina.loads.control import Paused, RunControl
from vitrina.loads.job import Job
from vitrina.loads.plan import Plan
from vitrina.loads.prefetch import Ahead
from vitrina.loads.rejected_rows import RunDeadLetters
from vitrina.observe.run_meter import RunMeter
from vitrina.ports.batch import Counts, Filling, Part, Position, delivered_in
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.checks import Judges, guard_outcome, refuse_failed
from vitrina.ports.source import Window
from vitrina.ports.target import DONE, Done, EndsWithPart, Load, Loading
from vitrina.sentences import say
from vitrina.status import Status
from vitrina.store import database, leases
from vitrina.store.database import Connection

if TYPE_CHECKING:
    from vitrina.loads.arrow_checks import RowGate
    from vitrina.ports.checks import Checks

Move = Callable[[Done], Checkpoint]


class Run:
    """Represent one run of one job. Full loads, passes and replays are functions that receive it."""

    def __init__(
        self,
        job: Job,
        *,
        control: RunControl,
        meter: RunMeter,
        context: RunContext,
        log: structlog.stdlib.BoundLogger,
    ) -> None:
        self.job = job
        self.control = control
        self.meter = meter
        self.context = context
        self.log = log
        self.checkpoint = job.checkpoint
        self.letters = RunDeadLetters(job, meter)
        # A load or pass that began before the request may have missed the rows the request is about.
        self.answers_request = True
        # Rows rejected by earlier runs of a load that this run continues.
        self.dead_letters_before = 0
        # False while a paused pipeline is repaired, which stays PAUSE_REQUESTED.
        self.obeys_pause = True
        self._batch_size = job.definition.batch_size
        # What had been written when the target was last checked.
        self._judged_counts = Counts()

    @property
    def plan(self) -> Plan:
        return self.job.plan

    @cached_property
    def checks(self) -> "Checks | None":
        """Collect what rows and loads are checked by, or return None if nothing is checked."""
        if not self.job.definition.checks:
            return None
        # Imported here: pipelines without checks do not need it.
        from vitrina.loads import checks

        return checks.of_run(self.job, lambda: self.letters.open)

    @cached_property
    def gate(self) -> "RowGate | None":
        """Create the gate that checks rows before they reach a target that cannot check them itself."""
        if self.checks is None or isinstance(self.job.target, Judges):
            return None
        from vitrina.loads import checks

        return checks.open_gate(self.job, self.checks)

    def judge_load(self, load: Load) -> None:
        """Check a load before it is published by a target that cannot check it itself."""
        if self.checks is not None and self.gate is not None and not load.is_shown:
            from vitrina.loads import checks

            now = database.now(self.job.metastore)
            self.meter.checked(checks.judge_load(self.checks, self.checkpoint, now).outcomes, whole=True)

    def judge_target(self) -> None:
        """Check what the target shows after a pass."""
        checks, target = self.checks, self.job.target
        if checks is None or not checks.of_sets or not isinstance(target, Judges):
            return
        written, self._judged_counts = self.meter.counts - self._judged_counts, self.meter.counts
        outcomes = target.judge(checks, written).outcomes
        refuse_failed(checks, outcomes, "run.check_failed_after")
        self.meter.checked(outcomes, whole=True)

    @contextmanager
    def recording_checks(self) -> Iterator[None]:
        """Record the results of checks that end the run, and how a user can publish it anyway."""
        try:
            yield
        except CheckFailed as exc:
            self.meter.checked(exc.outcomes, whole=True)
            raise
        except ShrinkRefused as exc:
            self.record_guard(exc)
            raise

    def record_guard(self, exc: ShrinkRefused) -> None:
        """Record that a guard refused a load, and report once how a user can publish it anyway."""
        if exc.guard:
            self.meter.checked((guard_outcome(exc.guard, exc.message),), whole=True)
            exc.message += f"; {say('run.or_accept', pipeline=self.job.claim.name, check=exc.guard)}"
            exc.guard = None

    def after_checks(self, part: Part, done: Done) -> Part:
        """Add what the checks rejected to the part, and note their results."""
        for judged in filter(None, (part.judged, done.judged)):
            self.meter.checked(judged.outcomes)
        if done.judged is None:
            return part
        letters = (*part.letters, *done.judged.letters)
        return replace(part, letters=letters, delivered=delivered_in(letters, part.delivered, done.judged.delivered))

    def fence(self, what: str, move: Move, *, progressed: bool = True, points: Sequence[str] = ()) -> "RunFence":
        return RunFence(self, what, move, progressed=progressed, points=points)

    @contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """Take back what was counted if an error rolls the transaction back; a retry would count it twice."""
        before, counted = (self.checkpoint, self.letters.by_checks), self.meter.remember()
        try:
            yield
        except BaseException:
            self.checkpoint, self.letters.by_checks = before
            self.meter.restore(counted)
            raise

    def record(self, what: str, checkpoint: Checkpoint, *, progressed: bool = False) -> None:
        """Move the checkpoint alone, without data."""
        self.fence(what, lambda _: checkpoint, progressed=progressed).after()

    def forget_load(self) -> None:
        self.record("forgetting a lost load", self.checkpoint.without_load())

    @property
    def keeps_progress(self) -> bool:
        """Return whether an interrupted run resumes after its last batch.

        If not, batches must not reset the attempt count.
        """
        options = self.job.definition.options
        whole = options.keeps_one_snapshot and (self.plan.loads_at_once or options.history is not None)
        return not whole and not self.job.backfill

    @property
    def fingerprint(self) -> str:
        """Compute a digest of what an unfinished load depends on. When it changes, the load starts from scratch."""
        job = self.job
        kinds = [f"{column.name} {column.type}" for column in (*job.described.columns, *job.output)]
        kinds += job.code_digests
        more = [json.dumps(one, sort_keys=True) for one in job.target.fingerprint()]
        return fingerprint(job.definition, list(job.key), [self.plan.route, self.plan.paging, *kinds, *more])

    def loading(self, load: Loading) -> Loading:
        """Fill in how rows arrive, as planned, where the loading leaves it open."""
        judges = self.job.definition.checks and isinstance(self.job.target, Judges)
        return load_input.loading_of(self.job, load, self.checks if judges else None)

    @contextmanager
    def parts(self, load: Load, window: Window) -> Iterator[Iterator[Part]]:
        """Move a window's rows to the load; a thread keeps one part ahead. Sessions are closed with the block."""
        window = replace(window, batch_rows=self.batch_size)
        with (
            load_input.open_filling(self.job, load, window, gate=lambda: self.gate) as filled,
            self.ahead(filled, window.after) as parts,
        ):
            yield map(self._located, parts)

    def _located(self, part: Part) -> Part:
        session = self.job.target.session
        if part.locate is None or session is None:
            return part
        with database.translated("finding the end of a batch"):
            return replace(part, last=part.locate(session), locate=None)

    def ahead(self, filling: Filling, after: Position | None) -> Ahead:
        """Fill in another thread. Meanwhile this thread checks lease and pause, and records what it waits for."""
        return Ahead(
            filling,
            self.checkpoint.batch_no + 1,
            after,
            check=self.while_waiting,
            silence_limit_seconds=self.control.silence_limit_seconds,
            on_wait=self.meter.waited,
        )

    def while_waiting(self) -> None:
        """Check lease and pause, several times per second, while no batch arrives."""
        self.control.check()
        if self.control.is_interrupted:
            raise Paused
        self.context.show()

    def until_paused(self, *, filling: bool = False) -> AbstractContextManager[None]:
        """Let a pause cancel work in one statement, which has no batch boundary.

        `filling` may also be one of key ranges, whose boundaries are far apart.
        """
        has_none = self.plan.paging == "one statement" or (filling and self.plan.paging == "key ranges")
        return self.control.one_statement() if has_none else nullcontext()

    def batch_size(self) -> int:
        return self._batch_size

    def commit(
        self, load: Load, part: Part, after: Callable[[Checkpoint, Part], Checkpoint], *, settles: bool = True
    ) -> Counts:
        """Commit a part: rejected rows, counters and checkpoint move with the data, or not at all."""
        counted = self._commit(load.commit, part, after, progressed=self.keeps_progress, points=["batch.fenced"])
        if settles:
            self.settle()
        return counted

    def commit_last(self, load: EndsWithPart, part: Part, ended: Checkpoint) -> None:
        """Commit the last part of a pass and end the pass in the same transaction."""

        def after(_: Checkpoint, __: Part) -> Checkpoint:
            self.meter.reached(ended.safe_upto)
            return ended

        self._commit(load.commit_last, part, after, progressed=True, points=["batch.fenced", "pass.fenced"])

    def _commit(
        self,
        commit: Callable[[Part, "RunFence"], None],
        part: Part,
        after: Callable[[Checkpoint, Part], Checkpoint],
        *,
        progressed: bool,
        points: Sequence[str],
    ) -> Counts:
        self.control.check()
        started, counted = time.monotonic(), Counts()
        too_many = self._too_many_dead_letters(sum(not letter.by_check for letter in part.letters))

        def move(done: Done) -> Checkpoint:
            nonlocal counted
            counted = done.counts
            self.letters.record_rejected(self.after_checks(part, done))
            self.meter.batch(part, done.counts, self._merge_seconds(started))
            self.meter.merged(done.counts)
            self._note(done)
            found = self._before_refusal() if too_many else after(self.checkpoint, part)
            return replace(found, identity=found.identity | dict(done.identity))

        fence = self.fence("counting a batch", move, progressed=progressed, points=points)
        commit(part, fence)
        fence.require_passed()
        if too_many:
            raise too_many
        self.after_part(part)
        return counted

    def _merge_seconds(self, started: float) -> float:
        """Measure the merge of a target that merges in its own transaction; other targets were measured before."""
        return time.monotonic() - started if self.job.target.session is not None else 0.0

    def _note(self, done: Done) -> None:
        if self.job.target.session is None:
            self.meter.note("waiting", self.context.waits_because)
        for name, value in done.notes.items():
            self.meter.note(name, value)

    def after_part(self, part: Part) -> None:
        failpoints.hit("batch.committed")
        self.letters.delivered(part, committed=True)
        self.log.info(
            "batch.done",
            batch_no=part.number,
            rows=part.rows,
            rows_read=self.meter.counters.rows_read,
            duration_ms=self.meter.last_batch_ms,
        )
        self.meter.progressed(part)

    def _before_refusal(self) -> Checkpoint:
        """Return the checkpoint for a run that is refused, so that the next one meets the rejected rows again."""
        return self.checkpoint.without_load() if self.checkpoint.stage else self.checkpoint

    def _too_many_dead_letters(self, more: int) -> FatalError | None:
        budget = self.letter_budget
        letters = self.dead_letters_before + self.meter.letters - self.letters.by_checks + more
        if budget is None or letters <= budget:
            return None
        return FatalError(say("run.too_many_letters", letters=letters, budget=budget))

    @property
    def letter_budget(self) -> int | None:
        """Return how many rows the run may reject as dead letters; None if they are not limited."""
        budgets, definition = self.job.target.letter_budget, self.job.definition
        if budgets is None or self.job.claim.is_repair:
            return None
        agreed = definition.options.max_dead_letters
        return budgets[definition.mode] if agreed is None else agreed

    def settle(self, *, obey_pause: bool = True) -> None:
        status = self.job.ledger.settle(
            self.checkpoint, self.meter.counters, attempt=self.meter.attempt, progressed=self.keeps_progress
        )
        self.meter.announce(self.job.metastore, self.job.claim)
        self._take_batch_size()
        if status is Status.PAUSE_REQUESTED and obey_pause and self.obeys_pause:
            raise Paused

    def _take_batch_size(self) -> None:
        """Take the batch size from the newer version that `reload-config` set; it may change during a run."""
        size = self.job.ledger.batch_size
        if size is not None and size != self._batch_size:
            self.log.info("config.reloaded", batch_size=size)
            self._batch_size = size

    def log_started_over(self, reason: str) -> None:
        self.log.info("load.started_over", reason=reason)
        self.meter.note("started_over", reason)

    def answer_request(self) -> datetime:
        """Mark the request as answered, and return the time of the server's clock."""
        return leases.answer_request(self.job.metastore, self.job.claim)

    def note_hold(self, hold: dict[str, Any] | None) -> None:
        leases.note_hold(self.job.metastore, self.job.claim, hold)

    def adjust_target(self) -> None:
        """Apply the changes that preparing the target warned of."""
        fence = self.fence(
            "adjusting the target", lambda done: self.checkpoint.identified(**done.identity), progressed=False
        )
        adjusted = self.job.target.adjust(fence)
        if adjusted:
            self.log.info("columns.cleared", **adjusted)


class RunFence:
    """Move the checkpoint of one run, once, with what a load did."""

    def __init__(self, run: Run, what: str, move: Move, *, progressed: bool, points: Sequence[str]) -> None:
        self._run = run
        self._what = what
        self._move = move
        self._progressed = progressed
        self._points = points
        self._is_spent = False

    @property
    def found(self) -> Checkpoint:
        return self._run.checkpoint

    @property
    def record(self) -> bytes:
        wanted = self._run.checkpoint
        shown = asdict(replace(wanted, load_started_at=None)) | {"accepted": wanted.accepted.as_json()}
        return json.dumps(shown, default=str).encode()

    def inside(self, connection: psycopg.Connection[Any], done: Done = DONE) -> None:
        run = self._run
        home: Connection = run.job.target.session or run.job.metastore
        if connection is not home:
            raise RuntimeError(f"{self._what}: the checkpoint moves in a transaction of the target's session, or after")
        if self._is_spent:
            raise RuntimeError(f"{self._what}: a fence is passed once")
        self._is_spent = True
        with run.undone_on_error():
            run.checkpoint = self._move(done)
            counters, attempt = run.meter.counters, run.meter.attempt
            run.job.ledger.fence(run.checkpoint, counters, attempt=attempt, progressed=self._progressed)
            for point in self._points:
                failpoints.hit(point)
            run.control.require_lease()

    def require_passed(self) -> None:
        """Refuse a load that returned without passing the fence, as if it had committed something."""
        if not self._is_spent:
            raise RuntimeError(f"{self._what}: the load did not pass its fence")

    def after(self, done: Done = DONE) -> None:
        home = self._run.job.target.session or self._run.job.metastore
        with database.translated(self._what), home.transaction():
            self.inside(home, done)
