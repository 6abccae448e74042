"""Measure what an idle runner costs and how long a request waits: `python -m bench.idle` (10,000 idle pipelines)."""

import statistics
import time

from bench.servers import cpu_seconds, prepared
from tests.support.processes import runner_process
from vitrina.store import database

PIPELINES = 10_000
IDLE_SECONDS = 30
REQUESTS = 100

FILL = """
CREATE SCHEMA IF NOT EXISTS content; CREATE SCHEMA IF NOT EXISTS ugc;
CREATE TABLE content.item (id int PRIMARY KEY); INSERT INTO content.item VALUES (1);
GRANT USAGE ON SCHEMA content TO vitrina_reader; GRANT SELECT ON content.item TO vitrina_reader;
"""
# A tenth of them is scheduled, far in the future.
DEFINE = """
INSERT INTO etl.etl_pipelines (name, source_query, target_table, target_key, schedule_interval, next_run_at)
SELECT 'p' || i, 'SELECT id FROM content.item', 'analytics.t' || i, '{id}',
       CASE WHEN i %% 10 = 0 THEN '1d' END, CASE WHEN i %% 10 = 0 THEN now() + interval '1 day' END
FROM generate_series(1, %s) AS i
"""


def main() -> None:
    with prepared({"autovacuum": "off"}) as (settings, directory):
        assert settings.admin_url
        with database.connect(settings.admin_url.get_secret_value(), "bench") as admin:
            admin.execute(FILL.encode())
            admin.execute(DEFINE, [PIPELINES])
            admin.execute("VACUUM ANALYZE")
            with runner_process(settings, directory) as runner:
                _measure(admin, runner.pid)


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
    return {"runner": cpu_seconds(runner), "sessions": sum(cpu_seconds(session["pid"]) for session in sessions)}


def _wait(admin: database.Connection, number: int) -> float:
    """Return the time from the request's commit to the claim's, by the database's clock."""
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
