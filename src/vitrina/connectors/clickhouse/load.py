"""Load rows into ClickHouse: a generation that is built aside and shown in one step, or parts that are merged."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from vitrina import failpoints
from vitrina.connectors.clickhouse.names import Named, new_load
from vitrina.connectors.clickhouse.opened_table import OpenedTable
from vitrina.connectors.clickhouse.tables import Shown, version_of
from vitrina.connectors.clickhouse.writer import Converter, GroupingWriter, Inserting
from vitrina.errors import DuplicateKeys, LeaseLost, RunError, StageLost, TargetMismatch, TransientError
from vitrina.ports.batch import Counts, Key, Part, PartId
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.live import RefuseDeletes, Stale
from vitrina.ports.target import BaseLoad, Done, Fence, Loading

# The checkpoint's key for the load that built what is shown.
IDENTITY = "clickhouse"
# Batches that may wait for an insert; they are inserted together.
AHEAD = 16
# With fewer deleted rows, cleaning is not worth reading the table.
FEWEST_TOMBSTONES = 10_000
_HOUR_MS = 3_600_000


class GenerationLoad(BaseLoad):
    """Build a table aside, then show it in one step; where other pipelines write too, add its rows to what is shown."""

    def __init__(self, target: OpenedTable, loading: Loading) -> None:
        self._target = target
        self._tables = target.tables
        self._loading = loading
        self.name = loading.name
        self._generation: Named | None = None

    def obstacle(self, found: Checkpoint) -> str | None:
        if self.is_shown or self._find() is not None:
            return None
        return "the unfinished generation is missing"

    @property
    def is_shown(self) -> bool:  # type: ignore[override]
        shown = self._target.retry_while_blocked(self._tables.shown)
        return self.name is not None and shown is not None and shown.load == self.name

    def _find(self) -> Named | None:
        return self._target.retry_while_blocked(lambda: self._tables.generation(self.name or ""))

    def begin(self, fence: Fence) -> None:
        self.name = new_load()
        self._generation = self._target.retry_while_blocked(self._create)
        fence.after()
        failpoints.hit("load.begun")
        self._discard_others()

    def _create(self) -> Named:
        """Create the generation. A source without rows and columns gets the columns of what is shown."""
        shown = self._tables.shown()
        like_shown = shown is not None and (not self._target.has_layout or not self._loading.deletes)
        if shown is None or not like_shown:
            return self._tables.create_generation(self._target.layout, self.name)
        if self._target.has_layout:
            self._target.missing_fields(shown)
        return self._tables.create_like(shown.generation, "g", self.name or "")

    def _discard_others(self) -> None:
        """Drop what abandoned loads left, which would otherwise occupy disk space permanently."""
        kept = {self.name}
        shown = self._target.retry_while_blocked(self._tables.shown)
        for one in self._tables.objects("g"):
            if one.owner == self._tables.owner and one.load not in kept and (not shown or str(one) != shown.generation):
                self._tables.drop(one)

    def resume(self, fence: Fence) -> bool:
        if self.is_shown:
            return False
        self._generation = self._find()
        discarded = self._target.retry_while_blocked(
            lambda: self._tables.discard_uncounted(self._required, fence.found.accepted)
        )
        if discarded:
            self._target.context.log("info", "load.uncounted_discarded", rows=discarded)
        return True

    @property
    def _required(self) -> Named:
        if self._generation is None:
            raise RuntimeError("a load is begun before it is used")
        return self._generation

    @contextmanager
    def writer(self) -> Iterator[GroupingWriter]:
        target, options = self._target, self._target.definition.options
        converter = Converter(target.layout, options.delete_when, merges=False)
        writer = target.keep(GroupingWriter(converter, self._insert, ahead=AHEAD, groups=True))
        try:
            yield writer
        finally:
            writer.drain()

    def _insert(self, what: Inserting) -> None:
        """Insert rows unchanged: several versions of a key are found by the check, and merged later.

        If one insert holds all rows, the server merges it on insert, so that readers need not merge.
        """
        target, path = self._target, self._tables.path(self._required)
        settings = {} if what.may_be_all else {"optimize_on_insert": 0}
        target.retry_insert(lambda: target.server.insert(path, what.rows, token=what.token, **settings))
        failpoints.hit("clickhouse.inserted")

    def publish(self, fence: Fence) -> Counts:
        target = self._target
        counts = Counts(inserted=fence.found.rows)
        if not self.is_shown:
            self._check(fence.found)
            failpoints.hit("clickhouse.checked")
            target.retry_while_blocked(self._switch)
        failpoints.hit("publish.applied")
        shown = target.retry_while_blocked(self._tables.shown)
        fence.after(Done(counts, identity={IDENTITY: shown.load if shown else None}))
        return counts

    def _check(self, found: Checkpoint) -> None:
        """Discard uncounted rows, then refuse extra rows, repeated keys and a target that would shrink too much."""
        target, tables, name = self._target, self._tables, self._required
        versioned = target.options.is_versioned if target.has_layout else True
        target.retry_while_blocked(lambda: tables.discard_uncounted(name, found.accepted))
        rows = target.retry_while_blocked(lambda: tables.count(name, final=versioned))
        if not versioned and self._loading.refuses_repeats:
            rows -= target.retry_while_blocked(self._repeats)
        if rows > found.rows:
            raise StageLost(f"the unfinished generation {name} holds {rows:,} rows, {found.rows:,} were counted")
        if rows < found.rows and self._loading.refuses_repeats:
            raise DuplicateKeys(
                f"{found.rows - rows:,} row(s) share their key ({', '.join(target.layout.key)}) with another one:"
                " change target_key, or group the rows in the query"
            )
        if self._loading.deletes:
            target.refuse_shrinking_to(rows)

    def _repeats(self) -> int:
        key = ", ".join(f"`{name}`" for name in self._target.layout.key)
        found = self._target.server.value(
            f"SELECT sum(c - 1) FROM (SELECT count() AS c FROM {self._tables.path(self._required)} GROUP BY {key})"
        )
        return int(found or 0)

    def _switch(self) -> None:
        """Point the plain name at the new generation (`Tables.show`), or add its rows if nothing is deleted."""
        shown = self._tables.shown()
        if shown is not None and not self._loading.deletes:
            self._target.context.require_held()
            self._tables.attach(self._required, shown.generation)
            return
        columns = list(self._tables.columns(str(self._required)))
        if not columns:
            raise LeaseLost(f"{self._required} was removed: another runner took the pipeline over")
        if self._target.has_layout:
            key, versioned = self._target.layout.key, self._target.options.is_versioned
        else:
            key, versioned = (shown.key, shown.is_versioned) if shown else ((), True)
        self._tables.show(
            str(self._required),
            self.name or "",
            key,
            columns,
            versioned=versioned,
            still_held=self._target.context.require_held,
        )

    def discard(self) -> None:
        _clean(self._target, self._tables.discard_unshown)


class MergeLoad(BaseLoad):
    """Write parts aside and add them to what is shown, one by one. The latest version of a key counts."""

    def __init__(self, target: OpenedTable, loading: Loading) -> None:
        self._target = target
        self._tables = target.tables
        self._loading = loading
        self._shown: Shown | None = None
        self._writer: GroupingWriter | None = None
        self._load = new_load()

    def obstacle(self, found: Checkpoint) -> str | None:
        """Return why the target is not the generation of earlier passes, which alone holds what they delivered."""
        shown = self._target.retry_while_blocked(self._tables.shown)
        known = found.identity.get(IDENTITY)
        if not (found.safe_upto or found.last_key) or known is None:
            return None
        if shown is None or shown.load != known:
            return f"{self._tables} was deleted or replaced by hand"
        return None

    def begin(self, fence: Fence) -> None:
        shown = self._shown = self._target.retry_while_blocked(self._current)
        fence.after(Done(identity={IDENTITY: shown.load}))

    def _current(self) -> Shown:
        """Return what is shown; create it if it is missing, and add the columns that the run writes."""
        target, tables = self._target, self._tables
        held = target.context.require_held
        shown = tables.shown()
        if shown is None:
            made = tables.create_generation(target.layout)
            tables.show(str(made), made.load, target.layout.key, target.layout.names, versioned=True, still_held=held)
            shown = tables.shown()
        if shown is None:
            raise TransientError(f"{tables} was dropped just now")
        if missing := target.missing_fields(shown):
            held()
            tables.add_columns(shown.generation, missing)
            columns = list(tables.columns(shown.generation))
            tables.show(shown.generation, shown.load, shown.key, columns, versioned=True, still_held=held, again=True)
        return shown

    @property
    def _current_shown(self) -> Shown:
        if self._shown is None:
            raise RuntimeError("a load is begun before it is written")
        return self._shown

    @contextmanager
    def writer(self) -> Iterator[GroupingWriter]:
        target, options = self._target, self._target.definition.options
        converter = Converter(target.layout, options.delete_when, merges=True, watched=self._loading.watched)
        # Each part has its own table, so that nothing of the next part is added with it.
        writer = self._writer = target.keep(GroupingWriter(converter, self._insert, ahead=0, groups=False))
        try:
            yield writer
        finally:
            writer.drain()
            target.release(writer)  # a live run opens one for each of its batches

    def _stage(self, number: int) -> Named:
        return Named(self._tables.table, "s", self._tables.owner, f"{self._load}p{number}")

    def _insert(self, what: Inserting) -> None:
        target, tables = self._target, self._tables
        stage = self._stage(what.part.number)

        def move() -> None:
            tables.create_like(self._current_shown.generation, "s", stage.load)
            target.server.insert(tables.path(stage), what.rows, token=what.token)

        target.retry_insert(move)
        failpoints.hit("clickhouse.inserted")

    def commit(self, part: Part, fence: Fence) -> None:
        if part.staged_rows:
            self._merge(part.number, pieces=self._pieces(part))
        fence.after(Done(part.counts))
        if part.staged_rows:
            _clean(self._target, lambda: self._tables.drop(self._stage(part.number)))

    def _pieces(self, part: Part) -> int:
        return self._writer.pieces(PartId(self._tables.owner.epoch, part.number)) if self._writer else 0

    def _merge(self, number: int, *, pieces: int) -> None:
        target, tables, stage = self._target, self._tables, self._stage(number)
        if pieces > 1:
            target.retry_while_blocked(lambda: tables.merge_pieces(stage))
        # The stage exists already: if the claim still holds now, a runner that takes over later finds and drops it.
        target.context.require_held()
        failpoints.hit("clickhouse.checked")
        target.retry_while_blocked(lambda: tables.attach(stage, self._current_shown.generation))
        failpoints.hit("merge.applied")

    def correct(self, part: Part, stale: Stale, read: Sequence[Key], fence: Fence, refuse: RefuseDeletes) -> Counts:
        """Add tombstones of the rows that left the source to the part, then show both in one step.

        Readers see whole batches. Late inserts of an older claim have lower versions, and their table no longer exists.
        """
        self._refuse_replaced()
        absent, pieces = self._absent(stale, read), self._pieces(part)
        refuse(len(absent), lambda: len(absent))
        if absent:
            self._insert_tombstones(absent, part.number)
            pieces += 1
        if pieces:
            self._merge(part.number, pieces=pieces)
        counts = part.counts + Counts(deleted=len(absent))
        fence.after(Done(counts))
        if pieces:
            _clean(self._target, lambda: self._tables.drop(self._stage(part.number)))
        return counts

    def _refuse_replaced(self) -> None:
        shown = self._target.retry_while_blocked(self._tables.shown)
        if shown is None or shown.load != self._current_shown.load:
            raise TransientError(f"{self._tables} was deleted or replaced by hand just now")

    def _absent(self, stale: Stale, read: Sequence[Key]) -> list[Key]:
        from vitrina.connectors.clickhouse.absent import absent_keys

        table = self._tables.path(self._current_shown.generation)
        return self._target.retry_while_blocked(lambda: absent_keys(self._target, table, stale, read))

    def _insert_tombstones(self, keys: Sequence[Key], number: int) -> None:
        part = PartId(self._tables.owner.epoch, number)
        converter = Converter(self._target.layout, None, merges=True)
        self._insert(Inserting(converter.tombstones(keys, part), part, f"{version_of(*part)}-remove"))

    def count_rows(self) -> int:
        return self._target.retry_while_blocked(lambda: self._target.count_shown(self._current_shown))

    def remove(self, keys: Sequence[Key], number: int, fence: Fence) -> Counts:
        """Write tombstones for these keys, as part `number`."""
        counts = Counts(deleted=self._count_of(keys))
        self._insert_tombstones(keys, number)
        self._merge(number, pieces=1)
        fence.after(Done(counts))
        _clean(self._target, lambda: self._tables.drop(self._stage(number)))
        return counts

    def _count_of(self, keys: Sequence[Key]) -> int:
        from vitrina.connectors.clickhouse.compare import TableSide

        shown = f"{self._tables.path(self._current_shown.generation)} FINAL"
        return TableSide(self._target, shown, (), is_source=False).count_of(keys)

    def discard(self) -> None:
        """Remove rows that were deleted long ago."""
        epoch = self._tables.owner.epoch
        horizon = min(epoch, epoch - self._target.options.tombstone_hours * _HOUR_MS)
        if horizon > 0:
            shown = self._current_shown
            _clean(self._target, lambda: self._tables.clean_tombstones(shown, horizon, FEWEST_TOMBSTONES))


def _clean(target: OpenedTable, clean: Callable[[], object]) -> None:
    """Clean up, and leave to a later run what cannot be removed now."""
    try:
        clean()
    except (LeaseLost, TargetMismatch):
        raise
    except RunError as exc:
        target.context.log("warning", "clickhouse.not_cleaned", reason=exc.message)
