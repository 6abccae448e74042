"""Add the mode `live`, and the version of a definition that the current runner uses."""

from alembic import op

revision = "0020"
down_revision = "0019"

LIVE = """
DO $$
DECLARE
    found record;
BEGIN
    FOR found IN
        SELECT conname FROM pg_catalog.pg_constraint
        WHERE conrelid = 'etl.etl_pipelines'::pg_catalog.regclass AND contype = 'c'
          AND pg_catalog.pg_get_constraintdef(oid) LIKE '%mode = %'
    LOOP
        EXECUTE pg_catalog.format('ALTER TABLE etl.etl_pipelines DROP CONSTRAINT %I', found.conname);
    END LOOP;
END $$;
ALTER TABLE etl.etl_pipelines
    ADD CONSTRAINT etl_pipelines_mode_check CHECK (mode IN ('full', 'incremental', 'live')) NOT VALID,
    ADD CONSTRAINT etl_pipelines_cursor_check
        CHECK (mode <> 'incremental' OR incremental_key IS NOT NULL OR type = 'PYTHON') NOT VALID;
"""


def upgrade() -> None:
    op.get_bind().connection.cursor().execute(LIVE)
