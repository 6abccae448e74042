"""The race that plain cursors lose: rows that commit late, long, prepared, several to a message, or over and over."""

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import psycopg
import pytest
from psycopg.sql import SQL

from tests.support.workbench import Workbench
from vitrina.connectors.postgres import cursor as cursors
from vitrina.connectors.postgres.cursor import Watermark
from vitrina.connectors.postgres.query_pass import QueryPass
from vitrina.connectors.postgres.source import Bounds

WRITERS = 6
SECONDS = 2.0
FEWEST_PASSES = 4  # also where two seconds are not enough for them
SEEDS = range(10)

EVENTS = """
CREATE TABLE content.events (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note int NOT NULL DEFAULT 0, modified timestamptz NOT NULL);
CREATE INDEX ON content.events (modified, id);
INSERT INTO content.events (modified) SELECT now() FROM generate_series(1, 50);
"""
QUERY = "SELECT id, note, modified FROM content.events"


class Writers:
    """Sessions that write the way applications do, at the source's own clock."""

    def __init__(self, url: str, seed: int) -> None:
        self._url = url
        self._stop = threading.Event()
        self._connected = threading.Barrier(WRITERS + 1)
        self._threads = [
            threading.Thread(target=self._write, args=(random.Random(f"{seed}-{number}"), number))
            for number in range(WRITERS)
        ]

    def __enter__(self) -> "Writers":
        for thread in self._threads:
            thread.start()
        self._connected.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _write(self, rng: random.Random, number: int) -> None:
        kinds: list[Callable[[psycopg.Connection, random.Random], None]] = [
            self._overlapping,
            self._long,
            self._several_in_one_message,
            self._hot_row,
            self._prepared,
        ]
        with psycopg.connect(self._url, autocommit=True) as connection:
            self._connected.wait(60)
            while not self._stop.is_set():
                kind = kinds[0] if number == 0 else rng.choice(kinds)
                with suppress(psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable):
                    kind(connection, rng)
                time.sleep(rng.uniform(0, 0.01))

    def _overlapping(self, connection: psycopg.Connection, rng: random.Random) -> None:
        with connection.transaction():
            connection.execute("INSERT INTO content.events (modified) VALUES (now())")
            time.sleep(rng.uniform(0, 0.02))
            connection.execute(
                "UPDATE content.events SET note = note + 1, modified = now() WHERE id = %s", [rng.randint(1, 50)]
            )

    def _long(self, connection: psycopg.Connection, rng: random.Random) -> None:
        with connection.transaction():
            connection.execute("INSERT INTO content.events (modified) VALUES (now())")
            time.sleep(rng.uniform(0.1, 0.5))

    def _several_in_one_message(self, connection: psycopg.Connection, rng: random.Random) -> None:
        """now() of the second transaction is the time at which the message arrived, not at which it began."""
        connection.execute(
            "BEGIN; INSERT INTO content.events (modified) VALUES (now()); SELECT pg_sleep(0.03); COMMIT;"
            " BEGIN; INSERT INTO content.events (modified) VALUES (now()); SELECT pg_sleep(0.03); COMMIT"
        )

    def _hot_row(self, connection: psycopg.Connection, rng: random.Random) -> None:
        for _ in range(5):
            connection.execute("UPDATE content.events SET note = note + 1, modified = clock_timestamp() WHERE id = 7")

    def _prepared(self, connection: psycopg.Connection, rng: random.Random) -> None:
        name = f"t{rng.randrange(10**12)}"
        connection.execute("BEGIN")
        connection.execute("INSERT INTO content.events (modified) VALUES (now())")
        connection.execute(f"PREPARE TRANSACTION '{name}'")
        time.sleep(rng.uniform(0, 0.1))
        connection.execute(f"COMMIT PREPARED '{name}'")


def define(bench: Workbench, route: str) -> None:
    bench.source(EVENTS)
    bench.pipeline(
        "events",
        QUERY,
        target_key=["id"],
        mode="incremental",
        incremental_key="modified",
        incremental_id_key="id",
        batch_size=20,
        options={"cursor_clock": "database", "route": route},
    )
    bench.run("events")


def lost_rows(bench: Workbench, seed: int, *, route: str) -> int:
    """Run passes while the writers write, one more when they are done, and count what is missing or stale."""
    define(bench, route)
    assert bench.settings.admin_url is not None
    passes = 0
    with Writers(bench.settings.admin_url.get_secret_value(), seed):
        end = time.monotonic() + SECONDS
        while time.monotonic() < end or passes < FEWEST_PASSES:
            assert bench.run("events")["status"] == "SUCCESS"
            passes += 1
    assert bench.run("events")["status"] == "SUCCESS"
    return bench.differences(QUERY, "analytics.events")


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_and_nothing_is_stale(workbench: Workbench, seed: int) -> None:
    assert lost_rows(workbench, seed, route=("auto", "copy", "arrow")[seed % 3]) == 0


def rows_lost_to_a_late_commit(bench: Workbench) -> int:
    """The race once, move by move: a row that commits late, one that commits before it, one that changes at the end."""
    define(bench, "auto")
    change = "UPDATE content.events SET note = note + 1, modified = {} WHERE id = {}"
    assert bench.settings.admin_url is not None
    with psycopg.connect(bench.settings.admin_url.get_secret_value()) as late:
        late.execute(change.format("now()", 1))
        bench.sql(change.format("clock_timestamp()", 2))
        assert bench.run("events")["status"] == "SUCCESS"
    bench.sql(change.format("clock_timestamp()", 3))
    assert bench.run("events")["status"] == "SUCCESS"
    return bench.differences(QUERY, "analytics.events")


def test_a_late_commit_is_read(workbench: Workbench) -> None:
    assert rows_lost_to_a_late_commit(workbench) == 0


# --- each of these, switched on, must lose rows: otherwise the tests above prove nothing ---------------------------


def checkpoint_not_held_back(
    source: object, cursor: object, options: object, *, safe: str | None, held: str | None, newest: str | None
) -> Watermark:
    """The classic: the checkpoint is the clock, whoever still has a transaction open."""
    row = source.execute("SELECT clock_timestamp()::text AS now").fetchone()  # type: ignore[attr-defined]
    return Watermark(row["now"])


@pytest.mark.parametrize("mutant", ["checkpoint not held back", "plain cursor", "upper bound that starves"])
def test_mutants_lose_rows(workbench: Workbench, monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    if mutant == "upper bound that starves":
        monkeypatch.setattr(QueryPass, "_bounds", only_what_is_safe)
    elif mutant == "checkpoint not held back":
        monkeypatch.setattr(cursors, "watermark", checkpoint_not_held_back)
    else:
        highest = checkpoint_is_the_highest_value_seen(workbench)
        monkeypatch.setattr(cursors, "watermark", highest)

    assert rows_lost_to_a_late_commit(workbench) > 0


def only_what_is_safe(following: QueryPass) -> Bounds:
    """A closed range: a row that is updated faster than the passes come is ahead of each of them."""
    found = following.checkpoint
    return Bounds(since=found.safe_upto, until=Watermark.recalled(found.held_upto).upto)


def checkpoint_is_the_highest_value_seen(bench: Workbench) -> Callable[..., Watermark]:
    """What `WHERE modified > last` amounts to."""

    def watermark(source: object, cursor: object, options: object, **_: str | None) -> Watermark:
        [row] = bench.sql("SELECT max(modified)::text AS newest FROM content.events")
        return Watermark(row["newest"])

    return watermark


def test_a_page_without_ties_loses_rows(workbench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """LIMIT instead of FETCH FIRST .. WITH TIES: rows that share a cursor value with the last one are skipped."""
    workbench.source(EVENTS)
    workbench.pipeline(
        "events", QUERY, target_key=["id"], mode="incremental", incremental_key="modified", batch_size=20
    )
    workbench.run("events")
    workbench.sql("UPDATE content.events SET note = 9, modified = now()")

    def without_ties(text: str) -> SQL:
        return SQL(text.replace("FETCH FIRST {} ROWS WITH TIES", "LIMIT {}"))

    monkeypatch.setattr("vitrina.connectors.postgres.source.SQL", without_ties)
    workbench.run("events")

    assert workbench.differences(QUERY, "analytics.events") > 0
