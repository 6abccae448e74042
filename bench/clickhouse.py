"""Rows per second from Postgres into ClickHouse, against COPY out of Postgres and `insert_arrow` written by hand.

    PYTHONPATH=.clickhouse python -m bench.clickhouse [--rows 1000000] [--repeat 3] [--growth 1000000,10000000]

Both fill a new table with the same rows, from the same Postgres into the same ClickHouse, in turns. The engine is chdb
in a process of its own, behind its HTTP protocol (`tests/support/clickhouse_server.py`), or the server of
VITRINA_TEST_CLICKHOUSE_URL. Then the runner's peak memory for each number of rows of `--growth`.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import adbc_driver_postgresql.dbapi
import clickhouse_connect
import pyarrow as pa

from bench.cinema import Cinema
from bench.ours import Platform
from bench.servers import prepared
from tests.support.clickhouse_process import clickhouse_process
from vitrina.connectors.clickhouse import urls

QUERY = "SELECT id, title, rating, genres, modified FROM content.films"
# The driver has no type for numeric: it travels as text.
BY_HAND = "SELECT id, title, rating::text AS rating, genres, modified FROM content.films"
TABLE = """
CREATE OR REPLACE TABLE by_hand (
    id UUID, title Nullable(String), rating Nullable(Decimal(3, 1)), genres Array(Nullable(String)),
    modified Nullable(DateTime64(6, 'UTC'))
) ENGINE = MergeTree ORDER BY id
"""
BATCH_ROWS = 50_000


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
        hand, ours = [], []
        for turn in range(asked.repeat):
            hand.append(_timed(lambda: _by_hand(cinema.admin_url, url)))
            ours.append(_timed(lambda: platform.run("films")))
            print(f"turn {turn + 1}: by hand {hand[-1]:.1f} s, Vitrina {ours[-1]:.1f} s", flush=True)
        ratio = statistics.median(hand) / statistics.median(ours)
        print(
            f"{asked.rows:,} rows: {asked.rows / statistics.median(ours):,.0f} rows/s, {ratio:.2f} x by hand",
            flush=True,
        )
        for rows in map(int, filter(None, asked.growth.split(","))):
            Cinema(cinema.admin_url, rows).make_films("content.films", rows)
            platform.restart()
            platform.forget_peak_memory()
            seconds = _timed(lambda: platform.run("films"))
            print(f"{rows:,} rows: {seconds:.1f} s, peak {platform.peak_memory_mb():.0f} MB", flush=True)


@contextmanager
def server() -> Iterator[str]:
    given = os.environ.get("VITRINA_TEST_CLICKHOUSE_URL")
    if given:
        yield given
        return
    with tempfile.TemporaryDirectory() as directory, clickhouse_process(Path(directory)) as process:
        yield process.url


def _platform(settings: object, directory: Path, url: str, stack: ExitStack) -> Platform:
    environment = {
        "VITRINA_DATABASE_URL": settings.require_database_url(),  # type: ignore[attr-defined]
        "VITRINA_READER_URL": settings.reader_url.get_secret_value(),  # type: ignore[attr-defined]
        "VITRINA_CONN_OLAP": url,
        "VITRINA_ALLOWED_TARGETS": "clickhouse:*",
        "VITRINA_ALLOWED_SOURCE_SCHEMAS": "content",
    }
    platform = Platform(settings, environment)  # type: ignore[arg-type]
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


def _timed(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _by_hand(source: str, url: str) -> None:
    where = urls.parse(url)
    client = clickhouse_connect.get_client(
        host=where.host,
        port=where.port,
        username=where.user,
        password=where.password,
        database="default",
        compress=False,
        autogenerate_session_id=False,
        settings={"async_insert": 0},
    )
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


def _insert(client: object, batches: list[pa.RecordBatch]) -> None:
    table = pa.Table.from_batches(batches)
    at = table.column_names.index("rating")
    table = table.set_column(at, "rating", table.column("rating").cast(pa.decimal128(3, 1)))
    client.insert_arrow("by_hand", table)  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
