"""Add feeds: the logs of source databases, who reads them, what was stored of them, and which pipelines follow."""

from alembic import op

revision = "0019"
down_revision = "0018"

FEEDS = """
CREATE TABLE etl.etl_feeds (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    database text NOT NULL UNIQUE,
    connection text,
    slot text NOT NULL UNIQUE,
    publication text NOT NULL,
    revision bigint NOT NULL DEFAULT 0,
    timeline bigint,
    block_bytes integer NOT NULL DEFAULT 8192,
    stored_upto bigint NOT NULL DEFAULT 0,
    stored_changes bigint NOT NULL DEFAULT 0,
    stored_commit_at timestamptz,
    runner_id uuid,
    claim_id uuid,
    epoch bigint NOT NULL DEFAULT 0,
    lease_until timestamptz,
    problem text,
    problem_since timestamptz,
    figures jsonb NOT NULL DEFAULT '{}',
    measured_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);
COMMENT ON TABLE etl.etl_feeds IS 'the log of a source database, read by one runner at a time for all live pipelines';
COMMENT ON COLUMN etl.etl_feeds.database IS 'what the source says of itself: system identifier and object id';
COMMENT ON COLUMN etl.etl_feeds.connection IS 'the connection by which it was found; NULL: the default database';
COMMENT ON COLUMN etl.etl_feeds.revision IS 'grows with each change of what followers need';
COMMENT ON COLUMN etl.etl_feeds.timeline IS 'of the source when the slot was made; NULL: there is no slot yet';
COMMENT ON COLUMN etl.etl_feeds.stored_upto IS 'everything that was committed before this place in the log is stored';
COMMENT ON COLUMN etl.etl_feeds.claim_id IS 'the right of one runner to store and to confirm';

CREATE TABLE etl.etl_feed_followers (
    pipeline_id uuid PRIMARY KEY REFERENCES etl.etl_pipelines ON DELETE CASCADE,
    feed_id uuid NOT NULL REFERENCES etl.etl_feeds,
    tables jsonb NOT NULL,
    revision bigint NOT NULL,
    ready_upto bigint,
    passed_upto bigint,
    problem text,
    must_reload text,
    registered_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);
CREATE INDEX etl_feed_followers_feed_idx ON etl.etl_feed_followers (feed_id);
COMMENT ON TABLE etl.etl_feed_followers IS 'live pipelines: the tables and columns they need, and how far they are';
COMMENT ON COLUMN etl.etl_feed_followers.ready_upto IS 'from this place on all of its tables are in the log';
COMMENT ON COLUMN etl.etl_feed_followers.passed_upto IS 'changes before this place are not needed any more';
COMMENT ON COLUMN etl.etl_feed_followers.must_reload IS 'why changes are missing; such a follower holds no segments';

CREATE SEQUENCE etl.etl_feed_segment_number;
CREATE TABLE etl.etl_feed_segments (
    number bigint PRIMARY KEY,
    feed_id uuid NOT NULL REFERENCES etl.etl_feeds,
    first_lsn bigint NOT NULL,
    last_lsn bigint NOT NULL,
    changes bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);
CREATE INDEX etl_feed_segments_feed_idx ON etl.etl_feed_segments (feed_id, number);
COMMENT ON TABLE etl.etl_feed_segments IS 'tables etl.feed_segment_<number>; dropped when all have passed them';
"""


def upgrade() -> None:
    op.get_bind().connection.cursor().execute(FEEDS)
