"""Keep what a runner writes between two statuses of a pipeline out of the indexes."""

from alembic import op

revision = "0025"
down_revision = "0024"

# An update is HOT, that is without a new entry in any index, if no indexed column changes and the page has room.
PIPELINES = """
-- Heartbeats write `lease_until`. Few pipelines are running, so their leases are compared one by one.
DROP INDEX etl.etl_pipelines_active;
CREATE INDEX etl_pipelines_active ON etl.etl_pipelines (id) WHERE status IN ('RUNNING', 'PAUSE_REQUESTED');

-- A run clears its request when it begins to read. The place in the queue is written with the status instead.
ALTER TABLE etl.etl_pipelines ADD COLUMN waiting_since timestamptz;
COMMENT ON COLUMN etl.etl_pipelines.waiting_since IS
    'place among pipelines that wait for a runner: the oldest request; NULL: an interrupted run, which comes first';
UPDATE etl.etl_pipelines SET waiting_since = least(run_requested_at, range_requested_at)
WHERE status = 'RUN_REQUESTED';
DROP INDEX etl.etl_pipelines_requested;
CREATE INDEX etl_pipelines_requested ON etl.etl_pipelines (waiting_since NULLS FIRST, id)
    WHERE status = 'RUN_REQUESTED';

CREATE OR REPLACE FUNCTION etl.stamp_status() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.status_since := clock_timestamp();
    IF NEW.status = 'RUN_REQUESTED' THEN
        NEW.waiting_since := least(NEW.run_requested_at, NEW.range_requested_at);
    END IF;
    RETURN NEW;
END $$;
"""

# For pages that are written from now on. Rows of pipelines have one or two kilobytes.
ROOM = """
ALTER TABLE etl.etl_pipelines SET (fillfactor = 60);
ALTER TABLE etl.etl_state SET (fillfactor = 60);
ALTER TABLE etl.etl_runs SET (fillfactor = 90);
"""


def upgrade() -> None:
    cursor = op.get_bind().connection.cursor()
    for statements in (PIPELINES, ROOM):
        cursor.execute(statements)
