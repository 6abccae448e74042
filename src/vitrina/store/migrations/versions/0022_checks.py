"""Add checks to pipelines; the next requested run may accept that some of them fail."""

from alembic import op

revision = "0022"
down_revision = "0021"

STATEMENTS = """
ALTER TABLE etl.etl_pipelines
    ADD COLUMN checks jsonb NOT NULL DEFAULT '[]',
    ADD COLUMN accepted_checks jsonb;
"""


def upgrade() -> None:
    op.get_bind().connection.cursor().execute(STATEMENTS)
