"""Repairing an index: documents made again from the source, and sent in bulk under a write alias like a run's."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import structlog

from vitrina.checks import index_comparison, recomputed
from vitrina.checks.compare import Kind, Verdict
from vitrina.checks.index_comparison import index_of
from vitrina.checks.repair import Repaired
from vitrina.connectors.search.batch import Actions, Outcome
from vitrina.connectors.search.retry import patiently
from vitrina.connectors.search.target import DocumentSender, Waiting, counts_of, letters_of
from vitrina.errors import RunError
from vitrina.loads.control import Paused, RunControl
from vitrina.loads.job import Job, Opened
from vitrina.ports.batch import DeadLetter
from vitrina.status import Status
from vitrina.store import database, dead_letters, leases, runs
from vitrina.store.runs import Counters

T = TypeVar("T")

BATCH_DOCUMENTS = 5_000
# Whatever comes first: five thousand documents may be anything between a megabyte and the machine's memory.
BATCH_BYTES = 16 << 20


def mend(opened: Opened, verdict: Verdict, control: RunControl, counters: Counters, *, ignores_pause: bool) -> Repaired:
    """One reading of the source writes what it has now; what was not met in it is deleted."""
    job = index_comparison.inspect(opened)
    wait = _Wait(job, control, counters, ignores_pause=ignores_pause)
    try:
        concrete = wait.until_free(index_of(job).current_index)
        _refuse_shrinking(job, concrete, verdict, wait)
        still_held = partial(leases.require_held, job.metastore, job.claim)
        alias = wait.until_free(lambda: index_of(job).claim_writes(concrete, still_held))
    except Paused:
        return Repaired(paused=True)
    sender = index_of(job).sender(concrete, alias, Waiting(wait.tell, _stopper(control)))
    try:
        mender = _DocumentMender(job, sender, control, counters, ignores_pause=ignores_pause)
        done = mender.mend({difference.key[0]: difference.kind for difference in verdict.confirmed})
        index_of(job).client.refresh(concrete)
        return done
    finally:
        sender.close()


def _refuse_shrinking(job: Job, concrete: str, verdict: Verdict, wait: "_Wait") -> None:
    deletes = 0 if job.definition.options.shared_target else verdict.counts[Kind.EXTRA]
    if deletes:
        wait.until_free(lambda: index_of(job).client.refresh(concrete))
        index_of(job).refuse_shrinking(deletes, index_of(job).client.count(concrete))


class _Wait:
    """A repair that meets a block waits like a run does, and says so in its row."""

    def __init__(self, job: Job, control: RunControl, counters: Counters, *, ignores_pause: bool) -> None:
        self._job = job
        self._control = control
        self._counters = counters
        self._ignores_pause = ignores_pause

    def until_free(self, move: Callable[[], T]) -> T:
        return patiently(move, self.tell, lambda seconds: self._control.wait(seconds, self._is_pause_asked))

    def tell(self, reason: str | None) -> None:
        if reason:
            structlog.get_logger().warning("search.waiting", pipeline=self._job.claim.name, reason=reason)
        self._counters.metrics["waiting"] = reason
        runs.record_progress(self._job.metastore, self._job.claim.run_id, self._counters, attempts=1)

    def _is_pause_asked(self) -> bool:
        status = leases.find_status(self._job.metastore, self._job.claim)
        return status is Status.PAUSE_REQUESTED and not self._ignores_pause


def _stopper(control: RunControl) -> Callable[[], bool]:
    def should_stop() -> bool:
        try:
            control.check()
        except RunError:
            return True
        return False

    return should_stop


@dataclass
class _Batch:
    """Actions of one batch: of several for one document, the last."""

    lines: dict[str, bytes] = field(default_factory=dict)
    letters: list[DeadLetter] = field(default_factory=list)
    # Fields in which `update` would leave what the source no longer has.
    objects: set[str] = field(default_factory=set)
    size: int = 0

    def __len__(self) -> int:
        return len(self.lines) + len(self.letters)

    def add(self, document_id: str, line: bytes, objects: Collection[str]) -> None:
        self.size += len(line) - len(self.lines.get(document_id, b""))
        self.lines[document_id] = line
        self.objects.update(objects)


class _DocumentMender:
    """Sends batches; the checkpoint's batch number moves with each, under the fence."""

    def __init__(
        self, job: Job, sender: DocumentSender, control: RunControl, counters: Counters, *, ignores_pause: bool
    ) -> None:
        self._job = job
        self._sender = sender
        self._control = control
        self._counters = counters
        self._ignores_pause = ignores_pause
        self._checkpoint = job.checkpoint
        self._pause_asked = False
        self._written: set[str] = set()
        # Documents that were refused before.
        self._letters = dead_letters.open_ids(job.metastore, job.claim.pipeline_id)
        self._size = min(job.definition.batch_size, BATCH_DOCUMENTS)

    def mend(self, wanted: Mapping[str, Kind]) -> Repaired:
        done, left = Repaired(), set(wanted)
        for batch in self._batches(wanted, left):
            self._write(batch, done)
            if self._pause_asked:
                done.paused = True
                return done
        if self._job.definition.options.shared_target:
            done.keys += len(left)  # documents of other pipelines
        else:
            self._delete(sorted(left), done)
        return done

    def _batches(self, wanted: Collection[str], left: set[str]) -> Iterator[_Batch]:
        """What the source has of the wanted documents; `left` keeps what it does not have."""
        batch = _Batch()
        for table, _ in recomputed.read(self._job, in_order=True):
            if not table.num_rows:
                continue
            for prepared in self._sender.prepare(table, self._checkpoint.batch_no + 1):
                batch.letters += letters_of([one for one in prepared.rejected if one.id in wanted])
                left -= {letter.document_id for letter in batch.letters}
                for one, line in zip(prepared.actions.ids, prepared.actions.lines, strict=True):
                    if one in wanted:
                        left.discard(one)
                        batch.add(one, line, prepared.actions.objects)
                        if len(batch) >= self._size or batch.size >= BATCH_BYTES:
                            yield batch
                            batch = _Batch()
        if len(batch):
            yield batch

    def _delete(self, ids: Sequence[str], done: Repaired) -> None:
        for start in range(0, len(ids), self._size):
            actions = self._sender.deletions(ids[start : start + self._size], self._checkpoint.batch_no + 1)
            self._write(_Batch(dict(zip(actions.ids, actions.lines, strict=True))), done)
            if self._pause_asked:
                done.paused = True
                return

    def _write(self, batch: _Batch, done: Repaired) -> None:
        self._control.check()
        actions = Actions(list(batch.lines), list(batch.lines.values()), sorted(batch.objects))
        outcome = self._sender.deliver(actions)
        letters = [*batch.letters, *letters_of(outcome.rejected)]
        self._fence(outcome, letters, self._letters & batch.lines.keys() - {letter.document_id for letter in letters})
        counts = counts_of(outcome)
        done.inserted += counts["inserted"]
        done.updated += counts["updated"]
        done.deleted += counts["deleted"]
        done.unchanged += counts["unchanged"]
        done.rejected += len(letters)
        # One that comes again later is still one.
        self._written |= batch.lines.keys() - {letter.document_id for letter in letters}
        done.keys = len(self._written)

    def _fence(self, outcome: Outcome, letters: Sequence[DeadLetter], delivered: Collection[str]) -> None:
        job, counts = self._job, counts_of(outcome)
        self._counters.rows_read += outcome.settled
        self._counters.rows_written += counts["inserted"] + counts["updated"]
        self._counters.rows_deleted += counts["deleted"]
        self._counters.rows_rejected += len(letters)
        self._counters.batches += 1
        self._checkpoint = replace(self._checkpoint, batch_no=self._checkpoint.batch_no + 1)
        with database.translated(f"repairing {job.definition.final_target}"), job.metastore.transaction():
            if letters:
                dead_letters.record(job.metastore, job.claim.pipeline_id, job.claim.run_id, letters)
            if delivered:
                dead_letters.resolve_delivered(job.metastore, job.claim.pipeline_id, delivered)
            job.ledger.fence(self._checkpoint, self._counters, attempt=1)
            self._control.require_lease()
        status = job.ledger.settle(self._checkpoint, self._counters, attempt=1)
        self._pause_asked = status is Status.PAUSE_REQUESTED and not self._ignores_pause
