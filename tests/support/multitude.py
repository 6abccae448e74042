"""Fill a metastore with very many pipelines and runs by SQL, as after years of operation."""

from vitrina.store.database import Connection

# Half of them incremental; a few failed, running or waiting, with a last step that names the target, or compared daily.
PIPELINES = """
INSERT INTO etl.etl_pipelines
    (name, description, source_query, target_table, target_key, mode, incremental_key, schedule_interval, next_run_at,
     status, status_since, failing_since, options, labels, managed_by, claim_id, epoch, lease_until, holds_target,
     run_requested_at, waiting_since, hold, created_at, updated_at)
SELECT 'pipeline_' || lpad(i::text, 6, '0'), 'One of very many.',
       'SELECT f.id, f.title, f.updated_at FROM content.film_work f WHERE f.kind = ' || i || repeat(' ', 400),
       'analytics.mart_' || i, '{id}', CASE WHEN i % 2 = 0 THEN 'incremental' ELSE 'full' END,
       CASE WHEN i % 2 = 0 THEN 'updated_at' END,
       CASE WHEN i % 10 = 0 THEN '1d' END, CASE WHEN i % 10 = 0 THEN now() + interval '1 day' END,
       kind.status, now() - i * interval '1 second',
       CASE WHEN kind.status = 'FAILED' THEN now() - i * interval '1 second' END,
       jsonb_strip_nulls(jsonb_build_object(
           'max_lag_seconds', CASE WHEN i % 7 = 0 THEN 3600 + i END,
           'target_connection', CASE WHEN i % 500 = 0 THEN 'elsewhere' END,
           'reconcile', CASE WHEN i % 500 = 1 THEN '{"interval": "1d"}'::jsonb END)),
       jsonb_build_object('team', 'team_' || i % 40), CASE WHEN i % 50 = 0 THEN 'files_' || i % 20 END,
       CASE WHEN kind.status = 'RUNNING' THEN gen_random_uuid() END, i,
       CASE WHEN kind.status = 'RUNNING' THEN now() + interval '1 hour' END,
       CASE WHEN kind.status = 'RUNNING' THEN 'database default|analytics.mart_' || i END,
       CASE WHEN kind.status = 'RUN_REQUESTED' THEN now() END, CASE WHEN kind.status = 'RUN_REQUESTED' THEN now() END,
       CASE WHEN i % 400 = 2 THEN '{"since": "2026-01-01T00:00:00+00:00"}'::jsonb END,
       now() - interval '400 days' + i * interval '10 seconds', now() - interval '100 days' + i * interval '10 seconds'
FROM generate_series(1, %(pipelines)s) AS i,
     LATERAL (SELECT CASE WHEN i % 100 = 3 THEN 'FAILED' WHEN i % 1000 = 4 THEN 'RUNNING'
                          WHEN i % 1000 = 5 THEN 'RUN_REQUESTED' WHEN i % 300 = 6 THEN 'PAUSED'
                          ELSE 'IDLE' END AS status) kind
"""

TASKS = """
INSERT INTO etl.etl_pipeline_tasks (pipeline_id, order_index, task_type, body, target_table)
SELECT p.id, n, 'SQL', 'SELECT 1', CASE WHEN n = 1 THEN p.target_table || '_' END
FROM etl.etl_pipelines p, generate_series(0, 1) AS n
WHERE p.epoch % 5 = 0
"""

STATES = """
INSERT INTO etl.etl_state (pipeline_id, epoch, safe_upto, stage)
SELECT p.id, p.epoch, CASE WHEN p.mode = 'incremental' THEN (now() - p.epoch * interval '1 second')::text END,
       CASE WHEN p.epoch % 1000 = 7 THEN 'p_' || replace(p.id::text, '-', '') || '_stage' END
FROM etl.etl_pipelines p
"""

# Over 120 days, in chronological order. A running pipeline has one more.
RUNS = """
INSERT INTO etl.etl_runs
    (pipeline_id, trigger, started_at, finished_at, status, rows_read, rows_written, batches, epoch, error_code,
     error_message, metrics, updated_at)
SELECT p.id, CASE WHEN n % 50 = 0 THEN 'manual' ELSE 'schedule' END, at, at + interval '3 seconds', kind.status,
       300, 30, 1, p.epoch, CASE WHEN kind.status = 'FAILED' THEN 'source_query_failed' END,
       CASE WHEN kind.status = 'FAILED' THEN 'the table content.film_work is locked' END,
       '{"stages": {"read": 0.02, "merge": 0.01, "publish": 0.01}, "batch_ms": {"p50": 20, "p95": 40},
         "cursor": {"key": "updated_at", "type": "timestamptz"}, "plan": {"route": "pushdown"}}'::jsonb
           || CASE WHEN other % 100 = 9 THEN '{"repair": {"rows": 3}}' ELSE '{}' END::jsonb, at
FROM generate_series(0, %(runs)s - 1) AS n
JOIN etl.etl_pipelines p ON p.epoch = n % %(pipelines)s + 1,
     LATERAL (SELECT now() - interval '120 days' + (n::float8 / %(runs)s) * interval '120 days' AS at,
                     -- Not the same for all runs of a pipeline.
                     n + 37 * (n / %(pipelines)s) AS other) placed,
     LATERAL (SELECT CASE WHEN other % 100 = 7 THEN 'FAILED' WHEN other % 1000 = 8 THEN 'CANCELLED'
                          ELSE 'SUCCESS' END AS status) kind
ORDER BY n
"""
WORK = """
INSERT INTO etl.etl_runs (pipeline_id, trigger, status, epoch)
SELECT id, 'schedule', 'RUNNING', epoch FROM etl.etl_pipelines WHERE status = 'RUNNING'
"""

CHECKS = """
INSERT INTO etl.etl_requests (kind, pipeline_id, payload, requested_by, status, result, created_at, finished_at)
SELECT 'reconcile', p.id, '{}', 'schedule', 'DONE', '{"differences": 2}', at, at
FROM etl.etl_pipelines p, LATERAL generate_series(now() - interval '5 days', now(), '1 day') AS at
WHERE p.epoch % 500 = 1
"""

LETTERS = """
INSERT INTO etl.etl_dead_letters (pipeline_id, run_id, document_id, error)
SELECT r.pipeline_id, r.id, r.id, 'refused' FROM etl.etl_runs r WHERE r.status = 'CANCELLED'
"""


def fill(admin: Connection, *, pipelines: int, runs: int) -> None:
    """Fill the tables as superuser, with event triggers disabled, and analyze them."""
    admin.execute("SET session_replication_role = replica")
    for statement in (PIPELINES, TASKS, STATES, RUNS, WORK, CHECKS, LETTERS):
        for name, value in (("pipelines", pipelines), ("runs", runs)):
            statement = statement.replace(f"%({name})s", str(value))  # noqa: PLW2901
        admin.execute(statement.encode())
        admin.execute("ANALYZE")
    admin.execute("SET session_replication_role = origin")
    admin.execute("VACUUM (ANALYZE)")
