"""Store how a dead letter was resolved."""

from alembic import op

revision = "0006"
down_revision = "0005"

RESOLUTIONS = """
ALTER TABLE etl.etl_dead_letters ADD COLUMN resolution text;
COMMENT ON COLUMN etl.etl_dead_letters.resolution IS
    'sent: again, and not refused; gone from the source; superseded by another reason; rebuilt by a later full load';
"""


def upgrade() -> None:
    op.get_bind().connection.cursor().execute(RESOLUTIONS)
