"""Follow a source: run a full load if needed, then apply batches of what the source's log reports as changed.

The log names the rows that changed. From them the stale keys are derived, and the query is run again for these keys.
Rows that it returns are merged, keys that it does not return are deleted. Repeating a batch is therefore harmless.
"""

import select
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from psycopg.sql import SQL, Identifier

from vitrina import failpoints, schedule
from vitrina.definition import Definition
from vitrina.errors import FatalError, TransientError
from vitrina.loads.control import Paused
from vitrina.loads.full import full
from vitrina.loads.incremental import begin, open_merge
from vitrina.loads.run import Run, RunFence
from vitrina.loads.shrink_guard import ShrinkGuard
from vitrina.ports.batch import Batch, Key, Part
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.live import (
    Asked,
    Change,
    Corrects,
    CorrectsUnopened,
    Derivation,
    Followable,
    Following,
    Moment,
    Stale,
)
from vitrina.ports.source import BaseSource, Description, Form, Window
from vitrina.ports.target import Done, Load
from vitrina.sentences import say
from vitrina.status import Status
from vitrina.store import feeds, leases

if TYPE_CHECKING:
    from collections.abc import Generator

# Keys of the checkpoint's identity: the follower's position, and its position once the running load is published.
PLACE, PLACE_OF_LOAD = "live", "live_load"
# The claim whose parts are numbered starting from one.
NUMBERED = "live_epoch"

# Changes are read from the feed in portions. Beyond a number of them a full load is cheaper, and memory stays bounded.
_PORTION = 10_000
_MOST_CHANGES = 200_000
# The largest share of the target's rows that is queried by key. Small numbers of keys always are.
_SHARE_OF_TARGET = 1 / 3
_FEW_KEYS = 10_000
# How long a batch waits until the feed has stored what its snapshot shows: at first, and at most.
_STORED_SECONDS = 2.0
_MOST_STORED_SECONDS = 60.0
# How often requests are checked during a wait, and while nothing changes.
_LOOK_SECONDS = 0.5
_IDLE_LOOK_SECONDS = 1.0
# How often an idle follower checks the feed and records that it is up to date.
_IDLE_SECONDS = 5.0
# How long a feed may take to become ready if it reports a reason.
_READY_SECONDS = 60.0
_LONGEST_RUN = timedelta(hours=24)
# Interval between evaluations of the checks that concern all rows of the target.
_JUDGED_SECONDS = 60.0
# Minimum interval between full loads that changes cause, unless options.live.reload sets it.
_BETWEEN_LOADS = timedelta(seconds=10)


class Again(Exception):
    """Signal that the run ends and the next one begins immediately, with a full load if `loads`."""

    def __init__(self, reason: str, *, loads: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.loads = loads


class _Disabled(Exception):
    """Signal that the pipeline was disabled and is no longer followed."""


@dataclass(frozen=True)
class Place:
    """Hold a follower's position: every change up to `lsn` is in the target."""

    lsn: int
    feed: str
    # Digest of what the log does not contain: it changes when tables are swapped, attached or altered.
    catalog: str
    # Digest of the definition.
    fingerprint: str
    # The target equals the query at this moment, by the source's clock.
    as_of: str | None = None

    @classmethod
    def kept(cls, found: Checkpoint, name: str = PLACE) -> "Place | None":
        kept = found.identity.get(name)
        return cls(**kept) if isinstance(kept, dict) else None

    def put_into(self, found: Checkpoint, name: str = PLACE) -> Checkpoint:
        return found.identified(**{name: asdict(self)})


def live(run: Run) -> None:
    """Load if necessary, then follow until a request ends it. Raise `Again` when the next run shall continue."""
    with closing(Follower(run)) as follower, suppress(_Disabled):
        number_parts(run)
        follower.register()
        follower.load_if_needed()
        follower.follow()


def number_parts(run: Run) -> None:
    """Number the parts of each claim starting from one.

    A follower runs without end, and the versions of documents and of ClickHouse's rows have room for four million part
    numbers of a claim.
    """
    found, epoch = run.checkpoint, run.job.claim.epoch
    if found.stage is None and found.identity.get(NUMBERED) != epoch:
        run.record("numbering parts", replace(found, batch_no=0).identified(**{NUMBERED: epoch}))


def forget_position(run: Run) -> None:
    """Forget a follower's position, for a run of another mode, which does not write in the follower's order."""
    forgotten = (PLACE, PLACE_OF_LOAD, NUMBERED)
    kept = {name: value for name, value in run.checkpoint.identity.items() if name not in forgotten}
    run.checkpoint = replace(run.checkpoint, identity=kept)


class Follower:
    """Follow a source during one run of a live pipeline."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._metastore = run.job.metastore
        self._pipeline = run.job.pipeline_id
        self._derivation = _derivation(run)
        self._following = _following(run, self._derivation)
        self._tables = frozenset(table.relation for table in self._derivation.tables)
        self._guard = ShrinkGuard()
        self._feed = UUID(int=0)
        self._ready = 0
        self._renewed_because: str | None = None
        self._load: Load | None = None
        self._ends = time.monotonic() + _LONGEST_RUN.total_seconds()
        self._reloads = _reload_interval(run.job.definition)
        self._loaded = time.monotonic()
        self._recorded = 0.0
        self._judged = time.monotonic()
        self._is_unjudged = False
        self._stored_seconds = _STORED_SECONDS
        self._corrected = 0.0
        # Keys of rows that were rejected and have not passed since. A row that changes often counts once.
        self._rejected: set[str] = set()

    def close(self) -> None:
        self._following.close()

    def register(self) -> None:
        """Register the needed tables and columns with the feed, and wait until all of them are in the log."""
        connection = self._run.job.definition.source_connection
        feed = feeds.ensure(self._metastore, self._following.database, connection)
        self._feed = feed.id
        self._following.watch(feed.publication)
        other_catalog = self._other_catalog()
        self._renewed_because = self._must_reload() or other_catalog
        afresh = other_catalog is not None
        try:
            feeds.register(self._metastore, self._feed, self._pipeline, self._columns(), afresh=afresh)
        except LookupError as exc:  # the feed was just dropped; the next attempt creates another
            raise TransientError(str(exc)) from exc
        self._ready = self._await_ready()

    def _columns(self) -> dict[str, Sequence[str]]:
        wanted: dict[str, set[str]] = {}
        for table in self._derivation.tables:
            wanted.setdefault(table.relation, set()).update(table.columns)
        return {relation: sorted(columns) for relation, columns in wanted.items()}

    def _other_catalog(self) -> str | None:
        place = Place.kept(self._run.checkpoint)
        if place is None:
            return None
        with self._following.moment() as moment:
            return None if moment.catalog == place.catalog else say("run.live_catalog_changed")

    def _await_ready(self) -> int:
        until = time.monotonic() + _READY_SECONDS
        while (ready := feeds.ready(self._metastore, self._feed, self._pipeline)) is None:
            problem = feeds.problem(self._metastore, self._feed, self._pipeline)
            if problem and time.monotonic() > until:
                raise FatalError(say("run.live_not_ready", problem=problem))
            self._show_wait(problem or say("run.live_awaits_feed"))
            self._look()
            self._run.control.wait(_LOOK_SECONDS / 2)
        self._show_wait(None)
        return ready

    def _show_wait(self, reason: str | None) -> None:
        self._run.context.waits_because = reason
        self._run.context.show()

    def load_if_needed(self) -> None:
        run, reason = self._run, self._why_load()
        if reason is not None:
            run.log.info("live.loads", reason=reason)
            run.meter.note("loads_because", reason)
            self._load_all()

    def _why_load(self) -> str | None:
        found, place = self._run.checkpoint, Place.kept(self._run.checkpoint)
        if self._run.job.claim.row["run_requested_at"] is not None:
            return say("run.live_load_asked")
        if place is None or found.stage is not None:
            return say("run.live_first_load")
        if place.fingerprint != self._run.fingerprint:
            return say("plan.definition_changed")
        if self._renewed_because:
            return self._renewed_because
        if place.feed != self._feed_name or place.lsn < self._ready:
            return say("run.live_feed_renewed")
        return self._run.job.target.lost(found)

    @property
    def _feed_name(self) -> str:
        return str(self._feed)

    def _must_reload(self) -> str | None:
        return feeds.must_reload(self._metastore, self._feed, self._pipeline)

    def _load_all(self) -> None:
        """Load everything. The follower continues from the feed's position before the load's first snapshot."""
        run = self._run
        place = self._place_of_load()
        run.record("beginning a full load", place.put_into(run.checkpoint, PLACE_OF_LOAD))
        full(run)
        done = place.put_into(run.checkpoint)
        kept = {name: value for name, value in done.identity.items() if name != PLACE_OF_LOAD}
        run.record("following from here", replace(done, identity=kept), progressed=True)
        feeds.passed(self._metastore, self._feed, self._pipeline, place.lsn)
        self._loaded = time.monotonic()

    def _place_of_load(self) -> Place:
        """Find the position to follow from. An interrupted load that is resumed has read rows before now."""
        run, begun = self._run, Place.kept(self._run.checkpoint, PLACE_OF_LOAD)
        fresh = self._fresh_place()
        if run.checkpoint.stage is None:
            return fresh
        if begun and replace(begun, lsn=fresh.lsn) == fresh and begun.lsn >= self._ready:
            return begun
        run.log_started_over(say("run.live_feed_renewed"))
        run.checkpoint = run.checkpoint.without_cursor()
        return fresh

    def _fresh_place(self) -> Place:
        """Return the position that a snapshot taken now allows: before the first transaction that it does not show."""
        while True:
            self._look(ends_at_request=False)
            with self._following.moment() as moment:
                if self._is_stored(moment):
                    upto = self._gathered(moment, max(self._ready, self._passed)).upto
                    return Place(upto, self._feed_name, moment.catalog, self._run.fingerprint)

    @property
    def _passed(self) -> int:
        place = Place.kept(self._run.checkpoint)
        return place.lsn if place and place.feed == self._feed_name else 0

    def follow(self) -> None:
        """Apply batches until a request, or a change that the log does not contain, ends the run."""
        run = self._run
        self._load = open_merge(run, latest_counts=True)
        if not isinstance(self._load, Corrects):
            raise FatalError(say("run.live_target", target=run.job.definition.final_target))
        begin(run, self._load)
        run.letters.watch_steps()
        if run.job.fitted.step_pipeline:
            run.job.fitted.step_pipeline.steps.notes_filtered = True
        self._load.discard()  # left by deletes of earlier runs
        self._guard.count(self._load.count_rows())
        self._metastore.execute(SQL("LISTEN {}").format(Identifier(feeds.STORED)))
        run.meter.note("following", True)
        run.log.info("live.following", tables=sorted(self._tables))
        while True:
            self._look()
            self._batch()
            self._judge()
            self._await_changes()

    def _judge(self) -> None:
        """Check the whole target from time to time, if it has changed."""
        if self._is_unjudged and time.monotonic() > self._judged + _JUDGED_SECONDS:
            self._run.judge_target()
            self._judged, self._is_unjudged = time.monotonic(), False

    def _look(self, *, ends_at_request: bool = True) -> None:
        """Obey lease, pause, `disable` and requests."""
        run = self._run
        run.control.check()
        asked = leases.find_asked(self._metastore, run.job.claim)
        if asked.status is Status.PAUSE_REQUESTED:
            raise Paused
        if not asked.enabled:
            raise _Disabled
        if not ends_at_request:
            return
        if asked.version != run.job.claim.version:
            raise Again(say("plan.definition_changed"), loads=False)
        if self._load is not None and asked.run_requested_at is not None:
            raise Again(say("run.live_load_asked"), loads=True)
        if self._load is not None and asked.is_wanted:
            raise Again(say("run.live_lets_go"), loads=False)
        self._look_at_clock()

    def _look_at_clock(self) -> None:
        now = time.monotonic()
        if now > self._ends:
            raise Again(say("run.live_day"), loads=False)
        if self._reloads and now > self._loaded + self._reloads.total_seconds():
            raise Again(say("run.live_reload"), loads=True)

    def _batch(self) -> None:
        """Bring the target to the state of the source at one moment."""
        started = time.monotonic()
        with self._following.moment() as moment:
            if not self._is_stored(moment):
                return
            self._refuse_unlogged(moment)
            gathered = self._gathered(moment, self._place.lsn)
            failpoints.hit("live.gathered")
            stale = moment.stale(gathered.changes) if gathered.changes else Stale()
            place = replace(self._place, lsn=gathered.upto, as_of=moment.at.isoformat())
            is_too_much = self._is_too_much(stale)
            if stale.keys and not is_too_much:
                self._correct(moment, stale, place, started)
            elif not is_too_much:
                self._note_idle(place)
        if is_too_much:
            # No snapshot is held during this time; it would keep the source from vacuuming.
            self._load_instead(stale)

    @property
    def _place(self) -> Place:
        place = Place.kept(self._run.checkpoint)
        if place is None:
            raise TransientError("the checkpoint of the follower was taken away")
        return place

    def _is_stored(self, moment: Moment) -> bool:
        """Wait until the feed has what the snapshot shows. Return False if a later snapshot has to be taken.

        A snapshot that is held keeps the source from vacuuming. But if the feed is always later than the wait, no
        snapshot would ever be reached, so each wait is twice as long as the last.
        """
        end = time.monotonic() + self._stored_seconds
        while not feeds.wait_stored(self._metastore, self._feed, moment.lsn, _LOOK_SECONDS):
            if time.monotonic() > end:
                self._stored_seconds = min(2 * self._stored_seconds, _MOST_STORED_SECONDS)
                self._show_wait(say("run.live_awaits_feed"))
                return False
            self._look(ends_at_request=self._load is not None)
            moment.keep()
        self._stored_seconds = _STORED_SECONDS
        self._show_wait(None)
        return True

    def _refuse_unlogged(self, moment: Moment) -> None:
        reason = self._must_reload()
        if reason is None and moment.catalog != self._place.catalog:
            reason = say("run.live_catalog_changed")
        if reason is not None:
            raise Again(reason, loads=True)

    def _gathered(self, moment: Moment, after: int) -> "Gathered":
        gathered = Gathered(moment, self._tables)
        while True:
            portion = feeds.read(self._metastore, self._feed, after, _PORTION, relations=self._tables)
            gathered.add(portion)
            if not portion or portion[-1].lsn > moment.lsn:
                return gathered
            if self._load is None:
                gathered.changes.clear()  # before a full load only their position matters
            elif len(gathered.changes) > _MOST_CHANGES:
                raise Again(say("run.live_many_changes", changes=len(gathered.changes)), loads=True)
            after = portion[-1].lsn

    def _is_too_much(self, stale: Stale) -> bool:
        return stale.everything or len(stale.keys) > max(_FEW_KEYS, self._guard.rows * _SHARE_OF_TARGET)

    def _load_instead(self, stale: Stale) -> None:
        """Load everything, but not more often than configured. Until then the target stays as it is."""
        reason = stale.why or say("run.live_many_keys", keys=len(stale.keys))
        until = self._loaded + (self._reloads or _BETWEEN_LOADS).total_seconds()
        self._show_wait(say("run.live_awaits_load", reason=reason) if time.monotonic() < until else None)
        while time.monotonic() < until:
            self._look()
            self._run.control.wait(_LOOK_SECONDS / 2)
        raise Again(reason, loads=True)

    def _note_idle(self, place: Place) -> None:
        """Record from time to time that the target is up to date although nothing was written."""
        if time.monotonic() < self._recorded + _IDLE_SECONDS:
            return
        run = self._run
        self._note(place)
        run.record("following", place.put_into(run.checkpoint), progressed=True)
        run.meter.is_alive()
        self._passed_on(place)

    def _note(self, place: Place) -> None:
        self._recorded = time.monotonic()
        self._run.meter.note("as_of", place.as_of)

    def _passed_on(self, place: Place) -> None:
        """Let the feed discard what was applied. The next check obeys requests."""
        self._run.settle(obey_pause=False)
        feeds.passed(self._metastore, self._feed, self._pipeline, place.lsn)

    def _await_changes(self) -> None:
        """Return when one of the followed tables has changed, or when it is time to record that none has.

        After each batch, wait a while if the target suffers from many small corrections.
        """
        rests_until = self._corrected + self._run.job.target.correction_seconds
        while (left := rests_until - time.monotonic()) > 0:
            self._look()
            self._run.control.wait(min(left, _LOOK_SECONDS))
        is_told = True
        while time.monotonic() < self._recorded + _IDLE_SECONDS:
            if is_told and self._has_changes():
                return
            self._look()
            is_told = self._await_notice(_IDLE_LOOK_SECONDS)

    def _await_notice(self, seconds: float) -> bool:
        """Wait until changes of any source were stored. The driver's own wait wakes up too often."""
        session = self._metastore
        if list(session.notifies(timeout=0)):
            return True
        select.select([session.fileno()], [], [], seconds)
        return bool(list(session.notifies(timeout=0)))

    def _has_changes(self) -> bool:
        return bool(feeds.read(self._metastore, self._feed, self._place.lsn, 1, relations=self._tables))

    def _correct(self, moment: Moment, stale: Stale, place: Place, started: float) -> None:
        run, shortcut, load = self._run, self._run.job.shortcut, self._load
        number = run.checkpoint.batch_no + 1
        if load is None:
            raise RuntimeError("a follower opens its load first")
        if run.plan.route != "arrow" and isinstance(shortcut, CorrectsUnopened):
            part = Part(number, len(stale.keys), None)
            shortcut.correct(load, moment, stale, number, self._fence(part, place, started))
        else:
            self._correct_through_steps(moment, stale, place, started)
        failpoints.hit("batch.committed")
        self._corrected = time.monotonic()
        run.meter.is_alive()
        run.log.debug("live.batch", keys=len(stale.keys), ms=run.meter.last_batch_ms)
        self._passed_on(place)
        self._is_unjudged = bool(run.job.definition.checks)

    def _correct_through_steps(self, moment: Moment, stale: Stale, place: Place, started: float) -> None:
        run, load = self._run, self._load
        if not isinstance(load, Corrects):
            raise RuntimeError("a follower opens its load first")
        rows = _Rows(moment, stale)
        part = self._written(load, rows, run.checkpoint.batch_no + 1)
        self._refuse_rejected_rows(part)

        def refuse(at_most: int, exactly: Callable[[], int]) -> None:
            self._guard.refuse_more(at_most, exactly, load, run)

        load.correct(part, stale, rows.keys_without(part.filtered), self._fence(part, place, started), refuse)
        run.letters.delivered(part, committed=True)

    def _written(self, load: Load, rows: "_Rows", number: int) -> Part:
        """Pass the rows through the steps to the target as one part, which becomes visible as a whole."""
        # Imported here: rows that Postgres moves by itself need neither pyarrow nor its half second of import.
        from vitrina.loads.flow import Flow

        run = self._run
        step_pipeline = run.job.fitted.step_pipeline
        with load.writer() as writer:
            steps = step_pipeline.steps if step_pipeline else None
            flow = Flow(rows, Window(), steps, writer, run.job.claim.epoch, gate=run.gate)
            parts = list(flow.parts(number, None))
        return parts[0] if parts else Part(number, 0, None)

    def _refuse_rejected_rows(self, part: Part) -> None:
        """Stop before anything is deleted if more rows are rejected than allowed. The position does not move."""
        run, budget = self._run, self._run.letter_budget
        self._rejected |= {letter.document_id for letter in part.letters if not letter.by_check}
        self._rejected -= part.delivered
        if budget is None or len(self._rejected) <= budget:
            return

        def move(_: Done) -> Checkpoint:
            run.letters.record_rejected(part)
            return run.checkpoint

        run.fence("recording rejected rows", move, progressed=False).after()
        target = run.job.definition.final_target
        raise FatalError(say("run.live_letters", letters=len(self._rejected), target=target, budget=budget))

    def _fence(self, part: Part, place: Place, started: float) -> RunFence:
        run, load = self._run, self._load

        def move(done: Done) -> Checkpoint:
            if isinstance(load, Corrects):
                self._guard.refuse(done.counts, load, run)
            run.letters.record_rejected(run.after_checks(part, done))
            run.meter.batch(part, done.counts, time.monotonic() - started)
            run.meter.merged(done.counts)
            self._note(place)
            found = place.put_into(replace(run.checkpoint, batch_no=part.number))
            return replace(found, identity=found.identity | dict(done.identity))

        return run.fence("correcting the target", move, points=["batch.fenced"])


def _derivation(run: Run) -> Derivation:
    if run.job.derivation is None:
        raise RuntimeError("a live run is derived when it is inspected")
    return run.job.derivation


def _following(run: Run, derivation: Derivation) -> Following:
    source = run.job.source
    if not isinstance(source, Followable):
        raise FatalError(say("definition.live_needs_query"))
    given = {column.name for column in run.job.described.columns}
    made = [name for name in run.job.key if name not in given]
    if made:
        raise FatalError(say("run.live_made_key", column=made[0]))
    return source.follow(derivation)


def _reload_interval(definition: Definition) -> timedelta | None:
    asked = definition.options.live.reload
    return schedule.interval_of(asked) if asked else None


class Gathered:
    """Hold the stored changes that one snapshot shows, and the position up to which they are complete."""

    def __init__(self, moment: Moment, tables: frozenset[str]) -> None:
        self._moment = moment
        self._tables = tables
        self.changes: list[Change] = []
        self._first_left: int | None = None

    def add(self, portion: Sequence[Change]) -> None:
        for change in portion:
            if change.lsn > self._moment.lsn or change.relation not in self._tables:
                continue
            if self._moment.sees(change.xid):
                self.changes.append(change)
            elif self._first_left is None:
                self._first_left = change.lsn

    @property
    def upto(self) -> int:
        """Return the position before the first transaction that is left. Those taken after it are taken again."""
        return self._moment.lsn if self._first_left is None else self._first_left - 1


class _Rows(BaseSource):
    """Read the rows of stale keys as a source, and remember the keys before any step sees them."""

    name = "the query"

    def __init__(self, moment: Moment, stale: Stale) -> None:
        self._moment = moment
        self._stale = stale
        self._asked: Asked | None = None

    def keys_without(self, filtered: Sequence[int]) -> Sequence[Key]:
        """Return the keys of all rows in the result. Rejected rows are included; rows that a step dropped are not."""
        keys = self._asked.keys if self._asked else ()
        left_out = set(filtered)
        return [key for at, key in enumerate(keys) if at not in left_out] if left_out else keys

    def describe(self, window: Window) -> Description:
        return Description()

    def read(self, window: Window, form: Form) -> "Generator[Batch, None, None]":
        self._asked = self._moment.ask(self._stale, form)
        yield from self._asked.batches()
