"""Store sealed connections, and the public keys of runners with which they are sealed."""

from alembic import op

revision = "0015"
down_revision = "0014"

CONNECTIONS = """
CREATE TABLE etl.etl_connections (
    name       text PRIMARY KEY CHECK (name ~ '^[a-z0-9_]{1,63}$' AND name <> 'default'),
    key_id     text NOT NULL,
    sealed     bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_by text NOT NULL
);
COMMENT ON TABLE etl.etl_connections IS 'URLs of databases; only runners have the keys that open them';
COMMENT ON COLUMN etl.etl_connections.sealed IS 'AES-GCM; the name and the key id are authenticated with it';

ALTER TABLE etl.etl_runners ADD COLUMN sealing_keys bytea[] NOT NULL DEFAULT '{}';
COMMENT ON COLUMN etl.etl_runners.sealing_keys IS 'public halves of its VITRINA_SECRET_KEY, the one to use first';
"""


def upgrade() -> None:
    op.get_bind().connection.cursor().execute(CONNECTIONS)
