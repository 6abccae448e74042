"""Write to a source so that each of its states can be reconstructed, for comparison with a history.

Every transaction draws a number under a lock, shows it in row 0, and records what it did. So the number that a snapshot
shows tells exactly which transactions it must contain.
"""

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.rows import dict_row

from vitrina.settings import Settings

WRITERS = 3
KEYS = 40
# Keys of writers whose transactions stay open: no other writer waits for their rows.
LATE_KEYS = range(1_000, 1_020)
LATE_WRITERS = 2

SOURCE = """
CREATE TABLE content.items (id bigint PRIMARY KEY, note text NOT NULL, modified timestamptz NOT NULL);
CREATE INDEX ON content.items (modified, id);
CREATE TABLE content.journal (number bigint NOT NULL, id bigint NOT NULL, note text);
INSERT INTO content.items SELECT n, '0', now() FROM generate_series(0, 30) n;
INSERT INTO content.journal SELECT 0, id, note FROM content.items;
GRANT SELECT ON content.items TO vitrina_reader;
"""
QUERY = "SELECT id, note, modified FROM content.items"
SHOWN = "SELECT note FROM analytics.items WHERE id = 0 AND is_current"

Connection = psycopg.Connection[Any]


def change(connection: Connection, rng: random.Random, *, deletes: bool) -> None:
    """Stamp rows with the transaction's start time, as applications do, and commit them some time later."""
    with connection.transaction():
        connection.execute("SELECT now()")
        time.sleep(rng.choice((0, 0, 0.002, 0.02, 0.1)))
        number = draw(connection)
        for key in {rng.randint(1, KEYS) for _ in range(rng.randint(1, 4))}:
            write(connection, key, None if deletes and rng.random() < 0.3 else str(number))
            record(connection, number, [key])


def draw(connection: Connection) -> int:
    """Draw the next number, and show it; later transactions wait until this one has ended."""
    connection.execute("SELECT FROM content.items WHERE id = 0 FOR UPDATE")
    [number] = connection.execute("SELECT note::bigint + 1 FROM content.items WHERE id = 0").fetchone() or [0]
    write(connection, 0, str(number))
    record(connection, number, [0])
    return int(number)


def write(connection: Connection, key: int, note: str | None) -> None:
    if note is None:
        connection.execute("DELETE FROM content.items WHERE id = %s", [key])
        return
    connection.execute(
        "INSERT INTO content.items VALUES (%s, %s, now())"
        " ON CONFLICT (id) DO UPDATE SET note = excluded.note, modified = excluded.modified",
        [key, note],
    )


def record(connection: Connection, number: int, keys: Sequence[int]) -> None:
    """Record what the transaction has done to these keys."""
    connection.execute(
        "INSERT INTO content.journal SELECT %s, k.id, i.note"
        " FROM unnest(%s::bigint[]) AS k(id) LEFT JOIN content.items AS i ON i.id = k.id",
        [number, list(keys)],
    )


class Writers:
    """Change the source in several sessions at the same time, until the block ends.

    With `late`, additional sessions write rows and commit them after several runs have ended; `runs` counts these.
    """

    def __init__(self, url: str, seed: int, *, deletes: bool, late: bool = False, pause_seconds: float = 0.01) -> None:
        self.runs = 0
        self.late_commits = 0
        self._url = url
        self._deletes = deletes
        self._pause_seconds = pause_seconds
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=target, args=(random.Random(f"{seed}-{target.__name__}-{number}"), number))
            for target, count in ((self._write, WRITERS), (self._write_late, LATE_WRITERS if late else 0))
            for number in range(count)
        ]

    def _write(self, rng: random.Random, number: int) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._stop.is_set():
                with suppress(psycopg.errors.DeadlockDetected):
                    change(connection, rng, deletes=self._deletes)
                time.sleep(rng.uniform(0, self._pause_seconds))

    def _write_late(self, rng: random.Random, number: int) -> None:
        own = LATE_KEYS[number::LATE_WRITERS]
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._stop.is_set():
                with connection.transaction():
                    keys = rng.sample(own, rng.randint(1, 4))
                    for key in keys:
                        gone = self._deletes and rng.random() < 0.3
                        write(connection, key, None if gone else f"late {rng.random()}")
                    self.late_commits += self._await_runs(rng.randint(1, 4))
                    record(connection, draw(connection), keys)
                time.sleep(rng.uniform(0, 0.2))

    def _await_runs(self, count: int) -> bool:
        """Wait until this many runs have ended, which saw nothing of this transaction."""
        end = self.runs + count
        while self.runs < end and not self._stop.wait(0.01):
            pass
        return self.runs >= end

    def __enter__(self) -> "Writers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def states(connection: Connection, numbers: Sequence[int]) -> Iterator[dict[int, str]]:
    """Yield the source after each of these numbers of transactions, in increasing order."""
    journal = connection.cursor(row_factory=dict_row).execute("SELECT * FROM content.journal ORDER BY number")
    rows = iter(journal.fetchall())
    row, found = next(rows, None), {}
    for number in numbers:
        while row is not None and row["number"] <= number:
            found[row["id"]] = row["note"]
            row = next(rows, None)
        yield {key: note for key, note in found.items() if note is not None}


def as_of(connection: Connection, moment: str) -> dict[int, str]:
    """Query the history as the docs do."""
    rows = connection.cursor(row_factory=dict_row).execute(
        "SELECT id, note FROM analytics.items WHERE valid_from <= %(at)s AND (valid_to > %(at)s OR valid_to IS NULL)",
        {"at": moment},
    )
    listed = rows.fetchall()
    found = {row["id"]: row["note"] for row in listed}
    assert len(found) == len(listed), "a key has two states at one time"
    return found


def require_equal(connection: Connection, snapshots: Sequence[tuple[str, int]]) -> None:
    """Require that the history as of each snapshot equals the source at the number that the snapshot showed."""
    moments = [moment for moment, _ in snapshots]
    assert moments == sorted(set(moments)), "snapshots of one pipeline only grow"
    wanted = states(connection, [number for _, number in snapshots])
    for (moment, _), source in zip(snapshots, wanted, strict=True):
        assert as_of(connection, moment) == source


def admin_url(settings: Settings) -> str:
    assert settings.admin_url is not None
    return settings.admin_url.get_secret_value()
