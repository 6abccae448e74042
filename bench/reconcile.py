"""Reconcile a million rows: compared with a hand-written md5 aggregate of both sides, and under write load.

    python -m bench.reconcile [--rows 1000000] [--repeat 3] [--alarms 20]

Also checked: seven kinds of differences are found and repaired, and no run under write load raises a false alarm.
"""

import argparse
import threading
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import psycopg
from psycopg import sql

from bench.cinema import COLUMNS, FILMS
from bench.postgres import bench
from bench.report import Line, timed, write
from bench.scenarios import INCREMENTAL, Bench

# The promise is a quarter of the speed of the aggregate.
WANTED = 0.25
SPOILS = {
    "changed": "UPDATE {} SET title = 'Changed' WHERE id = md5('1')::uuid",
    "missing": "DELETE FROM {} WHERE id = md5('2')::uuid",
    "extra": "INSERT INTO {} (id, title, modified) VALUES (md5('0')::uuid, 'Extra', now())",
    "moved": "UPDATE {} SET id = md5('-1')::uuid WHERE id = md5('3')::uuid",
    "NULL": "UPDATE {} SET title = NULL WHERE id = md5('4')::uuid",
    "microsecond": "UPDATE {} SET modified = modified + interval '1 microsecond' WHERE id = md5('5')::uuid",
    "order": "UPDATE {} SET genres = ARRAY[genres[2], genres[1]] WHERE id = md5('6')::uuid",
}


def main() -> None:
    arguments = parse()
    arguments.only, arguments.peers, arguments.bindir = ["reconcile"], [], None
    with bench(arguments) as measured:
        lines = [_same_database(measured), _other_server(measured)]
        told = {"rows": arguments.rows, "runner_peak_memory_mb": round(measured.platform.peak_memory_mb())}
        told |= _find_and_repair(measured)
        write("reconcile", lines, told)  # written first, in case the rest fails
        told |= _no_false_alarm(measured, arguments.alarms, arguments.moving_rows)
    write("reconcile", lines, told)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--alarms", type=int, default=20, help="runs against a source under write load")
    parser.add_argument("--moving-rows", type=int, default=100_000, help="rows of that source")
    parser.add_argument("--home", type=Path, default=Path(gettempdir()) / "vitrina-bench")
    return parser.parse_args()


def _same_database(measured: Bench) -> Line:
    measured.platform.define("films", FILMS, target_key=["id"])
    measured.platform.run("films")
    url = measured.cinema.admin_url
    return _measure(measured, "same database", "films", lambda: _aggregate(url, "analytics.films"))


def _other_server(measured: Bench) -> Line:
    measured.platform.define("far_films", FILMS, target_key=["id"], options={"target_connection": "warehouse"})
    measured.platform.run("far_films")
    return _measure(
        measured, "another server", "far_films", lambda: _aggregate(measured.remote.admin_url, "analytics.far_films")
    )


def _measure(measured: Bench, where: str, name: str, target_sum: Any) -> Line:
    def by_hand() -> None:
        if _aggregate(measured.cinema.admin_url, "content.films") != target_sum():
            raise RuntimeError("the aggregates differ")

    def ours() -> None:
        if not measured.platform.reconcile(name)["equal"]:
            raise RuntimeError(f"{name} differs")

    return measured.compare(f"reconcile, {where}", "md5 aggregate of both sides", WANTED, ours, by_hand)


def _aggregate(url: str, table: str) -> Any:
    """Compute a hand-written aggregate, which shows that something differs, not what."""
    with psycopg.connect(url, autocommit=True) as connection:
        statement = f"""
            SELECT count(*), sum(('x' || left(md5(ROW({COLUMNS})::text), 15))::bit(60)::bigint)::text FROM {table}
        """
        return connection.execute(statement.encode()).fetchone()


def _find_and_repair(measured: Bench) -> dict[str, object]:
    with measured.cinema.connect() as connection:
        for statement in SPOILS.values():
            connection.execute(sql.SQL(statement).format(sql.Identifier("analytics", "films")))
    seconds = timed(lambda: _expect(measured.platform.reconcile("films", repair=True), missing=2, extra=2, differing=4))
    measured.check(FILMS, f"SELECT {COLUMNS} FROM analytics.films")
    print(f"found and repaired {', '.join(SPOILS)} in {seconds:.1f} s", flush=True)
    return {"found_and_repaired": f"{', '.join(SPOILS)}, in {seconds:.1f} s"}


def _expect(report: dict[str, Any], **wanted: int) -> None:
    found = {name: report[name] for name in wanted}
    if found != wanted or report["remaining"]:
        raise RuntimeError(f"expected {wanted}, found {found}, {report['remaining']} remaining")


def _no_false_alarm(measured: Bench, runs: int, rows: int) -> dict[str, object]:
    """Run writers, passes and comparisons at once."""
    with measured.cinema.connect() as connection:
        connection.execute(f"CREATE TABLE content.live AS SELECT * FROM content.films LIMIT {rows}")
        connection.execute("ALTER TABLE content.live ADD PRIMARY KEY (id)")
        connection.execute("CREATE INDEX ON content.live (modified, id)")
        connection.execute("GRANT SELECT ON content.live TO vitrina_reader")
        connection.execute("ANALYZE content.live")
    query = f"SELECT {COLUMNS} FROM content.live"
    measured.platform.define("live_films", query, options={"cursor_clock": "database"}, **INCREMENTAL)
    measured.platform.run("live_films")
    stop = threading.Event()
    threads = [
        threading.Thread(target=_write, args=(measured, stop)),
        threading.Thread(target=_load, args=(measured, stop)),
    ]
    for thread in threads:
        thread.start()
    try:
        reports = [measured.platform.reconcile("live_films") for _ in range(runs)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    alarms = [report["keys"] for report in reports if not report["equal"]]
    in_flight = sum(report["in_flight"] for report in reports)
    print(f"{runs} comparisons under write load: {len(alarms)} false alarms, {in_flight} rows in flight", flush=True)
    if alarms:
        raise RuntimeError(f"false alarm: {alarms[0]}")
    return {"under_write_load": f"{runs} comparisons of {rows:,} rows, 0 false alarms, {in_flight} rows in flight"}


def _write(measured: Bench, stop: threading.Event) -> None:
    with measured.cinema.connect() as connection:
        number = 0
        while not stop.wait(0.002):
            number += 1
            connection.execute(
                "UPDATE content.live SET title = title || '!', modified = clock_timestamp()"
                " WHERE id = md5(%s::text)::uuid",
                [str(number % 1000)],
            )
            connection.execute(
                "INSERT INTO content.live (id, title, modified) VALUES (gen_random_uuid(), 'New', clock_timestamp())"
            )


def _load(measured: Bench, stop: threading.Event) -> None:
    while not stop.is_set():
        measured.platform.run("live_films")


if __name__ == "__main__":
    main()
