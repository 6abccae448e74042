"""Own feeds: one thread per feed reads the log of a source, stores it, and confirms what is stored."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import psycopg
import structlog

from vitrina import failpoints
from vitrina.errors import CannotConnect, ConfigError, FeedLost, LeaseLost, VitrinaError
from vitrina.ports import registry
from vitrina.ports.live import Feed, FollowedDatabase, Published, Transaction
from vitrina.runner.watchdog import SILENCE_SECONDS, SessionWatchdog, silence_limit
from vitrina.settings import Settings, feed_variable
from vitrina.store import database, feed_owner, feeds
from vitrina.store.database import Connection
from vitrina.store.feed_owner import FeedClaim, Follower, Storage

# Seconds to wait after an error; the last value repeats.
BACKOFF_SECONDS = (1.0, 2.0, 5.0, 10.0)
# Transactions are stored in batches: one metastore commit for each would slow down a busy source. A batch delays
# followers by at most BATCH_SECONDS.
BATCH_CHANGES = 20_000
BATCH_SECONDS = 0.1
# How long the loop sleeps when nothing arrives and no follower waits.
IDLE_SECONDS = 1.0
SETTLING_SECONDS = 0.1
# How often the catalog is compared with the publication. A table that loses its replica identity makes the
# application's updates fail until it leaves the publication.
CATALOG_SECONDS = 2.0
FIGURES_SECONDS = 5.0
# A source that changes none of the followed tables still writes its log and keeps it until it is confirmed.
CONFIRM_SECONDS = 10.0
WRITE_OUT_SECONDS = 0.05
LEAVE_SECONDS = 5.0
# Creating a slot waits for open transactions of the source and has a separate time limit.
_SOURCE_SILENCE_SECONDS = silence_limit(60.0)


class _Stopping(Exception):
    """Signal that the runner is shutting down."""


class FeedKeeper:
    """Keep all feeds of one runner. The runner's loop and heartbeat call this; no method but `stop` blocks."""

    def __init__(self, settings: Settings, runner_id: UUID, watchdog: SessionWatchdog) -> None:
        self._settings = settings
        self._runner_id = runner_id
        self._watchdog = watchdog
        self._owners: dict[UUID, FeedOwner] = {}
        self._lock = threading.Lock()

    def look(self, connection: Connection) -> None:
        """Claim the feeds that no runner owns."""
        names = self._settings.feed_connections
        if not names:
            return
        for claim in feed_owner.claim_free(connection, self._runner_id, self._settings.lease_ttl_seconds, names):
            failpoints.hit("feed.claimed")
            owner = FeedOwner(claim, self._settings, self._watchdog)
            with self._lock:
                self._owners[claim.claim_id] = owner
            owner.start()

    def beat(self, connection: Connection) -> None:
        """Extend the leases, and end the owners whose lease was lost."""
        with self._lock:
            self._owners = {claim_id: owner for claim_id, owner in self._owners.items() if owner.is_running}
            owners = dict(self._owners)
        if owners:
            held = feed_owner.extend(connection, list(owners), self._settings.lease_ttl_seconds)
            for claim_id, owner in owners.items():
                if claim_id not in held:
                    owner.lose()

    def stop(self) -> None:
        """Release all feeds, so that another runner can take them over immediately."""
        with self._lock:
            owners = list(self._owners.values())
        for owner in owners:
            owner.stop()
        end = time.monotonic() + LEAVE_SECONDS
        for owner in owners:
            owner.join(max(0.0, end - time.monotonic()))


@dataclass
class _Due:
    """Track when something is due again."""

    every_seconds: float
    at: float = 0.0

    def now(self) -> bool:
        if time.monotonic() < self.at:
            return False
        self.at = time.monotonic() + self.every_seconds
        return True


@dataclass
class _CatchUp:
    """Hold a log position that followers wait for."""

    upto: int = 0
    since: float = 0.0
    written_out: bool = False


@dataclass
class _Known:
    """Hold what is known about the source during one connection to it."""

    columns: dict[str, frozenset[str]] = field(default_factory=dict)
    published: Published = field(default_factory=lambda: Published({}, {}, frozenset(), changed=False))
    # Tables added to the publication in the middle of a transaction. Their followers are notified after it.
    added: frozenset[str] = frozenset()
    stored_upto: int = 0
    # Followers waiting for the end of transactions that began before their tables were published.
    settling: dict[UUID, tuple[Follower, int]] = field(default_factory=dict)
    catch_up: _CatchUp = field(default_factory=_CatchUp)


class FeedOwner:
    """Own one feed in a thread, until the lease is lost, the runner stops, or no pipeline follows any more."""

    def __init__(self, claim: FeedClaim, settings: Settings, watchdog: SessionWatchdog) -> None:
        self._claim = claim
        self._settings = settings
        self._watchdog = watchdog
        self._stop = threading.Event()
        self._lost = threading.Event()
        self._discard: str | None = None
        self._log = structlog.get_logger().bind(feed=claim.names.slot, connection=claim.connection or "default")
        self._thread = threading.Thread(target=self._work, name=f"feed-{claim.feed_id.hex[:8]}", daemon=True)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def lose(self) -> None:
        self._lost.set()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _work(self) -> None:
        failures = 0
        while not self._lost.is_set():
            try:
                self._follow()
                return
            except LeaseLost as exc:
                self._log.warning("feed.lease_lost", error=exc.message)
                return
            except _Stopping:
                self._give_back()
                return
            except Exception as exc:  # noqa: BLE001 - whatever broke this connection, the next one may work
                self._note_failure(exc)
            wait = BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)]
            failures += 1
            self._stop.wait(wait)

    def _check(self) -> None:
        if self._lost.is_set():
            raise self._claim.lost()
        if self._stop.is_set():
            raise _Stopping

    # --- one connection to the source ------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Read the log until an exception is raised, or return when no pipeline follows any more."""
        self._check()
        url = self._settings.find_feed_url(self._claim.connection)
        if url is None:
            raise ConfigError(f"{feed_variable(self._claim.connection)} is not set")
        with ExitStack() as opened:
            metastore = opened.enter_context(self._metastore(self._claim.session_name))
            feed_owner.end_older_sessions(metastore, self._claim)
            source = opened.enter_context(self._source(url))
            if self._retires(metastore, source):
                return
            known = self._prepare(metastore, source)
            feed = source.open(lambda: known.published, lambda: known.columns)
            opened.callback(feed.close)
            feed.start(known.stored_upto)
            failpoints.hit("feed.started")
            metastore.execute(f"LISTEN {feeds.ASKED}")
            self._log.info("feed.started", after=known.stored_upto)
            _ReplicationLoop(
                self._claim,
                self._settings,
                metastore=metastore,
                source=source,
                feed=feed,
                known=known,
                check=self._check,
                log=self._log,
            ).run()
            self._retires(metastore, source)

    def _prepare(self, metastore: Connection, source: FollowedDatabase) -> _Known:
        """Ensure that publication and slot exist. The publication must come first, because the log refers to it."""
        source.require_fit()
        source.end_other_owners()
        if self._discard is not None:
            feed_owner.make_reload(metastore, self._claim, self._discard)
            source.drop_slot()
            self._discard = None
        stored_upto = self._ensure_slot(metastore, source)
        return _Known(stored_upto=stored_upto)

    def _ensure_slot(self, metastore: Connection, source: FollowedDatabase) -> int:
        claim, _ = feed_owner.find(metastore, self._claim)
        state = source.ensure_slot(claim.timeline)
        lost = state.lost
        if not state.is_new and state.confirmed > claim.stored_upto:
            lost = (
                "the source has discarded changes that are not stored here: was the metastore restored from a backup?"
            )
        if not state.is_new and lost is None:
            return claim.stored_upto
        if lost is not None:
            self._log.warning("feed.lost", reason=lost)
            feed_owner.make_reload(metastore, claim, lost)
        feed_owner.begin_slot(metastore, claim, state.timeline, source.block_bytes(), state.confirmed)
        return state.confirmed

    def _retires(self, metastore: Connection, source: FollowedDatabase) -> bool:
        """Drop slot and publication if the last live pipeline of the database was deleted. Return True if so."""
        claim, is_settled = feed_owner.find(metastore, self._claim)
        has_followers = bool(feed_owner.list_followers(metastore, claim))
        is_other = source.identity() not in (None, claim.database)
        if has_followers and is_other:
            raise ConfigError(
                f"{feed_variable(claim.connection)} leads to a different database than the one that is followed"
                f" ({claim.database}): correct it, or give up the feed with `vitrina feeds drop`"
            )
        if has_followers or not is_settled:
            return False
        if not is_other:
            source.drop()
        self._log.info("feed.dropped")
        return feed_owner.forget(metastore, claim.feed_id, with_followers=False)

    @contextmanager
    def _source(self, url: str) -> Iterator[FollowedDatabase]:
        source = registry.feeds().open(url, self._claim.names, self._settings)
        try:
            with self._watchdog.watch(source.session, _SOURCE_SILENCE_SECONDS):
                yield source
        finally:
            source.close()

    @contextmanager
    def _metastore(self, session_name: str) -> Iterator[Connection]:
        connection = database.connect(
            self._settings.require_database_url(),
            session_name,
            connect_timeout_seconds=self._settings.connect_timeout_seconds,
        )
        try:
            with self._watchdog.watch(connection, 3 * SILENCE_SECONDS):
                yield connection
        finally:
            with suppress(psycopg.Error):
                connection.close()  # rolls back what was not committed

    def _note_failure(self, exc: Exception) -> None:
        message = exc.message if isinstance(exc, VitrinaError) else " ".join(str(exc).split())
        if isinstance(exc, VitrinaError | psycopg.Error | OSError):
            self._log.warning("feed.interrupted", error=message)
        else:
            self._log.exception("feed.crashed")
        if isinstance(exc, FeedLost):
            self._discard = message
        with suppress(CannotConnect, psycopg.Error), self._metastore("vitrina:feeds") as metastore:
            feed_owner.note_feed_problem(metastore, self._claim, self._shown(exc, message))

    def _shown(self, exc: Exception, message: str) -> str:
        """Remove hosts and logins from an error message: only operators may see them, but any viewer sees this."""
        if not isinstance(exc, CannotConnect):
            return message
        name, variable = self._claim.connection or "default", feed_variable(self._claim.connection)
        return f"connection {name} cannot be reached with {variable}: see the log of its runner"

    def _give_back(self) -> None:
        with suppress(CannotConnect, psycopg.Error), self._metastore("vitrina:feeds") as metastore:
            feed_owner.release(metastore, self._claim)


class _ReplicationLoop:
    """Receive, store and confirm transactions of one replication connection, with periodic checks in between."""

    def __init__(
        self,
        claim: FeedClaim,
        settings: Settings,
        *,
        metastore: Connection,
        source: FollowedDatabase,
        feed: Feed,
        known: _Known,
        check: Callable[[], None],
        log: Any,
    ) -> None:
        self._claim, self._settings, self._check, self._log = claim, settings, check, log
        self._metastore, self._source, self._feed, self._known = metastore, source, feed, known
        self._storage = Storage(metastore, claim)
        # Log positions of the source that are not received yet, each with the time it was seen.
        self._marks: list[tuple[int, float]] = []
        self._catalog_due = _Due(CATALOG_SECONDS)
        self._figures_due = _Due(FIGURES_SECONDS)
        self._confirm_due = _Due(CONFIRM_SECONDS, at=time.monotonic() + CONFIRM_SECONDS)

    def run(self) -> None:
        """Run until the last follower is removed. Errors and the runner's shutdown are raised as exceptions."""
        while True:
            self._check()
            self._read_notices()
            if self._catalog_due.now() and not self._look():
                return
            self._settle()
            self._answer_catch_up()
            piece = self._feed.receive(self._wait_seconds(), self._metastore.fileno())
            if piece is not None:
                self._store(piece)
            elif self._confirm_due.now():
                self._advance()
            if self._figures_due.now():
                self._tidy_up()

    def _wait_seconds(self) -> float:
        if self._known.catch_up.upto:
            return WRITE_OUT_SECONDS / 2
        return SETTLING_SECONDS if self._known.settling else IDLE_SECONDS

    def _store(self, piece: Transaction | None) -> None:
        """Store this transaction and those that arrived after it, and only then confirm them."""
        end = time.monotonic() + BATCH_SECONDS
        while piece is not None:
            self._storage.add(piece)
            if not piece.last:
                self._refresh_publication()
                piece = self._await_piece()
                continue
            is_full = self._storage.changes >= BATCH_CHANGES or time.monotonic() > end
            piece = None if is_full else self._feed.receive(0.0)
        self._advance()

    def _await_piece(self) -> Transaction:
        """Wait for the rest of a transaction. It always arrives, unless the connection breaks."""
        while True:
            self._check()
            piece = self._feed.receive(IDLE_SECONDS)
            if piece is not None:
                return piece

    def _refresh_publication(self) -> None:
        """Compare the catalog with the publication during large transactions too, which may take minutes to store."""
        if self._catalog_due.now():
            # Followers are notified when the transaction is complete.
            self._known.added |= self._source.publish(self._known.columns).added

    def _advance(self) -> None:
        """Commit what was received, and only then confirm it, which lets the source discard it."""
        if self._feed.position <= self._known.stored_upto and not self._storage.changes:
            return
        self._known.stored_upto = self._storage.commit(self._feed.position)
        failpoints.hit("feed.stored")
        self._feed.confirm(self._known.stored_upto)
        failpoints.hit("feed.confirmed")

    def _read_notices(self) -> None:
        for notice in self._metastore.notifies(timeout=0):
            feed_id, _, wanted = notice.payload.partition(" ")
            if feed_id != str(self._claim.feed_id):
                continue
            if not wanted:
                self._catalog_due.at = 0.0
            elif int(wanted) > self._known.catch_up.upto:
                self._known.catch_up = _CatchUp(int(wanted), time.monotonic())

    def _answer_catch_up(self) -> None:
        """Advance the stored position that followers wait for; if it does not arrive, make the source flush its log.

        Records of open transactions may still be in memory, and the source sends only what is on disk.
        """
        catch_up = self._known.catch_up
        if not catch_up.upto:
            return
        if self._feed.position >= catch_up.upto:
            self._advance()
            self._known.catch_up = _CatchUp()
        elif not catch_up.written_out and time.monotonic() - catch_up.since > WRITE_OUT_SECONDS:
            catch_up.written_out = True
            self._source.write_out()
        elif time.monotonic() - catch_up.since > FIGURES_SECONDS:
            self._known.catch_up = _CatchUp()  # the follower that waited has given up and will ask again

    def _look(self) -> bool:
        """Publish the tables that followers need now. Return False when no follower is left."""
        _, is_settled = feed_owner.find(self._metastore, self._claim)
        followers = feed_owner.list_followers(self._metastore, self._claim)
        if not followers and is_settled:
            return False
        self._publish(followers)
        return True

    def _publish(self, followers: list[Follower]) -> None:
        columns = feed_owner.wanted_columns(followers)
        published = self._source.publish(columns)
        published = replace(published, added=published.added | self._known.added)
        self._known.added = frozenset()
        failpoints.hit("feed.published")
        self._known.columns, self._known.published = columns, published
        self._feed.refresh()
        self._reload_cut_off(followers, published)
        self._known.settling = {
            follower.pipeline_id: self._known.settling.get(follower.pipeline_id, (follower, 0))
            for follower in followers
            if not follower.is_ready
        }
        began = self._source.started_before() if self._known.settling else 0
        for follower in followers:
            if not follower.is_ready:
                self._await_transactions(follower, published, began)

    def _reload_cut_off(self, followers: list[Follower], published: Published) -> None:
        """Mark followers for reload if their tables were just added to the publication or had to leave it.

        Such followers have missed changes.
        """
        for follower in followers:
            if follower.holds:
                reasons = [published.problems[name] for name in follower.tables if name in published.problems]
                reasons += [f"{name} was recreated or got a partition" for name in published.added & {*follower.tables}]
                if reasons:
                    self._log.warning("feed.follower_cut_off", pipeline_id=str(follower.pipeline_id), reason=reasons[0])
                    feed_owner.make_reload(self._metastore, self._claim, reasons[0], [follower.pipeline_id])

    def _await_transactions(self, follower: Follower, published: Published, began: int) -> None:
        problems = [published.problems[name] for name in follower.tables if name in published.problems]
        if problems:
            self._known.settling.pop(follower.pipeline_id, None)
            feed_owner.note_problem(self._metastore, self._claim, follower, "; ".join(dict.fromkeys(problems)))
            return
        known, since = self._known.settling[follower.pipeline_id]
        if not since or known.revision != follower.revision or published.added & {*follower.tables}:
            self._known.settling[follower.pipeline_id] = (follower, began)

    def _settle(self) -> None:
        """Mark followers ready once transactions that changed their tables before publication have ended.

        The changes of those transactions are not in the log.
        """
        if not self._known.settling:
            return
        oldest = self._source.oldest_running()
        for pipeline_id, (follower, began) in list(self._known.settling.items()):
            if oldest >= began:
                feed_owner.mark_ready(self._metastore, self._claim, follower, self._source.written_upto())
                del self._known.settling[pipeline_id]
            else:
                who = self._source.oldest_transaction() or "it has just ended"
                waits = f"a transaction that began before its tables were published is still open ({who})"
                feed_owner.note_problem(self._metastore, self._claim, follower, waits)

    def _tidy_up(self) -> None:
        followers = feed_owner.list_followers(self._metastore, self._claim)
        most = self._settings.max_change_backlog
        for pipeline_id in feed_owner.reload_those_behind(self._metastore, self._claim, followers, most):
            self._log.warning("feed.follower_too_far_behind", pipeline_id=str(pipeline_id), max_change_backlog=most)
        feed_owner.drop_passed(self._metastore, self._claim, but=self._storage.segment)
        self._measure()

    def _measure(self) -> None:
        found = self._source.figures()
        received = max(self._feed.position, self._known.stored_upto)
        behind = max(0, found.written_upto - received)
        feed_owner.note_figures(
            self._metastore,
            self._claim,
            {
                "lag_seconds": self._lag(found.written_upto, received),
                "behind_bytes": behind,
                "retained_bytes": found.retained_bytes,
                "keep_bytes": found.keep_bytes,
                "wal_status": found.wal_status,
            },
            problem=None,
        )

    def _lag(self, written: int, received: int) -> float:
        """Return how many seconds ago the source's log ended where ours ends now, or zero when nothing is missing."""
        now = time.monotonic()
        self._marks = [mark for mark in self._marks if mark[0] > received]
        if written > received:
            self._marks.append((written, now))
        return round(now - self._marks[0][1], 3) if self._marks else 0.0
