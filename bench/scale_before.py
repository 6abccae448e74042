"""Hold the statements from before the indexes of migration 0016, for comparison in `bench.scale`."""

PRUNE = """
DELETE FROM etl.etl_runs r
WHERE r.finished_at < now() - make_interval(days => %(days)s)
  AND EXISTS (SELECT FROM etl.etl_runs n WHERE n.pipeline_id = r.pipeline_id AND n.started_at > r.started_at)
  AND (r.status <> 'SUCCESS' OR r.metrics ?| '{repair,replay}'
       OR EXISTS (SELECT FROM etl.etl_runs n
                  WHERE n.pipeline_id = r.pipeline_id AND n.status = 'SUCCESS'
                    AND n.finished_at > r.finished_at AND NOT n.metrics ?| '{repair,replay}'))
"""

RUNS_BY_STATUS = """
SELECT r.*, p.name AS pipeline,
       extract(epoch FROM coalesce(r.finished_at, clock_timestamp()) - r.started_at)::float8 AS seconds
FROM etl.etl_runs r JOIN etl.etl_pipelines p ON p.id = r.pipeline_id
WHERE (%(pipeline)s::uuid IS NULL OR r.pipeline_id = %(pipeline)s)
  AND (%(status)s::text[] = '{}' OR r.status = ANY(%(status)s))
  AND (%(after_id)s::uuid IS NULL OR (r.started_at, r.id) < (%(after_at)s::timestamptz, %(after_id)s))
ORDER BY r.started_at DESC, r.id DESC
LIMIT %(limit)s
"""

WRITERS_OF_A_TARGET = """
SELECT p.id, p.name, p.mode, p.options ->> 'target_connection' AS target_connection,
       coalesce((p.options ->> 'shared_target')::boolean, false) AS shared
FROM etl.etl_pipelines p
WHERE coalesce((SELECT t.target_table FROM etl.etl_pipeline_tasks t
                WHERE t.pipeline_id = p.id ORDER BY t.order_index DESC LIMIT 1), p.target_table) = %(target)s
  AND coalesce((SELECT d.database FROM etl.etl_databases d
                WHERE d.connection = lower(p.options ->> 'target_connection')),
               lower(p.options ->> 'target_connection'), 'default') = 'default'
ORDER BY p.name
"""

FIGURES = """
SELECT p.name, p.status, p.enabled, p.mode, p.options,
       extract(epoch FROM clock_timestamp())::float8 AS now,
       extract(epoch FROM p.status_since)::float8 AS status_since,
       extract(epoch FROM p.failing_since)::float8 AS failing_since,
       s.safe_upto, p.hold,
       extract(epoch FROM least(done.started_at, done.data_as_of))::float8 AS success_started,
       extract(epoch FROM done.finished_at)::float8 AS success_finished,
       extract(epoch FROM clock_timestamp() - work.updated_at)::float8 AS progress_age,
       failed.error_code, coalesce(letters.open, 0) AS dead_letters, checked.result
FROM etl.etl_pipelines p
LEFT JOIN etl.etl_state s ON s.pipeline_id = p.id
LEFT JOIN LATERAL (SELECT started_at, finished_at, data_as_of FROM etl.etl_runs
                   WHERE pipeline_id = p.id AND status = 'SUCCESS' AND NOT metrics ?| '{repair,replay}'
                   ORDER BY finished_at DESC LIMIT 1) done ON true
LEFT JOIN LATERAL (SELECT updated_at FROM etl.etl_runs
                   WHERE pipeline_id = p.id AND status = 'RUNNING' AND p.status IN ('RUNNING', 'PAUSE_REQUESTED')
                   ORDER BY started_at DESC LIMIT 1) work ON true
LEFT JOIN LATERAL (SELECT error_code FROM etl.etl_runs
                   WHERE pipeline_id = p.id AND p.status = 'FAILED'
                   ORDER BY started_at DESC, id DESC LIMIT 1) failed ON true
LEFT JOIN LATERAL (SELECT result FROM etl.etl_requests
                   WHERE pipeline_id = p.id AND kind = 'reconcile' AND status = 'DONE'
                   ORDER BY created_at DESC LIMIT 1) checked ON true
LEFT JOIN (SELECT pipeline_id, count(*) AS open FROM etl.etl_dead_letters
           WHERE resolved_at IS NULL GROUP BY 1) letters ON letters.pipeline_id = p.id
ORDER BY p.created_at, p.id
"""
