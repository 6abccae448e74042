"""Store runs that a catalogue knows as begun, until their end is reported."""

from alembic import op

revision = "0008"
down_revision = "0007"

STATEMENTS = """
-- A row for each START that was sent, deleted by the runner that sends the end: one may be killed in between.
CREATE TABLE etl.etl_lineage_begun (
    run_id   uuid PRIMARY KEY REFERENCES etl.etl_runs ON DELETE CASCADE,
    begun_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
"""


def upgrade() -> None:
    op.get_bind().connection.cursor().execute(STATEMENTS)
