"""Ways to break a follower on purpose, one protection at a time: a test that stays green with one of them is blind."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from vitrina.connectors.postgres import live_merge
from vitrina.connectors.postgres.following import QueryFollowing, QueryMoment, Snapshot
from vitrina.loads import live
from vitrina.ports.live import Stale
from vitrina.ports.target import Load


def apply(name: str) -> None:
    MUTANTS[name]()


def _no_visibility() -> None:
    """Take every stored change, also of transactions that the snapshot does not show."""
    Snapshot.shows = lambda self, xid: True  # type: ignore[method-assign]


def _no_modulo() -> None:
    """Compare the log's 32 bits with the snapshot's 64."""
    Snapshot._nearest = lambda self, xid: xid  # type: ignore[method-assign]


def _snapshot_after_the_feed() -> None:
    """Read rows in a later snapshot than the one that said which changes count."""
    within = QueryFollowing.moment

    @contextmanager
    def moment(self: QueryFollowing) -> Iterator[QueryMoment]:
        with within(self) as found:
            begun = found.lsn, found.at, found._snapshot
        # On a machine with nothing else to do there may be no commit between the two.
        time.sleep(0.1)
        with within(self) as later:
            later.lsn, later.at, later._snapshot = begun
            yield later

    QueryFollowing.moment = moment  # type: ignore[method-assign]


def _absent_keys_kept() -> None:
    live_merge.delete_absent = lambda *_: 0


def _absent_after_steps() -> None:
    """Call absent what the steps did not let through."""
    written = live.Follower._written

    def rows(self: live.Follower, load: Load, source: Any, number: int) -> Any:
        part = written(self, load, source, number)
        if part.letters and source._asked:
            source._asked.keys = []
        return part

    live.Follower._written = rows  # type: ignore[method-assign, assignment]


def _filtered_kept() -> None:
    """Take rows that a step left out for rows that it rejected."""
    without = live._Rows.keys_without
    live._Rows.keys_without = lambda self, filtered: without(self, ())  # type: ignore[method-assign]


def _catalog_unseen() -> None:
    """Do not look at what the log does not say."""
    QueryMoment.catalog = "the same"  # type: ignore[assignment]


def _old_keys_forgotten() -> None:
    stale = QueryMoment.stale

    def of_new(self: QueryMoment, changes: Any) -> Stale:
        return stale(self, [change._replace(old=None) for change in changes])

    QueryMoment.stale = of_new  # type: ignore[method-assign]


MUTANTS: dict[str, Callable[[], None]] = {
    "no_visibility": _no_visibility,
    "no_modulo": _no_modulo,
    "snapshot_after_the_feed": _snapshot_after_the_feed,
    "absent_keys_kept": _absent_keys_kept,
    "absent_after_steps": _absent_after_steps,
    "filtered_kept": _filtered_kept,
    "catalog_unseen": _catalog_unseen,
    "old_keys_forgotten": _old_keys_forgotten,
}
