"""Store with each checkpoint what it belongs to."""

from alembic import op

revision = "0009"
down_revision = "0008"

IDENTITY = """
ALTER TABLE etl.etl_state ADD COLUMN identity jsonb NOT NULL DEFAULT '{}';
COMMENT ON COLUMN etl.etl_state.identity IS
    'what the checkpoint was taken of: database and relation of the target, columns written so far, and the like';
ALTER TABLE etl_stage.ledger ADD COLUMN IF NOT EXISTS identity jsonb NOT NULL DEFAULT '{}';
"""


def upgrade() -> None:
    op.get_bind().connection.cursor().execute(IDENTITY)
