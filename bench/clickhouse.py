"""Measure rows per second from Postgres into ClickHouse, against hand-written COPY and `insert_arrow`.

    PYTHONPATH=.clickhouse python -m bench.clickhouse [--rows 1000000] [--repeat 3] [--growth 1000000,10000000]

Both fill a new table with the same rows, from the same Postgres into the same ClickHouse, alternately. Each turn begins
when the engine has finished the merges of the turn before. The engine is chdb in a separate process that speaks its
HTTP protocol (`tests/support/clickhouse_server.py`), or the server of VITRINA_TEST_CLICKHOUSE_URL. CPU seconds are
those of all processes of the benchmark: runner or script, Postgres, engine. Then reconcile finds and repairs manual
changes, and the runner's peak memory is reported for each number of rows of `--growth`.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import adbc_driver_postgresql.dbapi
import clickhouse_connect
import pyarrow as pa
from clickhouse_connect.driver.client import Client

from bench.cinema import Cinema
from bench.ours import Platform
from bench.report import timed, write_figures
from bench.servers import parent, prepared, tree_cpu_seconds
from tests.support.clickhouse_process import clickhouse_process
from vitrina.connectors.clickhouse import urls
from vitrina.settings import Settings

QUERY = "SELECT id, title, rating, genres, modified FROM content.films"
# The driver has no type for numeric, so it travels as text.
BY_HAND = "SELECT id, title, rating::text AS rating, genres, modified FROM content.films"
TABLE = """
CREATE OR REPLACE TABLE by_hand (
    id UUID, title Nullable(String), rating Nullable(Decimal(3, 1)), genres Array(Nullable(String)),
    modified Nullable(DateTime64(6, 'UTC'))
) ENGINE = MergeTree ORDER BY id
"""
BATCH_ROWS = 50_000
WANTED = 0.7
QUIET_SECONDS = 2.0
INTRO = """\
{rows:,} films from Postgres into a new ClickHouse table: Vitrina and hand-written COPY with `insert_arrow` alternate,
into the same engine (chdb in a separate process, over its HTTP protocol). Then a comparison of source and target, and
the runner's memory as tables grow."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--growth", default="")
    asked = parser.parse_args()
    with prepared() as (settings, directory), server() as url, ExitStack() as stack:
        assert settings.admin_url
        cinema = Cinema(settings.admin_url.get_secret_value(), asked.rows)
        cinema.make(ratings=False)
        platform = _platform(settings, directory, url, stack)
        figures = _speed(asked, cinema, platform, url) | _reconciled(platform, url) | _growth(asked, cinema, platform)
    write_figures("clickhouse", "ClickHouse as a target", INTRO.format(rows=asked.rows), figures)


def _speed(asked: argparse.Namespace, cinema: Cinema, platform: Platform, url: str) -> dict[str, str]:
    hand, ours = [], []
    for turn in range(asked.repeat):
        hand.append(_measured(cinema, url, lambda: _by_hand(cinema.admin_url, url)))
        ours.append(_measured(cinema, url, lambda: platform.run("films")))
        print(f"turn {turn + 1}: by hand {hand[-1]}, Vitrina {ours[-1]}", flush=True)
    ratio = statistics.median(by_hand.seconds / with_us.seconds for by_hand, with_us in zip(hand, ours, strict=True))
    return {
        "rows a second": f"{asked.rows / statistics.median(one.seconds for one in ours):,.0f}",
        "by hand": f"{asked.rows / statistics.median(one.seconds for one in hand):,.0f}",
        f"ratio (wanted: {WANTED})": f"{ratio:.2f}",
        "ratio of each turn": ", ".join(f"{a.seconds / b.seconds:.2f}" for a, b in zip(hand, ours, strict=True)),
        "CPU seconds": f"{statistics.median(one.cpu for one in ours):.1f}",
        "CPU seconds by hand": f"{statistics.median(one.cpu for one in hand):.1f}",
    }


@dataclass(frozen=True)
class Measured:
    """Hold what one load took."""

    seconds: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s ({self.cpu:.1f} s of CPU)"


def _measured(cinema: Cinema, url: str, work: Callable[[], object]) -> Measured:
    _settle(url)
    with cinema.connect() as connection:
        server = parent(connection.info.backend_pid)
        before = _cpu_seconds(server)
        seconds = timed(work)
        return Measured(seconds, _cpu_seconds(server) - before)


def _cpu_seconds(postgres: int) -> float:
    """Return the CPU seconds of this process and its children, including runner and engine, and of Postgres."""
    return tree_cpu_seconds(os.getpid()) + tree_cpu_seconds(postgres)


def _settle(url: str) -> None:
    """Wait until the engine has finished the merges that follow inserts."""
    client = _client(url)
    quiet_since = time.monotonic()
    while time.monotonic() - quiet_since < QUIET_SECONDS:
        if client.command("SELECT count() FROM system.merges"):
            quiet_since = time.monotonic()
        time.sleep(0.1)
    client.close()


def _reconciled(platform: Platform, url: str) -> dict[str, str]:
    """Compare and repair a table in which rows were deleted, changed and added without the runner."""
    client = _client(url)
    [[table]] = client.query("SELECT name FROM system.tables WHERE name LIKE 'films\\_\\_g%'").result_rows
    ids = [row[0] for row in client.query(f"SELECT id FROM {table} ORDER BY cityHash64(id) LIMIT 8").result_rows]
    equal = timed(lambda: _expect(platform, missing=0, extra=0, differing=0))
    client.command(f"ALTER TABLE {table} DELETE WHERE id IN {{ids:Array(UUID)}}", {"ids": ids[:3]})
    client.command(f"ALTER TABLE {table} UPDATE title = 'by hand' WHERE id IN {{ids:Array(UUID)}}", {"ids": ids[3:8]})
    client.command(f"INSERT INTO {table} SELECT * REPLACE (generateUUIDv4() AS id) FROM {table} LIMIT 2")
    found = timed(lambda: _expect(platform, missing=3, extra=2, differing=5))
    repaired = timed(lambda: _expect(platform, repair=True, missing=3, extra=2, differing=5))
    _expect(platform, missing=0, extra=0, differing=0)
    client.close()
    return {
        "reconcile, equal": f"{equal:.1f} s",
        "reconcile, 3 missing, 2 extra, 5 changed": f"found in {found:.1f} s, found and repaired in {repaired:.1f} s",
    }


def _expect(platform: Platform, *, repair: bool = False, **wanted: int) -> None:
    report = platform.reconcile("films", repair=repair)
    found = {name: report[name] for name in wanted}
    if found != wanted:
        raise RuntimeError(f"reconcile found {found}, not {wanted}")


def _growth(asked: argparse.Namespace, cinema: Cinema, platform: Platform) -> dict[str, str]:
    figures = {}
    for rows in map(int, filter(None, asked.growth.split(","))):
        Cinema(cinema.admin_url, rows).make_films("content.films", rows)
        platform.restart()
        platform.forget_peak_memory()
        seconds = timed(lambda: platform.run("films"))
        figures[f"{rows:,} rows"] = f"{seconds:.1f} s, runner's peak {platform.peak_memory_mb():.0f} MB"
        print(rows, figures[f"{rows:,} rows"], flush=True)
    return figures


@contextmanager
def server() -> Iterator[str]:
    given = os.environ.get("VITRINA_TEST_CLICKHOUSE_URL")
    if given:
        yield given
        return
    with tempfile.TemporaryDirectory() as directory, clickhouse_process(Path(directory)) as process:
        yield process.url


def _platform(settings: Settings, directory: Path, url: str, stack: ExitStack) -> Platform:
    assert settings.reader_url
    environment = {
        "VITRINA_DATABASE_URL": settings.require_database_url(),
        "VITRINA_READER_URL": settings.reader_url.get_secret_value(),
        "VITRINA_CONN_OLAP": url,
        "VITRINA_ALLOWED_TARGETS": "clickhouse:*",
        "VITRINA_ALLOWED_SOURCE_SCHEMAS": "content",
    }
    platform = Platform(settings, environment)
    platform.start(directory / "runner.log")
    stack.callback(platform.stop)
    platform.define(
        "films",
        QUERY,
        target_table="clickhouse:default.films",
        target_key=["id"],
        batch_size=BATCH_ROWS,
        options={"target_connection": "olap"},
    )
    return platform


def _client(url: str) -> Client:
    where = urls.parse(url)
    return clickhouse_connect.get_client(
        host=where.host,
        port=where.port,
        username=where.user,
        password=where.password,
        database="default",
        compress=False,
        autogenerate_session_id=False,
        settings={"async_insert": 0, "mutations_sync": 2},
    )


def _by_hand(source: str, url: str) -> None:
    client = _client(url)
    client.command(TABLE)
    with adbc_driver_postgresql.dbapi.connect(source) as connection, connection.cursor() as cursor:
        cursor.execute(BY_HAND)
        waiting: list[pa.RecordBatch] = []
        rows = 0
        for batch in cursor.fetch_record_batch():
            waiting.append(batch)
            rows += batch.num_rows
            if rows >= BATCH_ROWS:
                _insert(client, waiting)
                waiting, rows = [], 0
        if waiting:
            _insert(client, waiting)
    client.close()


def _insert(client: Client, batches: list[pa.RecordBatch]) -> None:
    table = pa.Table.from_batches(batches)
    at = table.column_names.index("rating")
    table = table.set_column(at, "rating", table.column("rating").cast(pa.decimal128(3, 1)))
    client.insert_arrow("by_hand", table)


if __name__ == "__main__":
    main()
