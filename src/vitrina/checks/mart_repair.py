"""Repairing a mart: rows read again from the source, and written like a run writes them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from psycopg.sql import SQL, Identifier

from vitrina.checks import mart_comparison, repair
from vitrina.checks.compare import Verdict
from vitrina.checks.opened import writer_of
from vitrina.checks.repair import Repaired, TextRow
from vitrina.connectors.postgres.stage import BATCH, EPOCH, Stage
from vitrina.loads.control import RunControl
from vitrina.loads.job import Job, Opened
from vitrina.ports.batch import Key
from vitrina.status import Status
from vitrina.store import database
from vitrina.store.runs import Counters

BATCH_ROWS = 5_000


def mend(opened: Opened, verdict: Verdict, control: RunControl, counters: Counters, *, ignores_pause: bool) -> Repaired:
    job = mart_comparison.inspect(opened)
    deletes = 0 if job.definition.options.shared_target else repair.plan(verdict.confirmed)["deletes"]
    if deletes:
        writer_of(job).refuse_shrinking(deletes)
    for connection in (job.reader.connection, writer_of(job).connection):
        connection.execute("SET lc_monetary = 'C'")
    with mart_comparison.source_side(job, all_columns=True) as source:
        mender = _LeasedMender(job, control, counters, ignores_pause=ignores_pause)
        with mender.stage_at_hand():
            size = min(job.definition.batch_size, BATCH_ROWS)
            return repair.repair(verdict.confirmed, source, mender, batch_rows=size)


class _LeasedMender:
    """Writes batches like a run does: staged, merged, fenced, with the lease looked at last."""

    def __init__(self, job: Job, control: RunControl, counters: Counters, *, ignores_pause: bool) -> None:
        self._job = job
        self._control = control
        self._counters = counters
        self._ignores_pause = ignores_pause
        self._checkpoint = job.checkpoint
        self._target = mart_comparison.target_side(job)
        names = writer_of(job).columns
        self._stage: Stage = writer_of(job).stage(
            f"r_{job.claim.pipeline_id.hex}_{job.claim.epoch}", dict.fromkeys(names, "text")
        )
        self.pause_asked = False

    @contextmanager
    def stage_at_hand(self) -> Iterator[None]:
        connection = writer_of(self._job).connection
        self._stage.create(connection, fillable_by=None)
        try:
            yield
        finally:
            if not connection.closed and not connection.broken:
                self._stage.drop(connection)

    def mend(self, rows: Sequence[TextRow], absent: Sequence[Key]) -> Repaired:
        self._control.check()
        writer, number = writer_of(self._job), self._checkpoint.batch_no + 1
        deletes = absent and not self._job.definition.options.shared_target
        with database.translated(f"repairing {self._job.definition.final_target}"), writer.connection.transaction():
            deleted = writer.delete_rows(self._target.has_key(absent)) if deletes else 0
            merged = Repaired(deleted=deleted)
            if rows:
                self._fill(rows, number)
                counts = writer.merge_batch(self._stage, number)
                merged = Repaired(counts.inserted, counts.updated, deleted, counts.unchanged)
            self._stage.truncate(writer.connection)
            writer.connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
            self._checkpoint = replace(self._checkpoint, batch_no=number)
            self._count(rows, merged)
            self._job.ledger.fence(self._checkpoint, self._counters, attempt=1)
            self._control.require_lease()
        status = self._job.ledger.settle(self._checkpoint, self._counters, attempt=1)
        self.pause_asked = status is Status.PAUSE_REQUESTED and not self._ignores_pause
        return merged

    def _fill(self, rows: Sequence[TextRow], number: int) -> None:
        names = [column.name for column in self._stage.columns]
        statement = SQL("COPY {} ({}) FROM STDIN").format(
            self._stage.identifier, SQL(", ").join(map(Identifier, [*names, EPOCH, BATCH]))
        )
        with writer_of(self._job).connection.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row([*(row[name] for name in names), self._job.claim.epoch, number])

    def _count(self, rows: Sequence[TextRow], done: Repaired) -> None:
        self._counters.rows_read += len(rows)
        self._counters.rows_written += done.inserted + done.updated
        self._counters.rows_deleted += done.deleted
        self._counters.batches += 1
