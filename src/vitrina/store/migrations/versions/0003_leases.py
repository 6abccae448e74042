"""Store the length of each lease, count the attempts of requests, and index requested pipelines."""

from alembic import op

revision = "0003"
down_revision = "0002"

STATEMENTS = """
-- Runners may be configured differently: whether a lease lies impossibly far ahead is judged by its own length.
ALTER TABLE etl.etl_pipelines ADD COLUMN lease_seconds double precision;

-- In the order in which runners take them: what was interrupted comes first, and has no request of its own.
DROP INDEX etl.etl_pipelines_requested;
CREATE INDEX etl_pipelines_requested ON etl.etl_pipelines (run_requested_at NULLS FIRST, id)
    WHERE status = 'RUN_REQUESTED';
CREATE INDEX etl_pipelines_undated ON etl.etl_pipelines (id)
    WHERE next_run_at IS NULL AND schedule_interval IS NOT NULL AND enabled;

-- A request that kills every runner that takes it up must end some day.
ALTER TABLE etl.etl_requests ADD COLUMN attempts integer NOT NULL DEFAULT 0;
"""


def upgrade() -> None:
    op.get_bind().connection.cursor().execute(STATEMENTS)
