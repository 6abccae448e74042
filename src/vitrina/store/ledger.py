"""Fence a batch: the checkpoint moves with the data, in the data's own transaction, or not at all."""

from dataclasses import replace

from psycopg import sql

from vitrina.errors import LeaseLost
from vitrina.ports.checkpoint import Checkpoint
from vitrina.status import Status
from vitrina.store import databases, leases, runs, seizing, state, target_schema
from vitrina.store.database import Connection
from vitrina.store.leases import Claim
from vitrina.store.prepared import Statement


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
            return self._own(self._seize_here())
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

    def _seize_here(self) -> Checkpoint:
        """Read what the claim has taken, or do for the metastore what `seize` does for other databases."""
        claim = self._claim
        found = state.find_seized(self._home, claim)
        if found is not None:
            return found
        row = _SEIZE_HERE.fetch_one(self._home, state.of_claim(claim) | {"target": claim.row["holds_target"]})
        if row is None:
            raise LeaseLost(f"pipeline {claim.name}: another runner took over after epoch {claim.epoch}")
        return state.read(row)

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
        if self._remote:
            state.advance(self._home, self._claim, checkpoint, self._table)
        else:
            self._fence_here(checkpoint, counters, attempt=attempt, progressed=progressed)

    def _fence_here(self, checkpoint: Checkpoint, counters: runs.Counters, *, attempt: int, progressed: bool) -> None:
        claim, fence = self._claim, _FENCE_WITH_PROGRESS if progressed else _FENCE
        progress = runs.progress_of(counters, attempts=attempt)
        row = fence.fetch_one(self._home, state.of_claim(claim) | state.values_of(checkpoint) | progress)
        if row is None or not row["moved"]:
            raise LeaseLost(f"pipeline {claim.name}: another runner took over after epoch {claim.epoch}")
        self._status, self.batch_size = Status(row["status"]), row["batch_size"]

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


# In one statement, because each costs a run of few rows as much as its rows. Each part refers to the one before: the
# pipeline's row comes first, in the order of those who cancel or end the run; the opposite order would deadlock.
_SEIZE_HERE = Statement(
    sql.SQL(
        """
        WITH claimed AS ({claimed}),
        discarded AS ({discard} AND EXISTS (SELECT FROM claimed) RETURNING 1),
        seized AS ({seize})
        SELECT seized.*, (SELECT count(*) FROM discarded) AS discarded FROM seized
        """
    )
    .format(
        claimed=leases.LOCK_CLAIMED,
        discard=seizing.DISCARD_OTHERS,
        seize=seizing.seizing(sql.SQL("{} FROM claimed").format(seizing.OF_CLAIM)),
    )
    .as_bytes()
)


def _fence(claimed: sql.Composable) -> Statement:
    return Statement(
        sql.SQL(
            """
            WITH claimed AS ({claimed}),
            counted AS ({record} AND EXISTS (SELECT FROM claimed) RETURNING {batch_size}),
            moved AS ({advance} AND (SELECT count(*) FROM counted) >= 0 AND EXISTS (SELECT FROM claimed) RETURNING 1)
            SELECT claimed.status, (SELECT count(*) FROM moved) AS moved,
                   (SELECT batch_size FROM counted) AS batch_size
            FROM claimed
            """
        )
        .format(claimed=claimed, record=runs.RECORD, batch_size=runs.BATCH_SIZE, advance=state.ADVANCE)
        .as_bytes()
    )


_FENCE, _FENCE_WITH_PROGRESS = _fence(leases.LOCK_CLAIMED), _fence(leases.NOTE_PROGRESS)
