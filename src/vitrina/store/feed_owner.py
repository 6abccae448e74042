"""Query feeds on behalf of their owner: the lease, what followers need, storing under the claim, dropping segments."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from vitrina import failpoints
from vitrina.errors import LeaseLost, TransientError
from vitrina.ports.live import FeedNames, Transaction
from vitrina.store import feed_segments, feeds
from vitrina.store.database import Connection


@dataclass(frozen=True)
class FeedClaim:
    """Represent one runner's right to store what a feed delivers, and to confirm it."""

    feed_id: UUID
    claim_id: UUID
    epoch: int
    database: str
    connection: str | None
    names: FeedNames
    timeline: int | None
    stored_upto: int

    @property
    def guard(self) -> dict[str, Any]:
        return {"feed": self.feed_id, "claim": self.claim_id, "epoch": self.epoch}

    @property
    def session_name(self) -> str:
        """Return the name of its session on the metastore, by which a successor ends it."""
        return f"{feeds.session_name(self.feed_id)}:{self.epoch}"[:63]

    def lost(self) -> LeaseLost:
        return LeaseLost(f"feed {self.names.slot}: another runner took over after epoch {self.epoch}")


def claim_free(connection: Connection, runner_id: UUID, ttl_seconds: float, names: Sequence[str]) -> list[FeedClaim]:
    """Claim the feeds of these connections that no runner has, or whose runner has been silent for too long."""
    free = connection.execute(
        """
        SELECT id, epoch, claim_id IS NOT NULL AS is_late FROM etl.etl_feeds
        WHERE coalesce(connection, 'default') = ANY(%s) AND (claim_id IS NULL OR lease_until < clock_timestamp())
        """,
        [list(names)],
    ).fetchall()
    for row in free:
        if row["is_late"]:
            _end_sessions(connection, row["id"], row["epoch"])
    return _take(connection, runner_id, ttl_seconds, names) if free else []


def _take(connection: Connection, runner_id: UUID, ttl_seconds: float, names: Sequence[str]) -> list[FeedClaim]:
    rows = connection.execute(
        """
        UPDATE etl.etl_feeds f
        SET claim_id = gen_random_uuid(), runner_id = %(runner)s,
            epoch = greatest(f.epoch + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint),
            lease_until = clock_timestamp() + make_interval(secs => %(ttl)s)
        FROM (SELECT id FROM etl.etl_feeds
              WHERE coalesce(connection, 'default') = ANY(%(names)s)
                AND (claim_id IS NULL OR lease_until < clock_timestamp())
              FOR NO KEY UPDATE SKIP LOCKED) free
        WHERE f.id = free.id
        RETURNING f.*
        """,
        {"runner": runner_id, "ttl": ttl_seconds, "names": list(names)},
    ).fetchall()
    return [_claim(row) for row in rows]


def _claim(row: Mapping[str, Any]) -> FeedClaim:
    return FeedClaim(
        feed_id=row["id"],
        claim_id=row["claim_id"],
        epoch=row["epoch"],
        database=row["database"],
        connection=row["connection"],
        names=FeedNames(row["slot"], row["publication"], feeds.session_name(row["id"])),
        timeline=row["timeline"],
        stored_upto=row["stored_upto"],
    )


def extend(connection: Connection, claim_ids: Sequence[UUID], ttl_seconds: float) -> frozenset[UUID]:
    """Extend the leases that are still held, and return these. A lease whose row is locked now counts as held.

    The key is not locked: while a large transaction is stored, each new segment refers to it.
    """
    rows = connection.execute(
        """
        WITH held AS (
            SELECT id, claim_id FROM etl.etl_feeds WHERE claim_id = ANY(%(claims)s)
        ), free AS (
            SELECT f.id FROM etl.etl_feeds f JOIN held USING (id)
            WHERE f.claim_id = held.claim_id FOR NO KEY UPDATE OF f SKIP LOCKED
        ), extended AS (
            UPDATE etl.etl_feeds f SET lease_until = clock_timestamp() + make_interval(secs => %(ttl)s)
            FROM free WHERE f.id = free.id
        )
        SELECT claim_id FROM held
        """,
        {"claims": list(claim_ids), "ttl": ttl_seconds},
    ).fetchall()
    return frozenset(row["claim_id"] for row in rows)


def release(connection: Connection, claim: FeedClaim) -> None:
    """Release the lease, so that another runner need not wait until it expires."""
    connection.execute(
        """
        UPDATE etl.etl_feeds SET claim_id = NULL, runner_id = NULL, lease_until = NULL
        WHERE id = %(feed)s AND claim_id = %(claim)s AND epoch = %(epoch)s
        """,
        claim.guard,
    )


def end_older_sessions(connection: Connection, claim: FeedClaim) -> None:
    """End the sessions that earlier owners still have open on the metastore; they could only block."""
    _end_sessions(connection, claim.feed_id, claim.epoch - 1)


def _end_sessions(connection: Connection, feed_id: UUID, upto_epoch: int) -> None:
    """End the sessions of owners up to this epoch.

    A session that hangs between its last statement and COMMIT locks the feed's row, for a runner that would take over
    the feed and for every follower that registers.
    """
    connection.execute(
        """
        SELECT pg_catalog.pg_terminate_backend(a.pid) FROM pg_catalog.pg_stat_activity a
        WHERE a.usename = current_user AND a.pid <> pg_catalog.pg_backend_pid() AND a.application_name LIKE %(ours)s
          AND CASE WHEN split_part(a.application_name, ':', 4) ~ '^[0-9]{1,18}$'
                   THEN split_part(a.application_name, ':', 4)::bigint <= %(epoch)s END
        """,
        {"ours": f"{feeds.session_name(feed_id)}:%", "epoch": upto_epoch},
    )


@dataclass(frozen=True)
class Follower:
    """Represent a registered live pipeline."""

    pipeline_id: UUID
    tables: Mapping[str, Sequence[str]]
    revision: int
    is_ready: bool
    passed_upto: int | None
    must_reload: bool

    @property
    def holds(self) -> bool:
        """Return whether stored changes are kept for it."""
        return self.is_ready and not self.must_reload


def list_followers(connection: Connection, claim: FeedClaim) -> list[Follower]:
    rows = connection.execute(
        "SELECT * FROM etl.etl_feed_followers WHERE feed_id = %s ORDER BY pipeline_id", [claim.feed_id]
    )
    return [
        Follower(
            pipeline_id=row["pipeline_id"],
            tables=row["tables"],
            revision=row["revision"],
            is_ready=row["ready_upto"] is not None,
            passed_upto=row["passed_upto"],
            must_reload=row["must_reload"] is not None,
        )
        for row in rows
    ]


def wanted_columns(followers: Sequence[Follower]) -> dict[str, frozenset[str]]:
    """Combine the columns that followers need, by relation."""
    wanted: dict[str, frozenset[str]] = {}
    for follower in followers:
        for relation, columns in follower.tables.items():
            wanted[relation] = wanted.get(relation, frozenset()) | frozenset(columns)
    return wanted


def mark_ready(connection: Connection, claim: FeedClaim, follower: Follower, upto: int) -> None:
    connection.execute(
        """
        UPDATE etl.etl_feed_followers w SET ready_upto = %(upto)s, passed_upto = %(upto)s, problem = NULL
        FROM etl.etl_feeds f
        WHERE f.id = %(feed)s AND f.claim_id = %(claim)s AND f.epoch = %(epoch)s AND w.feed_id = f.id
          AND w.pipeline_id = %(pipeline)s AND w.revision = %(revision)s AND w.ready_upto IS NULL
        """,
        {**claim.guard, "pipeline": follower.pipeline_id, "revision": follower.revision, "upto": upto},
    )


def note_problem(connection: Connection, claim: FeedClaim, follower: Follower, problem: str | None) -> None:
    connection.execute(
        """
        UPDATE etl.etl_feed_followers SET problem = %(problem)s
        WHERE feed_id = %(feed)s AND pipeline_id = %(pipeline)s AND problem IS DISTINCT FROM %(problem)s
        """,
        {**claim.guard, "pipeline": follower.pipeline_id, "problem": problem},
    )


def make_reload(
    connection: Connection, claim: FeedClaim, reason: str, only: Collection[UUID] | None = None
) -> list[UUID]:
    """Mark followers that have lost changes. A follower that has not begun to follow loses nothing."""
    rows = connection.execute(
        """
        UPDATE etl.etl_feed_followers w SET must_reload = %(reason)s
        FROM etl.etl_feeds f
        WHERE f.id = %(feed)s AND f.claim_id = %(claim)s AND f.epoch = %(epoch)s AND w.feed_id = f.id
          AND w.ready_upto IS NOT NULL AND w.must_reload IS NULL
          AND (%(only)s::uuid[] IS NULL OR w.pipeline_id = ANY(%(only)s))
        RETURNING w.pipeline_id
        """,
        {**claim.guard, "reason": reason, "only": None if only is None else list(only)},
    ).fetchall()
    return [row["pipeline_id"] for row in rows]


class Storage:
    """Store changes in one transaction of the metastore, which only the owner of the claim can commit."""

    def __init__(self, connection: Connection, claim: FeedClaim) -> None:
        self._connection = connection
        self._claim = claim
        self._segment: int | None = None
        self._in_segment = 0
        self._is_open = False
        self._changes = 0
        self._last_lsn = 0
        self._upto = 0
        self._committed_at = 0.0

    @property
    def segment(self) -> int | None:
        """Return the number of the table that is being written."""
        return self._segment

    @property
    def changes(self) -> int:
        """Count the changes that were added since the last commit."""
        return self._changes

    def add(self, piece: Transaction) -> None:
        if piece.changes:
            segment = self._begin(piece.changes[0].lsn)
            feed_segments.append(self._connection, segment, piece.changes)
            self._changes += len(piece.changes)
            self._last_lsn = piece.changes[-1].lsn
        if piece.last:
            self._upto, self._committed_at = piece.upto, piece.committed_at

    def commit(self, position: int = 0) -> int:
        """Commit what was added, if the claim is still held. Return the position up to which everything is stored."""
        upto = max(position, self._upto)
        if not self._is_open:
            advance(self._connection, self._claim, upto)
            return upto
        if self._segment is not None:
            feed_segments.extend(self._connection, self._segment, self._last_lsn, self._changes)
        failpoints.hit("feed.copied")
        advance(self._connection, self._claim, upto, self._changes, self._committed_at)
        self._connection.execute("SELECT pg_notify(%s, %s)", [feeds.STORED, str(self._claim.feed_id)])
        self._connection.execute("COMMIT")
        self._in_segment += self._changes
        self._is_open, self._changes = False, 0
        return upto

    def _begin(self, lsn: int) -> int:
        """Open a transaction unless one is open, and return the segment that is written in it."""
        if not self._is_open:
            self._connection.execute("BEGIN")
        if self._segment is None or (not self._is_open and self._in_segment >= feed_segments.SEGMENT_CHANGES):
            self._segment, self._in_segment = feed_segments.begin(self._connection, self._claim.feed_id, lsn), 0
        self._is_open = True
        return self._segment


def advance(connection: Connection, claim: FeedClaim, upto: int, changes: int = 0, committed_at: float = 0.0) -> None:
    """Move the position up to which everything is stored, guarded by claim and epoch."""
    moved = connection.execute(
        """
        UPDATE etl.etl_feeds
        SET stored_upto = greatest(stored_upto, %(upto)s), stored_changes = stored_changes + %(changes)s,
            stored_commit_at = CASE WHEN %(at)s > 0 THEN to_timestamp(%(at)s) ELSE stored_commit_at END
        WHERE id = %(feed)s AND claim_id = %(claim)s AND epoch = %(epoch)s
        """,
        {**claim.guard, "upto": upto, "changes": changes, "at": committed_at},
    ).rowcount
    if not moved:
        raise claim.lost()


def begin_slot(connection: Connection, claim: FeedClaim, timeline: int, block_bytes: int, upto: int) -> None:
    """Record a new slot: the log begins at its position, which may be lower than an earlier one."""
    noted = connection.execute(
        """
        UPDATE etl.etl_feeds SET timeline = %(timeline)s, block_bytes = %(block)s, stored_upto = %(upto)s
        WHERE id = %(feed)s AND claim_id = %(claim)s AND epoch = %(epoch)s
        """,
        {**claim.guard, "timeline": timeline, "block": block_bytes, "upto": upto},
    ).rowcount
    if not noted:
        raise claim.lost()


def drop_passed(connection: Connection, claim: FeedClaim, *, but: int | None) -> list[int]:
    """Drop the segments that every follower has passed, except the one that is being written."""
    rows = connection.execute(
        """
        SELECT s.number FROM etl.etl_feed_segments s
        WHERE s.feed_id = %(feed)s AND s.number IS DISTINCT FROM %(but)s
          AND NOT EXISTS (SELECT FROM etl.etl_feed_followers w
                          WHERE w.feed_id = s.feed_id AND w.ready_upto IS NOT NULL AND w.must_reload IS NULL
                            AND w.passed_upto < s.last_lsn)
        ORDER BY s.number
        """,
        {**claim.guard, "but": but},
    ).fetchall()
    return feed_segments.drop(connection, [row["number"] for row in rows])


def reload_those_behind(
    connection: Connection, claim: FeedClaim, followers: Sequence[Follower], most: int
) -> list[UUID]:
    """Mark followers for reload that have more than `most` changes to read, so that they hold no segments."""
    behind = {
        follower.pipeline_id: feed_segments.count_after(connection, claim.feed_id, follower.passed_upto or 0)
        for follower in followers
        if follower.holds
    }
    marked: list[UUID] = []
    for pipeline_id, changes in behind.items():
        if changes > most:
            reason = f"{changes} changes were waiting, more than the {most} of VITRINA_MAX_CHANGE_BACKLOG"
            marked += make_reload(connection, claim, reason, [pipeline_id])
    return marked


def note_figures(connection: Connection, claim: FeedClaim, figures: Mapping[str, Any], problem: str | None) -> None:
    """Record measurements of the feed, for users and monitoring."""
    connection.execute(
        """
        UPDATE etl.etl_feeds
        SET figures = %(figures)s, measured_at = clock_timestamp(), problem = %(problem)s,
            problem_since = CASE WHEN %(problem)s::text IS NOT NULL THEN coalesce(problem_since, clock_timestamp()) END
        WHERE id = %(feed)s AND claim_id = %(claim)s AND epoch = %(epoch)s
        """,
        {**claim.guard, "figures": Jsonb(dict(figures)), "problem": problem},
    )


def note_feed_problem(connection: Connection, claim: FeedClaim, problem: str) -> None:
    connection.execute(
        """
        UPDATE etl.etl_feeds SET problem = %(problem)s, problem_since = coalesce(problem_since, clock_timestamp())
        WHERE id = %(feed)s AND claim_id = %(claim)s AND epoch = %(epoch)s
        """,
        {**claim.guard, "problem": problem},
    )


def seize(connection: Connection, feed_id: UUID, ttl_seconds: float) -> None:
    """Take a feed from its owner, to drop it: nothing that the owner stores afterwards is committed."""
    connection.execute(
        """
        UPDATE etl.etl_feeds
        SET claim_id = gen_random_uuid(), runner_id = NULL, epoch = epoch + 1,
            lease_until = clock_timestamp() + make_interval(secs => %s)
        WHERE id = %s
        """,
        [ttl_seconds, feed_id],
    )


def forget(connection: Connection, feed_id: UUID, *, with_followers: bool) -> bool:
    """Remove a feed whose slot and publication are dropped. Return False if a pipeline has registered meanwhile."""
    with connection.transaction():
        # A pipeline that registers locks this row first.
        connection.execute("SELECT 1 FROM etl.etl_feeds WHERE id = %s FOR UPDATE", [feed_id])
        if with_followers:
            connection.execute("DELETE FROM etl.etl_feed_followers WHERE feed_id = %s", [feed_id])
        elif connection.execute("SELECT 1 FROM etl.etl_feed_followers WHERE feed_id = %s", [feed_id]).fetchone():
            return False
        segments = list(feed_segments.list_all(connection, feed_id))
        if len(feed_segments.drop(connection, segments)) < len(segments):
            raise TransientError("stored changes of the feed are being read: try again in a moment")
        connection.execute("DELETE FROM etl.etl_feeds WHERE id = %s", [feed_id])
    return True


def find(connection: Connection, claim: FeedClaim) -> tuple[FeedClaim, bool]:
    """Read the feed again: the claim as it is now, and whether it is old enough to be given up."""
    row = connection.execute(
        """
        SELECT *, revision > 0 OR created_at < clock_timestamp() - interval '1 minute' AS is_settled
        FROM etl.etl_feeds WHERE id = %(feed)s AND claim_id = %(claim)s AND epoch = %(epoch)s
        """,
        claim.guard,
    ).fetchone()
    if row is None:
        raise claim.lost()
    return _claim(row), row["is_settled"]
