"""Write events when runs and runners start and end."""

from alembic import op

revision = "0004"
down_revision = "0003"

# A trigger, like that of the status, so that listeners are notified if an operator ends a run with psql, too.
STATEMENTS = """
CREATE FUNCTION etl.announce_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO etl.etl_events (topic, payload)
    SELECT 'run', jsonb_strip_nulls(jsonb_build_object(
        'run_id', NEW.id, 'pipeline_id', NEW.pipeline_id, 'pipeline', p.name, 'status', NEW.status,
        'trigger', NEW.trigger, 'runner_id', NEW.runner_id, 'rows_read', NEW.rows_read,
        'rows_written', NEW.rows_written, 'rows_deleted', NEW.rows_deleted, 'rows_rejected', NEW.rows_rejected,
        'batches', NEW.batches, 'attempts', NEW.attempts, 'error_code', NEW.error_code,
        'error_message', NEW.error_message,
        'seconds', round(extract(epoch FROM NEW.finished_at - NEW.started_at), 3)))
    FROM etl.etl_pipelines p WHERE p.id = NEW.pipeline_id;
    RETURN NULL;
END $$;
CREATE TRIGGER announce_start AFTER INSERT ON etl.etl_runs FOR EACH ROW EXECUTE FUNCTION etl.announce_run();
CREATE TRIGGER announce_end AFTER UPDATE OF status ON etl.etl_runs
    FOR EACH ROW WHEN (OLD.status IS DISTINCT FROM NEW.status) EXECUTE FUNCTION etl.announce_run();

CREATE FUNCTION etl.announce_runner() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    runner etl.etl_runners := CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
BEGIN
    INSERT INTO etl.etl_events (topic, payload) VALUES ('runner', jsonb_build_object(
        'runner_id', runner.id, 'host', runner.host, 'pid', runner.pid,
        'state', CASE TG_OP WHEN 'DELETE' THEN 'gone' ELSE 'started' END));
    RETURN NULL;
END $$;
CREATE TRIGGER announce_runner AFTER INSERT OR DELETE ON etl.etl_runners
    FOR EACH ROW EXECUTE FUNCTION etl.announce_runner();
"""


def upgrade() -> None:
    op.get_bind().connection.cursor().execute(STATEMENTS)
