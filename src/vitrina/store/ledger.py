"""Fence a batch: the checkpoint moves with the data, in the data's own transaction, or not at all."""

from dataclasses import replace

from vitrina.ports.checkpoint import Checkpoint
from vitrina.status import Status
from vitrina.store import databases, leases, runs, state, target_schema
from vitrina.store.database import Connection
from vitrina.store.leases import Claim


class Ledger:
    """Keep the checkpoint of one claim, for a target in the metastore's database, in another one, or elsewhere."""

    def __init__(self, claim: Claim, metastore: Connection, target: Connection | None = None) -> None:
        self._claim = claim
        self._metastore = metastore
        # A remote target keeps the row next to the data. If the target is not a database, the metastore keeps it.
        self._home = target or metastore
        self._remote = target is not None and target is not metastore
        self._table = state.LEDGER_TABLE if self._remote else state.METASTORE_TABLE
        self._database = databases.look(self._home) if self._remote else None
        # Whether the row found in the metastore mirrors a mart in another database.
        self.was_elsewhere = False
        self._status = Status.RUNNING
        # From the version that the run uses, as of the latest batch.
        self.batch_size: int | None = None

    def seize(self) -> Checkpoint:
        """Take the checkpoint before the first read. From then on older epochs cannot commit."""
        if not self._remote:
            with self._home.transaction():
                self._begin_in_metastore()
                return self._own(state.seize(self._home, self._claim, self._table))
        target_schema.prepare(self._home)
        with self._home.transaction():
            checkpoint = state.seize(self._home, self._claim, self._table)
            wanted = state.find_reset(self._metastore, self._claim.pipeline_id)
            if wanted is not None:
                checkpoint = replace(wanted, batch_no=checkpoint.batch_no)
                state.advance(self._home, self._claim, checkpoint, self._table)
        with self._metastore.transaction():
            self._begin_in_metastore()
            mirrored = state.peek(self._metastore, self._claim.pipeline_id)
            if mirrored.stage != checkpoint.stage and checkpoint.stage is not None:
                # Another pipeline wrote to the target in between, this one wrote elsewhere, or the load has only just
                # begun.
                checkpoint = checkpoint.without_load()
            self._mirror(checkpoint)
        return checkpoint

    def _own(self, checkpoint: Checkpoint) -> Checkpoint:
        if checkpoint.mirror_of is None:
            return checkpoint
        self.was_elsewhere = checkpoint.safe_upto is not None or checkpoint.last_key is not None
        return Checkpoint(batch_no=checkpoint.batch_no)

    def _mirror(self, checkpoint: Checkpoint) -> None:
        state.mirror(self._metastore, self._claim, checkpoint, self._database.identity if self._database else None)

    def _begin_in_metastore(self) -> None:
        leases.touch(self._metastore, self._claim)
        state.discard_loads_of_others(self._metastore, self._claim)

    def fence(self, checkpoint: Checkpoint, counters: runs.Counters, *, attempt: int, progressed: bool = True) -> None:
        """Run the last statements of the transaction with the data. Raise `LeaseLost` if it must not commit."""
        if not self._remote:
            # The pipeline's row first, in the order of those who cancel or end the run; the opposite order would
            # deadlock.
            self._status = leases.touch(self._home, self._claim, progressed=progressed)
            self.batch_size = runs.record_progress(self._home, self._claim.run_id, counters, attempts=attempt)
        state.advance(self._home, self._claim, checkpoint, self._table)

    def settle(
        self, checkpoint: Checkpoint, counters: runs.Counters, *, attempt: int, progressed: bool = True
    ) -> Status:
        """Record a remote target's progress after the commit. Return what was requested of the pipeline in between."""
        if self._remote:
            with self._metastore.transaction():
                self._status = leases.touch(self._metastore, self._claim, progressed=progressed)
                self.batch_size = runs.record_progress(self._metastore, self._claim.run_id, counters, attempts=attempt)
                self._mirror(checkpoint)
        return self._status
