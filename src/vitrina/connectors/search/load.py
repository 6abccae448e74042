"""A search index as the target of a run: documents are sent, the checkpoint follows when each is accounted for."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeVar

from vitrina import failpoints
from vitrina.connectors.search.generations import WriteAlias
from vitrina.connectors.search.retry import patiently
from vitrina.connectors.search.target import DocumentSender, ElasticsearchWriter, Waiting, counts_of
from vitrina.definition import Definition
from vitrina.errors import BadKey, FatalError, LeaseLost, RunError, StageLost, TransientError
from vitrina.ports.batch import Counts, Key, Part
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.compare import Comparison, Looked
from vitrina.ports.connector import Context
from vitrina.ports.live import RefuseDeletes, Stale
from vitrina.ports.source import Form
from vitrina.ports.target import BaseLoad, BaseTarget, Done, Fence, Load, Loading, Prepared, Wanted, Writer
from vitrina.sentences import say

if TYPE_CHECKING:
    from vitrina.ports.profile import TargetProfile

T = TypeVar("T")

# How many rows may be left behind before a run is stopped: none of a rebuild, some of a long-running flow.
DEFAULT_BUDGET = {"full": 0, "incremental": 100, "live": 100}


class IndexTarget(BaseTarget):
    """An index, or the name that shows one of its generations."""

    form: Form = "exact"
    corrects = True
    letter_budget: Mapping[str, int] | None = DEFAULT_BUDGET
    no_shortcut_because: str = say("plan.search_index")

    def __init__(self, writer: ElasticsearchWriter, definition: Definition, context: Context) -> None:
        self.writer = writer
        self.definition = definition
        self.context = context
        # What the checkpoint said of an unfinished load, which this run may give up.
        self.left: str | None = None
        self.key: tuple[str, ...] = ()
        self.visible = "part" if definition.options.only_adds else "load"
        self._senders: list[DocumentSender] = []

    def prepare(self, wanted: Wanted, *, create: bool) -> Prepared:
        self.key = self.writer.prepare(wanted.columns, wanted_key=wanted.key)
        self.left = wanted.found.stage
        return Prepared(self.key, self.writer.exists, self.writer.is_empty(), tuple(self.writer.columns))

    def prepare_nothing(self, *, replaces: bool) -> Prepared | None:
        """Prepare to empty the index for a source without rows, if it may; there are no columns for a mapping."""
        if not replaces or self.definition.options.shared_target or not self.writer.prepare_nothing():
            return None
        return Prepared((), exists=True, is_empty=False)

    def lost(self, found: Checkpoint) -> str | None:
        """Tell a live pipeline that its index was deleted, or is another one; passes ask their load."""
        known = found.identity.get("index")
        if self.definition.mode != "live" or known is None or self.patiently(self.writer.identity) == known:
            return None
        return say("plan.index_replaced", target=self.definition.final_target)

    def fingerprint(self) -> Sequence[object]:
        """List what decides which documents there are, where they go, and how they are indexed."""
        options = self.definition.options
        return (options.only_adds, options.delete_when, options.index)

    def open_load(self, loading: Loading) -> Load:
        if loading.kind == "replace" and loading.deletes:
            return GenerationLoad(self, loading)
        return IndexLoad(self, loading)

    def compare(self, looked: Looked) -> Comparison:
        # Imported here: loads need none of it.
        from vitrina.connectors.search.index_comparison import IndexComparison

        return IndexComparison(self.writer, looked, self.patiently)

    def profile(self) -> "TargetProfile | None":
        from vitrina.connectors.search import index_profile

        concrete = self.writer.generations.standing().concrete
        name = self.definition.final_target
        return index_profile.profile(self.writer.client, concrete, name) if concrete else None

    def close(self) -> None:
        """Wait until nothing that was sent is still on its way, so that another try can begin."""
        for sender in self._senders:
            sender.drain()
        self.writer.close()

    # --- for the loads ---------------------------------------------------------------------------------------------

    def patiently(self, move: Callable[[], T], *, may_pause: bool = True) -> T:
        """Retry while the server is blocked. Meanwhile a pause is obeyed, if the run can be resumed from here."""

        def tell(reason: str | None) -> None:
            self.context.tell(reason)
            self.context.show()

        return patiently(move, tell, lambda seconds: self.context.wait(seconds, may_pause=may_pause))

    def claim_writes(self, concrete: str, *, goes_on_later: bool = False) -> WriteAlias:
        """Claim the index for writing, and remove what other definitions or abandoned loads left."""
        held = self.context.require_held
        alias = self.patiently(lambda: self.writer.claim_writes(concrete, held))
        if goes_on_later:  # a repair beside a load that was paused
            return alias
        self.clean(lambda: self.writer.discard_unfinished(concrete, alias, held, left=self.left))
        return alias

    def clean(self, clean: Callable[[], object]) -> None:
        """Remove what can be removed now.

        The rest, such as an index of which a snapshot is taken, waits for a later load.
        """
        try:
            clean()
        except LeaseLost:
            raise
        except RunError as exc:
            self.context.log("warning", "search.not_cleaned", reason=exc.message)

    def sender(self, concrete: str, alias: WriteAlias, loading: Loading, *, made_anew: bool) -> DocumentSender:
        if self.context.recovers:
            # Its alias is gone; a bulk that the server is at work on may still put older rows over newer ones.
            self.context.wait(self.writer.fence_grace_seconds)
        waiting = Waiting(self.context.tell, self._should_stop)
        sender = self.writer.sender(concrete, alias, waiting, made_anew=made_anew)
        sender.watched = loading.watched
        self._senders.append(sender)
        return sender

    def _should_stop(self) -> bool:
        try:
            self.context.check()
        except RunError:
            return True
        return False

    def count(self, sender: DocumentSender, part: Part, loading: Loading, fence: Fence) -> None:
        """Move the checkpoint: every document of the batch is acknowledged or recorded as a dead letter."""
        if sender.duplicates and loading.refuses_repeats:
            raise BadKey(
                f"{sender.duplicates} row(s) share their key ({', '.join(self.key)}) with another one, and an"
                " index has one document for each: change target_key, or group the rows in the query"
            )
        notes = {"hashed_ids": sender.hashed_ids} if sender.hashed_ids else {}
        fence.after(Done(part.counts, notes=notes))


class GenerationLoad(BaseLoad):
    """A generation built aside, then shown in one step."""

    def __init__(self, target: IndexTarget, loading: Loading) -> None:
        self._target = target
        self._index = target.writer
        self._loading = loading
        self.name = loading.name
        self._alias: WriteAlias | None = None
        self._sender: DocumentSender | None = None

    @property
    def is_shown(self) -> bool:  # type: ignore[override]
        return self._index.shows(self._required)

    def obstacle(self, found: Checkpoint) -> str | None:
        return None if self._index.can_continue(self._required) else say("plan.generation_gone")

    def begin(self, fence: Fence) -> None:
        self.name = self._target.patiently(self._index.new_generation)
        fence.after()
        failpoints.hit("load.begun")
        self._alias = self._target.claim_writes(self.name)

    def resume(self, fence: Fence) -> bool:
        generation = self._required
        self._alias = self._target.claim_writes(generation)
        # Interrupted behind the swap: whoever searches sees it already, and shall not see it change.
        if self._target.patiently(lambda: self._index.shows(generation)):
            return False
        self._discard_uncounted(fence.found)
        return True

    def _discard_uncounted(self, found: Checkpoint) -> None:
        """Delete documents that were sent and not counted.

        Their rows are read again, and a row that left the source meanwhile must not be shown.
        """
        generation = self._required
        if self._index.count(generation) == found.rows:
            return
        sender, size = self._opened_sender, self._target.definition.batch_size
        ids = self._index.uncounted(generation, found.accepted)
        for start in range(0, len(ids), size):
            self._target.context.check()
            sender.deliver(sender.deletions(ids[start : start + size], found.batch_no + 1))
        self._target.context.log("info", "load.uncounted_discarded", documents=len(ids))
        if (left := self._index.count(generation)) != found.rows:
            raise StageLost(
                f"the unfinished generation {generation} holds {left:,} of {found.rows:,} acknowledged documents: the"
                " server lost some, so the load begins anew"
            )

    @property
    def _required(self) -> str:
        if self.name is None:
            raise RuntimeError("a load is begun before it is used")
        return self.name

    @property
    def _opened_sender(self) -> DocumentSender:
        if self._sender is None:
            if self._alias is None:
                raise RuntimeError("a load is begun before it is written")
            self._sender = self._target.sender(self._required, self._alias, self._loading, made_anew=True)
        return self._sender

    def writer(self) -> AbstractContextManager[Writer]:
        return nullcontext(self._opened_sender)

    def commit(self, part: Part, fence: Fence) -> None:
        self._target.count(self._opened_sender, part, self._loading, fence)

    def publish(self, fence: Fence) -> Counts:
        generation, target = self._required, self._target
        alias = self._sender.alias if self._sender else self._alias
        if alias is None:
            raise RuntimeError("a load is begun before it is published")
        told = target.patiently(lambda: self._index.publish(generation, fence.found.rows, alias), may_pause=False)
        failpoints.hit("publish.applied")
        shown = target.patiently(lambda: self._index.identity(generation), may_pause=False)
        fence.after(Done(identity={"index": shown}, notes={"published": told}))
        return Counts()

    def discard(self) -> None:
        generation = self._required
        self._target.clean(lambda: self._index.clean(generation, self._target.context.require_held))


class IndexLoad(BaseLoad):
    """Documents sent into the index that is shown, each batch visible once it counts."""

    def __init__(self, target: IndexTarget, loading: Loading) -> None:
        self._target = target
        self._index = target.writer
        self._loading = loading
        self._sender: DocumentSender | None = None
        # The index that holds what was delivered so far.
        self._judged: str | None = None

    def obstacle(self, found: Checkpoint) -> str | None:
        """Say why the index is not the one that earlier passes or batches wrote to."""
        shown = self._target.patiently(self._index.identity)
        if not (found.safe_upto or found.last_key):
            return None
        if self._is_another(found, shown):
            return say("plan.index_replaced", target=self._target.definition.final_target)
        self._judged = shown
        return None

    def _is_another(self, found: Checkpoint, shown: str | None) -> bool:
        """Tell whether it was deleted, recreated, or is a generation that the name was moved back to."""
        known = found.identity.get("index")
        # A checkpoint that was reset, or that an earlier version of the platform wrote, does not say.
        return known != shown if known else self._index.is_new_here()

    def begin(self, fence: Fence) -> None:
        """Claim the index that is shown, and create it when it is missing."""
        target = self._target
        concrete = target.patiently(self._index.current_index)
        current = target.patiently(lambda: self._index.identity(concrete))
        if self._judged not in (None, current):
            raise TransientError(f"{target.definition.final_target} was replaced by hand at this moment")
        # A full load that begins takes the place of an unfinished one; a merge leaves it to be continued.
        goes_on_later = self._loading.kind == "merge" and fence.found.stage is not None
        alias = target.claim_writes(concrete, goes_on_later=goes_on_later)
        self._sender = target.sender(concrete, alias, self._loading, made_anew=False)
        if self._loading.kind == "replace" or fence.found.identity.get("index") != current:
            fence.after(Done(identity={"index": current}))

    @property
    def _opened_sender(self) -> DocumentSender:
        if self._sender is None:
            raise RuntimeError("a load is begun before it is written")
        return self._sender

    def writer(self) -> AbstractContextManager[Writer]:
        return nullcontext(self._opened_sender)

    def commit(self, part: Part, fence: Fence) -> None:
        self._target.count(self._opened_sender, part, self._loading, fence)

    def remove(self, keys: Sequence[Key], number: int, fence: Fence) -> Counts:
        sender = self._opened_sender
        outcome = sender.deliver(sender.deletions([key[0] for key in keys], number))
        counts = Counts(**counts_of(outcome))
        fence.after(Done(counts))
        return counts

    def correct(self, part: Part, stale: Stale, read: Sequence[Key], fence: Fence, refuse: RefuseDeletes) -> Counts:
        """Delete the documents of keys that did not come back: those that came were sent with the part.

        Searches find both when the index refreshes itself, a second later unless its settings say otherwise.
        """
        if set(stale.columns) != set(self._target.key):
            raise FatalError(say("run.live_part_of_key", columns=", ".join(stale.columns)))
        place = [stale.columns.index(name) for name in self._target.key]
        asked = {tuple(key[at] for at in place) for key in stale.keys}
        sender, counts = self._opened_sender, part.counts
        ids = sender.ids_of_keys(sorted(asked - set(read)))
        if ids:
            refuse(len(ids), lambda: self._index.count_of(sender.concrete, ids))
            counts += Counts(**counts_of(sender.deliver(sender.deletions(ids, part.number))))
        notes = {"hashed_ids": sender.hashed_ids} if sender.hashed_ids else {}
        fence.after(Done(counts, notes=notes))
        return counts

    def count_rows(self) -> int:
        concrete = self._opened_sender.concrete
        return self._target.patiently(lambda: self._index.count(concrete))

    def publish(self, fence: Fence) -> Counts:
        """Refresh, so that searches after the run find what it delivered, including what a lost try delivered."""
        concrete = self._opened_sender.concrete
        self._target.patiently(lambda: self._index.refresh(concrete), may_pause=False)
        fence.after()
        return Counts()
