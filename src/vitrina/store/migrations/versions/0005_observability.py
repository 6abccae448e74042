"""Store logs of runs, notifications to send, and since when a pipeline has been failing."""

from alembic import op

revision = "0005"
down_revision = "0004"

RUN_LOGS = """
CREATE TABLE etl.etl_run_logs (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id uuid NOT NULL REFERENCES etl.etl_runs ON DELETE CASCADE,
    at     timestamptz NOT NULL,
    level  text NOT NULL,
    event  text NOT NULL,
    fields jsonb NOT NULL DEFAULT '{}'
);
CREATE INDEX etl_run_logs_of_run ON etl.etl_run_logs (run_id, id);
CREATE INDEX etl_run_logs_by_age ON etl.etl_run_logs (at);

-- The latest success of a pipeline is asked for at every scrape.
CREATE INDEX etl_runs_succeeded ON etl.etl_runs (pipeline_id, finished_at DESC) WHERE status = 'SUCCESS';
"""

# Triggers, because the API, runners, recovery and operators change statuses. The message is written in the transaction
# of the change, so it is neither lost nor sent for a change that was rolled back.
NOTIFICATIONS = """
CREATE TABLE etl.etl_notifications (
    id          uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    kind        text NOT NULL CHECK (kind IN ('failed', 'recovered', 'drift')),
    pipeline_id uuid NOT NULL REFERENCES etl.etl_pipelines ON DELETE CASCADE,
    run_id      uuid,
    payload     jsonb NOT NULL DEFAULT '{}',
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    attempts    integer NOT NULL DEFAULT 0,
    next_try_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    delivered   text[] NOT NULL DEFAULT '{}',
    last_error  text,
    done_at     timestamptz
);
CREATE INDEX etl_notifications_due ON etl.etl_notifications (next_try_at) WHERE done_at IS NULL;
CREATE INDEX etl_notifications_done ON etl.etl_notifications (done_at) WHERE done_at IS NOT NULL;

ALTER TABLE etl.etl_pipelines ADD COLUMN failing_since timestamptz;
UPDATE etl.etl_pipelines SET failing_since = status_since WHERE status = 'FAILED';

CREATE FUNCTION etl.notify_of_failure() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.failing_since := coalesce(NEW.failing_since, clock_timestamp());
    INSERT INTO etl.etl_notifications (kind, pipeline_id, run_id, payload)
    VALUES ('failed', NEW.id,
            (SELECT r.id FROM etl.etl_runs r WHERE r.pipeline_id = NEW.id AND r.status = 'RUNNING'
             ORDER BY r.started_at DESC LIMIT 1),
            jsonb_build_object('error', NEW.last_error, 'failing_since', NEW.failing_since));
    RETURN NEW;
END $$;
CREATE TRIGGER notify_of_failure BEFORE UPDATE OF status ON etl.etl_pipelines
    FOR EACH ROW WHEN (NEW.status = 'FAILED' AND OLD.status <> 'FAILED') EXECUTE FUNCTION etl.notify_of_failure();

CREATE FUNCTION etl.notify_of_recovery() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    since timestamptz;
BEGIN
    SELECT failing_since INTO since FROM etl.etl_pipelines WHERE id = NEW.pipeline_id;
    IF since IS NOT NULL THEN
        UPDATE etl.etl_pipelines SET failing_since = NULL WHERE id = NEW.pipeline_id;
        INSERT INTO etl.etl_notifications (kind, pipeline_id, run_id, payload)
        VALUES ('recovered', NEW.pipeline_id, NEW.id, jsonb_build_object('failing_since', since));
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER notify_of_recovery AFTER UPDATE OF status ON etl.etl_runs
    FOR EACH ROW WHEN (NEW.status = 'SUCCESS' AND OLD.status <> 'SUCCESS') EXECUTE FUNCTION etl.notify_of_recovery();

-- A reconciliation's result says in `differences` how many rows of the mart are not as the source has them.
CREATE FUNCTION etl.notify_of_drift() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF jsonb_typeof(NEW.result -> 'differences') = 'number' AND (NEW.result ->> 'differences')::numeric > 0 THEN
        INSERT INTO etl.etl_notifications (kind, pipeline_id, payload)
        VALUES ('drift', NEW.pipeline_id, jsonb_build_object('differences', NEW.result -> 'differences'));
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER notify_of_drift AFTER UPDATE OF status ON etl.etl_requests
    FOR EACH ROW WHEN (NEW.kind = 'reconcile' AND NEW.status = 'DONE' AND OLD.status <> 'DONE'
                       AND NEW.pipeline_id IS NOT NULL)
    EXECUTE FUNCTION etl.notify_of_drift();
"""


def upgrade() -> None:
    cursor = op.get_bind().connection.cursor()
    for statements in (RUN_LOGS, NOTIFICATIONS):
        cursor.execute(statements)
