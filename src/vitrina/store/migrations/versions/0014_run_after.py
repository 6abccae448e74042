"""Store which pipelines run after others, what has arrived from them, and how old their data is."""

from alembic import op

revision = "0014"
down_revision = "0013"

RUN_AFTER = """
CREATE TABLE etl.etl_run_after (
    downstream_id   uuid NOT NULL REFERENCES etl.etl_pipelines ON DELETE CASCADE,
    upstream_id     uuid NOT NULL REFERENCES etl.etl_pipelines ON DELETE CASCADE,
    position        integer NOT NULL DEFAULT 0,
    only_if_changed boolean NOT NULL DEFAULT false,
    arrived_run_id  uuid,
    arrived_as_of   timestamptz CHECK (arrived_as_of BETWEEN '1970-01-01Z' AND '9000-01-01Z'),
    used_run_id     uuid,
    used_as_of      timestamptz CHECK (used_as_of BETWEEN '1970-01-01Z' AND '9000-01-01Z'),
    PRIMARY KEY (downstream_id, upstream_id),
    CHECK (downstream_id <> upstream_id)
);
COMMENT ON TABLE etl.etl_run_after IS 'a downstream is requested when all of its upstreams have arrived';
COMMENT ON COLUMN etl.etl_run_after.arrived_run_id IS 'newest success that the downstream has not used';
COMMENT ON COLUMN etl.etl_run_after.used_run_id IS 'no reference: runs are removed from the history when they are old';
CREATE INDEX etl_run_after_of_upstream ON etl.etl_run_after (upstream_id);
CREATE INDEX etl_run_after_arrived ON etl.etl_run_after (downstream_id) WHERE arrived_run_id IS NOT NULL;

ALTER TABLE etl.etl_runs ADD COLUMN data_as_of timestamptz;
ALTER TABLE etl.etl_runs ADD CONSTRAINT etl_runs_data_as_of_readable
    CHECK (data_as_of BETWEEN '1970-01-01Z' AND '9000-01-01Z') NOT VALID;
COMMENT ON COLUMN etl.etl_runs.data_as_of IS 'when the oldest of the runs began that it builds on; NULL: its own';
ALTER TABLE etl.etl_runs DROP CONSTRAINT etl_runs_trigger_check;
ALTER TABLE etl.etl_runs ADD CONSTRAINT etl_runs_trigger_check
    CHECK (trigger IN ('manual', 'schedule', 'api', 'recovery', 'follow-up', 'run-after')) NOT VALID;
"""


def upgrade() -> None:
    op.get_bind().connection.cursor().execute(RUN_AFTER)
