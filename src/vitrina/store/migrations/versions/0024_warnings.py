"""Notify the receivers of failures about checks that begin to warn, too."""

from alembic import op

revision = "0024"
down_revision = "0023"

# A warning that the previous run had already is not repeated, so a pipeline that runs every minute causes one message.
STATEMENTS = """
ALTER TABLE etl.etl_notifications DROP CONSTRAINT etl_notifications_kind_check;
ALTER TABLE etl.etl_notifications ADD CONSTRAINT etl_notifications_kind_check
    CHECK (kind IN ('failed', 'recovered', 'drift', 'warned'));

CREATE FUNCTION etl.warned_checks(metrics jsonb) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(pg_catalog.array_agg(c ->> 'name' ORDER BY c ->> 'name'), '{}')
    FROM pg_catalog.jsonb_array_elements(
        CASE pg_catalog.jsonb_typeof(metrics -> 'checks') WHEN 'array' THEN metrics -> 'checks' ELSE '[]' END) AS c
    WHERE c ->> 'result' = 'warned' AND c ->> 'name' IS NOT NULL
$$;

CREATE FUNCTION etl.notify_of_warnings() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    warned text[] := etl.warned_checks(NEW.metrics);
    known text[];
BEGIN
    IF warned = '{}' THEN
        RETURN NULL;
    END IF;
    SELECT etl.warned_checks(r.metrics) INTO known FROM etl.etl_runs r
    WHERE r.pipeline_id = NEW.pipeline_id AND r.status = 'SUCCESS' AND r.id <> NEW.id
    ORDER BY r.finished_at DESC LIMIT 1;
    IF NOT warned <@ coalesce(known, '{}') THEN
        INSERT INTO etl.etl_notifications (kind, pipeline_id, run_id, payload)
        VALUES ('warned', NEW.pipeline_id, NEW.id, jsonb_build_object('checks', to_jsonb(warned)));
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER notify_of_warnings AFTER UPDATE OF status ON etl.etl_runs
    FOR EACH ROW WHEN (NEW.status = 'SUCCESS' AND OLD.status <> 'SUCCESS' AND NEW.metrics ? 'checks')
    EXECUTE FUNCTION etl.notify_of_warnings();
"""


def upgrade() -> None:
    op.get_bind().connection.cursor().execute(STATEMENTS)
