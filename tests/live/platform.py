"""The part of a runner that owns feeds, in this process, without the rest of it."""

import time
from collections.abc import Callable
from uuid import UUID, uuid4

from tests.support.workbench import Workbench
from vitrina.ports.live import Change
from vitrina.runner.feeds import FeedKeeper
from vitrina.runner.watchdog import SessionWatchdog
from vitrina.store import database, databases, feeds


class Platform:
    """One database that is metastore and source, a feed on it, and owners that a test starts."""

    def __init__(self, bench: Workbench) -> None:
        self.bench = bench
        self.settings = bench.settings.model_copy(update={"feed_url": bench.settings.admin_url})
        seen = databases.look(bench.metastore)
        assert seen
        self.feed = feeds.ensure(bench.metastore, seen.identity, None)
        self._watchdog = SessionWatchdog(list)
        self._watchdog.start()
        self.keepers: list[FeedKeeper] = []

    def start(self) -> FeedKeeper:
        keeper = FeedKeeper(self.settings, uuid4(), self._watchdog)
        self.keepers.append(keeper)
        keeper.look(self.bench.metastore)
        return keeper

    def follow(self, name: str, **tables: str) -> UUID:
        """Make a pipeline and register it: `follow("films", film="id title")`."""
        pipeline_id = self.bench.pipeline(name, "SELECT 1 AS id")
        self.register(pipeline_id, tables)
        return pipeline_id

    def register(self, pipeline_id: UUID, tables: dict[str, str], *, afresh: bool = False) -> None:
        wanted = {f"content.{table}": columns.split() for table, columns in tables.items()}
        feeds.register(self.bench.metastore, self.feed.id, pipeline_id, wanted, afresh=afresh)

    def ready(self, pipeline_id: UUID) -> int:
        until(lambda: feeds.ready(self.bench.metastore, self.feed.id, pipeline_id) is not None)
        upto = feeds.ready(self.bench.metastore, self.feed.id, pipeline_id)
        assert upto
        return upto

    def must_reload(self, pipeline_id: UUID) -> str | None:
        return feeds.must_reload(self.bench.metastore, self.feed.id, pipeline_id)

    def problem(self, pipeline_id: UUID) -> str:
        return feeds.problem(self.bench.metastore, self.feed.id, pipeline_id) or ""

    def settled(self) -> None:
        """Everything that was committed until now is stored."""
        row = database.one(self.bench.metastore.execute("SELECT pg_current_wal_insert_lsn() - '0/0' AS lsn"))
        assert feeds.wait_stored(self.bench.metastore, self.feed.id, int(row["lsn"]), 20)

    def changes(self, after: int) -> list[Change]:
        self.settled()
        return feeds.read(self.bench.metastore, self.feed.id, after, 10_000)

    def sql(self, statement: str) -> None:
        for part in statement.split(";"):
            self.bench.sql(part)

    def exists(self) -> bool:
        return bool(self.bench.sql(f"SELECT 1 AS found FROM pg_replication_slots WHERE slot_name = '{self.feed.slot}'"))

    def close(self) -> None:
        for keeper in self.keepers:
            keeper.stop()
        self._watchdog.stop()
        until(self._drop_slots)

    def _drop_slots(self) -> bool:
        """A walsender notices the end of its process a moment later."""
        ours = "FROM pg_replication_slots WHERE database = current_database()"
        self.bench.sql(f"SELECT pg_terminate_backend(active_pid) {ours} AND active")
        self.bench.sql(f"SELECT pg_drop_replication_slot(slot_name) {ours} AND NOT active")
        return not self.bench.sql(f"SELECT 1 AS found {ours}")


def until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.02)
