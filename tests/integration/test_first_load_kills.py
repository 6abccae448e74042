"""First loads that exchange tables, in real runners killed or stopped at each step, beside a polling reader."""

import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support import waiting
from tests.support.processes import VITRINA, environment_of
from tests.support.workbench import Workbench

ROWS = 25_000
POINTS = ("load.begun", "batch.filled", "batch.committed", "publish.applied", "publish.fenced", "publish.committed")
pytestmark = [pytest.mark.timeout(300), pytest.mark.takes_long]


@contextmanager
def runner(bench: Workbench, directory: Path, **more: str) -> Iterator["subprocess.Popen[bytes]"]:
    wanted = environment_of(bench.settings) | {"VITRINA_LEASE_TTL_SECONDS": "4"} | more
    with (directory / f"runner-{time.monotonic()}.log").open("w") as output:
        process = subprocess.Popen([VITRINA, "runner"], env=wanted, cwd=directory, stdout=output, stderr=output)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait(timeout=60)


@contextmanager
def polled(bench: Workbench) -> Iterator[set[Any]]:
    """Count the rows of the mart all the time; everything that was seen, errors included."""
    seen: set[Any] = set()
    over = threading.Event()
    assert bench.settings.admin_url
    url = bench.settings.admin_url.get_secret_value()

    def poll() -> None:
        with psycopg.connect(url, autocommit=True) as session:
            while not over.is_set():
                try:
                    seen.add(session.execute("SELECT count(*), min(id), max(id) FROM analytics.films").fetchone())
                except psycopg.Error as exc:
                    seen.add(str(exc))
                time.sleep(0.02)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def is_stopped(pid: int) -> bool:
    return any(
        (task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in Path(f"/proc/{pid}/task").iterdir()
    )


@pytest.mark.parametrize("route", ["pushdown", "copy"])
@pytest.mark.parametrize("action", ["kill", "stop"])
@pytest.mark.parametrize("point", POINTS)
def test_a_first_load_survives(workbench: Workbench, tmp_path: Path, point: str, action: str, route: str) -> None:
    bench = workbench
    bench.source(
        f"CREATE TABLE content.films AS SELECT i AS id, 'Film ' || i AS title FROM generate_series(1, {ROWS}) i"
    )
    bench.sql(
        "ANALYZE content.films; CREATE TABLE analytics.films (id int PRIMARY KEY, title text);"
        "CREATE INDEX titles ON analytics.films (title); ALTER TABLE analytics.films OWNER TO vitrina_app"
    )
    old = bench.sql("SELECT 'analytics.films'::regclass::oid AS oid")
    options = {"route": "copy"} if route == "copy" else {}
    bench.pipeline("films", "SELECT id, title FROM content.films", target_key=["id"], options=options)
    with polled(bench) as seen, runner(bench, tmp_path, VITRINA_FAILPOINTS=f"{point}:{action}:1") as first:
        bench.request("films")
        if action == "kill":
            first.wait(timeout=60)
        else:
            waiting.until(lambda: is_stopped(first.pid))
        with runner(bench, tmp_path):
            waiting.until(lambda: bench.status("films") == "IDLE" and bench.last_run("films")["status"] == "SUCCESS")
            first.send_signal(signal.SIGCONT)
            time.sleep(2)
    assert bench.differences("SELECT id, title FROM content.films", "analytics.films") == 0
    assert seen <= {(0, None, None), (ROWS, 1, ROWS)}, seen
    indexes = bench.sql("SELECT indexname FROM pg_indexes WHERE tablename = 'films' AND schemaname = 'analytics'")
    assert sorted(row["indexname"] for row in indexes) == ["films_pkey", "titles"]
    left = bench.sql(
        "SELECT relname FROM pg_class WHERE relnamespace = 'etl_stage'::regnamespace AND relname LIKE 'p\\_%'"
    )
    assert left == []
    assert bench.sql("SELECT 'analytics.films'::regclass::oid AS oid") != old
