"""Record generations of search indexes that no checkpoint names any more: their index may have to be removed."""

from alembic import op

revision = "0012"
down_revision = "0011"

LEFT_GENERATIONS = """
CREATE TABLE etl.etl_left_generations (
    generation  text PRIMARY KEY,
    pipeline_id uuid NOT NULL,
    left_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE etl.etl_left_generations IS 'generations that a checkpoint named, until somebody has looked at them';
COMMENT ON COLUMN etl.etl_left_generations.pipeline_id IS 'no reference: the pipeline may be gone';

CREATE FUNCTION etl.note_left_generation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO etl.etl_left_generations (generation, pipeline_id) VALUES (OLD.stage, OLD.pipeline_id)
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;

-- Stages that are tables have names of this form; housekeeping finds those by itself.
CREATE TRIGGER note_left_generation AFTER UPDATE OF stage ON etl.etl_state FOR EACH ROW
    WHEN (OLD.stage IS DISTINCT FROM NEW.stage AND OLD.stage !~ '^p_[0-9a-f]{32}_')
    EXECUTE FUNCTION etl.note_left_generation();
CREATE TRIGGER note_deleted_generation AFTER DELETE ON etl.etl_state FOR EACH ROW
    WHEN (OLD.stage !~ '^p_[0-9a-f]{32}_')
    EXECUTE FUNCTION etl.note_left_generation();
"""


def upgrade() -> None:
    op.get_bind().connection.cursor().execute(LEFT_GENERATIONS)
