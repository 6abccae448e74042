"""Run a platform of live pipelines to break: two servers, two runners, a busy application, a polling reader.

The source is on one server, metastore and marts are on another, so that each can crash alone.
"""

import os
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from pydantic import SecretStr

from tests.conftest import settings_for
from tests.live import application
from tests.live.application import QUERIES
from tests.live.marts import ACCOUNTS, PATIENCE_SECONDS, SOURCE, Marts
from vitrina.embedded.cluster import DATABASE
from vitrina.embedded.temporary import TemporaryServer
from vitrina.store import database
from vitrina.store.database import Connection
from vitrina.store.migrate import migrate

RUNNERS = 2
LEASE_SECONDS = "3"
SUM = 200 * 100
# A realistic rate of transactions, not the most that the machine can handle.
CHANGE_SECONDS, POLL_SECONDS = 0.02, 0.005

# One pipeline passes through a Python step, and so through the stages of every other run.
STEPPED = {
    "tasks": [
        {"order_index": 0, "task_type": "SQL", "body": "SELECT id, film_id, score FROM content.rating"},
        {"order_index": 1, "task_type": "PYTHON", "body": "cast_columns", "params": {"types": {"score": "bigint"}}},
    ]
}
PIPELINES: dict[str, dict[str, Any]] = {
    **{name: {"query": query} for name, query in QUERIES.items()},
    "accounts": {"query": ACCOUNTS},
    "ratings": STEPPED,
}


class World(Marts):
    """Hold marts whose source is on another server; `sql` queries the source."""

    def __init__(self, source: TemporaryServer, home: TemporaryServer, directory: Path) -> None:
        self.source, self.home = source, home
        settings = settings_for(home, DATABASE)
        connections = {"shop": SecretStr(source.urls.admin)}
        settings = settings.model_copy(update={"connections": connections})
        super().__init__(settings, _connect(source.urls.admin), _connect(settings.require_database_url()), directory)
        self.more = {
            "VITRINA_CONN_SHOP": source.urls.admin,
            "VITRINA_CONN_SHOP_FEED": source.urls.admin,
            "VITRINA_LEASE_TTL_SECONDS": LEASE_SECONDS,
            "VITRINA_POLL_SECONDS": "0.5",
            # Faults come one after another: three before the first batch of a run are no reason to give up.
            "VITRINA_MAX_ATTEMPTS": "30",
        }

    def reconnect(self) -> None:
        self.close_sessions()
        self.admin = _connect(self.source.urls.admin)
        self.metastore = _connect(self.settings.require_database_url())

    def close_sessions(self) -> None:
        for session in (self.admin, self.metastore):
            session.close()

    def ask(self, statement: str, *values: object) -> list[dict[str, Any]]:
        """Query the metastore."""
        return self.metastore.execute(statement.encode(), values).fetchall()

    def _is_well(self) -> bool:
        failed = self.ask("SELECT name, last_error FROM etl.etl_pipelines WHERE status = 'FAILED'")
        assert not failed, failed
        return True

    def place(self, name: str) -> dict[str, Any] | None:
        found = self.ask(
            "SELECT identity -> 'live' AS place FROM etl.etl_state WHERE pipeline_id = %s", self.row(name)["id"]
        )
        return found[0]["place"] if found else None

    @property
    def alive(self) -> "list[subprocess.Popen[bytes]]":
        return [process for process in self.runners if process.poll() is None]

    def replace_dead(self) -> None:
        while len(self.alive) < RUNNERS:
            self.start_runner()

    def kill_all(self) -> None:
        for process in self.alive:
            self.kill(process)

    def process(self, pid: int) -> "subprocess.Popen[bytes]":
        [found] = [process for process in self.runners if process.pid == pid]
        return found

    def held_by(self, pids: Sequence[int]) -> int:
        """Count the leases, of pipelines and feeds, that these processes have not lost yet."""
        return self._held("r.pid = ANY(%s)", pids)

    def held_by_the_dead(self) -> int:
        return self._held("r.pid IS NULL OR r.pid <> ALL(%s)", [process.pid for process in self.alive])

    def _held(self, condition: str, pids: Sequence[int]) -> int:
        [row] = self.ask(
            f"""
            SELECT count(*) AS n FROM (
                SELECT runner_id FROM etl.etl_pipelines
                WHERE status IN ('RUNNING', 'PAUSE_REQUESTED') AND claim_id IS NOT NULL
                UNION ALL SELECT runner_id FROM etl.etl_feeds WHERE claim_id IS NOT NULL
            ) held LEFT JOIN etl.etl_runners r ON r.id = held.runner_id WHERE {condition}
            """,
            list(pids),
        )
        return int(row["n"])

    def feed_owner(self) -> "subprocess.Popen[bytes] | None":
        """Return the process that reads the source's log, or None while no process does."""
        rows = self.ask(
            "SELECT r.pid FROM etl.etl_feeds f JOIN etl.etl_runners r ON r.id = f.runner_id WHERE f.lease_until > now()"
        )
        alive = {process.pid: process for process in self.alive}
        return alive.get(rows[0]["pid"]) if rows else None

    def await_quiet(self) -> None:
        self.await_true("live runners have taken over everything", lambda: not self.held_by_the_dead())
        self.await_following(*PIPELINES)

    def differences_at_rest(self) -> dict[str, int]:
        """Compare every mart with its query, once its follower has passed everything that was committed."""
        self.await_quiet()
        for name in PIPELINES:
            self.settle(name)
        return {name: found for name in PIPELINES if (found := self.reconcile(name)["differences"])}


Session = psycopg.Connection[tuple[Any, ...]]


@dataclass
class Client:
    """Run a thread that works on a server until it is told to end, and reconnects after a crash."""

    url: str
    work: Callable[[Session], None]
    begin: Callable[[Session], None] = lambda session: None
    done: int = 0
    problems: list[str] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Client":
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE_SECONDS)

    def _run(self) -> None:
        while not self._over.is_set() and not self.problems:
            try:
                self._work()
            except psycopg.OperationalError:
                self._over.wait(0.1)  # the server is down
            except (psycopg.Error, AssertionError) as exc:
                self.problems.append(str(exc))

    def _work(self) -> None:
        with psycopg.connect(self.url, connect_timeout=5) as session:
            self.begin(session)
            while not self._over.is_set():
                self.work(session)
                self.done += 1


def changing(url: str, seed: int) -> Client:
    """Change films, studios and ratings at random."""
    chance = random.Random(seed)

    def work(session: Session) -> None:
        application.change(session, chance)
        time.sleep(CHANGE_SECONDS)

    return Client(url, work, application.finish_prepared)


def moving(url: str, seed: int) -> Client:
    """Move money from account to account: the sum stays."""
    chance = random.Random(seed)

    def work(session: Session) -> None:
        application.move(session, chance)
        time.sleep(CHANGE_SECONDS)

    return Client(url, work)


def polling(url: str) -> Client:
    """Read the sum in the mart, which is the same at every moment of the source."""

    def work(session: Session) -> None:
        row = session.execute("SELECT sum(balance), count(*) FROM analytics.accounts").fetchone()
        session.rollback()
        assert row == (SUM, 200), f"the mart shows {row}, which the source has shown at no moment"
        time.sleep(POLL_SECONDS)

    return Client(url, work)


@contextmanager
def world(directory: Path) -> Iterator[World]:
    """Start two servers with a source, a metastore and live pipelines, and remove them afterwards."""
    given = os.environ.get("VITRINA_TEST_PG_BINDIR")
    bindir = Path(given) if given else None
    with TemporaryServer(bindir) as source, TemporaryServer(bindir) as home:
        with _connect(source.urls.admin) as admin:
            admin.execute("CREATE ROLE vitrina_reader")
            admin.execute("CREATE SCHEMA content")
        migrate(settings_for(home, DATABASE))
        made = World(source, home, directory)
        try:
            made.sql(SOURCE)
            for name, fields in PIPELINES.items():
                made.live(name, **fields, source_connection="shop", options={"allow_shrink": True})
            made.replace_dead()
            made.await_quiet()
            yield made
        finally:
            made.stop()
            made.close_sessions()


def _connect(url: str) -> Connection:
    return database.connect(url, "vitrina:test")
