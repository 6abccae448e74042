"""Add indexes for frequent queries and events for changes: tens of thousands of pipelines, millions of runs."""

from alembic import op

revision = "0016"
down_revision = "0015"

RUNS = """
CREATE INDEX etl_runs_by_status ON etl.etl_runs (status, started_at DESC, id DESC);
-- In the order in which old runs are forgotten.
CREATE INDEX etl_runs_by_end ON etl.etl_runs (finished_at, id) WHERE finished_at IS NOT NULL;
-- A run that is forgotten is looked for here.
CREATE INDEX etl_dead_letters_of_run ON etl.etl_dead_letters (run_id) WHERE run_id IS NOT NULL;
"""

# No indexed column changes with a batch or a heartbeat, so such updates stay HOT.
PIPELINES = """
CREATE INDEX etl_pipelines_claimed ON etl.etl_pipelines (claim_id) WHERE claim_id IS NOT NULL;
CREATE INDEX etl_pipelines_by_status ON etl.etl_pipelines (status, id);
CREATE INDEX etl_pipelines_by_status_since ON etl.etl_pipelines (status_since, id);
CREATE INDEX etl_pipelines_by_creation ON etl.etl_pipelines (created_at, id);
CREATE INDEX etl_pipelines_by_change ON etl.etl_pipelines (updated_at, id);
CREATE INDEX etl_pipelines_of_owner ON etl.etl_pipelines (managed_by) WHERE managed_by IS NOT NULL;
CREATE INDEX etl_pipelines_elsewhere ON etl.etl_pipelines ((lower(options ->> 'target_connection')))
    WHERE jsonb_typeof(options -> 'target_connection') = 'string';
CREATE INDEX etl_pipelines_compared ON etl.etl_pipelines (id)
    WHERE enabled AND jsonb_typeof(options -> 'reconcile') = 'object';
-- The last step may name another target than its pipeline.
CREATE INDEX etl_pipeline_tasks_by_target ON etl.etl_pipeline_tasks (target_table) WHERE target_table IS NOT NULL;
CREATE INDEX etl_state_loading ON etl.etl_state (pipeline_id) WHERE stage IS NOT NULL;
"""

OTHERS = """
CREATE INDEX etl_requests_by_end ON etl.etl_requests (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX etl_idempotency_keys_by_age ON etl.etl_idempotency_keys (created_at);
CREATE INDEX etl_notifications_of_pipeline ON etl.etl_notifications (pipeline_id, created_at DESC);
"""

# A list of very many pipelines cannot be polled for changes.
DEFINITIONS = """
CREATE FUNCTION etl.announce_definition() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    pipeline etl.etl_pipelines := CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
BEGIN
    INSERT INTO etl.etl_events (topic, payload) VALUES ('pipeline', jsonb_build_object(
        'pipeline_id', pipeline.id, 'pipeline', pipeline.name, 'version', pipeline.version,
        'state', CASE TG_OP WHEN 'DELETE' THEN 'deleted' WHEN 'INSERT' THEN 'created' ELSE 'changed' END));
    RETURN NULL;
END $$;
CREATE TRIGGER announce_definition AFTER INSERT OR DELETE ON etl.etl_pipelines
    FOR EACH ROW EXECUTE FUNCTION etl.announce_definition();
CREATE TRIGGER announce_version AFTER UPDATE OF version ON etl.etl_pipelines
    FOR EACH ROW WHEN (OLD.version IS DISTINCT FROM NEW.version) EXECUTE FUNCTION etl.announce_definition();
"""


def upgrade() -> None:
    cursor = op.get_bind().connection.cursor()
    for statements in (RUNS, PIPELINES, OTHERS, DEFINITIONS):
        cursor.execute(statements)
