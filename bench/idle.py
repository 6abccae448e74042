"""What waiting costs and how long a request waits: `python -m bench.idle` (10,000 idle pipelines, one runner)."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg
from pydantic import SecretStr

from vitrina.embedded.temporary import TemporaryServer
from vitrina.settings import Settings
from vitrina.store import database
from vitrina.store.migrate import migrate

PIPELINES = 10_000
IDLE_SECONDS = 30
REQUESTS = 100
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

FILL = """
CREATE SCHEMA IF NOT EXISTS content; CREATE SCHEMA IF NOT EXISTS ugc;
CREATE TABLE content.item (id int PRIMARY KEY); INSERT INTO content.item VALUES (1);
"""
# A tenth of them is scheduled, far from now.
DEFINE = """
INSERT INTO etl.etl_pipelines (name, source_query, target_table, target_key, schedule_interval, next_run_at)
SELECT 'p' || i, 'SELECT id FROM content.item', 'analytics.t' || i, '{id}',
       CASE WHEN i %% 10 = 0 THEN '1d' END, CASE WHEN i %% 10 = 0 THEN now() + interval '1 day' END
FROM generate_series(1, %s) AS i
"""


def main() -> None:
    with TemporaryServer(settings={"autovacuum": "off"}) as server, tempfile.TemporaryDirectory() as directory:
        with psycopg.connect(server.urls.admin, autocommit=True) as admin:
            admin.execute(FILL)
        settings = Settings(
            database_url=SecretStr(server.urls.app),
            admin_url=SecretStr(server.urls.admin),
            reader_url=SecretStr(server.urls.reader),
            app_password=SecretStr(server.urls.app_password),
            reader_password=SecretStr(server.urls.reader_password),
        )
        migrate(settings)
        with database.connect(server.urls.admin, "bench") as admin:
            admin.execute("GRANT SELECT ON ALL TABLES IN SCHEMA content TO vitrina_reader")
            admin.execute(DEFINE, [PIPELINES])
            admin.execute("VACUUM ANALYZE")
            runner = _start_runner(settings, directory)
            try:
                _measure(admin, runner.pid)
            finally:
                runner.terminate()
                runner.wait()


def _start_runner(settings: Settings, directory: str) -> "subprocess.Popen[bytes]":
    assert settings.reader_url is not None
    environment = os.environ | {
        "VITRINA_DATABASE_URL": settings.require_database_url(),
        "VITRINA_READER_URL": settings.reader_url.get_secret_value(),
    }
    with Path(directory, "runner.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "vitrina.cli", "runner"], env=environment, cwd=directory, stdout=log, stderr=log
        )


def _measure(admin: database.Connection, runner: int) -> None:
    while not admin.execute("SELECT 1 FROM etl.etl_runners").fetchone():
        time.sleep(0.1)
    time.sleep(5)
    before = _cpu_seconds(admin, runner)
    time.sleep(IDLE_SECONDS)
    after = _cpu_seconds(admin, runner)
    cost = {name: 100 * (after[name] - before[name]) / IDLE_SECONDS for name in before}
    print(f"{PIPELINES} idle pipelines: runner {cost['runner']:.2f} %, its sessions {cost['sessions']:.2f} % of a core")
    waits = sorted(_wait(admin, i + 1) for i in range(REQUESTS))
    print(
        f"asked to run -> RUNNING over {REQUESTS} requests: p50 {1000 * statistics.median(waits):.1f} ms,"
        f" p99 {1000 * waits[int(0.99 * REQUESTS)]:.1f} ms, max {1000 * waits[-1]:.1f} ms"
    )


def _cpu_seconds(admin: database.Connection, runner: int) -> dict[str, float]:
    sessions = admin.execute("SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'vitrina:%'").fetchall()
    return {"runner": _used(runner), "sessions": sum(_used(session["pid"]) for session in sessions)}


def _used(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def _wait(admin: database.Connection, number: int) -> float:
    """By the database's clock: from the request's commit to the claim's."""
    admin.execute(
        "UPDATE etl.etl_pipelines SET status = 'RUN_REQUESTED', run_requested_at = clock_timestamp() WHERE name = %s",
        [f"p{number}"],
    )
    asked = admin.execute("SELECT clock_timestamp() AS at").fetchone()
    while True:
        run = admin.execute(
            "SELECT r.started_at, r.status FROM etl.etl_runs r JOIN etl.etl_pipelines p ON p.id = r.pipeline_id"
            " WHERE p.name = %s",
            [f"p{number}"],
        ).fetchone()
        if run and asked and run["status"] != "RUNNING":
            return max(0.0, (run["started_at"] - asked["at"]).total_seconds())
        time.sleep(0.01)


if __name__ == "__main__":
    main()
