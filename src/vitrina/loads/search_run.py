"""Moving rows into a search index: documents are sent, the checkpoint follows when each is accounted for."""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

from vitrina import failpoints
from vitrina.connectors.postgres.pushdown import Paging
from vitrina.connectors.postgres.source import Bounds
from vitrina.connectors.search.generations import IncompleteGeneration, WriteAlias
from vitrina.connectors.search.retry import patiently
from vitrina.connectors.search.target import DocumentSender, ElasticsearchWriter, Waiting, counts_of
from vitrina.errors import BadKey, FatalError, LeaseLost, RunError, ShrinkRefused, TransientError
from vitrina.loads import job as jobs
from vitrina.loads.table_run import Run
from vitrina.ports.batch import Counts, Part, PartId
from vitrina.ports.checkpoint import Checkpoint
from vitrina.status import Status, Trigger
from vitrina.store import database, dead_letters, leases

T = TypeVar("T")

# How many rows may be left behind before a run is stopped: none of a rebuild, some of a long-running flow.
DEFAULT_BUDGET = {"full": 0, "incremental": 100}

SNAPSHOT_OBSTACLE = "options.consistency asks for one snapshot"


class SearchRun(Run):
    """One run of a pipeline whose target is an index. There is no stage: a document sent twice is still one."""

    # Refused by earlier runs of a load that this one goes on with.
    _letters_before = 0
    # Why nothing moves just now.
    _waits_because: str | None = None

    def move_data(self) -> None:
        full = self._job.definition.mode == "full"
        if full and not self._job.definition.options.shared_target:
            self._rebuild()
        elif full:
            self._send_everything()
        else:
            self._send_pass()

    @property
    def _index(self) -> ElasticsearchWriter:
        return self._job.index

    # --- full: a generation built aside, then shown in one step --------------------------------------------------

    def _rebuild(self) -> None:
        generation = self._continue_generation() or self._begin_generation()
        alias = self._claim_writes(generation)
        # Interrupted behind the swap: whoever searches sees it already, and shall not see it change.
        is_shown = self._patiently(lambda: self._index.shows(generation))
        self._show(generation, alias if is_shown else self._fill_generation(generation, alias))

    def _fill_generation(self, generation: str, alias: WriteAlias) -> WriteAlias:
        sender = self._sender(generation, alias, made_anew=True)
        self._discard_uncounted(sender, generation)
        with self._ahead(self._stream_into(sender, Bounds(), self._by_key()), self._resume_point()) as batches:
            for filled in batches:
                self._count_documents(sender, filled)
        return sender.alias

    def _discard_uncounted(self, sender: DocumentSender, generation: str) -> None:
        """Rows that were sent and not counted are read again; one that left the source meanwhile must not be shown."""
        rows = self._checkpoint.rows
        if self._index.count(generation) == rows:
            return
        ids = self._index.uncounted(generation, self._checkpoint.accepted)
        for start in range(0, len(ids), self._batch_size()):
            self._control.check()
            sender.deliver(sender.deletions(ids[start : start + self._batch_size()], self._checkpoint.batch_no + 1))
        self._log.info("load.uncounted_discarded", documents=len(ids))
        if (left := self._index.count(generation)) != rows:
            self._forget_load()
            raise TransientError(
                f"the unfinished generation {generation} holds {left:,} of {rows:,} acknowledged documents: the"
                " server lost some, so the load begins anew"
            )

    def _continue_generation(self) -> str | None:
        found = self._checkpoint
        if found.stage is None:
            return None
        obstacle = self._obstacle_to_go_on(found) or self._obstacle_in_generation(found.stage)
        if obstacle:
            self._say_started_over(obstacle)
            return None
        self._go_on(found)
        return found.stage

    def _go_on(self, found: Checkpoint) -> None:
        self.answers_request = False
        if found.load_started_at:
            self._letters_before = dead_letters.count_open(
                self._job.metastore, self._job.claim.pipeline_id, since=found.load_started_at
            )
        self._meter.continued(found)
        self._log.info("load.continued", rows=found.rows, batches=found.batch_no)

    def _obstacle_to_go_on(self, found: Checkpoint) -> str | None:
        now = database.now(self._job.metastore)
        age = now - (found.load_started_at or now)
        if found.fingerprint != self._fingerprint():
            return "the definition changed"
        if age > timedelta(seconds=self._job.definition.options.max_stage_age_seconds):
            return "the unfinished load is too old"
        return None

    def _obstacle_in_generation(self, generation: str) -> str | None:
        if not self._index.can_continue(generation):
            return "the unfinished generation is gone"
        if self._wants_snapshot and not self._index.shows(generation):
            return SNAPSHOT_OBSTACLE
        return None

    @property
    def _wants_snapshot(self) -> bool:
        return self._job.definition.options.consistency == "snapshot"

    def _fingerprint(self) -> str:
        """Also of what decides which documents there are, where they go, and how they are indexed."""
        options = self._job.definition.options
        ours = json.dumps([options.shared_target, options.delete_when, options.index], sort_keys=True)
        return hashlib.sha256((super()._fingerprint() + ours).encode()).hexdigest()[:32]

    def _begin_generation(self) -> str:
        leases.answer_request(self._job.metastore, self._job.claim)
        # By the clock that letters are dated by.
        begun_at = database.now(self._job.metastore)
        generation = self._patiently(self._index.new_generation)
        self._checkpoint = replace(
            self._checkpoint.without_cursor(),
            stage=generation,
            fingerprint=self._fingerprint(),
            load_started_at=begun_at,
        )
        with self._transaction("beginning a generation"):
            self._fence(progressed=False)
        failpoints.hit("load.begun")
        return generation

    def _show(self, generation: str, alias: WriteAlias) -> None:
        self._control.check()
        started = time.monotonic()
        told = self._publish_generation(generation, alias)
        failpoints.hit("publish.applied")
        begun_at = self._checkpoint.load_started_at
        shown = self._patiently(lambda: self._index.identity(generation), may_pause=False)
        self._checkpoint = self._checkpoint.without_load().identified(index=shown)
        with self._transaction("publishing"):
            self._letters.rebuilt(begun_at)
            self._meter.published(Counts(), time.monotonic() - started)
            self._fence()
        self._log.info("run.published", told=told)
        self._meter.note("published", told)
        failpoints.hit("publish.committed")
        self._clean(lambda: self._index.clean(generation, self._require_claim))
        self._settle(obey_pause=False)

    def _publish_generation(self, generation: str, alias: WriteAlias) -> str:
        def publish() -> str:
            return self._index.publish(generation, self._checkpoint.rows, alias)

        try:
            return self._patiently(publish, may_pause=False)
        except (ShrinkRefused, IncompleteGeneration):
            # What the source had is not to be shown: the next load reads it anew instead of going on from here.
            self._forget_load()
            raise

    def _by_key(self) -> Paging:
        return Paging(jobs.order_of_key(self._job))

    # --- full, into an index that other pipelines fill too ---------------------------------------------------------

    def _send_everything(self) -> None:
        self._judge_index()
        if not self._continues_sending():
            self._begin_sending()
        sender = self._watching_sender()
        with self._ahead(self._stream_into(sender, Bounds(), self._by_key()), self._resume_point()) as batches:
            for filled in batches:
                self._count_documents(sender, filled)
        self._make_visible(sender)
        self._checkpoint = self._checkpoint.without_load()
        with self._transaction("ending the pass"):
            self._fence()
        self._settle(obey_pause=False)

    def _continues_sending(self) -> bool:
        found = self._checkpoint
        if found.last_key is None:
            return False
        obstacle = self._obstacle_to_go_on(found) or (SNAPSHOT_OBSTACLE if self._wants_snapshot else None)
        if obstacle:
            self._say_started_over(obstacle)
            return False
        self._go_on(found)
        return True

    def _begin_sending(self) -> None:
        leases.answer_request(self._job.metastore, self._job.claim)
        self._checkpoint = replace(
            self._checkpoint.without_cursor(),
            fingerprint=self._fingerprint(),
            load_started_at=database.now(self._job.metastore),
        )

    # --- incremental -----------------------------------------------------------------------------------------------

    def _send_pass(self) -> None:
        self._forget_full_load()
        self._judge_index()
        upto = self._begin_pass()
        self._count_null_cursors()
        self._meter.started_from(self._checkpoint.last_key or self._checkpoint.safe_upto)
        sender = self._watching_sender()
        for bounds, paging, after in self._pass_parts():
            with self._ahead(self._stream_into(sender, bounds, paging), after) as batches:
                for filled in batches:
                    self._count_documents(sender, filled)
        self._make_visible(sender)
        self._end_pass(upto)

    def _forget_full_load(self) -> None:
        """It was begun before the mode changed: where it stood says nothing of where a pass stands."""
        if self._checkpoint.stage is not None:
            self._say_started_over("the definition changed")
            self._checkpoint = self._checkpoint.without_cursor()

    def _judge_index(self) -> None:
        """What earlier passes or batches delivered is in the index that they wrote to, and in no other."""
        found = self._checkpoint
        shown = self._patiently(self._index.identity)
        if not (found.safe_upto or found.last_key):
            self._checkpoint = found.identified(index=None)
        elif self._is_another_index(found, shown):
            self._start_over_in_new_index(found)
        else:
            self._checkpoint = found.identified(index=shown)

    def _is_another_index(self, found: Checkpoint, shown: str | None) -> bool:
        """Deleted, made anew, or a generation that somebody moved the name back to."""
        known = found.identity.get("index")
        # A checkpoint that was reset, or that an earlier version of the platform wrote, does not say.
        return known != shown if known else self._index.is_new_here()

    def _start_over_in_new_index(self, found: Checkpoint) -> None:
        self._say_started_over(f"{self._job.target} was deleted or replaced by hand")
        forgotten = replace(found, safe_upto=None, held_upto=None, last_key=None, last_id=None, rows=0)
        self._checkpoint = forgotten.identified(index=None)
        # On record before the index is claimed, from when on it would look like the one that was filled so far.
        with self._transaction("starting over"):
            self._fence(progressed=False)

    def _watching_sender(self) -> DocumentSender:
        """For what is written into the index that is shown: letters of documents that are taken now are resolved."""
        sender = self._current_sender()
        sender.watched = self._letters.open
        self._letters.watch_steps()
        return sender

    def _current_sender(self) -> DocumentSender:
        concrete = self._patiently(self._index.current_index)
        judged, current = (
            self._checkpoint.identity.get("index"),
            self._patiently(lambda: self._index.identity(concrete)),
        )
        if judged not in (None, current):
            raise TransientError(f"{self._job.target} was replaced by hand at this moment")
        self._checkpoint = self._checkpoint.identified(index=current)
        return self._sender(concrete, self._claim_writes(concrete), made_anew=False)

    def _make_visible(self, sender: DocumentSender) -> None:
        """Whoever searches when the run is over finds what it delivered, also what a lost try of it had."""
        self._patiently(lambda: self._index.refresh(sender.concrete), may_pause=False)

    def _drop_stages(self) -> None:
        """There are none."""

    # --- shared ----------------------------------------------------------------------------------------------------

    def _claim_writes(self, concrete: str) -> WriteAlias:
        """And remove what loads left that were begun under another definition, or given up."""
        alias = self._patiently(lambda: self._index.claim_writes(concrete, self._require_claim))
        left = self._job.checkpoint.stage
        self._clean(lambda: self._index.discard_unfinished(concrete, alias, self._require_claim, left=left))
        return alias

    def _require_claim(self) -> None:
        """Asked right before what the fence of a transaction does not cover."""
        self._control.require_lease()
        leases.require_held(self._job.metastore, self._job.claim)

    def _clean(self, clean: Callable[[], object]) -> None:
        """What cannot be removed now, as while a snapshot of it is taken, is removed by a later load."""
        try:
            clean()
        except LeaseLost:
            raise
        except RunError as exc:
            self._log.warning("search.not_cleaned", reason=exc.message)

    def _sender(self, concrete: str, alias: WriteAlias, *, made_anew: bool) -> DocumentSender:
        self._wait_out_lost_runner()
        waiting = Waiting(self._on_wait, self._should_stop)
        sender = self._index.sender(concrete, alias, waiting, made_anew=made_anew)
        self._sessions.callback(sender.drain)
        return sender

    def _patiently(self, move: Callable[[], T], *, may_pause: bool = True) -> T:
        """A pause is obeyed while nothing moves, where the run can be continued from."""
        pause_asked = self._is_pause_asked if may_pause else lambda: False

        def tell(reason: str | None) -> None:
            self._on_wait(reason)
            self._while_waiting()

        return patiently(move, tell, lambda seconds: self._control.wait(seconds, pause_asked))

    def _is_pause_asked(self) -> bool:
        return leases.find_status(self._job.metastore, self._job.claim) is Status.PAUSE_REQUESTED

    def _wait_out_lost_runner(self) -> None:
        """Its alias is gone; a bulk that the server is at work on may still put older rows over newer ones."""
        if self._job.claim.row["requested_trigger"] == Trigger.RECOVERY:
            self._control.wait(self._index.fence_grace_seconds)

    def _on_wait(self, reason: str | None) -> None:
        """Told by the thread that sends."""
        if reason:
            self._log.warning("search.waiting", reason=reason)
        self._waits_because = reason

    def _while_waiting(self) -> None:
        """A run that waits for its server says so in its row, not only when it has come through."""
        super()._while_waiting()
        reason = self._waits_because
        if reason != self._meter.counters.metrics.get("waiting"):
            self._meter.note("waiting", reason)
            self._meter.record(self._job.metastore, self._job.claim)

    def _should_stop(self) -> bool:
        try:
            self._control.check()
        except RunError:
            return True
        return False

    def _count_documents(self, sender: DocumentSender, filled: Part) -> None:
        """Every document of the batch is acknowledged or on record as a dead letter: the checkpoint may move."""
        self._control.check()
        self._refuse_shared_keys(sender)
        counts = Counts(**counts_of(sender.outcomes.pop(filled.number)))
        too_many = self._too_many_letters(len(filled.letters))
        with self._transaction("counting a batch"):
            self._letters.leave_behind(filled)
            self._checkpoint = self._before_refusal() if too_many else self._after_documents(filled)
            self._meter.batch(filled, counts, 0.0)
            self._meter.merged(counts)
            self._meter.note("waiting", self._waits_because)
            if sender.hashed_ids:
                self._meter.note("hashed_ids", sender.hashed_ids)
            self._fence()
            failpoints.hit("batch.fenced")
        if too_many:
            raise too_many
        self._after_batch(filled)

    def _refuse_shared_keys(self, sender: DocumentSender) -> None:
        if sender.duplicates and self._job.definition.mode == "full":
            raise BadKey(
                f"{sender.duplicates} row(s) share their key ({', '.join(self._job.key)}) with another one, and an"
                " index has one document for each: change target_key, or group the rows in the query"
            )

    def _after_documents(self, filled: Part) -> Checkpoint:
        if self._job.definition.mode == "incremental":
            return self._after_merge(filled)
        after = json.dumps(filled.last) if filled.last else None
        return self._checkpoint.accepting(PartId(self._job.claim.epoch, filled.number), filled.staged_rows, after)

    def _before_refusal(self) -> Checkpoint:
        """The next run meets the refused rows again; a rebuild that lacks some is not gone on with."""
        return self._checkpoint.without_load() if self._checkpoint.stage else self._checkpoint

    def _too_many_letters(self, more: int) -> FatalError | None:
        budget = self._job.definition.options.max_dead_letters
        if budget is None:
            budget = DEFAULT_BUDGET[self._job.definition.mode]
        letters = self._letters_before + self._meter.letters + more
        if letters <= budget:
            return None
        return FatalError(
            f"{letters} document(s) were refused, more than options.max_dead_letters ({budget}); see"
            f" `vitrina dead-letters list`, mend the mapping or the query, and run again"
        )
