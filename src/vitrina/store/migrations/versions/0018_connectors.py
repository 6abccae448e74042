"""Store what each runner covers, tables as sources, and the scheme of each stored connection."""

from alembic import op

revision = "0018"
down_revision = "0017"

CONNECTORS = """
ALTER TABLE etl.etl_pipelines ADD COLUMN source_table text;
COMMENT ON COLUMN etl.etl_pipelines.source_table IS 'read whole, instead of source_query';

ALTER TABLE etl.etl_runners ADD COLUMN connectors jsonb NOT NULL DEFAULT '[]',
                            ADD COLUMN covers text[] NOT NULL DEFAULT '{}';
COMMENT ON COLUMN etl.etl_runners.connectors IS 'the connectors it has, as they describe themselves';
COMMENT ON COLUMN etl.etl_runners.covers IS 'what it can do: source:<type>, target:<prefix>, step:<name>';

ALTER TABLE etl.etl_connections ADD COLUMN scheme text NOT NULL DEFAULT 'postgresql';
COMMENT ON COLUMN etl.etl_connections.scheme IS 'of its URL: the only part of it that is no secret';
"""


def upgrade() -> None:
    op.get_bind().connection.cursor().execute(CONNECTORS)
