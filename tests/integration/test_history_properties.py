"""A history under writers, late commits and lost runners: as of each run's snapshot the mart is the source then.

Every transaction of the source draws a number under a lock, shows it in the row 0, and writes down what it did. So the
number that a snapshot shows tells exactly which transactions it must hold.
"""

import os
import random
import threading
import time
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from tests.support.workbench import Workbench
from vitrina import failpoints

LONG = os.environ.get("VITRINA_CHAOS") == "long"
SEEDS = range(10) if LONG else range(2)
RUNS = 100 if LONG else 8
WRITERS = 3
KEYS = 40

SOURCE = """
CREATE TABLE content.items (id bigint PRIMARY KEY, note text NOT NULL, modified timestamptz NOT NULL);
CREATE INDEX ON content.items (modified, id);
CREATE TABLE content.journal (number bigint NOT NULL, id bigint NOT NULL, note text);
INSERT INTO content.items SELECT n, '0', now() FROM generate_series(0, 30) n;
INSERT INTO content.journal SELECT 0, id, note FROM content.items;
"""
QUERY = "SELECT id, note, modified FROM content.items"
SHOWN = "SELECT note FROM {} WHERE id = 0"
CRASHES = (
    "run.planned", "pass.begun", "load.begun", "batch.filled", "merge.applied", "batch.fenced", "batch.committed",
    "publish.applied", "publish.fenced", "publish.committed", "pass.fenced", "pass.ended",
)  # fmt: skip


def change(connection: psycopg.Connection[Any], rng: random.Random, *, deletes: bool) -> None:
    """Stamp rows with the transaction's beginning, as applications do, and commit them some time later."""
    with connection.transaction():
        connection.execute("SELECT now()")
        time.sleep(rng.choice((0, 0, 0.002, 0.02, 0.1)))
        connection.execute("SELECT FROM content.items WHERE id = 0 FOR UPDATE")
        [number] = connection.execute("SELECT note::bigint + 1 FROM content.items WHERE id = 0").fetchone() or [0]
        for key in {0, *(rng.randint(1, KEYS) for _ in range(rng.randint(1, 4)))}:
            if deletes and key and rng.random() < 0.3:
                connection.execute("DELETE FROM content.items WHERE id = %s", [key])
                connection.execute("INSERT INTO content.journal VALUES (%s, %s, NULL)", [number, key])
                continue
            connection.execute(
                "INSERT INTO content.items VALUES (%s, %s, now())"
                " ON CONFLICT (id) DO UPDATE SET note = excluded.note, modified = excluded.modified",
                [key, str(number)],
            )
            connection.execute("INSERT INTO content.journal VALUES (%s, %s, %s)", [number, key, str(number)])


class Writers:
    """Sessions that change the source at the same time, until the block ends."""

    def __init__(self, url: str, seed: int, *, deletes: bool) -> None:
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._write, args=(url, random.Random(f"{seed}-{number}"), deletes))
            for number in range(WRITERS)
        ]

    def _write(self, url: str, rng: random.Random, deletes: bool) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            while not self._stop.is_set():
                with suppress(psycopg.errors.DeadlockDetected):
                    change(connection, rng, deletes=deletes)
                time.sleep(rng.uniform(0, 0.01))

    def __enter__(self) -> "Writers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def then(bench: Workbench, number: str) -> dict[int, str]:
    """The source after that many transactions."""
    rows = bench.admin.execute(
        "SELECT DISTINCT ON (id) id, note FROM content.journal WHERE number <= %s ORDER BY id, number DESC", [number]
    ).fetchall()
    return {row["id"]: row["note"] for row in rows if row["note"] is not None}


def as_of(bench: Workbench, moment: str) -> dict[int, str]:
    rows = bench.admin.execute(
        "SELECT id, note FROM analytics.items WHERE valid_from <= %(at)s AND (valid_to > %(at)s OR valid_to IS NULL)",
        {"at": moment},
    ).fetchall()
    assert len(rows) == len({row["id"] for row in rows}), "a key has two states at one time"
    return {row["id"]: row["note"] for row in rows}


def run_somehow(bench: Workbench, rng: random.Random) -> str:
    """Run to the end, with runners that are lost on the way; the snapshot's time."""
    bench.request("items")
    while rng.random() < 0.4:
        failpoints.configure(f"{rng.choice(CRASHES)}:crash:{rng.randint(1, 3)}")
        try:
            bench.perform(bench.claim())
        except failpoints.Crashed:
            bench.recover(max_attempts=100)
        else:
            bench.request("items")
        finally:
            failpoints.configure("")
    bench.perform(bench.claim())
    done = bench.last_run("items")
    assert done["status"] == "SUCCESS", done["error_message"]
    return str(done["metrics"]["snapshot_at"])


@pytest.mark.timeout(1800 if LONG else 300)
@pytest.mark.parametrize("mode", ["full", "incremental"])
@pytest.mark.parametrize("seed", SEEDS)
def test_as_of_each_snapshot_the_mart_is_the_source_then(workbench: Workbench, seed: int, mode: str) -> None:
    rng = random.Random(seed)
    workbench.source(SOURCE)
    workbench.sql("SET synchronous_commit = off")
    workbench.pipeline(
        "items",
        QUERY,
        target_key=["id"],
        mode=mode,
        batch_size=rng.choice((3, 7, 50)),
        incremental_key="modified" if mode == "incremental" else None,
        incremental_id_key="id" if mode == "incremental" else None,
        options={
            "history": {"exclusion": True},
            "route": rng.choice(("auto", "copy", "arrow")),
            "checkpoint_rows": rng.choice((5, 10**6)),
            "allow_shrink": True,
            "cursor_clock": "database",
        },
    )
    snapshots: list[tuple[str, str]] = []
    with Writers(admin_url(workbench), seed, deletes=mode == "full"):
        for _ in range(RUNS):
            moment = run_somehow(workbench, rng)
            [shown] = workbench.sql(SHOWN.format("analytics.items") + " AND is_current")
            snapshots.append((moment, shown["note"]))
    assert [moment for moment, _ in snapshots] == sorted({moment for moment, _ in snapshots})
    for moment, number in snapshots:
        assert as_of(workbench, moment) == then(workbench, number)
    assert len({number for _, number in snapshots}) > RUNS // 2, "nothing was written meanwhile"
    run_somehow(workbench, rng)
    [before] = workbench.sql("SELECT count(*) AS states FROM analytics.items")
    again = workbench.run("items")
    assert (again["status"], again["rows_written"], again["rows_deleted"]) == ("SUCCESS", 0, 0)
    assert workbench.sql("SELECT count(*) AS states FROM analytics.items") == [before]


def admin_url(bench: Workbench) -> str:
    assert bench.settings.admin_url is not None
    return bench.settings.admin_url.get_secret_value()
