"""Moving what a Python source makes: the source's checkpoint takes the place of a cursor."""

import json
from dataclasses import replace

from vitrina.connectors.postgres.pushdown import Paging, SharedSnapshot
from vitrina.connectors.postgres.source import Bounds
from vitrina.connectors.postgres.stage import Stage, stage_name
from vitrina.loads import sources
from vitrina.loads.table_run import Run
from vitrina.ports.batch import Filling, Part
from vitrina.ports.checkpoint import Checkpoint
from vitrina.store import leases

_NO_CHECKPOINT = '["null"]'


def has_no_checkpoint(found: Checkpoint) -> bool:
    """Batches were taken, and nothing says where the source stood behind them."""
    return bool(found.accepted) and found.last_key in (None, _NO_CHECKPOINT)


class SourceRun(Run):
    """One run of a pipeline whose rows come from a registered source."""

    def move_data(self) -> None:
        if self._job.output:
            super().move_data()
        else:
            self._keep_checkpoint()

    def _keep_checkpoint(self) -> None:
        """Nothing came, and there is no target yet: the source may still have moved on."""
        job = self._job
        assert job.source is not None
        leases.answer_request(job.metastore, job.claim)
        self._meter.spent("read", job.source.peek_seconds)
        for _, checkpoint in job.source.batches(sources.stored_checkpoint(job.definition, job.checkpoint)):
            if job.definition.mode == "incremental" and not job.backfill:
                self._checkpoint = replace(self._identified(), safe_upto=json.dumps(checkpoint))
        with self._transaction("keeping the source's checkpoint"):
            self._fence()

    # --- a load ------------------------------------------------------------------------------------------------

    def _load_paging(self) -> Paging:
        return Paging()

    def _obstacle_to_continue(self, found: Checkpoint, stage: Stage) -> str | None:
        if has_no_checkpoint(found):
            return "the source sets no checkpoint"
        return super()._obstacle_to_continue(found, stage)

    # --- batch by batch ----------------------------------------------------------------------------------------

    def _merge_batches(self) -> None:
        leases.answer_request(self._job.metastore, self._job.claim)
        self._checkpoint = self._identified()
        stages = self._alternating_stages()
        self._meter.started_from(self._checkpoint.safe_upto)
        source = self._source(stages, Bounds(), Paging())
        after = (self._checkpoint.safe_upto,) if self._checkpoint.safe_upto else None
        with self._ahead(source, after) as batches:
            for filled in batches:
                self._merge_batch(stages[filled.number % len(stages)], filled)
        with self._transaction("ending the pass"):
            self._job.writer.drop_other_stages(keep=[])
            self._fence()
        self._settle(obey_pause=False)

    def _alternating_stages(self) -> tuple[Stage, ...]:
        name = str(self._job.claim.pipeline_id)
        return self._created(tuple(self._stage(stage_name(name, suffix)) for suffix in ("a", "b")))

    def _identified(self) -> Checkpoint:
        """A range says nothing of how far the source was followed."""
        if self._job.backfill:
            return self._checkpoint
        return replace(self._checkpoint, fingerprint=sources.checkpoint_identity(self._job))

    def _after_merge(self, filled: Part) -> Checkpoint:
        if self._job.backfill or not filled.last:
            return replace(self._checkpoint, batch_no=filled.number)
        return replace(self._checkpoint, batch_no=filled.number, safe_upto=filled.last[0])

    def _source(
        self, stages: tuple[Stage, ...], bounds: Bounds, paging: Paging, *, snapshot: SharedSnapshot | None = None
    ) -> Filling:
        from vitrina.connectors.postgres.stream import Stager
        from vitrina.connectors.python.source import PythonSource

        job = self._job
        stager = Stager(job.target_url, job.claim.session_name, stages, epoch=job.claim.epoch, target=job.table)
        self._sessions.callback(stager.close)
        assert job.source is not None
        return PythonSource(job.source, stager, job.landings)
