"""Record which request a run answers, and the attempts and next attempt of a message for each receiver."""

from alembic import op

revision = "0013"
down_revision = "0012"

ANSWERS = """
ALTER TABLE etl.etl_runs ADD COLUMN answers_request timestamptz;
COMMENT ON COLUMN etl.etl_runs.answers_request IS
    'run_requested_at or range_requested_at of the request that it answers; NULL: it goes on with what others began';
"""

DELIVERIES = """
CREATE TABLE etl.etl_deliveries (
    notification_id uuid NOT NULL REFERENCES etl.etl_notifications ON DELETE CASCADE,
    channel         text NOT NULL,
    attempts        integer NOT NULL DEFAULT 0,
    next_try_at     timestamptz NOT NULL,
    last_error      text,
    ended_at        timestamptz,
    PRIMARY KEY (notification_id, channel)
);
COMMENT ON TABLE etl.etl_deliveries IS 'a message on its way to one receiver; no row: not tried there yet';
COMMENT ON COLUMN etl.etl_deliveries.ended_at IS 'delivered or given up';
"""


def upgrade() -> None:
    cursor = op.get_bind().connection.cursor()
    for statements in (ANSWERS, DELIVERIES):
        cursor.execute(statements)
