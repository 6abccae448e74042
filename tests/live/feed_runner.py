"""A runner process with a protection of the feed taken away: `python -m tests.live.feed_runner MUTANT...`."""

import sys

from vitrina import failpoints
from vitrina.cli import main
from vitrina.runner import feeds
from vitrina.store import feed_owner
from vitrina.store.database import Connection


def confirmed_before_stored() -> None:
    def advance(self: feeds._ReplicationLoop) -> None:
        if self._feed.position <= self._known.stored_upto and not self._storage.changes:
            return
        self._feed.confirm(self._feed.position)
        failpoints.hit("feed.confirmed")
        self._known.stored_upto = self._storage.commit(self._feed.position)
        failpoints.hit("feed.stored")

    feeds._ReplicationLoop._advance = advance  # type: ignore[method-assign]


def unguarded() -> None:
    """Commits whoever owns the feed now. Its session is not ended by the successor either, as if it could not be."""

    def advance(
        connection: Connection,
        claim: feed_owner.FeedClaim,
        upto: int,
        changes: int = 0,
        committed_at: float = 0.0,
    ) -> None:
        connection.execute(
            "UPDATE etl.etl_feeds SET stored_upto = greatest(stored_upto, %s) WHERE id = %s", [upto, claim.feed_id]
        )

    feed_owner.advance = advance


def out_of_reach() -> None:
    feed_owner._end_sessions = lambda connection, feed_id, upto_epoch: None


if __name__ == "__main__":
    for mutant in sys.argv[1:]:
        {each.__name__: each for each in (confirmed_before_stored, unguarded, out_of_reach)}[mutant]()
    sys.argv = ["vitrina", "runner"]
    main()
