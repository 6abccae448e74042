"""Break Vitrina on purpose, one protection at a time. A chaos test that stays green with one of them is blind.

Only tests load this module: the product has no such switches.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from psycopg import sql

from vitrina.connectors.postgres import cursor as cursors
from vitrina.connectors.postgres import left_columns, mart_identity
from vitrina.connectors.postgres.stage import Stage
from vitrina.connectors.postgres.target import PostgresWriter
from vitrina.errors import Disconnected, TransientError
from vitrina.loads import control
from vitrina.loads.control import RunControl
from vitrina.loads.job import Job
from vitrina.observe.run_meter import RunMeter
from vitrina.ports.checkpoint import Accepted, Checkpoint
from vitrina.runner.dispatcher import PipelineDispatcher
from vitrina.runner.executor import PipelineExecutor
from vitrina.status import Status
from vitrina.store import databases, leases, ledger, recovery, run_after, runs, sessions, state
from vitrina.store.database import Connection
from vitrina.store.leases import Claim, Heartbeat
from vitrina.store.prepared import Statement

NAMES = ("fence_off", "checkpoint_apart", "lease_ignored", "heartbeat_never")


@contextmanager
def applied(name: str | None) -> Iterator[None]:
    """Remove the protection within the block."""
    import pytest  # imported here: a runner process that lacks it from the start need not wait for pytest

    with pytest.MonkeyPatch.context() as patch:
        if name:
            apply(name, patch.setattr)
        yield


def apply(name: str, replace: Callable[[Any, str, Any], None] = setattr) -> None:
    {
        "blind": _blind,
        "fence_off": _fence_off,
        "checkpoint_apart": _checkpoint_apart,
        "lease_ignored": _lease_ignored,
        "heartbeat_never": _heartbeat_never,
        "disconnect_fatal": _disconnect_fatal,
        "reply_decides": _reply_decides,
        "stage_trusted": _stage_trusted,
        "alias_kept": _alias_kept,
        "cleaning_unasked": _cleaning_unasked,
        "cleaning_unlooked": _cleaning_unlooked,
        "watermark_ahead": _watermark_ahead,
        "margin_short": _margin_short,
        "clock_behind": _clock_behind,
        "wave_early": _wave_early,
        "wave_unused": _wave_unused,
        "mirror_trusted": _mirror_trusted,
        "names_only": _names_only,
        "mart_unlooked": _mart_unlooked,
        "columns_forgotten": _columns_forgotten,
        "clickhouse_unseized": _clickhouse_unseized,
        "clickhouse_uncounted": _clickhouse_uncounted,
    }[name](replace)


def _blind(replace: Callable[[Any, str, Any], None]) -> None:
    """Make a runner that never notices the end of its lease, and whose sessions are not ended.

    This is not a mutant but a handicap: it disables the protections in front of the fence, so that only the fence is
    left.
    """
    replace(control.RunControl, "lease_is_over", property(lambda self: False))
    replace(sessions, "end_older", lambda connection, claim: 0)


def _fence_off(replace: Callable[[Any, str, Any], None]) -> None:
    """Let any claim take and move the checkpoint, without checking epoch and claim."""

    def touch(connection: Connection, claim: Claim, *, progressed: bool = False) -> Status:
        return Status.RUNNING

    def seize(connection: Connection, claim: Claim, table: sql.Identifier = state.METASTORE_TABLE) -> Checkpoint:
        connection.execute(
            sql.SQL("INSERT INTO {} (pipeline_id) VALUES (%s) ON CONFLICT DO NOTHING").format(table),
            [claim.pipeline_id],
        )
        return state.peek(connection, claim.pipeline_id)

    def advance(
        connection: Connection,
        claim: Claim,
        checkpoint: Checkpoint,
        table: sql.Identifier = state.METASTORE_TABLE,
    ) -> None:
        connection.execute(
            sql.SQL("UPDATE {} SET epoch = %s, claim_id = %s WHERE pipeline_id = %s").format(table),
            [claim.epoch, claim.claim_id, claim.pipeline_id],
        )
        advance_when_ours(connection, claim, checkpoint, table)

    def seize_here(self: ledger.Ledger) -> Checkpoint:
        return seize(self._home, self._claim)

    def fence_here(
        self: ledger.Ledger, checkpoint: Checkpoint, counters: runs.Counters, *, attempt: int, progressed: bool
    ) -> None:
        self.batch_size = runs.record_progress(self._home, self._claim.run_id, counters, attempts=attempt)
        advance(self._home, self._claim, checkpoint)

    advance_when_ours = state.advance
    replace(leases, "touch", touch)
    replace(state, "seize", seize)
    replace(state, "advance", advance)
    replace(ledger.Ledger, "_seize_here", seize_here)
    replace(ledger.Ledger, "_fence_here", fence_here)


def _checkpoint_apart(replace: Callable[[Any, str, Any], None]) -> None:
    """Commit the data first, and the checkpoint in a separate transaction."""
    fence, settle = ledger.Ledger.fence, ledger.Ledger.settle

    def fence_later(self: ledger.Ledger, *arguments: Any, **options: Any) -> None:
        if options.get("progressed", True):
            self.__dict__["owed"] = (arguments, options)
        else:
            fence(self, *arguments, **options)

    def settle_first(self: ledger.Ledger, *arguments: Any, **options: Any) -> Status:
        owed = self.__dict__.pop("owed", None)
        if owed:
            fence(self, *owed[0], **owed[1])
        return settle(self, *arguments, **options)

    replace(ledger.Ledger, "fence", fence_later)
    replace(ledger.Ledger, "settle", settle_first)


def _lease_ignored(replace: Callable[[Any, str, Any], None]) -> None:
    """Let recovery take pipelines away whether their lease is over or not."""
    recover = recovery.recover_expired

    def recover_all(connection: Connection, *, max_attempts: int) -> list[dict[str, Any]]:
        connection.execute(
            "UPDATE etl.etl_pipelines SET lease_until = 'epoch' WHERE status IN ('RUNNING', 'PAUSE_REQUESTED')"
        )
        return recover(connection, max_attempts=max_attempts)

    replace(recovery, "recover_expired", recover_all)


def _heartbeat_never(replace: Callable[[Any, str, Any], None]) -> None:
    """Make the runner believe that its leases are extended, without telling the database."""

    def extend(connection: Connection, claim_ids: Sequence[UUID], ttl_seconds: float) -> Heartbeat:
        return Heartbeat(frozenset(claim_ids), frozenset(claim_ids))

    replace(leases, "extend", extend)


def _disconnect_fatal(replace: Callable[[Any, str, Any], None]) -> None:
    """Let a broken connection fail the pipeline instead of the attempt."""

    def fail(self: PipelineDispatcher, claim: Claim, control: RunControl, reason: str, log: Any) -> None:
        self._record_outcome(
            lambda connection: leases.fail_run(connection, claim, "disconnected", reason), control, log
        )

    replace(PipelineDispatcher, "_surrender", fail)


def _reply_decides(replace: Callable[[Any, str, Any], None]) -> None:
    """Treat a COMMIT without a reply as not done: the same claim continues from memory, not from the row."""
    seize, settle, execute = ledger.Ledger.seize, ledger.Ledger.settle, PipelineExecutor.execute
    remembered: dict[UUID, Checkpoint] = {}

    def seize_and_recall(self: ledger.Ledger) -> Checkpoint:
        return remembered.setdefault(self._claim.claim_id, seize(self))

    def settle_and_remember(self: ledger.Ledger, checkpoint: Checkpoint, *arguments: Any, **options: Any) -> Status:
        remembered[self._claim.claim_id] = checkpoint
        return settle(self, checkpoint, *arguments, **options)

    def execute_again(self: PipelineExecutor, *arguments: Any) -> Status:
        try:
            return execute(self, *arguments)
        except Disconnected as exc:
            raise TransientError(exc.message) from exc

    replace(ledger.Ledger, "seize", seize_and_recall)
    replace(ledger.Ledger, "settle", settle_and_remember)
    replace(PipelineExecutor, "execute", execute_again)


def _stage_trusted(replace: Callable[[Any, str, Any], None]) -> None:
    """Trust that a stage holds what the checkpoint says, without counting its rows after a crash."""

    def believed(self: Stage, connection: Connection, accepted: Accepted) -> int:
        row = connection.execute("SELECT rows FROM etl.etl_state WHERE stage = %s", [self.name]).fetchone()
        return int(row["rows"]) if row else 0

    replace(Stage, "count", believed)
    # It counts too, in the statement that writes.
    replace(PostgresWriter, "_apply_few", lambda self, merging, rows, *, deletes: None)


def _alias_kept(replace: Callable[[Any, str, Any], None]) -> None:
    """Add the write alias of a claim to an index and keep those of earlier claims."""
    # Imported here: runners of other tests need no search client.
    from vitrina.connectors.search.generations import Generations

    replace(Generations, "_write_aliases", lambda self: [])


def _clickhouse_unseized(replace: Callable[[Any, str, Any], None]) -> None:
    """Leave the views and tables of older claims as they are: a late switch finds its view."""
    from vitrina.connectors.clickhouse.tables import Tables

    replace(Tables, "seize", lambda self: None)
    replace(Tables, "discard_unshown", lambda self: [])
    replace(Tables, "generation", lambda self, load: next((one for one in self.objects("g") if one.load == load), None))


def _clickhouse_uncounted(replace: Callable[[Any, str, Any], None]) -> None:
    """Publish what was inserted and not committed with the rest, without counting."""
    from vitrina.connectors.clickhouse.load import GenerationLoad
    from vitrina.connectors.clickhouse.tables import Tables

    replace(Tables, "discard_uncounted", lambda self, name, accepted: 0)
    replace(GenerationLoad, "_check", lambda self, found: None)


def _cleaning_unasked(replace: Callable[[Any, str, Any], None]) -> None:
    """Remove indexes without asking the metastore whether the claim is still held."""
    from vitrina.connectors.search.generations import Generations

    remove_while = Generations._remove_while

    def remove(self: Generations, stays: Any, names: Any, still_held: Any) -> list[str]:
        return remove_while(self, stays, names, lambda: None)

    replace(Generations, "_remove_while", remove)


def _cleaning_unlooked(replace: Callable[[Any, str, Any], None]) -> None:
    """Remove indexes without the server's check, in the same step, of what must stay."""
    from vitrina.connectors.search import generations

    replace(generations, "_stays", lambda *_: [])


def _watermark_ahead(replace: Callable[[Any, str, Any], None]) -> None:
    """Move the checkpoint to the clock, whatever rows were read."""

    def safe_point(*_: Any, upto: str | None, **__: Any) -> cursors.SafePoint:
        return cursors.SafePoint(upto)

    replace(cursors, "safe_point", safe_point)


def _margin_short(replace: Callable[[Any, str, Any], None]) -> None:
    """Count the margin from now, not from the start of an open transaction."""
    _spoil_watermark(
        replace,
        "least(statement_timestamp(), a.since) - make_interval(secs => %(margin)s)",
        "least(statement_timestamp() - make_interval(secs => %(margin)s), a.since)",
    )


def _clock_behind(replace: Callable[[Any, str, Any], None]) -> None:
    """Read the clock after the sessions have been examined."""
    _spoil_watermark(replace, "least(statement_timestamp(), a.since)", "least(clock_timestamp(), a.since)")


def _mirror_trusted(replace: Callable[[Any, str, Any], None]) -> None:
    """Use the copy of a checkpoint in another database as the checkpoint of the mart that is here."""
    replace(Checkpoint, "mirror_of", property(lambda self: None))


def _names_only(replace: Callable[[Any, str, Any], None]) -> None:
    """Treat two names of connections as two databases."""
    replace(databases, "look", lambda connection: None)


def _mart_unlooked(replace: Callable[[Any, str, Any], None]) -> None:
    """Take any table of the mart's name for the mart, as long as it has rows."""
    replace(mart_identity, "is_same", lambda connection, target, known: True)


def _columns_forgotten(replace: Callable[[Any, str, Any], None]) -> None:
    """Forget which columns a pipeline has written."""
    replace(left_columns, "_known", lambda checkpoint, writer: ())


def _spoil_watermark(replace: Callable[[Any, str, Any], None], sound: str, spoilt: str) -> None:
    assert sound in cursors.OLDEST_TRANSACTION
    text = cursors.OLDEST_TRANSACTION.replace(sound, spoilt)
    replace(cursors, "OLDEST_TRANSACTION", text)
    replace(cursors, "_OLDEST_TRANSACTION", Statement(text.encode()))


def _wave_early(replace: Callable[[Any, str, Any], None]) -> None:
    """Notify the pipelines that wait for a run of its success before it is concluded, in a separate transaction."""
    pass_on, conclude = run_after.pass_on, PipelineExecutor._conclude

    def early(self: PipelineExecutor, job: Job, meter: RunMeter, **how: bool) -> Status:
        with job.metastore.transaction():
            pass_on(job.metastore, job.claim.pipeline_id, job.claim.run_id)
        return conclude(self, job, meter, **how)

    replace(run_after, "pass_on", lambda connection, pipeline_id, run_id: None)
    replace(PipelineExecutor, "_conclude", early)


def _wave_unused(replace: Callable[[Any, str, Any], None]) -> None:
    """Keep arrivals that a requested run should have consumed."""
    kept = run_after._USED.as_string().replace("arrived_run_id = NULL, arrived_as_of = NULL", "used_as_of = NULL")
    replace(run_after, "_USED", sql.SQL(kept.replace("used_as_of = e.arrived_as_of, ", "")))
