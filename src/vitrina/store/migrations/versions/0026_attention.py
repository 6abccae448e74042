"""Add indexes for the pipelines that the first page of the console shows: few of a large table."""

from alembic import op

revision = "0026"
down_revision = "0025"

STATEMENTS = """
CREATE INDEX etl_pipelines_held ON etl.etl_pipelines (id) WHERE hold IS NOT NULL;
CREATE INDEX etl_pipelines_blocked ON etl.etl_pipelines (id) WHERE needs_attention <> '{}';
"""


def upgrade() -> None:
    op.get_bind().connection.cursor().execute(STATEMENTS)
