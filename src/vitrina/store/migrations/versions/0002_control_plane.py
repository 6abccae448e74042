"""Add labels of pipelines, events by run, and a run's start by the wall clock."""

from alembic import op

revision = "0002"
down_revision = "0001"

STATEMENTS = """
ALTER TABLE etl.etl_pipelines ADD COLUMN labels jsonb NOT NULL DEFAULT '{}';
CREATE INDEX etl_pipelines_by_target ON etl.etl_pipelines (target_table);

-- now() is when the claim's transaction began, which may be before the request that it answers: such a run would
-- look older than the request, and another one would follow it.
ALTER TABLE etl.etl_runs ALTER COLUMN started_at SET DEFAULT clock_timestamp();

CREATE INDEX etl_events_of_run ON etl.etl_events ((payload ->> 'run_id'), id) WHERE payload ? 'run_id';
"""


def upgrade() -> None:
    op.get_bind().connection.cursor().execute(STATEMENTS)
