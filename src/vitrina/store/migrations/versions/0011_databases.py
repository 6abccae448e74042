"""Record which connection names are one database. From now on a target is held by its database, not by its name."""

from alembic import op

revision = "0011"
down_revision = "0010"

DATABASES = """
CREATE TABLE etl.etl_databases (
    connection text PRIMARY KEY,
    database   text NOT NULL,
    identity   text NOT NULL,
    started_at timestamptz,
    seen_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON COLUMN etl.etl_databases.database IS 'the name that stands for it: the same for names of one database';
COMMENT ON COLUMN etl.etl_databases.identity IS 'system identifier and oid, which a restored copy has as well';
COMMENT ON COLUMN etl.etl_databases.started_at IS 'when its server was started; NULL: to be looked at again';

-- Checkpoints of marts in other databases are copies of the ledger there.
UPDATE etl.etl_state s SET identity = s.identity || '{"mirror_of": "unknown"}'
FROM etl.etl_pipelines p
WHERE p.id = s.pipeline_id AND s.claim_id IS NOT NULL
  AND coalesce(lower(p.options ->> 'target_connection'), 'default') <> 'default';

-- A runner of an earlier version holds targets by name, and would not see who holds them now: it gets no claim.
-- Rows that it holds already keep what they have; it loses them with its next heartbeat.
ALTER TABLE etl.etl_pipelines ADD CONSTRAINT etl_pipelines_target_of_database
    CHECK (holds_target LIKE 'database %') NOT VALID;
"""


def upgrade() -> None:
    op.get_bind().connection.cursor().execute(DATABASES)
