"""Moving what a Python source makes into a search index."""

from vitrina.connectors.postgres.pushdown import Paging
from vitrina.connectors.postgres.source import Bounds
from vitrina.connectors.postgres.stream import StagesTables
from vitrina.connectors.python.source import PythonSource
from vitrina.loads.search_run import SearchRun
from vitrina.loads.source_run import SourceRun, has_no_checkpoint
from vitrina.ports.batch import Filling
from vitrina.ports.checkpoint import Checkpoint
from vitrina.store import leases


class SearchSourceRun(SourceRun, SearchRun):
    """One run of a pipeline whose rows come from a registered source and whose target is an index."""

    def _keep_checkpoint(self) -> None:
        """A source without rows empties the index, if it may; it only has no columns to make a mapping of."""
        options = self._job.definition.options
        full = self._job.definition.mode == "full"
        if full and not options.shared_target and self._index.prepare_nothing():
            generation = self._begin_generation()
            self._show(generation, self._claim_writes(generation))
        else:
            super()._keep_checkpoint()

    def _obstacle_to_go_on(self, found: Checkpoint) -> str | None:
        if has_no_checkpoint(found):
            return "the source sets no checkpoint"
        return super()._obstacle_to_go_on(found)

    def _send_pass(self) -> None:
        self._forget_full_load()
        self._judge_index()
        leases.answer_request(self._job.metastore, self._job.claim)
        self._checkpoint = self._identified()
        self._meter.started_from(self._checkpoint.safe_upto)
        sender = self._watching_sender()
        after = (self._checkpoint.safe_upto,) if self._checkpoint.safe_upto else None
        with self._ahead(self._stream_into(sender, Bounds(), Paging()), after) as batches:
            for filled in batches:
                self._count_documents(sender, filled)
        self._make_visible(sender)
        with self._transaction("ending the pass"):
            self._fence()
        self._settle(obey_pause=False)

    def _by_key(self) -> Paging:
        """A source goes on from its own checkpoint, in whatever order it gives rows."""
        return Paging()

    def _stream_into(self, stager: StagesTables, bounds: Bounds, paging: Paging) -> Filling:
        assert self._job.source is not None
        return PythonSource(self._job.source, stager, self._job.landings)
