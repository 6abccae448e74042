"""Run a full load in ranges of the key: workers load them in parallel, the run commits each and publishes once."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from vitrina.errors import FatalError, SnapshotGone, StepFailed
from vitrina.loads import engines, range_filling, steps
from vitrina.loads.load_input import window_of
from vitrina.loads.run import Run
from vitrina.ports.batch import Part, PartId
from vitrina.ports.checkpoint import FRESHEST, RANGES, Checkpoint
from vitrina.ports.checks import later
from vitrina.ports.ranges import (
    Engine,
    FilledRange,
    FillHandle,
    KeyRange,
    Result,
    SharedSnapshot,
    Splits,
    Task,
    WaitsForCluster,
)
from vitrina.ports.target import Load
from vitrina.sentences import say

# Position in the checkpoint while ranges are left: there is no single key to resume after.
UNFINISHED = '["ranges"]'
# A run says that it waits for a cluster if nothing has begun after this time.
_SILENT_SECONDS = 5.0
# How often the progress of ranges under way is recorded.
_TELL_SECONDS = 2.0
# A range that has lost this many workers may be the cause.
_MOST_LOSSES = 3
# A worker stops after this many times the intended rows of a range, and leaves the rest to others.
_STOP_AFTER = 4
# Part numbers are reserved in portions, so that the checkpoint moves once for many of them.
_NUMBERS_AT_ONCE = 64


def fill(run: Run, load: Load) -> None:
    """Load all ranges that are left. Ranges accepted before stay accepted, however this ends."""
    source = run.job.source
    if not isinstance(source, Splits):
        raise FatalError(f"{run.job.source.name} is not read in ranges")
    window = window_of(run.job)
    handle = range_filling.handle_of(run.job, load, window, steps.moment())
    progress = _Progress()
    with _opened(run, handle, progress) as engine:
        # First: while a snapshot is held, the source cannot clean up rows, and a cluster may be busy for hours.
        _await_accepted(run, engine)
        with source.share(window) as snapshot, _cancelled_on_error(engine):
            RangedFill(run, load, source, snapshot, engine, progress=progress).fill()


def _await_accepted(run: Run, engine: Engine) -> None:
    if not isinstance(engine, WaitsForCluster):
        return
    began = time.monotonic()

    def check() -> None:
        if time.monotonic() - began > _SILENT_SECONDS:
            run.context.waits_because = say("run.engine_waits", engine=run.job.definition.options.engine)
        run.while_waiting()

    engine.await_accepted(check)
    run.context.waits_because = None
    run.while_waiting()


@contextmanager
def _opened(run: Run, handle: FillHandle, progress: "_Progress") -> Iterator[Engine]:
    engine = engines.open_engine(run, handle, lambda count: _reserve(run, count), progress)
    run.context.attach(_Cancelling(engine))
    with _cancelled_on_error(engine):
        yield engine


@contextmanager
def _cancelled_on_error(engine: Engine) -> Iterator[None]:
    try:
        yield
    except BaseException:
        engine.cancel()
        raise


@dataclass(frozen=True)
class _Cancelling:
    """Cancel an engine when the lease ends."""

    engine: Engine

    def close(self) -> None:
        self.engine.cancel()


def _reserve(run: Run, count: int) -> int:
    """Reserve part numbers, and return the one before the first. No other attempt at this load uses them."""
    found = run.checkpoint
    run.record("drawing part numbers", replace(found, batch_no=found.batch_no + count))
    return found.batch_no


@dataclass(frozen=True)
class Left:
    """Hold the ranges that are not accepted yet, as the checkpoint stores them."""

    ranges: tuple[KeyRange, ...]
    done: int = 0
    # The last part number before this load.
    number_before: int = 0
    # How many rows of the accepted ranges each step rejected, by its order index.
    rejected: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, found: Checkpoint) -> "Left | None":
        told: Mapping[str, Any] | None = found.identity.get(RANGES)
        if told is None:
            return None
        ranges = tuple(KeyRange(_position(after), _position(upto)) for after, upto in told["left"])
        rejected = {int(place): count for place, count in told.get("rejected", {}).items()}
        return cls(ranges, told["done"], told.get("number_before", found.batch_no), rejected)

    def as_json(self) -> dict[str, Any]:
        left = [[one.after, one.upto] for one in self.ranges]
        rejected = {str(place): count for place, count in self.rejected.items() if count}
        return {"left": left, "done": self.done, "number_before": self.number_before, "rejected": rejected}

    def without(self, one: KeyRange, rest: tuple[KeyRange, ...], rejected: Mapping[int, int]) -> "Left":
        """Accept a range, or its beginning; `rest` is the part of it that was not read."""
        at = self.ranges.index(one)
        ranges = (*self.ranges[:at], *rest, *self.ranges[at + 1 :])
        total = {place: self.rejected.get(place, 0) + rejected.get(place, 0) for place in {*self.rejected, *rejected}}
        return replace(self, ranges=ranges, done=self.done + 1, rejected=total)


def _position(found: list[str | None] | None) -> tuple[str | None, ...] | None:
    return None if found is None else tuple(found)


class _Progress:
    """Hold what engines report of attempts under way. Their threads write it, and the run's thread reads it."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        # How many tasks a cluster runs; None: it has not said so, and local workers run all that are submitted.
        self.tasks: int | None = None
        self.worked_at = time.monotonic()
        self.has_changed = False

    def read(self, number: int, rows: int) -> None:
        self.rows[number] = self.rows.get(number, 0) + rows
        self.has_changed = True

    def running(self, tasks: int) -> None:
        self.has_changed = self.has_changed or tasks != self.tasks
        self.tasks = tasks
        if tasks:
            self.worked_at = time.monotonic()

    def sent(self) -> None:
        self.tasks = None
        self.worked_at = time.monotonic()

    @property
    def is_idle(self) -> bool:
        """Return whether a cluster has run no task for a while."""
        return self.tasks == 0 and time.monotonic() - self.worked_at > _SILENT_SECONDS


class RangedFill:
    """Submit ranges to an engine, collect the results, and commit each range once."""

    def __init__(
        self, run: Run, load: Load, source: Splits, snapshot: SharedSnapshot, engine: Engine, *, progress: _Progress
    ) -> None:
        self._run = run
        self._progress = progress
        self._told_at = time.monotonic()
        self._load = load
        self._source = source
        self._snapshot = snapshot
        self._engine = engine
        self._left = Left(())
        self._waiting: list[KeyRange] = []
        self._under_way: dict[int, Task] = {}
        self._losses: dict[KeyRange, int] = {}
        # Numbers that this claim may still use, each once.
        self._numbers: list[int] = []
        self._reopened = False
        # Whether workers reach another server than the runner does; then each range is read at that server's own state.
        self._reads_apart = False
        # Whether a range that was read in the current snapshot was accepted.
        self._has_brought = False

    def fill(self) -> None:
        self._left = Left.of(self._run.checkpoint) or self._begun()
        self._waiting = list(reversed(self._left.ranges))
        self._submit()
        self._tell()
        self._run.meter.record(self._run.job.metastore, self._run.job.claim)
        for result in self._engine.results(self._while_waiting):
            if self._under_way.pop(result.task.number, None) is None:
                continue  # reported before
            self._progress.rows.pop(result.task.number, None)
            if result.is_recalled:
                self._waiting.append(result.task.range)
            elif result.filled is None:
                self._try_again(result)
            else:
                self._accept(result.task, result.filled)
            self._submit()
        self._tell_end()
        self._give_back()

    def _while_waiting(self) -> bool:
        """Check lease and pause. Return True if the snapshot is too old and ranges were read in it."""
        run, progress = self._run, self._progress
        run.context.waits_because = self._why_idle() if progress.is_idle else None
        run.while_waiting()
        if progress.has_changed and time.monotonic() - self._told_at > _TELL_SECONDS:
            progress.has_changed = False
            self._tell()
            run.meter.record(run.job.metastore, run.job.claim)
        return self._snapshot.is_old and self._has_brought

    def _why_idle(self) -> str:
        sentence = "run.engine_pauses" if self._left.done else "run.engine_waits"
        return say(sentence, engine=self._run.job.definition.options.engine)

    def _give_back(self) -> None:
        """Return part numbers that engines reserved. The next load, in another stage, may use them again."""
        last = self._left.number_before + self._left.done
        if last < self._run.checkpoint.batch_no:
            self._run.record("giving part numbers back", replace(self._run.checkpoint, batch_no=last))

    def _begun(self) -> Left:
        """Split the whole key into ranges, and record them."""
        run = self._run
        ranges = self._source.split(run.job.reading_key, KeyRange(), run.plan.ranges)
        left = Left(tuple(ranges), number_before=run.checkpoint.batch_no)
        found = replace(run.checkpoint.identified(**{RANGES: left.as_json()}), last_key=UNFINISHED)
        run.record("cutting the load into ranges", found)
        run.log.info("load.cut", ranges=len(left.ranges), workers=run.plan.workers)
        return left

    def _submit(self) -> None:
        """Keep every worker busy. A snapshot that is too old is replaced once no worker reads in it."""
        if not self._waiting:
            return
        if self._snapshot.is_old:
            if self._under_way:
                return
            # If no range was accepted yet, all of them are read in the new one.
            self._reopened = (self._snapshot.renew() and self._left.done > 0) or self._reopened
            self._has_brought = False
        run = self._run
        while self._waiting and len(self._under_way) < run.plan.workers:
            task = self._attempt(self._waiting.pop())
            self._under_way[task.number] = task
            run.log.info("range.begun", batch_no=task.number, range=task.range.name)
            self._engine.submit(task)

    def _attempt(self, one: KeyRange) -> Task:
        rows = self._run.job.described.estimated_rows // max(self._run.plan.ranges, 1)
        batch_rows = self._run.batch_size()
        most_rows = max(_STOP_AFTER * rows, batch_rows)
        return Task(one, self._draw(), None if self._reads_apart else self._snapshot.name, batch_rows, most_rows)

    def _draw(self) -> int:
        """Return a part number. The checkpoint passes it before it is used, so no other attempt uses it."""
        if not self._numbers:
            before = _reserve(self._run, _NUMBERS_AT_ONCE)
            self._numbers = list(range(before + _NUMBERS_AT_ONCE, before, -1))
        return self._numbers.pop()

    def _try_again(self, result: Result) -> None:
        """Read a range again after its worker was lost; any other error ends this attempt of the run."""
        error = result.error or FatalError("an attempt ended with nothing")
        one = result.task.range
        if self._is_apart(result.task, error):
            self._waiting.append(one)
            return
        self._losses[one] = self._losses.get(one, 0) + 1
        if not result.is_lost or self._losses[one] >= _MOST_LOSSES:
            raise error
        run = self._run
        run.log.warning("range.lost", batch_no=result.task.number, error=str(error))
        self._waiting.append(one)

    def _is_apart(self, task: Task, error: BaseException) -> bool:
        """Return whether the worker's server lacks the runner's snapshot. Then continue without it, or refuse."""
        if not isinstance(error, SnapshotGone) or task.snapshot is None:
            return False
        if not self._reads_apart:
            if not self._snapshot.is_held():
                return False
            self._read_apart(error)
        return True

    def _read_apart(self, error: SnapshotGone) -> None:
        definition = self._run.job.definition
        # A first pass is never read again. A server that lags could lack rows that the checkpoint moves past.
        if definition.mode != "full" or definition.options.keeps_one_snapshot:
            raise FatalError(say("run.snapshot_elsewhere")) from error
        self._run.log.warning("load.reads_apart", error=str(error))
        self._reads_apart = self._reopened = True

    def _accept(self, task: Task, filled: FilledRange) -> None:
        rest = self._rest(task, filled)
        left = self._left.without(task.range, rest, filled.rejected or {})
        self._refuse_rejected(left.rejected)
        self._left = left
        self._waiting += reversed(rest)
        self._has_brought = True
        # Before the commit, which takes a while: the worker that loaded this range is free.
        self._submit()
        part = replace(filled.part, reopened=self._reopened)
        self._tell()
        self._run.commit(self._load, part, self._counting)

    def _rest(self, task: Task, filled: FilledRange) -> tuple[KeyRange, ...]:
        """Split again what a worker left of a range that has many more rows than others."""
        if filled.reached is None:
            return ()
        rest = KeyRange(filled.reached, task.range.upto)
        return tuple(self._source.split(self._run.job.reading_key, rest, 2 * self._run.plan.workers))

    def _counting(self, found: Checkpoint, part: Part) -> Checkpoint:
        if part.judged and part.judged.latest:
            found = found.identified(**{FRESHEST: later(found.identity.get(FRESHEST, {}), part.judged.latest)})
        left = self._left
        found = found.identified(**{RANGES: left.as_json()})
        last_key = UNFINISHED if left.ranges else None
        return found.accepting(PartId(self._run.job.claim.epoch, part.number), part.staged_rows, last_key)

    def _refuse_rejected(self, rejected: Mapping[int, int]) -> None:
        """Limit the rows that steps rejected in the whole load, with those that it rejected before it was interrupted.

        Each worker counts only its own.
        """
        for step in self._run.job.steps:
            if rejected.get(step.order_index, 0) > step.max_dead_letters:
                raise StepFailed(
                    f"{step} has failed on more than {step.max_dead_letters} rows in this load: correct the step, or"
                    " raise max_dead_letters in its params"
                )

    def _tell_end(self) -> None:
        """Record that all ranges are loaded. What the run does next may take long, and is no wait for the cluster."""
        run = self._run
        self._progress.tasks = run.context.waits_because = None
        run.context.show()
        self._tell()
        run.meter.record(run.job.metastore, run.job.claim)

    def _tell(self) -> None:
        left, progress = self._left, self._progress
        self._told_at = time.monotonic()
        under_way = [
            {"part": number, "range": task.range.name, "rows": progress.rows.get(number)}
            for number, task in self._under_way.items()
        ]
        told: dict[str, Any] = {"done": left.done, "left": len(left.ranges), "workers": self._run.plan.workers}
        told |= {"running": progress.tasks}
        self._run.meter.note("ranges", told | {"under_way": under_way})
