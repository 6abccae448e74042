"""Load documents into a search index. The checkpoint moves when each document is acknowledged or rejected."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeVar

from vitrina import failpoints
from vitrina.connectors.search.generations import WriteAlias
from vitrina.connectors.search.retry import retry_while_blocked
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

# How many rows may be rejected before a run stops: none in a rebuild, some in a long-running flow.
DEFAULT_BUDGET = {"full": 0, "incremental": 100, "live": 100}


class IndexTarget(BaseTarget):
    """Write to an index, or to the alias that shows one of its generations."""

    form: Form = "exact"
    corrects = True
    letter_budget: Mapping[str, int] | None = DEFAULT_BUDGET
    no_shortcut_because: str = say("plan.search_index")

    def __init__(self, writer: ElasticsearchWriter, definition: Definition, context: Context) -> None:
        self.writer = writer
        self.definition = definition
        self.context = context
        # The unfinished load of the checkpoint, which this run may abandon.
        self.left: str | None = None
        self.key: tuple[str, ...] = ()
        self.visible = "part" if definition.options.only_adds else "load"
        self._senders: list[DocumentSender] = []

    def prepare(self, wanted: Wanted, *, create: bool) -> Prepared:
        self.key = self.writer.prepare(wanted.columns, wanted_key=wanted.key)
        self.left = wanted.found.stage
        return Prepared(self.key, self.writer.exists, self.writer.is_empty(), tuple(self.writer.columns))

    def prepare_nothing(self, *, replaces: bool) -> Prepared | None:
        """Prepare to empty the index for a source without rows, if allowed; there are no columns for a mapping."""
        if not replaces or self.definition.options.shared_target or not self.writer.prepare_nothing():
            return None
        return Prepared((), exists=True, is_empty=False)

    def lost(self, found: Checkpoint) -> str | None:
        """Return why a live pipeline's index is lost: it was deleted or replaced. Other modes ask their load."""
        known = found.identity.get("index")
        if self.definition.mode != "live" or known is None or self.retry_while_blocked(self.writer.identity) == known:
            return None
        return say("plan.index_replaced", target=self.definition.final_target)

    def fingerprint(self) -> Sequence[object]:
        """Return what decides which documents exist, where they are written, and how they are indexed."""
        options = self.definition.options
        return (options.only_adds, options.delete_when, options.index)

    def open_load(self, loading: Loading) -> Load:
        if loading.kind == "replace" and loading.deletes:
            return GenerationLoad(self, loading)
        return IndexLoad(self, loading)

    def compare(self, looked: Looked) -> Comparison:
        # Imported here, because loads do not need it.
        from vitrina.connectors.search.index_comparison import IndexComparison

        return IndexComparison(self.writer, looked, self.retry_while_blocked)

    def profile(self) -> "TargetProfile | None":
        from vitrina.connectors.search import index_profile

        concrete = self.writer.generations.standing().concrete
        name = self.definition.final_target
        return index_profile.profile(self.writer.client, concrete, name) if concrete else None

    def close(self) -> None:
        """Wait until no sent request is still in flight, so that another attempt can begin."""
        for sender in self._senders:
            sender.drain()
        self.writer.close()

    def retry_while_blocked(self, move: Callable[[], T], *, may_pause: bool = True) -> T:
        """Retry while the server is blocked. While waiting, honour a pause request if the run can resume from here."""

        def tell(reason: str | None) -> None:
            self.context.tell(reason)
            self.context.show()

        return retry_while_blocked(move, tell, lambda seconds: self.context.wait(seconds, may_pause=may_pause))

    def claim_writes(self, concrete: str, *, keeps_unfinished: bool = False) -> WriteAlias:
        """Claim the index for writing, and remove what other definitions or abandoned loads left."""
        held = self.context.require_held
        alias = self.retry_while_blocked(lambda: self.writer.claim_writes(concrete, held))
        if keeps_unfinished:  # a repair beside a load that was paused
            return alias
        self.clean(lambda: self.writer.discard_unfinished(concrete, alias, held, left=self.left))
        return alias

    def clean(self, clean: Callable[[], object]) -> None:
        """Remove what can be removed now.

        The rest, such as an index that is being backed up, is left to a later load.
        """
        try:
            clean()
        except LeaseLost:
            raise
        except RunError as exc:
            self.context.log("warning", "search.not_cleaned", reason=exc.message)

    def sender(self, concrete: str, alias: WriteAlias, loading: Loading, *, is_new: bool) -> DocumentSender:
        if self.context.recovers:
            # The lost runner's alias is removed, but a request that the server is still processing may overwrite newer
            # rows.
            self.context.wait(self.writer.fence_grace_seconds)
        waiting = Waiting(self.context.tell, self._should_stop)
        sender = self.writer.sender(concrete, alias, waiting, is_new=is_new)
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
        """Move the checkpoint. Every document of the batch is acknowledged or recorded as a dead letter."""
        if sender.duplicates and loading.refuses_repeats:
            raise BadKey(
                f"{sender.duplicates} row(s) share their key ({', '.join(self.key)}) with another one, and an"
                " index has one document for each: change target_key, or group the rows in the query"
            )
        notes = {"hashed_ids": sender.hashed_ids} if sender.hashed_ids else {}
        fence.after(Done(part.counts, notes=notes))


class GenerationLoad(BaseLoad):
    """Build a generation aside, then publish it in one step."""

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
        self.name = self._target.retry_while_blocked(self._index.new_generation)
        fence.after()
        failpoints.hit("load.begun")
        self._alias = self._target.claim_writes(self.name)

    def resume(self, fence: Fence) -> bool:
        generation = self._required
        self._alias = self._target.claim_writes(generation)
        # Interrupted after the swap: the generation is already searched and must not change.
        if self._target.retry_while_blocked(lambda: self._index.shows(generation)):
            return False
        self._discard_uncounted(fence.found)
        return True

    def _discard_uncounted(self, found: Checkpoint) -> None:
        """Delete documents that were sent but not accepted.

        Their rows are read again, and a row that has left the source since then must not be shown.
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
                " server lost some, so the load starts from scratch"
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
            self._sender = self._target.sender(self._required, self._alias, self._loading, is_new=True)
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
        told = target.retry_while_blocked(
            lambda: self._index.publish(generation, fence.found.rows, alias), may_pause=False
        )
        failpoints.hit("publish.applied")
        shown = target.retry_while_blocked(lambda: self._index.identity(generation), may_pause=False)
        fence.after(Done(identity={"index": shown}, notes={"published": told}))
        return Counts()

    def discard(self) -> None:
        generation = self._required
        self._target.clean(lambda: self._index.clean(generation, self._target.context.require_held))


class IndexLoad(BaseLoad):
    """Send documents to the index that is shown. Each batch is visible once it counts."""

    def __init__(self, target: IndexTarget, loading: Loading) -> None:
        self._target = target
        self._index = target.writer
        self._loading = loading
        self._sender: DocumentSender | None = None
        # The index that holds what was delivered so far.
        self._judged: str | None = None

    def obstacle(self, found: Checkpoint) -> str | None:
        """Return why the index is not the one that earlier passes or batches wrote to, or None."""
        shown = self._target.retry_while_blocked(self._index.identity)
        if not (found.safe_upto or found.last_key):
            return None
        if self._is_another(found, shown):
            return say("plan.index_replaced", target=self._target.definition.final_target)
        self._judged = shown
        return None

    def _is_another(self, found: Checkpoint, shown: str | None) -> bool:
        """Return whether the index was deleted, recreated, or is a generation that the name was moved back to."""
        known = found.identity.get("index")
        # A checkpoint that was reset, or written by an earlier version, does not hold the identity.
        return known != shown if known else self._index.is_new_here()

    def begin(self, fence: Fence) -> None:
        """Claim the index that is shown; create it if it is missing."""
        target = self._target
        concrete = target.retry_while_blocked(self._index.current_index)
        current = target.retry_while_blocked(lambda: self._index.identity(concrete))
        if self._judged not in (None, current):
            raise TransientError(f"{target.definition.final_target} was replaced by hand just now")
        # A full load takes the place of an unfinished one; a merge leaves it to be resumed.
        keeps_unfinished = self._loading.kind == "merge" and fence.found.stage is not None
        alias = target.claim_writes(concrete, keeps_unfinished=keeps_unfinished)
        self._sender = target.sender(concrete, alias, self._loading, is_new=False)
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
        """Delete the documents of stale keys that were not read again. The others were sent with the part.

        Searches see both after the next refresh of the index, within a second by default.
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
        return self._target.retry_while_blocked(lambda: self._index.count(concrete))

    def publish(self, fence: Fence) -> Counts:
        """Refresh, so that searches after the run see what it delivered, including what a lost attempt delivered."""
        concrete = self._opened_sender.concrete
        self._target.retry_while_blocked(lambda: self._index.refresh(concrete), may_pause=False)
        fence.after()
        return Counts()
