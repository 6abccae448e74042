"""Add plans: what a definition would change in its target, who viewed it, and who applied it."""

from alembic import op

revision = "0023"
down_revision = "0022"

STATEMENTS = """
CREATE TABLE etl.etl_plans (
    id uuid PRIMARY KEY,
    pipeline_id uuid REFERENCES etl.etl_pipelines ON DELETE SET NULL,
    pipeline text NOT NULL,
    fingerprint text NOT NULL,
    base_version integer,
    result jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by text NOT NULL,
    applied_at timestamptz,
    applied_by text,
    applied_version integer
);
CREATE INDEX etl_plans_pipeline_idx ON etl.etl_plans (pipeline_id, created_at DESC);
COMMENT ON TABLE etl.etl_plans IS 'what a definition would change in its target, found out before it is applied';
COMMENT ON COLUMN etl.etl_plans.id IS 'of the request that asked for it';
COMMENT ON COLUMN etl.etl_plans.pipeline_id IS 'NULL: there was no such pipeline yet, or it was deleted';
COMMENT ON COLUMN etl.etl_plans.fingerprint IS 'of the definition that was looked at';
COMMENT ON COLUMN etl.etl_plans.base_version IS 'of the pipeline when it was looked at; NULL: there was none';
"""


def upgrade() -> None:
    op.get_bind().connection.cursor().execute(STATEMENTS)
