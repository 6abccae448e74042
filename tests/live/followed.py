"""A source database with a slot and a publication, for tests of the feed without a runner."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import psycopg

from vitrina.connectors.postgres.feeds import FollowedPostgres
from vitrina.connectors.postgres.replication import Replication
from vitrina.ports.live import Change, FeedNames, Published, Transaction
from vitrina.settings import Settings


@dataclass
class Source:
    """One session as the application, one followed database, and what the feed should keep."""

    url: str
    settings: Settings
    names: FeedNames
    columns: dict[str, frozenset[str]] = field(default_factory=dict)
    published: Published = field(default_factory=lambda: Published({}, {}, frozenset(), changed=False))

    def sql(self, statement: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as session:
            session.execute(statement)

    def publish(self, **columns: str) -> Published:
        """Publish tables of the schema content: `film="id title"`."""
        self.columns = {f"content.{name}": frozenset(text.split()) for name, text in columns.items()}
        with opened(self) as followed:
            followed.require_fit()
            self.published = followed.publish(self.columns)
        return self.published

    @contextmanager
    def feed(self, after: int | None = None) -> Iterator[Replication]:
        with opened(self) as followed:
            state = followed.ensure_slot(None)
            feed = followed.open(lambda: self.published, lambda: self.columns)
            try:
                feed.start(state.confirmed if after is None else after)
                yield feed
            finally:
                feed.close()


@contextmanager
def opened(source: Source) -> Iterator[FollowedPostgres]:
    followed = FollowedPostgres(source.url, source.names, source.settings)
    try:
        yield followed
    finally:
        followed.close()


def names() -> FeedNames:
    tail = uuid4().hex[:12]
    return FeedNames(f"vitrina_test_{tail}", f"vitrina_test_{tail}", f"vitrina:feed:{tail}")


def all_changes(feed: Replication, count: int, *, seconds: float = 20.0) -> list[Change]:
    """The changes of the next `count` transactions."""
    found: list[Change] = []
    for transaction in transactions(feed, count, seconds=seconds):
        found += transaction.changes
    return found


def transactions(feed: Replication, count: int, *, seconds: float = 20.0) -> Iterator[Transaction]:
    while count:
        piece = feed.receive(seconds)
        assert piece is not None, f"{count} more transactions were expected"
        yield piece
        count -= piece.last


def short(change: Change) -> tuple[Any, ...]:
    return change.relation, change.kind, change.old, change.new
