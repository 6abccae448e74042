"""Index pipelines whose sources are searched for deleted rows."""

from alembic import op

revision = "0021"
down_revision = "0020"

STATEMENTS = """
CREATE INDEX etl_pipelines_scanned ON etl.etl_pipelines (id)
    WHERE enabled AND jsonb_typeof(options -> 'deletes' -> 'scan') = 'string';
"""


def upgrade() -> None:
    op.get_bind().connection.cursor().execute(STATEMENTS)
