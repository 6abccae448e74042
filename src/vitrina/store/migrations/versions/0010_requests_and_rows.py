"""Separate backfills from other requests, record why runs exist, and set aside rows that cannot be handled."""

from alembic import op

revision = "0010"
down_revision = "0009"

REQUESTS = """
-- A backfill and a plain run may be wanted at the same time: the end of the one is no answer to the other.
ALTER TABLE etl.etl_pipelines ADD COLUMN range_requested_at timestamptz;
UPDATE etl.etl_pipelines SET range_requested_at = run_requested_at, run_requested_at = NULL
WHERE requested_range IS NOT NULL AND mode = 'incremental';
ALTER TABLE etl.etl_pipelines ADD COLUMN requested_reason text;
-- In the order in which runners take them.
DROP INDEX etl.etl_pipelines_requested;
CREATE INDEX etl_pipelines_requested ON etl.etl_pipelines
    ((least(run_requested_at, range_requested_at)) NULLS FIRST, id) WHERE status = 'RUN_REQUESTED';
-- A claim that is no run (a repair, a replay): the status that the pipeline has again when its runner is lost.
ALTER TABLE etl.etl_pipelines ADD COLUMN claim_returns text CHECK (claim_returns IN ('IDLE', 'PAUSED'));
ALTER TABLE etl.etl_runs ADD COLUMN reason text;
ALTER TABLE etl.etl_runs ADD COLUMN backfill jsonb;
ALTER TABLE etl.etl_runs DROP CONSTRAINT etl_runs_trigger_check;
ALTER TABLE etl.etl_runs ADD CONSTRAINT etl_runs_trigger_check
    CHECK (trigger IN ('manual', 'schedule', 'api', 'recovery', 'follow-up')) NOT VALID;
"""

ROWS = """
-- Why the platform leaves a row alone, by part (schedule, claim): it says so instead of failing at it again and again.
ALTER TABLE etl.etl_pipelines ADD COLUMN needs_attention jsonb NOT NULL DEFAULT '{}'
    CHECK (jsonb_typeof(needs_attention) = 'object');

-- Refuse times that no program can read, which may be written by hand, and remove existing ones.
UPDATE etl.etl_pipelines SET next_run_at = NULL
WHERE NOT next_run_at BETWEEN '1970-01-01Z' AND '9000-01-01Z';
UPDATE etl.etl_pipelines SET run_requested_at = clock_timestamp()
WHERE NOT run_requested_at BETWEEN '1970-01-01Z' AND '9000-01-01Z';
UPDATE etl.etl_pipelines SET lease_until = NULL WHERE NOT lease_until BETWEEN '1970-01-01Z' AND '9000-01-01Z';
DO $$
DECLARE
    found record;
BEGIN
    FOR found IN
        SELECT c.relname, a.attname
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
        WHERE c.relnamespace = 'etl'::regnamespace AND c.relkind = 'r' AND a.atttypid = 'timestamptz'::regtype
          AND a.attnum > 0 AND NOT a.attisdropped
    LOOP
        EXECUTE format('ALTER TABLE etl.%1$I ADD CONSTRAINT %3$I'
                       ' CHECK (%2$I BETWEEN ''1970-01-01Z'' AND ''9000-01-01Z'') NOT VALID',
                       found.relname, found.attname, found.relname || '_' || found.attname || '_readable');
    END LOOP;
END $$;
"""


def upgrade() -> None:
    cursor = op.get_bind().connection.cursor()
    for statements in (REQUESTS, ROWS):
        cursor.execute(statements)
